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

The inverse needs no bracket. The logarithm of the tail is a concave function of
log(p) (it integrates a log-concave function), and its slope is 1 / integral. So
a Newton step never passes the solution from below, and lands below it from
above: every iterate is a valid lower bound, the limit is the best one.
"""

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

# From Wilson's approximation, four Newton steps reach the last digits for alpha
# from 1e-15 to 0.5 and n to 1e7.
_STEPS = 6

# A few units in the last place, for exp and expm1.
_ULPS = 2.0**-50


# Traced once: eager, the hundreds of operations would cost 20 ms a call.
# AutoGraph would find nothing to convert.
@tf.function(
    input_signature=[tf.TensorSpec([None], tf.float64)] * 3, autograph=False
)
def confidence_limit(
    k: tf.Tensor, n: tf.Tensor, alpha: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the p with P[Binomial(n, p) >= k] = alpha, and 1 - p.

    p is rounded down and 1 - p is rounded up, each with all its digits. Where
    p would be above k / n, that is returned.

    Args:
        k: float64 [N], whole numbers in [1, n].
        n: float64 [N].
        alpha: float64 [N], in (0, 1).
    """
    log_alpha = tf.math.log(alpha)
    # p = 1 is not a solution, and there 1 - p could not be divided by.
    limit = tf.minimum(_log_share(k, n - k, n), -1e-100)

    def newton(
        step: tf.Tensor, log_p: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        log_tail, integral = _log_tail_and_integral(k, n, log_p)
        log_p += (log_alpha - log_tail) * integral
        return step + 1, tf.minimum(log_p, limit)

    # Wilson's approximate limit, to start from.
    z = -tf.math.ndtri(alpha)
    wilson = k**2 / n
    wilson /= k + z**2 / 2 + z * tf.sqrt(k * (n - k) / n + z**2 / 4)
    _, log_p = tf.while_loop(
        lambda step, log_p: step < _STEPS,
        newton,
        (0, tf.minimum(tf.math.log(wilson), limit)),
    )
    return (
        tf.exp(log_p) * (1 - _ULPS),
        tf.minimum(-tf.math.expm1(log_p) * (1 + _ULPS), 1.0),
    )


def log_tail(k: tf.Tensor, n: tf.Tensor, log_p: tf.Tensor) -> tf.Tensor:
    """Returns log P[Binomial(n, p) >= k], rounded up; see below."""
    return _log_tail_and_integral(k, n, log_p)[0]


def _log_tail_and_integral(
    k: tf.Tensor, n: tf.Tensor, log_p: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns log P[Binomial(n, p) >= k], rounded up, and its integral.

    Args:
        k: float64, whole numbers in [1, n].
        n: float64, the shape of `k`.
        log_p: float64, at most log(k / n) and below 0, the shape of `k`. The
            logarithm has all digits of p and of 1 - p, however small.
    """
    # All [N]; m failures, and p and q = 1 - p with all their digits.
    m = n - k
    p, q = tf.exp(log_p), -tf.math.expm1(log_p)
    log_q = tf.where(p < q, tf.math.log1p(-p), tf.math.log(q))
    # The logarithm of the probability of exactly k successes, in four terms
    # that nearly cancel; factorials by Stirling's series.
    terms = tf.stack(
        [
            k * log_p,
            m * log_q,
            -k * _log_share(k, m, n),
            -tf.math.multiply_no_nan(_log_share(m, k, n), m),
        ]
    )
    log_pmf = (
        tf.reduce_sum(terms, axis=0)
        + log_factorial_excess(n)
        - log_factorial_excess(k)
        - log_factorial_excess(m)
    )
    error = _ERROR_OF_TERMS * tf.reduce_sum(tf.abs(terms), axis=0)
    integral = _integral(k, m, p / q)
    log_tail = log_pmf + tf.math.log(k * integral)
    return log_tail + (error + _ERROR_OF_INTEGRAL), integral


def _log_share(part: tf.Tensor, rest: tf.Tensor, whole: tf.Tensor) -> tf.Tensor:
    """Returns log(part / whole) with all its digits, also close to 0."""
    return tf.where(
        part > rest,
        tf.math.log1p(-rest / whole),
        tf.math.log(part / whole),
    )


def log_factorial_excess(x: tf.Tensor) -> tf.Tensor:
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
    # [N, 64]: the nodes of each integral, and the exponent there.
    s = scale[..., None] * _NODES
    g = -k[..., None] * s + m[..., None] * tf.math.log1p(
        -r[..., None] * tf.math.expm1(-s)
    )
    return scale * tf.reduce_sum(tf.exp(g) * _WEIGHTS, axis=-1)
