"""An order of the votes for two classes by the radius that they suggest.

The votes (k, k2) of n draws reach the level l if for one of the weights w

    k - w * k2 >= s_w(l),

    s_w(l) = 2 + max over t of min over x of (n * log M(x) + z**2 / 2) / x,

    M(x) = 1 + p_a * (exp(x) - 1) - p_b * (1 - exp(-w * x)),
    p_a = Phi(t + l), p_b = Phi(t - l), z = Phi^-1(1 - alpha),

with t and x from fixed lattices, at the levels l of a lattice that n fixes, and
linear between these. Without the 2, which keeps counts of a few votes in their
place, s_w is the largest quantile (by Chernoff's bound with its exponent for
alpha) among the probabilities of radius l, so that those votes reach l of which
a likelihood ratio test says so.

What a proof needs is this alone: as the votes that reach a level are a union
of half-planes k - w * k2 >= s_w(l) with w > 0, they stay there as k rises or
k2 falls; and as M rises with l for every t and x, so does s_w, and the sets of
votes that reach higher levels lie within those of lower ones. The function of
x falls to its minimum and rises from there (log M is convex), so that the
smallest value on the lattice is one that is below both of its neighbours. A
level is a whole part of a step of the lattice, and from one to the next s_w
differs by far more than its rounding error.
"""

import numpy as np
import tensorflow as tf

from rs_keras.bounds.trinomial import PER_UNIT
from rs_keras.bounds.trinomial import cdf
from rs_keras.bounds.trinomial import density

# In eighths. Larger ones would reach levels by a handful of votes for a class,
# smaller ones are best for no probabilities with p_a + p_b <= 1.
WEIGHTS = np.array([8, 9, 10, 11, 12, 14, 16, 18, 20, 24, 28, 32], np.float64)

# Levels between two knots, and the smallest and the largest radius over sigma.
_PARTS = 2.0**12
_LOWEST, _HIGHEST = -1.0, 8.0
# Knots per unit; at many votes, a knot each 4 / sqrt(n).
_KNOTS = 6.0
_MAX_SEARCH = 60
# The lattices of t and x.
_T = -(np.linspace(0, 2.25, 64) ** 2)[:, None]
_X_PER_DOUBLING = 8
_X = np.exp2(np.arange(-20 * _X_PER_DOUBLING, 4 * _X_PER_DOUBLING + 1) / 8)
_UP = np.expm1(_X)
_DOWN = np.expm1(-_X[:, None] * WEIGHTS / PER_UNIT).ravel()
# Newton's steps to the lattice, on which the search goes on.
_NEWTON_STEPS = 2
# Added to s: Chernoff's bound is too small a quantile of a few votes.
_FEW = 2.0
# Covers the roundings of s, in parts of n votes.
_ROUNDING = 2.0**-40


def thresholds(level: tf.Tensor, n: tf.Tensor, alpha: tf.Tensor) -> tf.Tensor:
    """Returns the least 8 * k - w * k2 that reaches a level, [R, weights].

    Args:
        level: Whole numbers, float64 [R]; see `radius_of`.
        n: Votes, float64 [R].
        alpha: float64 [R].
    """
    knot = tf.floor(level / _PARTS)
    return _between(_at_knots(knot, n, alpha), level / _PARTS - knot, n)


def level_of(
    k: tf.Tensor, k2: tf.Tensor, n: tf.Tensor, alpha: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Returns the highest level that votes reach.

    Args:
        k: float64 [R].
        k2: float64 [R].
        n: Votes, float64 [R].
        alpha: float64 [R].

    Returns:
        The level, [R]; its `thresholds`; and whether the votes reach it.
    """
    statistics = PER_UNIT * k[:, None] - WEIGHTS * k2[:, None]
    q_a, q_b = (k + 0.5) / (n + 1), (k2 + 0.5) / (n + 1)
    z_a, z_b = tf.math.ndtri(q_a), tf.math.ndtri(q_b)
    # z standard errors below the radius of these shares.
    slope_a, slope_b = 1 / density(z_a), 1 / density(z_b)
    variance = q_a * slope_a**2 + q_b * slope_b**2
    variance -= (q_a * slope_a - q_b * slope_b) ** 2
    z = -tf.math.ndtri(alpha)
    start = (z_a - z_b - z * tf.sqrt(variance / n)) / 2
    per_unit = _knots_per_unit(n)
    lowest, highest = per_unit * _LOWEST, per_unit * _HIGHEST
    start = tf.clip_by_value(tf.floor(start * per_unit), lowest, highest - 1)

    def step(
        count: tf.Tensor,
        knot: tf.Tensor,
        bracket: tuple[tf.Tensor, tf.Tensor],
        _: tf.Tensor,
        __: tf.Tensor,
    ) -> tuple[tf.Tensor, ...]:
        reached, missed = bracket
        needed = _at_knots(knot, n, alpha)
        surplus = tf.reduce_max(statistics[:, None] - needed, -1)  # [R, 2]
        for end in (0, 1):
            holds, here = surplus[:, end] >= 0, knot + end
            reached = tf.where(holds, tf.maximum(reached, here), reached)
            missed = tf.where(holds, missed, tf.minimum(missed, here))
        slope = surplus[:, 1] - surplus[:, 0]
        target = tf.floor(knot - surplus[:, 0] / slope)
        middle = tf.floor((reached + missed) / 2)
        usable = tf.math.is_finite(target) & (slope < 0) & (count % 4 < 3)
        target = tf.where(usable, target, middle)
        target = tf.clip_by_value(target, reached, missed - 1)
        done = tf.reduce_all((knot == reached) & (missed - reached <= 1))
        return count + 1, target, (reached, missed), needed, done

    none = tf.zeros_like(statistics)
    _, knot, _, needed, _ = tf.while_loop(
        lambda count, *state: (count < _MAX_SEARCH) & ~state[-1],
        step,
        (
            tf.constant(0),
            start,
            (lowest - 1, highest),
            tf.stack([none, none], 1),
            tf.constant(False),
        ),
    )
    rise = needed[:, 1] - needed[:, 0]
    part = (statistics - needed[:, 0]) / tf.where(rise > 0, rise, np.inf)
    part = tf.clip_by_value(tf.reduce_max(part, -1), 0.0, 1 - 1 / _PARTS)
    part = tf.floor(part * _PARTS)
    found = _between(needed, part / _PARTS, n)
    reached = tf.reduce_any(statistics >= found, -1) & (knot >= lowest)
    return knot * _PARTS + part, found, reached


def radius_of(level: tf.Tensor, n: tf.Tensor) -> tf.Tensor:
    """Returns the radius over sigma that a level of n votes stands for."""
    return level / _PARTS / _knots_per_unit(n)


def _knots_per_unit(n: tf.Tensor) -> tf.Tensor:
    """Returns the reciprocal of the distance of two knots, [R]."""
    doublings = tf.math.ceil(tf.math.log(tf.sqrt(n) / 4) / np.log(2))
    return 2.0 ** tf.maximum(doublings, _KNOTS)


def _between(needed: tf.Tensor, part: tf.Tensor, n: tf.Tensor) -> tf.Tensor:
    """Returns whole thresholds between those at two knots, [R, weights]."""
    lower, upper = needed[:, 0], needed[:, 1]
    s = lower + part[:, None] * (upper - lower)
    return tf.math.ceil(s - _ROUNDING * n[:, None])


def _at_knots(knot: tf.Tensor, n: tf.Tensor, alpha: tf.Tensor) -> tf.Tensor:
    """Returns 8 * s_w of the module's text, [R, 2, weights].

    At the knots numbered `knot` and `knot + 1`, [R].
    """
    rho = (knot[:, None] + [0.0, 1.0]) / _knots_per_unit(n)[:, None]
    rho = rho[..., None, None]
    n = n[:, None, None, None]
    exponent = tf.math.ndtri(alpha)[:, None, None, None] ** 2 / 2
    w = WEIGHTS / PER_UNIT
    p_a, p_b = cdf(_T + rho), cdf(_T - rho)  # [R, 2, T, 1]
    # Where x * L'(x) - L(x) = exponent / n for L = log M.
    variance = p_a + w**2 * p_b - (p_a - w * p_b) ** 2
    x = tf.sqrt(2 * exponent / (n * tf.maximum(variance, 1e-12)))
    x = tf.clip_by_value(x, _X[0], _X[-1])
    for _ in range(_NEWTON_STEPS):
        a, b = p_a * tf.exp(x), p_b * tf.exp(-w * x)
        m = 1 - p_a - p_b + a + b
        mean = (a - w * b) / m
        spread = tf.maximum((a + w**2 * b) / m - mean**2, 1e-12)
        excess = x * mean - tf.math.log(m) - exponent / n
        newton = x - excess / (x * spread)
        x = tf.clip_by_value(newton, x / 2, tf.minimum(2 * x, _X[-1]))
    start = tf.math.log(x / _X[0]) * (_X_PER_DOUBLING / np.log(2))
    last = len(_X) - 2
    start = tf.clip_by_value(tf.cast(tf.round(start), tf.int32), 1, last)
    column = tf.range(len(WEIGHTS))

    def value(i: tf.Tensor) -> tf.Tensor:
        """The function of x at the lattice's point i."""
        down = tf.gather(_DOWN, i * len(WEIGHTS) + column)
        growth = p_a * tf.gather(_UP, i) + p_b * down
        return (n * tf.math.log1p(growth) + exponent) / tf.gather(_X, i)

    def step(
        i: tf.Tensor, _: tf.Tensor, __: tf.Tensor
    ) -> tuple[tf.Tensor, ...]:
        here, left, right = value(i), value(i - 1), value(i + 1)
        move = tf.cast(right < here, tf.int32) - tf.cast(left < here, tf.int32)
        to = tf.clip_by_value(i + move, 1, last)
        smallest = tf.minimum(here, tf.minimum(left, right))
        return to, smallest, tf.reduce_any(to != i)

    s = tf.while_loop(
        lambda _, __, moves: moves,
        step,
        (start, tf.zeros_like(x), tf.constant(True)),
    )[1]
    return PER_UNIT * (_FEW + tf.reduce_max(s, 2))
