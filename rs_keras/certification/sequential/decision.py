"""Group-sequential decisions: whether a radius is certified, with few draws.

Votes are counted in stages. After each stage, a stopping rule determines for
every image how many radii are certified, and whether the others can be given
up; only undecided images continue. The rules are functions of tensors:
`decide_in_graph` puts them around a sampler in one graph that can be exported,
`decide_on_host` applies them between calls that are short enough to be stopped.
"""

from collections.abc import Callable
from collections.abc import Generator
from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import field
from typing import Any

import numpy as np
import tensorflow as tf

from rs_keras.certification.certificate import ABSTAIN
from rs_keras.certification.certificate import STATEMENTS
from rs_keras.certification.certificate import confidence_of
from rs_keras.certification.certificate import guarantee
from rs_keras.certification.sequential.boundaries import Tables
from rs_keras.certification.sequential.boundaries import one_count
from rs_keras.certification.sequential.boundaries import two_counts
from rs_keras.certification.sequential.stopping_rules import Stage
from rs_keras.certification.sequential.stopping_rules import one_count_rule
from rs_keras.certification.sequential.stopping_rules import two_count_rule
from rs_keras.certification.spec import DecideSpec
from rs_keras.certification.spec import SmoothingSpec


@dataclass(frozen=True)
class Decision:
    """Which images keep their label within a radius that was asked for.

    Attributes:
        certified: bool [B], whether the (smallest) radius is certified.
        label: int64 [B]; -1 where it is not.
        n: int64 [B], all samples drawn.
        radius: float64 [B], the largest radius asked for that is certified,
            L2, in pixel units; 0 where none is.
        counts: int64 [B, C], the votes that decided.
        seed: int64 [B, 2]; the same seed gives the same decision again.
        settings: What the guarantee rests on: sigma, alpha, radii, n_max, n0
            (draws that fix the class, 0 where they need not), runner_up,
            noise.

    Example:

    >>> import numpy as np
    >>> from rs_keras import Certifier
    >>> certifier = Certifier(lambda x: x[:, 0, 0, :2] - 0.5, sigma=0.5)
    >>> images = np.array([[1.0, 0.0], [0.5, 0.5]]).reshape(2, 1, 1, 2)
    >>> decision = certifier.decide(images, [0.25, 0.5, 1.0], seed=7)
    >>> decision.certified
    array([ True, False])
    >>> decision.radius
    array([0.5, 0. ])
    >>> decision.sentence(0)
    'class 0; no change of the image smaller than 0.5 in L2 can alter this, ...'
    >>> decision.statement()
    'For each image by itself, with probability at least 0.999 over ...'
    """

    certified: np.ndarray
    label: np.ndarray
    n: np.ndarray
    radius: np.ndarray
    counts: np.ndarray
    seed: np.ndarray
    settings: Mapping[str, Any] = field(default_factory=dict)

    def sentence(self, row: int = 0) -> str:
        """Describes the decision for one image in words."""
        certified = bool(self.certified[row])
        radius = self.radius[row] if certified else min(self.settings["radii"])
        texts = STATEMENTS["decision"]
        return texts["certified" if certified else "open"].format(
            label=self.label[row],
            radius=float(radius),
            n=self.n[row],
            confidence=confidence_of(self.settings["alpha"]),
        )

    def statement(self) -> str:
        """Describes the guarantee and its conditions in words."""
        return guarantee(self.settings, STATEMENTS["decision"]["claim"])


def decision_tables(spec: DecideSpec, smoothing: SmoothingSpec) -> Tables:
    """Returns the stages and boundaries of a decision; computed once and kept.

    Raises:
        ValueError: As of `DecideSpec.check`.
    """
    spec.check(smoothing)
    distance = smoothing.distance
    test = spec.alpha, spec.n_max, spec.n0
    if spec.runner_up:
        return two_counts(spec.radii, *test, distance)
    return one_count(spec.radii, smoothing.sigma, *test, distance)


def decision_settings(
    spec: DecideSpec, smoothing: SmoothingSpec, tables: Tables
) -> dict[str, Any]:
    """Returns the settings of a decision with these tables."""
    return {
        "radii": tables.radii.tolist(),
        "n0": tables.selection,
        "n_max": spec.n_max,
        "alpha": spec.alpha,
        "runner_up": spec.runner_up,
        **smoothing.settings(),
    }


# Traced once each, for all numbers of images, classes and radii. They are made
# of graph operations already: AutoGraph would take a second to find that out.
_INTS = tf.TensorSpec([None], tf.int64)
_VOTES = tf.TensorSpec([None, None], tf.int64), _INTS, _INTS
_NUMBER = tf.TensorSpec([], tf.float64)
_RADII = tf.TensorSpec([None], tf.float64)
TRACED_RULES = (
    tf.function(one_count_rule, [*_VOTES, _INTS, _INTS], autograph=False),
    tf.function(
        two_count_rule,
        [
            *_VOTES,
            Stage(tf.TensorSpec([], tf.int64), _NUMBER, _NUMBER),
            _RADII,
            _NUMBER,
            _NUMBER,
        ],
        autograph=False,
    ),
)


def _rule_at(
    stage: tf.Tensor | int,
    tables: Tables,
    sigma: float,
    radii: tf.Tensor,
    rules: tuple[Callable[..., tuple], ...] = (one_count_rule, two_count_rule),
) -> Callable[..., tuple]:
    """The stopping rule of a stage: a function of counts, label, accepted."""
    one_count, two_count = rules
    if tables.levels is None:
        limits = [tf.constant(tables.upper), tf.constant(tables.lower)]
        return lambda *votes: one_count(*votes, *[row[stage] for row in limits])
    return lambda *votes: two_count(
        *votes,
        stage=Stage(
            tf.constant(tables.stages)[stage],
            tf.constant(tables.levels)[stage],
            tf.constant(tables.futility)[stage],
        ),
        radii=radii,
        sigma=tf.constant(sigma, tf.float64),
        distance=tf.constant(tables.distance, tf.float64),
    )


def decide_on_host(
    draw: Callable[[np.ndarray, int, int], np.ndarray],
    rows: int,
    tables: Tables,
    sigma: float,
) -> dict[str, np.ndarray]:
    """Decides with votes from `draw`, stage by stage.

    Args:
        draw: From (rows int64 [b], first, n) to int64 [b, C]: the votes of
            draws first .. first+n-1 of these rows.
        rows: How many images there are.
        tables: See `rs_keras.certification.sequential`.
        sigma: Of the noise.

    Returns:
        As `decide_in_graph`.
    """
    steps = decision_steps(rows, tables, sigma)
    request = next(steps)
    while True:
        try:
            request = steps.send(draw(*request))
        except StopIteration as stop:
            return stop.value


def decision_steps(
    rows: int, tables: Tables, sigma: float
) -> Generator[tuple[np.ndarray, int, int], np.ndarray, dict[str, np.ndarray]]:
    """Decides with votes that the caller draws, locally or on a server.

    Yields the arguments of `draw` in `decide_on_host`, receives its result, and
    returns the result of `decide_on_host`.
    """
    radii = tf.constant(tables.radii)
    active = np.arange(rows)
    label = np.full(rows, ABSTAIN, np.int64)
    accepted, drawn = np.zeros([2, rows], np.int64)
    counts = np.zeros(0)
    if tables.selection:
        votes = yield active, 0, tables.selection
        label = votes.argmax(-1)
    done = 0
    for stage, n in enumerate(tables.stages.tolist()):
        votes = yield active, tables.selection + done, n - done
        if not stage:
            counts = np.zeros([rows, votes.shape[-1]], np.int64)
        counts[active] += votes
        done = n
        drawn[active] = tables.selection + done
        rule = _rule_at(stage, tables, sigma, radii, TRACED_RULES)
        label[active], accepted[active], decided = rule(
            counts[active], label[active], accepted[active]
        )
        active = active[~decided.numpy()]
        if not len(active):
            break
    outcome = _outcome(label, accepted, drawn, counts, radii)
    return {name: value.numpy() for name, value in outcome.items()}


def decide_in_graph(
    sampler: Any,
    images: tf.Tensor,
    seeds: tf.Tensor,
    tables: Tables,
    radius: tf.Tensor | None = None,
) -> dict[str, tf.Tensor]:
    """Decides in one graph of TensorFlow operations.

    Args:
        sampler: A `Sampler`, or anything with its `count`, `sigma` and
            `num_classes`.
        images: float32 [B, H, W, C].
        seeds: int64 [B, 2].
        tables: Become constants of the graph.
        radius: float64 [B], >= 0: one for each image, in place of those of
            `tables`, which must be of two counts (the shares of alpha that
            these hold are good for any radius).

    Returns:
        certified bool [B], label int64 [B], radius float64 [B], n int64 [B]
        and counts int64 [B, C].

    Raises:
        ValueError: If there is a `radius` and the tables are of one count.
    """
    if radius is not None and tables.levels is None:
        raise ValueError(
            "`tables` must be of two counts where images have a `radius` each. "
            "Received: tables of one count"
        )
    batch = tf.shape(images)[0]
    # Radii [B, J], increasing in each row.
    table_radii = tf.constant(tables.radii)[None]
    radii = (
        tf.repeat(table_radii, batch, 0) if radius is None else radius[:, None]
    )
    stages = tf.constant(tables.stages)
    selection = tf.constant(tables.selection, tf.int64)
    zeros = tf.zeros([batch], tf.int64)
    label = zeros + ABSTAIN
    if tables.selection:
        votes = sampler.count(images, seeds, zeros, zeros + selection)
        label = tf.argmax(votes, -1)

    def step(
        stage: tf.Tensor, active: tf.Tensor, *state: tf.Tensor
    ) -> tuple[tf.Tensor, ...]:
        counts, label, accepted, drawn = state
        n = stages[stage]
        before = tf.where(stage > 0, stages[tf.maximum(stage - 1, 0)], 0)
        # More draws of the images that are active: int64 [b] of B.
        each = tf.zeros_like(active)
        votes = sampler.count(
            tf.gather(images, active),
            tf.gather(seeds, active),
            each + selection + before,
            each + n - before,
        )
        at = active[:, None]
        counts = tf.tensor_scatter_nd_add(counts, at, votes)
        rule = _rule_at(stage, tables, sampler.sigma, tf.gather(radii, active))
        *reached, decided = rule(
            *(tf.gather(value, active) for value in (counts, label, accepted))
        )
        label, accepted, drawn = (
            tf.tensor_scatter_nd_update(old, at, new)
            for old, new in zip(
                (label, accepted, drawn),
                (*reached, each + selection + n),
                strict=True,
            )
        )
        active = tf.boolean_mask(active, ~decided)
        return stage + 1, active, counts, label, accepted, drawn

    _, _, counts, label, accepted, drawn = tf.while_loop(
        lambda stage, active, *_: (
            (stage < tf.size(stages)) & (tf.size(active) > 0)
        ),
        step,
        (
            0,
            tf.range(tf.cast(batch, tf.int64)),
            tf.zeros([batch, sampler.num_classes], tf.int64),
            label,
            zeros,
            zeros + selection,
        ),
        shape_invariants=(
            tf.TensorShape([]),
            tf.TensorShape([None]),
            tf.TensorShape([None, sampler.num_classes]),
            *[tf.TensorShape([None])] * 3,
        ),
        parallel_iterations=1,
    )
    return _outcome(label, accepted, drawn, counts, radii)


def _outcome(
    label: Any, accepted: Any, drawn: Any, counts: Any, radii: tf.Tensor
) -> dict[str, tf.Tensor]:
    accepted = tf.convert_to_tensor(accepted)
    certified = accepted > 0
    radii = tf.broadcast_to(
        radii, [tf.size(accepted, tf.int32), tf.shape(radii)[-1]]
    )
    last = tf.gather(radii, tf.maximum(accepted - 1, 0), batch_dims=1)
    return {
        "certified": certified,
        "label": tf.where(certified, label, tf.constant(ABSTAIN, tf.int64)),
        "radius": tf.where(certified, last, tf.zeros_like(last)),
        "n": tf.convert_to_tensor(drawn),
        "counts": tf.convert_to_tensor(counts),
    }
