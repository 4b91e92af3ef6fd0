"""Certified and empirical robustness, from logs of the same images.

A certification log bounds the robust accuracy of the smoothed classifier from
below, and the log of an attack from above: between the two curves lies what
neither decides.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rs_keras._checks import check_choice
from rs_keras.logs.comparison import check_equal
from rs_keras.logs.file_format import EXAMPLE
from rs_keras.logs.file_format import first_few
from rs_keras.logs.log import CertificationLog
from rs_keras.logs.log import count_examples
from rs_keras.logs.rules import ATTACK

# How an abstention counts: as robust, which makes the curve an upper bound, or
# as an error, as in the literature.
ABSTENTIONS = ("robust", "error")


def is_attack(log: CertificationLog) -> bool:
    """Whether a log is one of `rs_keras.attacks.attack_dataset`.

    Example:

    >>> from rs_keras import CertificationLog
    >>> from rs_keras.logs import is_attack
    >>> log = CertificationLog([0], [1], [1], [0.5], [1], [1.0])
    >>> is_attack(log)
    False
    """
    return getattr(log, "scope", None) == ATTACK


def robust_accuracy(
    log: CertificationLog,
    radii: Sequence[float] | np.ndarray | float,
    abstentions: str = "robust",
) -> np.ndarray:
    """The share of examples for which an attack found nothing below a radius.

    With "robust" it is an upper bound on the robust accuracy of the smoothed
    classifier: an example counts unless another class than its label was
    predicted at a smaller distance (each prediction errs with probability
    alpha). With "error" it counts only if the prediction is the label at the
    image and no abstention was found either, as Cohen et al. and Salman et al.
    count.

    Args:
        log: Of an attack.
        radii: Radii r, >= 0. Above the largest that was tried, the share stays
            what it is there.
        abstentions: "robust" or "error".

    Returns:
        float64, the shape of `radii`.

    Raises:
        ValueError: If the log is not of an attack, or is empty, or an argument
            is out of its range.

    Example:

    >>> from rs_keras import CertificationLog
    >>> from rs_keras.logs import robust_accuracy
    >>> log = CertificationLog(
    ...     idx=[0, 1, 2], label=[1, 1, 1], predict=[1, 1, -1],
    ...     radius=[0.5, 1.0, 0.0], correct=[1, 1, 0], time=[1.0] * 3,
    ...     settings={"scope": "attack", "attack_radii": [1.0]},
    ...     extra={"adversarial_norm": [0.5, float("inf"), 0.25],
    ...            "abstain_norm": [0.375, 0.75, 0.0]})
    >>> robust_accuracy(log, [0.25, 0.75]).round(3)
    array([1.   , 0.333])
    >>> robust_accuracy(log, [0.25, 0.75], abstentions="error").round(3)
    array([0.667, 0.333])

    References:
    - [Salman et al., 2019](https://arxiv.org/abs/1906.04584)
    """
    check_choice("abstentions", abstentions, ABSTENTIONS)
    radii = np.asarray(radii, np.float64)
    if not (np.isfinite(radii) & (radii >= 0)).all():
        raise ValueError(
            f"`radii` must be >= 0 and finite. Received: radii={radii}"
        )
    norms = _norms(log, abstentions)
    # The norm 0 is that of an example that is wrong without a perturbation.
    reached = np.sort(norms[norms > 0])
    below = np.searchsorted(reached, radii, side="left")
    return (len(reached) - below) / count_examples(log)


def _norms(log: CertificationLog, abstentions: str) -> np.ndarray:
    column = "adversarial_norm" if abstentions == "robust" else "abstain_norm"
    if not is_attack(log) or column not in log.extra:
        raise ValueError(
            f"`log` must be of an attack, with the column {column}. "
            f"Received: {log.name}"
        )
    return np.asarray(log.extra[column], np.float64)


def largest_tried(log: CertificationLog) -> float:
    """Returns the largest radius of an attack's log.

    Example:

    >>> from rs_keras import CertificationLog
    >>> from rs_keras.logs.robustness import largest_tried
    >>> settings = {"scope": "attack", "attack_radii": [0.5, 1.0]}
    >>> largest_tried(
    ...     CertificationLog([], [], [], [], [], [], settings=settings))
    1.0
    """
    return float(max(log.settings["attack_radii"]))


@dataclass(frozen=True)
class RobustnessGap:
    """Certified and empirical robust accuracy of the same examples.

    Attributes:
        names: Of the two logs.
        radii: float64 [R].
        certified: float64 [R], certified accuracy: a lower bound.
        empirical: float64 [R], robust accuracy under the attack: an upper
            bound, abstentions are no success of the attack.
        with_abstentions: float64 [R], where abstentions count as errors.
        examples: How many.
        broken: Numbers of the examples whose label is certified within a
            radius larger than the norm of an adversarial perturbation. Each is
            an error of a certificate or of a prediction: expected for at most
            the sum of their alphas, of all examples.

    Example:

    >>> import numpy as np
    >>> from rs_keras.logs import RobustnessGap
    >>> gap = RobustnessGap(
    ...     ("certified", "pgd"), np.array([0.5]), np.array([0.75]),
    ...     np.array([0.875]), np.array([0.875]), 8, np.array([], int))
    >>> gap.gap
    array([0.125])
    """

    names: tuple[str, str]
    radii: np.ndarray
    certified: np.ndarray
    empirical: np.ndarray
    with_abstentions: np.ndarray
    examples: int
    broken: np.ndarray

    @property
    def gap(self) -> np.ndarray:
        """float64 [R], empirical - certified: what is undecided."""
        return self.empirical - self.certified


def robustness_gap(
    certified: CertificationLog,
    attacked: CertificationLog,
    radii: Sequence[float] | np.ndarray | float,
) -> RobustnessGap:
    """Compares a certification log with the log of an attack.

    On the examples of the attack, which the certification log must hold, too;
    it may hold more.

    Args:
        certified: A certification log.
        attacked: The log of an attack on the same classifier.
        radii: Radii, >= 0.

    Raises:
        ValueError: If the logs differ in sigma, data set, weights or labels, or
            the certification log lacks examples (says which).

    Example:

    >>> from rs_keras import CertificationLog
    >>> from rs_keras.logs import robustness_gap
    >>> certified = CertificationLog(
    ...     [0, 1], [1, 1], [1, 1], [0.25, 0.5], [1, 1], [1.0, 1.0])
    >>> attacked = CertificationLog(
    ...     [0, 1], [1, 1], [1, 1], [0.375, 1.0], [1, 1], [1.0, 1.0],
    ...     settings={"scope": "attack", "attack_radii": [1.0]},
    ...     extra={"adversarial_norm": [0.375, float("inf")],
    ...            "abstain_norm": [0.375, float("inf")]})
    >>> found = robustness_gap(certified, attacked, [0.25, 0.5, 0.75])
    >>> found.certified, found.empirical, len(found.broken)
    (array([1. , 0.5, 0. ]), array([1. , 0.5, 0.5]), 0)
    """
    certified = on_examples_of(attacked, certified)
    radii = np.atleast_1d(np.asarray(radii, np.float64))
    norms = _norms(attacked, "robust")
    # Both are in the order of the attack's examples.
    inside = certified.correct & (norms < certified.radius)
    return RobustnessGap(
        names=(certified.name, attacked.name),
        radii=radii,
        certified=certified.certified_accuracy(radii),
        empirical=robust_accuracy(attacked, radii),
        with_abstentions=robust_accuracy(attacked, radii, "error"),
        examples=len(attacked),
        broken=attacked.idx[inside],
    )


def pairs(
    logs: Sequence[CertificationLog],
) -> list[tuple[CertificationLog, CertificationLog]]:
    """Returns every (certification log, attack log) that can be compared.

    Raises:
        ValueError: If there is an attack that none of the certification logs
            belongs to; says why the last does not.

    Example:

    >>> from rs_keras import CertificationLog
    >>> from rs_keras.logs.robustness import pairs
    >>> def log(name, **settings):
    ...     return CertificationLog(
    ...         [0], [1], [1], [1.0], [1], [1.0], name=name, settings=settings)
    >>> attacked = log("pgd", scope="attack", sigma=0.5, attack_radii=[1.0])
    >>> found = pairs([log("a", sigma=0.5), log("b", sigma=1.0), attacked])
    >>> [(one.name, other.name) for one, other in found]
    [('a', 'pgd')]
    """
    certified = [log for log in logs if not is_attack(log)]
    found: list[tuple[CertificationLog, CertificationLog]] = []
    for attacked in filter(is_attack, logs):
        before, error = len(found), None
        for log in certified:
            try:
                on_examples_of(attacked, log)
            except ValueError as reason:
                error = reason
            else:
                found.append((log, attacked))
        if len(found) == before and error is not None:
            raise error
    return found


def on_examples_of(
    attacked: CertificationLog, certified: CertificationLog
) -> CertificationLog:
    """Returns the certificates of an attack's examples, in its order.

    Raises:
        ValueError: See `robustness_gap`.

    Example:

    >>> from rs_keras import CertificationLog
    >>> from rs_keras.logs.robustness import on_examples_of
    >>> ones = [1, 1]
    >>> certified = CertificationLog([0, 1], ones, ones, [1, 2], ones, ones)
    >>> attacked = CertificationLog([1], [1], [1], [2.5], [1], [1])
    >>> on_examples_of(attacked, certified).radius
    array([2.])
    """
    both = (certified, attacked)
    for key, what in (
        ("sigma", "sigma"),
        ("dataset", "data set"),
        ("model", "weights"),
    ):
        values = [(log.name, log.settings.get(key)) for log in both]
        check_equal(f"be of the same {what} to be compared", key, values)
    missing = np.setdiff1d(attacked.idx, certified.idx)
    if len(missing):
        raise ValueError(
            "`logs` must hold the attack's examples to be compared with it. "
            f"Received: {certified.name} without {first_few(missing)} of "
            f"{attacked.name}"
        )
    order = np.argsort(certified.idx)
    rows = order[np.searchsorted(certified.idx[order], attacked.idx)]
    same = certified[rows]
    differing = np.flatnonzero(same.label != attacked.label)
    if len(differing):
        raise ValueError(
            "`logs` must give their examples the same labels to be compared. "
            f"Received: {len(differing)} labels that differ; the first is that "
            f"of example {attacked.idx[differing[0]]}"
        )
    _check_hashes(same, attacked)
    return same


def _check_hashes(
    certified: CertificationLog, attacked: CertificationLog
) -> None:
    """Compares the hashes of the examples, where both logs have them."""
    if not all(EXAMPLE in log.extra for log in (certified, attacked)):
        return
    others = certified.extra[EXAMPLE] != attacked.extra[EXAMPLE]
    if others.any():
        raise ValueError(
            "`logs` must be of the same images to be compared. Received: "
            f"example {attacked.idx[np.argmax(others)]} differs between "
            f"{certified.name} and {attacked.name}"
        )
