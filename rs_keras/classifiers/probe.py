"""Probes: is a classifier deterministic, and are its rows independent?

A certificate counts votes as independent draws. Randomness or statistics that
the rows of a pass share make them depend on each other, and the bound false.
"""

import re
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from rs_keras.classifiers.graphs import PYTHON_OPS
from rs_keras.classifiers.graphs import ConcreteFunction
from rs_keras.classifiers.graphs import operations

# Random operations with a state, or with entropy of their own; those of
# `tf.random.stateless_*` are functions of their seed. (RngReadAndSkip is how
# tf.random.Generator takes its numbers.)
_RANDOM = re.compile(
    r"(?!Stateless|RandomIndexShuffle).*Random"
    r"|(Parameterized)?TruncatedNormal|Multinomial|NonDeterministicInts"
    r"|Stateful(?!PartitionedCall)|\w*CandidateSampler"
    r"|SampleDistortedBoundingBox|Rng"
)
# The state of a seed that is advanced (keras.random with a SeedGenerator), the
# statistics of batch normalisation in training mode, counters of calls.
_WRITES = re.compile(
    r"Assign|Resource(Scatter|Apply|SparseApply|StridedSliceAssign|CountUpTo)"
    r"|CountUpTo|Scatter(Nd)?(Add|Sub|Mul|Div|Min|Max|Update)"
    r"|LookupTable(Insert|Remove|Import)"
)
_FROM_OUTSIDE = re.compile(r"Timestamp|Iterator\w*GetNext|\w*Dequeue")
_REFUSED = (
    (_RANDOM, "the random operation {}"),
    (_WRITES, "the operation {}, which writes a variable in each pass"),
    (_FROM_OUTSIDE, "the operation {}, which reads anew in each pass"),
)
# The error itself among the lines that TensorFlow puts around it.
_PYTHON_ERROR = re.compile(
    r"^(?:\{\{.*\}\} )?(\w*(?:Error|Exception): .*)$", re.M
)
# Operations whose effects cannot be inspected.
_OPAQUE = (*PYTHON_OPS, "XlaCallModule", "RemoteCall")

# One coin for all rows of a pass agrees in 14 passes with probability 2^-13.
_PASSES = 3
_PARTIAL_PASSES = 3
_PASSES_OF_OPAQUE = 14
# Behaviour that depends on the number of rows shows between these and a pass.
FEW = 8

# How far logits of one image may move between passes, relative to the distance
# between its largest and its smallest logit. Rows are computed alike wherever
# they stand; only a product with a single row may sum in another order.
# Measured on a CPU (LeNet, ResNet-20, -110 and -50, 16 to 400 rows): at most
# 7e-7 of the largest in float32, nothing in 16 bits. The margin is for other
# processors and deeper networks.
_SAME = 1e-4
# The same relative to the largest of its logits: 32 roundings of float32.
_ROUNDING = 2.0**-18
# In 16 bits, or where values are quantised, one rounding may move a value by
# 2^-8: perturbing all pixels by that much moves logits by at most 2e-2.
# Accelerators multiply float32 in such types, too.
_SAME_SHORT = 5e-2
# Votes change sides within these where two logits nearly tie: a share of all.
_CHANGED_VOTES = 0.01
_CHANGED_VOTES_SHORT = 0.05

_SHORT_NAMES = """
bfloat16 float16 float8_e4m3fn float8_e5m2 int8 uint8 qint8 quint8
"""
_SHORT_TYPES = frozenset(
    tf.as_dtype(name).as_datatype_enum for name in _SHORT_NAMES.split()
)
_QUANTISES = re.compile(r"FakeQuant|Quantize|Round$|Rint$|Sign$")

# How far logits change between plain images, relative to the largest. Measured
# on LeNet and ResNet-20, -110 and -50: 0.8 to 1.1 for networks of [0, 1], 0.004
# to 0.05 for those of 0 .. 255 (0.015 for LeNet with trained weights).
_BARELY = 0.05


def check_operations(traced: ConcreteFunction) -> None:
    """Refuses a classifier whose graph is random or keeps a state.

    Args:
        traced: The classifier as a traced function.

    Raises:
        ValueError: That names the operation and where it stands.

    Example:

    >>> import tensorflow as tf
    >>> from rs_keras.classifiers.probe import check_operations
    >>> coin = tf.function(lambda x: x[:, 0, 0] + tf.random.uniform([]))
    >>> spec = tf.TensorSpec([None, 4, 4, 2])
    >>> try:
    ...     check_operations(coin.get_concrete_function(spec))
    ... except ValueError as error:
    ...     print(error)  # doctest: +ELLIPSIS
    `model` must be deterministic in inference mode... RandomUniform...
    """
    for node in operations(traced):
        for pattern, description in _REFUSED:
            if pattern.match(node.op):
                raise ValueError(
                    "`model` must be deterministic in inference mode, or votes "
                    "depend on each other (is a layer called with "
                    f"training=True?). Received: "
                    f"{description.format(node.op)}, at {node.name!r}"
                )


def probe(
    traced: ConcreteFunction,
    images: tf.Tensor,
    batch_size: int,
    num_classes: int,
    votes: bool = True,
) -> None:
    """Runs full passes of the classifier and compares their logits.

    Each image must get the same logits in each pass, up to rounding, whatever
    images are with it, in whatever order, and however many.

    Args:
        traced: The classifier as a traced function.
        images: float32 [m, H, W, C], noisy; m >= batch_size and m >= 8.
        batch_size: Rows of a pass.
        num_classes: How many logits an image must get. A vote for a class
            beyond them would be lost, and the certificate not true.
        votes: Whether only the largest logit counts. Then probabilities, and
            rows of zeros and ones (hard decisions), are as good as logits.

    Raises:
        ValueError: If it gives other than `num_classes` numbers an image,
            probabilities, or an answer for one image that depends on the pass.

    Example:

    >>> import tensorflow as tf
    >>> from rs_keras.classifiers.probe import probe
    >>> def relative(x):  # to the mean of the batch
    ...     return (x - tf.reduce_mean(x, 0))[:, 0, 0]
    >>> spec = tf.TensorSpec([None, 4, 4, 2])
    >>> traced = tf.function(relative).get_concrete_function(spec)
    >>> try:
    ...     probe(traced, tf.random.stateless_normal([16, 4, 4, 2], [1, 2]),
    ...           batch_size=16, num_classes=2)
    ... except ValueError as error:
    ...     print(error)  # doctest: +ELLIPSIS
    `model` must answer each image by itself... Received: logits that change...
    """

    def run(rows: np.ndarray) -> np.ndarray:
        try:
            return tf.cast(traced(tf.constant(rows)), tf.float64).numpy()
        except tf.errors.OpError as error:
            lines = str(error.message).splitlines()
            told = _PYTHON_ERROR.findall(str(error.message)) or lines[-1:]
            raise ValueError(
                f"`model` must answer passes of any size. On {len(rows)} "
                f"images it failed: {told[-1]}"
            ) from error

    rows = np.asarray(images)
    few = run(rows[:FEW])
    wanted = [FEW, num_classes]
    if list(few.shape) != wanted:
        raise ValueError(
            "`model` must return one row of `num_classes` logits an image. "
            f"Received: shape={list(few.shape)} for {wanted[0]} images, "
            f"num_classes={num_classes}"
        )
    hard = votes and bool(((few == 0.0) | (few == 1.0)).all())
    if not votes:
        check_no_softmax(few)
    if num_classes == 2 and not hard:
        _warn_of_sigmoid(few)
    rows = rows[:batch_size]
    nodes = list(operations(traced))
    compare = _Comparison(run(rows), _is_short(nodes), hard)
    compare.add(np.arange(len(rows[:FEW])), few[: len(rows)])
    compare.add(np.array([len(rows) - 1]), run(rows[-1:]))
    for size in _partial_sizes(len(rows)):
        compare.add(np.arange(size), run(rows[:size]))
    opaque = any(node.op in _OPAQUE for node in nodes)
    passes = _PASSES_OF_OPAQUE if opaque else _PASSES
    for kept, places, batch in _company(rows, passes - 1):
        compare.add(kept, run(batch)[places])


def warn_of_range(traced: ConcreteFunction, image: np.ndarray) -> None:
    """Warns of a classifier that seems to want pixels in 0 .. 255.

    In [0, 1] its logits barely change where in 0 .. 255 they do: certificates
    would all be of one class, with the largest radius.

    Args:
        traced: The classifier as a traced function.
        image: float32 [H, W, C] in [0, 1].

    Example:

    >>> import numpy as np
    >>> import tensorflow as tf
    >>> import warnings
    >>> from rs_keras.classifiers.probe import warn_of_range
    >>> def bright(x):
    ...     score = tf.reduce_mean(x, [1, 2, 3]) - 127.5
    ...     return tf.stack([-score, score], axis=-1)
    >>> spec = tf.TensorSpec([None, 4, 4, 2])
    >>> traced = tf.function(bright).get_concrete_function(spec)
    >>> with warnings.catch_warnings(record=True) as caught:
    ...     warnings.simplefilter("always")
    ...     warn_of_range(traced, np.full([4, 4, 2], 0.5, np.float32))
    >>> "Rescaling(255.0)" in str(caught[0].message)
    True
    """
    plain = _plain(image)
    change, share = _change(traced, plain)
    # A constant classifier has no range that it wants.
    if share <= _BARELY < _change(traced, 255.0 * plain)[1]:
        warnings.warn(
            "the logits of `model` barely change between a black, a grey and a "
            f"white image (by {change:.2g}, {share:.2%} of the largest). If it "
            "wants pixels in 0 .. 255, or casts them to integers, put "
            "keras.layers.Rescaling(255.0) in front of it: images are in "
            "[0, 1] here",
            UserWarning,
            stacklevel=2,
        )


def _change(
    traced: ConcreteFunction, images: np.ndarray
) -> tuple[float, float]:
    """The largest change of logits between images, absolute and relative."""
    logits = tf.cast(traced(tf.constant(images)), tf.float64).numpy()
    if not np.isfinite(logits).all():
        return np.inf, np.inf
    change, largest = np.ptp(logits, axis=0).max(), np.abs(logits).max()
    return float(change), float(change / largest) if largest else 0.0


def _plain(image: np.ndarray) -> np.ndarray:
    """Images without noise: as many as `probe` runs in its small pass.

    Not all of one colour: a network that standardises each image sees no
    difference between those.
    """
    black, grey, white = (np.full_like(image, one) for one in (0.0, 0.5, 1.0))
    left, top, checked = black.copy(), black.copy(), black.copy()
    left[:, : -(-image.shape[1] // 2)] = 1.0
    top[: -(-image.shape[0] // 2)] = 1.0
    checked[::2, ::2] = checked[1::2, 1::2] = 1.0
    return np.stack([black, grey, white, left, top, checked, image, 1 - image])


def check_no_softmax(logits: np.ndarray) -> None:
    """Refuses probabilities where their softmax would be taken.

    Args:
        logits: [m, num_classes].

    Raises:
        ValueError: If they are none below zero and sum to one in each row.

    Example:

    >>> import numpy as np
    >>> from rs_keras.classifiers.probe import check_no_softmax
    >>> check_no_softmax(np.array([[0.2, 0.9]]))
    """
    logits = logits[np.isfinite(logits).all(-1)]
    sums_to_one = np.abs(logits.sum(-1) - 1.0) < 1e-2
    if len(logits) and (logits >= 0.0).all() and sums_to_one.all():
        raise ValueError(
            "`model` must return logits, without softmax, where probabilities "
            "are made of them (soft bounds, training). Received: rows that "
            "sum to one; leave out the last softmax, or take the logarithm of "
            "its probabilities: they are the softmax of that"
        )


def _warn_of_sigmoid(logits: np.ndarray) -> None:
    """Warns of what looks like a probability where a logit was said to be."""
    one, other = logits[:, 1], logits[:, 0]
    if not other.any() and ((one > 0.0) & (one < 1.0)).all():
        warnings.warn(
            "the one output of `model` lies between 0 and 1 on all noisy "
            "images, and is taken for a logit: class 1 where it is > 0. If it "
            "is a probability, return it less 0.5, or its logit",
            UserWarning,
            stacklevel=2,
        )


def _partial_sizes(batch_size: int) -> list[int]:
    """Sizes of the partial passes that are compared.

    The last pass of a range has any number of remaining draws. The sizes are
    random in each probe, uniform in their logarithm.
    """
    exponents = np.random.default_rng().uniform(size=_PARTIAL_PASSES)
    sizes = np.ceil(batch_size**exponents).astype(int)
    return np.clip(sizes, 1, batch_size).tolist()


def _company(
    rows: np.ndarray, passes: int
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Yields passes with half of the rows, at other positions.

    Yields:
        Which rows are kept, where they stand, and the batch. Each row is kept
        in every second pass, and never stands where it stood.
    """
    m = len(rows)
    for number in range(1, passes + 1):
        kept = np.arange(m)[number % 2 :: 2] if m > 1 else np.arange(m)
        # Odd steps: position 0 holds a kept row in every second pass.
        step = (1, (m // 2) | 1, (m // 3) | 1, 7, 13)[number % 5 - 1]
        places = (kept + max(1, step % m)) % m
        # Other means, variances, and extremes than those of the rows.
        negative = 2.0 * (1.0 - rows) - 0.5
        black_and_white = (
            np.zeros_like(rows) + np.indices([m])[0].reshape([m, 1, 1, 1]) % 2
        )
        batch = negative if number % 2 else black_and_white
        batch = batch.astype(np.float32)
        batch[places] = rows[kept]
        yield kept, places, batch


def _is_short(nodes: list[Any]) -> bool:
    """Whether a classifier rounds coarsely, or may do so."""
    accelerators = map(tf.config.list_logical_devices, ("GPU", "TPU"))
    return any(accelerators) or any(
        _QUANTISES.match(node.op)
        or any(
            not _SHORT_TYPES.isdisjoint([value.type, *value.list.type])
            for value in node.attr.values()
        )
        for node in nodes
    )


class _Comparison:
    """Compares the logits of passes with those of the first, row by row."""

    def __init__(self, first: np.ndarray, short: bool, hard: bool) -> None:
        self.first = first
        self.same = _SAME_SHORT if short else _SAME
        self.share = _CHANGED_VOTES_SHORT if short else _CHANGED_VOTES
        # A hard decision at a near tie goes from 0 to 1 with one rounding.
        self.by_votes_alone = short and hard
        values = np.where(np.isfinite(first), first, np.nan)
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            spread = np.nanmax(values, -1) - np.nanmin(values, -1)
            largest = np.nanmax(np.abs(values), -1)
        # Neither votes nor softmax see an offset that all logits share: only
        # its own rounding is allowed for.
        offset = 1.0 if short else _ROUNDING / self.same
        size = np.nan_to_num(np.maximum(spread, offset * largest))
        # A row of ties is not held to its own size.
        self.size = np.maximum(size, np.median(size))
        self.seen = self.changed = 0

    def add(self, rows: np.ndarray, logits: np.ndarray) -> None:
        """Compares `logits` with those that `rows` got in the first pass."""
        before = self.first[rows]
        finite = np.isfinite(before), np.isfinite(logits)
        with np.errstate(invalid="ignore"):
            gap = np.where(finite[0] & finite[1], np.abs(logits - before), 0.0)
        gap[finite[0] != finite[1]] = np.inf
        size = np.maximum(self.size[rows], np.finfo(np.float64).tiny)
        worst = float((gap.max(-1) / size).max())
        if worst > self.same and not self.by_votes_alone:
            self._refuse(f"logits that change by {worst:.2%}")
        self.seen += len(rows)
        self.changed += int((_vote(before) != _vote(logits)).sum())
        if self.changed > 1 + self.share * self.seen:
            self._refuse(f"{self.changed} of {self.seen} votes that change")

    def _refuse(self, change: str) -> None:
        raise ValueError(
            "`model` must answer each image by itself, the same in each pass. "
            f"Received: {change} with the other images in the batch, or from "
            "pass to pass (batch normalisation in training mode? a random "
            "number?)"
        )


def _vote(logits: np.ndarray) -> np.ndarray:
    """The class that each row votes for; -1 where a logit is not finite."""
    finite = np.isfinite(logits)
    top = np.where(finite, logits, -np.inf).argmax(-1)
    return np.where(finite.all(-1), top, -1)
