"""An order of the votes for two classes by the radius that they suggest.

The votes (k, k2) of n draws reach the level l if for one of the weights w

    k - w * k2 >= s_w(l),

    s_w(l) = 2 + max over t of min over x of (n * log M(x) + z**2 / 2) / x,

    M(x) = 1 + p_a * (exp(x) - 1) - p_b * (1 - exp(-w * x)),
    p_a = Phi(t + l), p_b = Phi(t - l), z = Phi^-1(1 - alpha),

with t, x and l from fixed lattices. Without the 2, which keeps counts of a few
votes in their place, s_w is the largest quantile (by Chernoff's bound with its
exponent for alpha) among the probabilities of radius l, so that those votes
reach l of which a likelihood ratio test says so.

What a proof needs is this alone: as the votes that reach a level are a union
of half-planes k - w * k2 >= s_w(l) with w > 0, they stay there as k rises or
k2 falls; and as M rises with l for every t and x, so does s_w, and the sets of
votes that reach higher levels lie within those of lower ones. A level is a
multiple of 2**-13, where s_w differs by far more than its rounding error.
"""

import numpy as np
import tensorflow as tf

from rs_keras.bounds.trinomial import PER_UNIT
from rs_keras.bounds.trinomial import cdf

# In eighths. Larger ones would reach levels by a handful of votes for a class,
# smaller ones are best for no probabilities with p_a + p_b <= 1.
WEIGHTS = tf.constant(
    [8, 9, 10, 11, 12, 14, 16, 18, 20, 24, 28, 32], tf.float64
)

_LEVELS_PER_UNIT = 2.0**13
_LOWEST = -(2.0**13)
_HIGHEST = 2.0**16
_MAX_SEARCH = 60
# The lattices of t and x.
_T = tf.constant(-(np.linspace(0, 2.25, 64) ** 2)[:, None])
_X_PER_DOUBLING = 8
# From any start to within a step of the lattice.
_NEWTON_STEPS = 12
# Added to s: Chernoff's bound is too small a quantile of a few votes.
_FEW = 2.0
# Covers the roundings of s, in parts of n votes.
_ROUNDING = 2.0**-40


def thresholds(level: tf.Tensor, n: tf.Tensor, alpha: tf.Tensor) -> tf.Tensor:
    """Returns the least 8 * k - w * k2 that reaches a level, [R, weights].

    Args:
        level: Whole numbers of 2**-13, float64 [R].
        n: Votes, float64 [R].
        alpha: float64 [R].
    """
    s = _thresholds(level, n, alpha)
    return tf.math.ceil(s - _ROUNDING * n[:, None])


def level_of(
    k: tf.Tensor, k2: tf.Tensor, n: tf.Tensor, alpha: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the highest level that votes reach, and whether there is one.

    Args:
        k: float64 [R].
        k2: float64 [R].
        n: Votes, float64 [R].
        alpha: float64 [R].
    """
    statistics = PER_UNIT * k[:, None] - WEIGHTS * k2[:, None]
    q_a, q_b = (k + 0.5) / (n + 1), (k2 + 0.5) / (n + 1)
    start = (tf.math.ndtri(q_a) - tf.math.ndtri(q_b)) / 2
    # Roughly z standard errors lower, in whole levels.
    start -= 2 / tf.sqrt(n * tf.minimum(q_a, 1 - q_a) + 1)
    lowest = tf.zeros_like(k) + _LOWEST
    highest = tf.zeros_like(k) + _HIGHEST
    start = tf.clip_by_value(
        tf.floor(start * _LEVELS_PER_UNIT), lowest, highest - 1
    )

    def step(
        count: tf.Tensor,
        level: tf.Tensor,
        last: tuple[tf.Tensor, tf.Tensor],
        bracket: tuple[tf.Tensor, tf.Tensor],
    ) -> tuple[tf.Tensor, ...]:
        reached, missed = bracket
        needed = _thresholds(level, n, alpha)
        rounded = tf.math.ceil(needed - _ROUNDING * n[:, None])
        holds = tf.reduce_any(statistics >= rounded, -1)
        reached = tf.where(holds, tf.maximum(reached, level), reached)
        missed = tf.where(holds, missed, tf.minimum(missed, level))
        surplus = tf.reduce_max(statistics - needed, -1)
        slope = (surplus - last[1]) / (level - last[0])
        target = tf.floor(level - surplus / slope)
        middle = tf.floor((reached + missed) / 2)
        usable = tf.math.is_finite(target) & (slope < 0) & (count % 4 < 3)
        target = tf.where(usable, target, middle)
        target = tf.clip_by_value(target, reached + 1, missed - 1)
        # The search of this row is over, or goes on.
        target = tf.where(missed - reached > 1, target, level)
        return count + 1, target, (level, surplus), (reached, missed)

    far = tf.zeros_like(k) + np.inf
    state = tf.while_loop(
        lambda count, level, last, bracket: (
            (count < _MAX_SEARCH) & tf.reduce_any(bracket[1] - bracket[0] > 1)
        ),
        step,
        (
            tf.constant(0),
            start,
            (far, far),
            (lowest - 1, highest),
        ),
    )
    reached = state[-1][0]
    return tf.maximum(reached, lowest), reached >= lowest


def radius_of(level: tf.Tensor) -> tf.Tensor:
    """Returns the radius over sigma that a level stands for."""
    return level / _LEVELS_PER_UNIT


def _thresholds(level: tf.Tensor, n: tf.Tensor, alpha: tf.Tensor) -> tf.Tensor:
    """Returns 8 * s_w of the module's text, [R, weights]."""
    rho = radius_of(level)[:, None, None]
    n = n[:, None, None]
    exponent = tf.math.ndtri(alpha)[:, None, None] ** 2 / 2
    w = WEIGHTS / PER_UNIT
    p_a, p_b = cdf(_T + rho), cdf(_T - rho)  # [R, T, 1]

    def log_mean(x: tf.Tensor) -> tf.Tensor:
        growth = p_a * tf.math.expm1(x) + p_b * tf.math.expm1(-w * x)
        return tf.math.log1p(growth)

    # Where x * L'(x) - L(x) = exponent / n for L = log M.
    variance = p_a + w**2 * p_b - (p_a - w * p_b) ** 2
    x = tf.sqrt(2 * exponent / (n * tf.maximum(variance, 1e-12)))
    x = tf.clip_by_value(x, 2.0**-20, 16.0)
    for _ in range(_NEWTON_STEPS):
        a, b = p_a * tf.exp(x), p_b * tf.exp(-w * x)
        log_m = log_mean(x)
        m = tf.exp(log_m)
        mean = (a - w * b) / m
        spread = tf.maximum((a + w**2 * b) / m - mean**2, 1e-12)
        excess = x * mean - log_m - exponent / n
        newton = x - excess / (x * spread)
        x = tf.clip_by_value(newton, x / 2, tf.minimum(2 * x, 16.0))
    # Near its minimum the function of x is flat: the lattice costs little.
    steps = tf.round(tf.math.log(x) * (_X_PER_DOUBLING / np.log(2)))
    found = [
        (n * log_mean(lattice) + exponent) / lattice
        for lattice in (
            tf.exp((steps + i) * (np.log(2) / _X_PER_DOUBLING))
            for i in (-1.0, 0.0, 1.0)
        )
    ]
    s = tf.minimum(tf.minimum(found[0], found[1]), found[2])
    return PER_UNIT * (_FEW + tf.reduce_max(s, 1))
