"""Bounds on the largest trinomial tail among equal radii, in float64.

That of T(p_a, p_b), the probability that votes reach a level, on a part of the
curve of one radius r; see `joint` for its use.

The curve is p_a = Phi(t + rho), p_b = Phi(t - rho) with rho = r / sigma and
t <= 0. The part between two values of p_a is covered completely: between two
points h apart

    log T <= max over l in [0, 1] of
             (1 - l) * log T_0 + l * log T_1 + n * C * h**2 * l * (1 - l) / 2,

    C >= -(log p_a)'' - p_b * (log p_b)'' - p_c / (1 - p_b) * (log p_c)''

(derivatives in t, p_c = 1 - p_a - p_b), since T is a sum over x of
coefficients times p_a**x_a * p_b**x_b * p_c**x_c, hence (log T)'' =
variance + E[sum of x_i * (log p_i)'' | level] with all (log p_i)'' <= 0, and
E[x_a | .] <= n, E[x_b | .] <= n * p_b, E[x_c | .] <= n * p_c / (1 - p_b).
Where the part comes close to t = 0, at which p_c is 0, T is at most
T(p_a at t = 0, p_b at the last point).

The points and their number only decide how tight this is, not whether it holds.
"""

from typing import NamedTuple

import numpy as np
import tensorflow as tf

from rs_keras.bounds.trinomial import Event
from rs_keras.bounds.trinomial import Shares
from rs_keras.bounds.trinomial import cdf
from rs_keras.bounds.trinomial import column
from rs_keras.bounds.trinomial import density
from rs_keras.bounds.trinomial import log_tail
from rs_keras.bounds.trinomial import longest_window

# Between two points, log T is bounded to about this: 0.02 standard errors of
# the radius.
GAP = 0.06
# Points for the steps that prove nothing, and the grid to count points by.
_FEW_POINTS = 6
_GRID = np.linspace(0, 1, 16)

# What the memory has room for: points, and numbers of votes at all of them.
_MOST_POINTS = 512.0
_MOST_TERMS = 2.0**20

# Covers the rounding errors of a log of the tail, and per vote.
_MARGIN = 1e-7
_MARGIN_PER_VOTE = 2.0**-46


class Part(NamedTuple):
    """A part of the curves of all radii; [R].

    Attributes:
        low: Phi^-1 of the smallest p_a.
        high: Phi^-1 of the largest p_a, up to infinity.
        log_alpha: The log of what T has to stay below.
    """

    low: tf.Tensor
    high: tf.Tensor
    log_alpha: tf.Tensor


def points_needed(rho: tf.Tensor, part: Part, event: Event) -> tf.Tensor:
    """Returns how many points leave no more than GAP between two, int32."""
    u, _ = _ends(rho, part, event.n)
    u = u[:, :1] + _GRID * (u[:, 1:] - u[:, :1])
    rate = 2 * u * tf.sqrt(column(event.n) * _curvature(-(u**2), -(u**2), rho))
    length = (u[:, 0] - u[:, -1]) * tf.reduce_max(rate, -1)
    points = length / np.sqrt(8 * GAP) + 3
    # With fewer it holds as well.
    most = tf.minimum(_MOST_TERMS / longest_window(event.n), _MOST_POINTS)
    points = tf.where(points < most, points, most)
    return tf.cast(tf.reduce_max(points), tf.int32)


def log_excess(
    rho: tf.Tensor, part: Part, event: Event, points: tf.Tensor
) -> tf.Tensor:
    """Returns a bound on the log of the largest T over alpha, [R]."""
    u, cut = _ends(rho, part, event.n)
    grid = tf.cast(tf.range(points), tf.float64)
    grid /= tf.cast(points - 1, tf.float64)
    t = -((u[:, :1] + grid * (u[:, 1:] - u[:, :1])) ** 2)
    p_b = cdf(t[:, -1:] - column(rho))
    corner = Shares(cdf(column(rho)), p_b, cdf(-column(rho)) - p_b)
    shares = Shares(
        *(
            tf.concat(pair, -1)
            for pair in zip(_shares(t, rho), corner, strict=True)
        )
    )
    tails = log_tail(shares, event)
    # Right of the last point: the corner, if the part reaches so far.
    beyond = tf.where(cut, tails[:, -2], tails[:, -1])
    left, right = tails[:, :-2], tails[:, 1:-1]
    width = t[:, 1:] - t[:, :-1]
    curvature = _curvature(t[:, :-1], t[:, 1:], rho)
    gap = event.n[:, None] * curvature * width**2 / 8 + 1e-12
    # The maximum over l of (1 - l) * left + l * right + 4 * gap * l * (1 - l).
    difference = tf.abs(right - left)
    inner = (left + right) / 2 + gap + difference**2 / (16 * gap)
    between = tf.where(difference < 4 * gap, inner, tf.maximum(left, right))
    largest = tf.maximum(tf.reduce_max(between, -1), beyond)
    largest += _MARGIN + _MARGIN_PER_VOTE * event.n
    # Nothing is proven where a number is none.
    finite = tf.reduce_all(tf.math.is_finite(between), -1)
    unproven = tf.constant(np.inf, tf.float64)
    return tf.where(finite, largest - part.log_alpha, unproven)


def log_excess_nearly(rho: tf.Tensor, part: Part, event: Event) -> tf.Tensor:
    """Returns about what `log_excess` does, from few points; [R]."""
    u, _ = _ends(rho, part, event.n)
    grid = tf.constant(np.linspace(0, 1, _FEW_POINTS))
    t = -((u[:, :1] + grid * (u[:, 1:] - u[:, :1])) ** 2)
    tails = log_tail(_shares(t, rho), event)
    return tf.reduce_max(tails, -1) - part.log_alpha + GAP


def _ends(
    rho: tf.Tensor, part: Part, n: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns both ends of the part on the curve of rho.

    Returns:
        sqrt(-t) at both ends, [R, 2], falling. The points are even in it, as
        p_c nearly is its square where it is small.
        cut [R]: whether the part ends at the second of them.
    """
    # Here the corner is 0.004 standard deviations of the statistic away.
    last = 0.004 * tf.sqrt(cdf(rho) * cdf(-rho) / n) / density(rho)
    last = tf.clip_by_value(last, 1e-12, 0.1)
    nearest = rho - part.high
    cut = nearest > last
    nearest = tf.maximum(nearest, last)
    # Where all of it is in the corner, any two points do.
    furthest = tf.maximum(rho - part.low, nearest * 1.001)
    return tf.sqrt(tf.stack([furthest, nearest], -1)), cut


def _shares(t: tf.Tensor, rho: tf.Tensor) -> Shares:
    """Returns the probabilities at t [R, P] of the curve of rho [R]."""
    rho = column(rho)
    p_b = cdf(t - rho)
    return Shares(cdf(t + rho), p_b, cdf(-t - rho) - p_b)


def _curvature(t_0: tf.Tensor, t_1: tf.Tensor, rho: tf.Tensor) -> tf.Tensor:
    """Returns the C of the module's text on [t_0, t_1], [R, P]."""
    p_b, p_c = _shares(t_1, rho)[1:]
    rho = column(rho)
    bend_a = _bend(t_0 + rho)
    bend_b = p_b * _bend(t_0 - rho)
    # p_c falls with slope -(phi(z_a) + phi(z_b)); its second derivative is
    # z_a * phi(z_a) + z_b * phi(z_b).
    highest = tf.clip_by_value(tf.zeros_like(t_0), t_0 + rho, t_1 + rho)
    density_a, density_b = density(highest), density(t_1 - rho)
    bend_c = (density_a + density_b) ** 2 / p_c
    bend_c += tf.maximum(-(t_0 + rho), 0.0) * density_a
    bend_c += (rho - t_0) * density_b
    return (bend_a + bend_b + bend_c / (1 - p_b)) * (1 + 1e-9)


def _bend(z: tf.Tensor) -> tf.Tensor:
    """Returns -(log Phi)''(z), which falls from 1 to 0."""
    hazard = density(z) / cdf(z)
    return tf.clip_by_value(hazard * (z + hazard) + 1e-9, 0.0, 1.0)
