"""Confidence bounds on a probability or a mean.

All in float64 and rounded to the safe side; `radii` turns them into radii.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from rs_keras.bounds.binomial import confidence_limit
from rs_keras.bounds.binomial import log_tail

# A number, an array or a tensor.
Value = Any

# Covers the few roundings of a sum or product of numbers in [0, 1].
ROUNDING = 2.0**-50


def clopper_pearson_lower(k: Value, n: Value, alpha: Value) -> tf.Tensor:
    """Lower confidence bound on p from k successes in n trials.

    The p with P[Binomial(n, p) >= k] = alpha, but never above k / n: then
    P[bound > p] <= alpha, whatever p is. 0 for k = 0, alpha**(1 / n) for k = n.

    Args:
        k: Successes, whole numbers in [0, n].
        n: Trials. Below 1 the bound is 0.
        alpha: Error probability, in (0, 1).

    Returns:
        float64, of the broadcast shape, within 1e-9 (relative) below the exact
        bound for n up to 1e7.

    Raises:
        ValueError: If `k`, `n` or `alpha` is a number or array out of its range
            or, for the former two, not whole.

    Example:

    >>> from rs_keras import bounds
    >>> round(float(bounds.clopper_pearson_lower(990, 1000, 0.001)), 6)
    0.976036

    References:
    - [Clopper and Pearson, 1934](https://doi.org/10.1093/biomet/26.4.404)
    """
    k, n, alpha, valid = _counts(k, n, alpha, whole=True)
    valid = tf.logical_and(valid, k > 0)
    successes = tf.where(valid, k, 1.0)
    lower, _ = _limit(successes, n, alpha)
    return tf.where(valid, lower, 0.0)


def clopper_pearson_upper(k: Value, n: Value, alpha: Value) -> tf.Tensor:
    """Upper confidence bound on p from k successes in n trials.

    The p with P[Binomial(n, p) <= k] = alpha, but never below k / n: then
    P[bound < p] <= alpha. 1 - alpha**(1 / n) for k = 0, 1 for k = n.

    Arguments, result and errors are those of `clopper_pearson_lower`; the
    result is within 1e-9 above the exact bound, and 1 where n is below 1.

    Example:

    >>> from rs_keras import bounds
    >>> round(float(bounds.clopper_pearson_upper(10, 1000, 0.001)), 6)
    0.023964
    """
    k, n, alpha, valid = _counts(k, n, alpha, whole=True)
    valid = tf.logical_and(valid, k < n)
    # At most k successes are at least n - k failures.
    failures = tf.where(valid, n - k, 1.0)
    _, upper = _limit(failures, n, alpha)
    return tf.where(valid, upper, 1.0)


def binomial_pvalue(c1: Value, c2: Value) -> tf.Tensor:
    """P-value of the two-sided exact test that two counts are equally likely.

    min(1, 2 * P[Binomial(c1 + c2, 1/2) >= max(c1, c2)]), rounded up. Cohen et
    al.'s PREDICT abstains where it is above alpha.

    Args:
        c1: Count, a whole number >= 0.
        c2: Count, a whole number >= 0.

    Returns:
        float64, of the broadcast shape, in [0, 1].

    Raises:
        ValueError: If a count is a number or array below 0, or not whole.

    Example:

    >>> from rs_keras import bounds
    >>> round(float(bounds.binomial_pvalue(9, 1)), 6)
    0.021484

    References:
    - [Cohen et al., 2019](https://arxiv.org/abs/1902.02918)
    """
    check_ranges(c1=c1, c2=c2)
    check_whole(c1=c1, c2=c2)
    c1, c2 = float64(c1), float64(c2)
    n = c1 + c2
    valid = tf.logical_and(tf.minimum(c1, c2) >= 0, n >= 1)
    valid = tf.logical_and(valid, tf.logical_and(_whole(c1), _whole(c2)))
    k = tf.where(valid, tf.maximum(c1, c2), 1.0)
    n = tf.where(valid, n, 1.0)
    log_half = tf.fill(tf.shape(k), tf.constant(-math.log(2), tf.float64))
    log_pvalue = math.log(2) + log_tail(k, n, log_half)
    pvalue = tf.exp(tf.minimum(log_pvalue, 0.0)) * (1 + ROUNDING)
    # Never 0, which would be below the exact one.
    pvalue = tf.clip_by_value(pvalue, np.finfo(np.float64).tiny, 1.0)
    return tf.where(valid, pvalue, 1.0)


def hoeffding_lower(total: Value, n: Value, alpha: Value) -> tf.Tensor:
    """Lower confidence bound on the mean of a variable in [0, 1].

    total / n - sqrt(log(1 / alpha) / (2 * n)); below 0 it says nothing.

    Args:
        total: Sum of the n samples, in [0, n].
        n: Samples. Below 1 the bound is 0.
        alpha: Error probability, in (0, 1).

    Returns:
        float64, of the broadcast shape, below 1.

    Raises:
        ValueError: If `total` or `alpha` is a number or array out of its range.

    Example:

    >>> from rs_keras import bounds
    >>> round(float(bounds.hoeffding_lower(990.0, 1000, 0.001)), 6)
    0.93123

    References:
    - [MACER, equation 23: Zhai et al., 2020](https://arxiv.org/abs/2001.02378)
    """
    total, n, alpha, valid = _counts(total, n, alpha, name="total")
    width = tf.sqrt(-tf.math.log(alpha) / (2 * n))
    return _bounded(total / n, width, valid)


def bernstein_lower(
    total: Value, total_of_squares: Value, n: Value, alpha: Value
) -> tf.Tensor:
    """Lower confidence bound on the mean of a variable in [0, 1], by variance.

    With the sample variance v = (total_of_squares - total**2 / n) / (n - 1):

        total / n - sqrt(2 * v * log(2 / alpha) / n)
                  - 7 * log(2 / alpha) / (3 * (n - 1))

    Better than Hoeffding's where v is small; below 0 it says nothing.

    Args:
        total: Sum of the n samples, in [0, n].
        total_of_squares: Sum of their squares.
        n: Samples. Below 2 the bound is 0.
        alpha: Error probability, in (0, 1).

    Returns:
        float64, of the broadcast shape, below 1.

    Raises:
        ValueError: If `total` or `alpha` is a number or array out of its range.

    Example:

    >>> from rs_keras import bounds
    >>> round(float(bounds.bernstein_lower(990.0, 985.0, 1000, 0.001)), 6)
    0.963612

    References:
    - [MACER, equation 26: Zhai et al., 2020](https://arxiv.org/abs/2001.02378)
    - [Maurer and Pontil, 2009](https://arxiv.org/abs/0907.3740)
    """
    squares = float64(total_of_squares)
    total, n, alpha, valid = _counts(total, n, alpha, name="total")
    valid = tf.logical_and(valid, tf.logical_and(n > 1, squares >= 0))
    n = tf.where(valid, n, 2.0)
    squares = tf.where(valid, squares, 0.0)
    log_term = math.log(2) - tf.math.log(alpha)
    variance = _product_difference(n, squares, total, total) / (n * (n - 1))
    width = tf.sqrt(2 * variance * log_term / n) + 7 * log_term / (3 * (n - 1))
    return _bounded(total / n, width, valid)


def float64(value: Value) -> tf.Tensor:
    """Returns `value` as a tensor, with all the digits that it has."""
    if tf.is_tensor(value):
        return tf.cast(value, tf.float64)
    # Not tf.cast, which takes a Python float through float32.
    return tf.convert_to_tensor(np.asarray(value, np.float64))


def _counts(
    k: Value, n: Value, alpha: Value, name: str = "k", whole: bool = False
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]:
    """Returns k, n and alpha, checked, in float64, and which rows make sense.

    Counts of votes are `whole`; sums of soft predictions are not.

    Those that do not are replaced by something harmless, so that no NaN comes
    up, and all four have the broadcast shape.
    """
    check_ranges(alpha=alpha)
    if whole:
        check_whole(**{name: k}, n=n)
    check_ranges(**{name: k})
    if not tf.is_tensor(n):
        limit = np.maximum(np.asarray(n, np.float64), 0)
        _check(name, k, f"be <= n={n!r}", lambda value: value <= limit)
    k, n, alpha = float64(k), float64(n), float64(alpha)
    ranges = [n >= 1, k >= 0, k <= n, alpha > 0, alpha < 1]
    if whole:
        ranges += [_whole(k), _whole(n)]
    valid = functools.reduce(tf.logical_and, ranges)
    return (
        tf.where(valid, k, 1.0),
        tf.where(valid, n, 1.0),
        tf.where(valid, alpha, 0.5),
        valid,
    )


def _limit(*arguments: tf.Tensor) -> list[tf.Tensor]:
    """Returns `confidence_limit` for arguments of any one shape."""
    flat = [tf.reshape(argument, [-1]) for argument in arguments]
    shape = tf.shape(arguments[0])
    return [tf.reshape(x, shape) for x in confidence_limit(*flat)]


def _bounded(mean: tf.Tensor, width: tf.Tensor, valid: tf.Tensor) -> tf.Tensor:
    """Returns mean - width, rounded down; 0 where not `valid`."""
    lower = mean - width - ROUNDING * (mean + width)
    return tf.where(valid, lower, 0.0)


def _product_difference(
    a: tf.Tensor, b: tf.Tensor, c: tf.Tensor, d: tf.Tensor
) -> tf.Tensor:
    """Returns max(0, a * b - c * d), rounded up, though the two may cancel."""
    high_1, low_1 = _exact_product(a, b)
    high_2, low_2 = _exact_product(c, d)
    # Where they cancel, the first difference is exact.
    difference = (high_1 - high_2) + (low_1 - low_2)
    return tf.maximum(difference, 0.0) * (1 + ROUNDING)


def _exact_product(a: tf.Tensor, b: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns a * b as the sum of the rounded product and its error.

    References:
    - [Dekker, 1971](https://doi.org/10.1007/BF01397083)
    """
    a_high, a_low = _halves(a)
    b_high, b_low = _halves(b)
    product = a * b
    error = a_high * b_high - product
    error += a_high * b_low + a_low * b_high
    return product, error + a_low * b_low


def _halves(a: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns two numbers of half as many digits whose sum is `a`."""
    scaled = a * (2.0**27 + 1)
    high = scaled - (scaled - a)
    return high, a - high


def _whole(value: tf.Tensor) -> tf.Tensor:
    """Returns which values are whole numbers; NaN is not."""
    return tf.equal(value, tf.floor(value))


def possible_votes(k: Value, k2: Value, n: Value) -> tf.Tensor:
    """Returns which rows hold votes for two classes that n draws can give."""
    k, k2, n = float64(k), float64(k2), float64(n)
    ranges = tf.logical_and(k2 >= 0, k + k2 <= n)
    return tf.logical_and(ranges, _whole(k2))


def check_votes(k: Value, k2: Value, n: Value) -> None:
    """Raises ValueError for numbers or arrays of more than n votes in all."""
    check_whole(k2=k2)
    if any(map(tf.is_tensor, (k, k2, n))):
        return
    total = np.asarray(k, np.float64) + np.asarray(k2, np.float64)
    if np.any(total > np.maximum(n, 0)):
        raise ValueError(
            "`k2` must be <= n - k: a draw votes for one class. "
            f"Received: k={k!r}, k2={k2!r}, n={n!r}"
        )


_RANGES: dict[str, tuple[str, Callable[[np.ndarray], np.ndarray]]] = {
    "alpha": ("lie in (0, 1)", lambda value: (value > 0) & (value < 1)),
    "distance": ("lie in [0, 1)", lambda value: (value >= 0) & (value < 1)),
    "n": ("be >= 1", lambda value: value >= 1),
    "p": ("lie in [0, 1]", lambda value: (value >= 0) & (value <= 1)),
    "sigma": (
        "be > 0 and finite",
        lambda value: (value > 0) & np.isfinite(value),
    ),
    **dict.fromkeys(
        ("c1", "c2", "k", "k2", "total"), ("be >= 0", lambda value: value >= 0)
    ),
}


def check_ranges(**values: Value) -> None:
    """Raises ValueError for a number or array that leaves its range."""
    for name, value in values.items():
        _check(name, value, *_RANGES[name])


def check_whole(**counts: Value) -> None:
    """Raises ValueError for a number or array that holds a fraction."""
    for name, value in counts.items():
        _check(name, value, "be a whole number", lambda n: n == np.floor(n))


def _check(
    name: str,
    value: Value,
    rule: str,
    holds: Callable[[np.ndarray], np.ndarray],
) -> None:
    """Checks numbers and arrays; the values of a tensor may not be known."""
    if tf.is_tensor(value):
        return
    if not np.all(holds(np.asarray(value, np.float64))):
        raise ValueError(f"`{name}` must {rule}. Received: {name}={value!r}")
