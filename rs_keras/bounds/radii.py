"""Certified radii from confidence bounds, in float64, rounded down.

Pure functions of tensors (or numbers, or arrays) that broadcast against each
other, in eager mode, inside a `tf.function` and in an exported graph. A lower
bound is never above its exact value and an upper bound never below, so that
"with probability at least 1 - alpha" survives the arithmetic.

Python and NumPy arguments are checked. Tensors are not: a row that makes no
sense (n < 1, k > n, a part of a vote, NaN) gets the bounds that are always
true, 0 and 1, and the radius 0.
"""

import math
from collections.abc import Callable
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from rs_keras._checks import check_choice
from rs_keras._checks import check_count
from rs_keras.bounds.confidence import ROUNDING
from rs_keras.bounds.confidence import Value
from rs_keras.bounds.confidence import bernstein_lower
from rs_keras.bounds.confidence import check_ranges
from rs_keras.bounds.confidence import check_votes
from rs_keras.bounds.confidence import clopper_pearson_lower
from rs_keras.bounds.confidence import clopper_pearson_upper
from rs_keras.bounds.confidence import float64
from rs_keras.bounds.confidence import hoeffding_lower
from rs_keras.bounds.confidence import possible_votes
from rs_keras.bounds.joint import joint_count
from rs_keras.bounds.names import VOTE_BOUNDS

# The share of alpha that the runner-up's bound takes. Ten percent loses at
# most 0.2 % of the radius where a single other class gets all the rest, and is
# close to the best where the rest is spread.
RUNNER_UP_SHARE = 0.1

# tfp's normal quantile is within 2e-15 of the exact one, relatively
# (3e-16 where the quantile is below 1e-1); this covers it many times.
_QUANTILE_MARGIN = 1e-13


class TwoCount(NamedTuple):
    """What the votes for two classes certify; see `two_count`.

    Example:

    >>> from rs_keras import bounds
    >>> found = bounds.two_count(700, 100, 1000, alpha=0.001, sigma=0.5)
    >>> round(float(found.lower), 4), round(float(found.upper), 4)
    (0.653, 0.1396)
    >>> bool(found.abstain)
    False
    """

    lower: tf.Tensor
    upper: tf.Tensor
    radius: tf.Tensor
    abstain: tf.Tensor


def radius(p: Value, sigma: Value) -> tf.Tensor:
    """L2 radius within which a class of probability >= p stays the winner.

    sigma * Phi^-1(p) for p > 1/2 (infinite at 1), rounded down; else 0.

    Args:
        p: Lower bound on the top class's probability, in [0, 1].
        sigma: Standard deviation of the noise, > 0.

    Returns:
        float64, of the broadcast shape, in the units of `sigma`.

    Raises:
        ValueError: If `p` or `sigma` is a number or array out of its range.

    Example:

    >>> from rs_keras import bounds
    >>> round(float(bounds.radius(0.99, sigma=0.5)), 6)
    1.163174

    References:
    - [Cohen et al., 2019](https://arxiv.org/abs/1902.02918)
    """
    check_ranges(p=p, sigma=sigma)
    p, sigma = float64(p), float64(sigma)
    wins = tf.logical_and(p > 0.5, sigma > 0)
    quantile = _quantile(tf.where(p > 0.5, p, 0.75))
    return tf.where(wins, sigma * quantile * (1 - _QUANTILE_MARGIN), 0.0)


def two_count(
    k: Value,
    k2: Value,
    n: Value,
    alpha: Value,
    sigma: Value,
    distance: Value = 0.0,
) -> TwoCount:
    """Certificate from the votes for the top class and for the runner-up.

    With the confidence bounds

        lower = clopper_pearson_lower(k, n, 0.9 * alpha) - distance
        upper = clopper_pearson_upper(k2, n, 0.1 * alpha) + distance
        upper = min(upper, 1 - lower)

    on the top class's probability and on every other's, the radius is

        sigma / 2 * (Phi^-1(lower) - Phi^-1(upper))

    and the answer is to abstain unless lower > upper.

    Sound, with probability 1 - alpha, if the top class was chosen before these
    n samples were drawn and `k2` is the largest count among ALL the others in
    these samples (not the count of a class chosen earlier). The bound grows
    with the count, so the largest count's is above that of the class that is
    truly second: nothing is lost to the number of classes.

    Args:
        k: Votes for the chosen class, whole numbers in [0, n].
        k2: The largest number of votes for another class, in [0, n - k].
        n: Votes in all. Below 1 it abstains.
        alpha: Error probability, in (0, 1).
        sigma: Standard deviation of the noise, > 0.
        distance: Total variation between the noise of one draw and the
            Gaussian, at most, in [0, 1): no probability of a class differs by
            more between the two.

    Returns:
        `TwoCount(lower, upper, radius, abstain)`: float64 three times and bool,
        of the broadcast shape. The radius is rounded down, 0 where it abstains.

    Raises:
        ValueError: If an argument is a number or array out of its range, or a
            count is not whole.

    Example:

    >>> from rs_keras import bounds
    >>> certificate = bounds.two_count(700, 100, 1000, alpha=0.001, sigma=0.5)
    >>> round(float(certificate.radius), 6)
    0.368849
    >>> one_count = bounds.clopper_pearson_lower(700, 1000, alpha=0.001)
    >>> round(float(bounds.radius(one_count, sigma=0.5)), 6)
    0.197356

    References:
    - [Cohen et al., 2019](https://arxiv.org/abs/1902.02918), theorem 1
    """
    check_ranges(sigma=sigma, alpha=alpha)
    check_votes(k, k2, n)
    alpha, sigma = float64(alpha), float64(sigma)
    lower = clopper_pearson_lower(k, n, (1 - RUNNER_UP_SHARE) * alpha)
    lower = lowered(lower, distance)
    upper = clopper_pearson_upper(k2, n, RUNNER_UP_SHARE * alpha)
    upper = raised(upper, distance)
    possible = possible_votes(k, k2, n)
    # Votes that no n draws can give bound nothing.
    lower = tf.where(possible, lower, 0.0)
    upper = tf.where(possible, upper, 1.0)
    upper = tf.minimum(upper, (1 - lower) * (1 + ROUNDING))
    certified = tf.logical_and(lower > upper, sigma > 0)
    top = _quantile(tf.where(certified, lower, 0.75))
    second = _quantile(tf.where(certified, upper, 0.25))
    error = _QUANTILE_MARGIN * (tf.abs(top) + tf.abs(second))
    half_gap = tf.maximum(0.5 * sigma * (top - second - error), 0.0)
    two_sided = tf.where(certified, half_gap, 0.0)
    return TwoCount(lower, upper, two_sided, tf.logical_not(certified))


def certificate(
    k: Value,
    k2: Value | None,
    n: Value,
    alpha: Value,
    sigma: Value,
    distance: Value = 0.0,
    bound: str = "clopper_pearson",
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """CERTIFY on counts, with the runner-up's or without.

    Args:
        k: Votes for the chosen class.
        k2: As in `two_count`; None for Cohen et al.'s bound, which gives all
            the rest to one class: radius(clopper_pearson_lower(k, n, alpha)),
            and abstains where that bound is below 1/2.
        n: Votes in all.
        alpha: Error probability, in (0, 1).
        sigma: Standard deviation of the noise, > 0.
        distance: As in `two_count`.
        bound: "clopper_pearson", a bound on each count; or "joint", one test
            of both (`joint_count`), for which `k2` must be given.

    Returns:
        The lower bound on the class's probability (NaN with "joint", which has
        none), the radius (float64), and whether there is a certificate (bool).

    Raises:
        ValueError: If an argument is a number or array out of its range.

    Example:

    >>> from rs_keras import bounds
    >>> p, radius, certified = bounds.certificate(99, None, 100, 0.001, 0.5)
    >>> round(float(p), 6), round(float(radius), 6), bool(certified)
    (0.911373, 0.67463, True)
    >>> p, _, certified = bounds.certificate(
    ...     99, 1, 100, alpha=0.001, sigma=0.5, bound="joint")
    >>> float(p), bool(certified)
    (nan, True)
    """
    check_choice("bound", bound, VOTE_BOUNDS)
    if bound == "joint":
        if k2 is None:
            raise ValueError(
                "`k2` must be a count for bound='joint'. Received: k2=None"
            )
        joint = joint_count(k, k2, n, alpha, sigma, distance=distance)
        none = tf.fill(tf.shape(joint.radius), tf.constant(np.nan, tf.float64))
        return none, joint.radius, tf.logical_not(joint.abstain)
    if k2 is not None:
        both = two_count(k, k2, n, alpha, sigma, distance=distance)
        return both.lower, both.radius, tf.logical_not(both.abstain)
    check_ranges(sigma=sigma)
    lower = lowered(clopper_pearson_lower(k, n, alpha), distance)
    return lower, radius(lower, sigma), lower >= 0.5


def mean_certificate(
    rule: str,
    total: Value,
    total_of_squares: Value,
    n: Value,
    alpha: Value,
    sigma: Value,
    distance: Value = 0.0,
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """CERTIFY on the sum of a class's soft predictions, each in [0, 1].

    Args:
        rule: "hoeffding" or "bernstein".
        total: Sum of the n soft predictions.
        total_of_squares: Sum of their squares.
        n: Draws.
        alpha: Error probability, in (0, 1).
        sigma: Standard deviation of the noise, > 0.
        distance: As in `two_count`; a mean differs by no more either.

    Returns:
        As `certificate`; the bound is on the mean soft prediction.

    Raises:
        ValueError: If an argument is a number or array out of its range.

    Example:

    >>> from rs_keras import bounds
    >>> p, radius, certified = bounds.mean_certificate(
    ...     "bernstein", 990.0, 985.0, n=1000, alpha=0.001, sigma=0.5)
    >>> round(float(p), 4), round(float(radius), 4), bool(certified)
    (0.9636, 0.8971, True)
    """
    if rule == "hoeffding":
        lower = hoeffding_lower(total, n, alpha)
    else:
        lower = bernstein_lower(total, total_of_squares, n, alpha)
    lower = lowered(lower, distance)
    return lower, radius(lower, sigma), lower >= 0.5


def lowered(p: Value, distance: Value) -> tf.Tensor:
    """A lower bound on a probability under the Gaussian.

    From `p`, one under noise that is at most `distance` away from it:
    p - distance, rounded down; p itself where the distance is 0.

    Args:
        p: In [0, 1].
        distance: Total variation, in [0, 1).

    Returns:
        float64, of the broadcast shape, >= 0.

    Raises:
        ValueError: If `distance` is a number or array out of its range.

    Example:

    >>> from rs_keras import bounds
    >>> round(float(bounds.lowered(0.75, distance=0.125)), 9)
    0.625
    """
    check_ranges(distance=distance)
    p, distance = float64(p), float64(distance)
    less = tf.maximum(p - distance - ROUNDING, 0.0)
    return tf.where(distance > 0, less, p)


def raised(p: Value, distance: Value) -> tf.Tensor:
    """An upper bound on a probability under the Gaussian; see `lowered`.

    Example:

    >>> from rs_keras import bounds
    >>> round(float(bounds.raised(0.75, distance=0.125)), 9)
    0.875
    """
    check_ranges(distance=distance)
    p, distance = float64(p), float64(distance)
    more = tf.minimum(p + distance + ROUNDING, 1.0)
    return tf.where(distance > 0, more, p)


def linf_radius(
    radius: np.ndarray | float, image_shape: Sequence[int]
) -> np.ndarray:
    """The L-infinity radius that an L2 radius implies.

        radius / sqrt(d), d = the number of pixel values

    because |x|_2 <= sqrt(d) * |x|_inf: if no pixel value changes by as much,
    the whole change is shorter than `radius` in L2.

    Args:
        radius: L2 radii, >= 0 and finite.
        image_shape: (H, W, C).

    Returns:
        float64, the shape of `radius`, rounded down.

    Raises:
        ValueError: If an argument is out of its range.

    Example:

    >>> from rs_keras.bounds import linf_radius
    >>> float(linf_radius(0.56, (28, 28, 1)).round(6))
    0.02

    References:
    - [Salman et al., 2019](https://arxiv.org/abs/1906.04584), section 4.2
    """
    sizes = [check_count("image_shape", size) for size in image_shape]
    if not sizes:
        raise ValueError(
            "`image_shape` must be (H, W, C). "
            f"Received: image_shape={image_shape!r}"
        )
    radii = np.asarray(radius, np.float64)
    if not (np.isfinite(radii) & (radii >= 0)).all():
        raise ValueError(
            f"`radius` must be >= 0 and finite. Received: radius={radius!r}"
        )
    # Half of it covers the roundings of a square root and a division.
    return radii / np.sqrt(float(np.prod(sizes))) * (1 - ROUNDING / 2)


def max_radius(
    n: int,
    alpha: float,
    sigma: float,
    rule: str = "clopper_pearson",
    runner_up: bool = True,
    distance: float = 0.0,
) -> float:
    """The radius if all n samples agree: none can be larger.

    Args:
        n: Samples, >= 1.
        alpha: Error probability, in (0, 1).
        sigma: Standard deviation of the noise, > 0.
        rule: "clopper_pearson", "joint", "hoeffding" or "bernstein".
        runner_up: Whether Clopper-Pearson bounds the second class, too.
        distance: As in `two_count`.

    Raises:
        ValueError: If an argument is out of its range.

    Example:

    >>> from rs_keras import bounds
    >>> round(bounds.max_radius(100_000, 0.001, sigma=0.5, runner_up=False), 4)
    1.9057
    """
    check_choice("rule", rule, ["joint", *_MAX_LOWER])
    check_ranges(n=n, alpha=alpha)
    if rule == "joint":
        joint = joint_count(n, 0, n, alpha, sigma, distance=distance)
        return float(joint.radius)
    if runner_up and rule == "clopper_pearson":
        alpha = (1 - RUNNER_UP_SHARE) * alpha
    lower = np.clip(_MAX_LOWER[rule](n, alpha), 0, 1)
    return float(radius(lowered(lower, distance), sigma))


def minimum_n(
    alpha: float, rule: str = "clopper_pearson", runner_up: bool = True
) -> int:
    """The smallest number of samples that can decide anything at all.

    Args:
        alpha: Error probability, in (0, 1).
        rule: "predict" (the two-sided binomial test), "clopper_pearson",
            "joint", "hoeffding" or "bernstein".
        runner_up: Whether Clopper-Pearson bounds the second class, too.

    Raises:
        ValueError: If `alpha` or `rule` is out of its range.

    Example:

    >>> from rs_keras import bounds
    >>> bounds.minimum_n(0.001, runner_up=False)
    10
    """
    check_choice("rule", rule, _MINIMUM_N)
    check_ranges(alpha=alpha)
    if runner_up and rule == "clopper_pearson":
        alpha = (1 - RUNNER_UP_SHARE) * alpha
    return _MINIMUM_N[rule](alpha)


# Lower bounds when all n samples agree. The runner-up's bound is then 1 minus
# the top class's, which is the smaller of the two that `two_count` looks at.
_MAX_LOWER: dict[str, Callable[[int, float], float]] = {
    "clopper_pearson": lambda n, alpha: alpha ** (1 / n) * (1 - ROUNDING),
    "hoeffding": lambda n, alpha: float(hoeffding_lower(n, n, alpha)),
    "bernstein": lambda n, alpha: float(bernstein_lower(n, n, n, alpha)),
}

# Where these bounds pass 1/2, and 2 * 0.5**n falls below alpha.
_MINIMUM_N: dict[str, Callable[[float], int]] = {
    "predict": lambda alpha: math.floor(1 - math.log2(alpha)) + 1,
    "clopper_pearson": lambda alpha: math.floor(-math.log2(alpha)) + 1,
    # The interval of `joint_count` and the gaps between its points take less.
    "joint": lambda alpha: (
        math.floor(-math.log2((1 - RUNNER_UP_SHARE) * alpha)) + 1
    ),
    "hoeffding": lambda alpha: math.floor(-2 * math.log(alpha)) + 1,
    "bernstein": lambda alpha: math.floor(14 / 3 * math.log(2 / alpha)) + 2,
}


def _quantile(p: tf.Tensor) -> tf.Tensor:
    """Phi^-1(p), float64."""
    # Imported with the first bound: it takes a second and 50 MB, which training
    # and counting votes do without. Not in the graph that may be traced now.
    with tf.init_scope():
        from tensorflow_probability import distributions
    zero = tf.constant(0.0, tf.float64)
    return distributions.Normal(zero, tf.ones_like(zero)).quantile(p)
