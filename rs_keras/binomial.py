"""The upper tail of the binomial distribution, and its inverse, in float64.

Clopper-Pearson bounds are quantiles of Beta distributions, and libraries get
those wrong where it matters here. TensorFlow's `betainc` stops its continued
fraction after 300 terms: at n = 1e7 it is off by 3e-3 near the median and by
3e-8 elsewhere. `tfp.math.betaincinv` stops after eight Newton steps, which for
alpha below 5e-7 may land above the exact bound by 0.1. So the tail is computed
here, with a known error, by one integral that suits every n. With r = p / q,

    P[Binomial(n, p) >= k]
        = k * pmf(k) * integral_0^inf exp(g(s)) ds,
    g(s) = -k * s + (n - k) * log1p(-r * expm1(-s)),

which is the incomplete Beta integral after t = p * exp(-s). For p <= k / n the
integrand falls from 1, faster and faster: a fixed rule of 64 nodes gives 14
digits.
"""

from collections.abc import Callable

import numpy as np
import tensorflow as tf

# The trapezoidal rule in t for s = exp(t - exp(-t)), which turns an exponential
# decay into a doubly exponential one on both sides. At 48 nodes its error is
# 1e-11, at 64 it is below the rounding error.
_GRID = np.linspace(-3.8, 4.2, 64)
_NODES = np.exp(_GRID - np.exp(-_GRID))
_WEIGHTS = _NODES * (1 + np.exp(-_GRID)) * (_GRID[1] - _GRID[0])

# 1/12, -1/360, 1/1260, -1/1680, 1/1188: Stirling's series (Bernoulli numbers),
# exact to 1e-17 from 16 on.
_STIRLING = (1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188)
_STIRLING_FROM = 16.0

# The error of the logarithm of the tail is at most a part of the terms that
# nearly cancel in it, plus that of the integral. Against 40 digits, for n to
# 1e7, the error was never above a third of this.
_ERROR_OF_TERMS = 2.0**-51
_ERROR_OF_INTEGRAL = 4e-14

# Non-negative floats below 2 are ordered like their bit patterns, of which
# there are fewer than 2**62.
_HALVINGS = 62


def log_tail(
    k: tf.Tensor, n: tf.Tensor, p: tf.Tensor, q: tf.Tensor
) -> tf.Tensor:
    """Returns log P[Binomial(n, p) >= k], rounded up.

    Both p and q = 1 - p are arguments so that the smaller one, whichever it
    is, keeps all its digits.

    Args:
        k: float64, whole numbers in [1, n].
        n: float64, the shape of `k`.
        p: float64, in (0, k / n], the shape of `k`.
        q: float64, 1 - p.
    """
    m = n - k
    log_p = tf.where(p < q, tf.math.log(p), tf.math.log1p(-q))
    log_q = tf.where(p < q, tf.math.log1p(-p), tf.math.log(q))
    terms = tf.stack(
        [
            k * log_p,
            tf.math.multiply_no_nan(log_q, m),
            -k * _log_share(k, m, n),
            -tf.math.multiply_no_nan(_log_share(m, k, n), m),
        ]
    )
    log_pmf = (
        tf.reduce_sum(terms, axis=0)
        + _log_factorial_excess(n)
        - _log_factorial_excess(k)
        - _log_factorial_excess(m)
    )
    error = _ERROR_OF_TERMS * tf.reduce_sum(tf.abs(terms), axis=0)
    return (
        log_pmf
        + tf.math.log(k * _integral(k, m, p / q))
        + (error + _ERROR_OF_INTEGRAL)
    )


def _log_share(part: tf.Tensor, rest: tf.Tensor, whole: tf.Tensor) -> tf.Tensor:
    """Returns log(part / whole) with all its digits, also close to 0."""
    return tf.where(
        part > rest,
        tf.math.log1p(-rest / whole),
        tf.math.log(part / whole),
    )


def _log_factorial_excess(x: tf.Tensor) -> tf.Tensor:
    """Returns log(x!) - (x * log(x) - x), which stays small; 0 at x = 0."""
    large = tf.maximum(x, _STIRLING_FROM)
    inverse = 1 / large
    powers = [inverse ** (2 * i + 1) for i in range(len(_STIRLING))]
    series = tf.add_n([c * y for c, y in zip(_STIRLING, powers, strict=True)])
    return tf.where(
        x < _STIRLING_FROM,
        tf.math.lgamma(x + 1) - tf.math.xlogy(x, x) + x,
        0.5 * tf.math.log(2 * np.pi * large) + series,
    )


def _integral(k: tf.Tensor, m: tf.Tensor, r: tf.Tensor) -> tf.Tensor:
    """Returns the integral of exp(g(s)) over s > 0, see above; m = n - k."""
    # Near 0, g(s) = -slope * s - curvature * s**2 / 2: the rule is stretched
    # to the scale at which this reaches -1.
    slope = k - m * r
    curvature = m * r * (1 + r)
    scale = 2 / (slope + tf.sqrt(slope**2 + 2 * curvature))
    s = scale[..., None] * _NODES
    g = -k[..., None] * s + m[..., None] * tf.math.log1p(
        -r[..., None] * tf.math.expm1(-s)
    )
    return scale * tf.reduce_sum(tf.exp(g) * _WEIGHTS, axis=-1)


# Traced once: eager, the 62 rounds would cost 0.2 s a call.
_VECTOR = tf.TensorSpec([None], tf.float64)


@tf.function(input_signature=[_VECTOR] * 3)
def success_lower(k: tf.Tensor, n: tf.Tensor, alpha: tf.Tensor) -> tf.Tensor:
    """Returns the p <= k / n with P[Binomial(n, p) >= k] = alpha, rounded down.

    Args:
        k: float64 [N], whole numbers in [1, n].
        n: float64 [N].
        alpha: float64 [N], in (0, 1).
    """
    log_alpha = tf.math.log(alpha)
    low, _ = _bisect(
        tf.zeros_like(k),
        k / n,
        lambda p: log_tail(k, n, p, 1 - p) > log_alpha,
    )
    return low


@tf.function(input_signature=[_VECTOR] * 3)
def failure_upper(k: tf.Tensor, n: tf.Tensor, alpha: tf.Tensor) -> tf.Tensor:
    """Returns 1 - p for the p of `success_lower`, rounded up.

    It has all its digits where p is close to 1, unlike 1 - success_lower.
    """
    log_alpha = tf.math.log(alpha)
    _, high = _bisect(
        # Below any such bound, and its inverse can still be squared.
        tf.maximum((n - k) / n, 1e-100),
        tf.ones_like(k),
        lambda q: log_tail(k, n, 1 - q, q) <= log_alpha,
    )
    return high


def _bisect(
    low: tf.Tensor,
    high: tf.Tensor,
    is_high: Callable[[tf.Tensor], tf.Tensor],
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the two neighbouring floats between which `is_high` turns true.

    Halves the bit patterns, not the values, so that the result has all its
    digits however small it is.

    Args:
        low: float64, >= 0; `is_high` is taken to be false there.
        high: float64, < 2, not below `low`; `is_high` is taken to be true.
        is_high: From values to booleans of the same shape.
    """

    def halve(
        step: tf.Tensor, low: tf.Tensor, high: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        middle = low + (high - low) // 2
        goes_high = is_high(tf.bitcast(middle, tf.float64))
        return (
            step + 1,
            tf.where(goes_high, low, middle),
            tf.where(goes_high, middle, high),
        )

    _, low, high = tf.while_loop(
        lambda step, low, high: step < _HALVINGS,
        halve,
        (0, tf.bitcast(low, tf.int64), tf.bitcast(high, tf.int64)),
    )
    return tf.bitcast(low, tf.float64), tf.bitcast(high, tf.float64)
