"""Bounds on the largest trinomial tail among equal radii, in float64.

That of T(p_a, p_b), the probability that votes reach a level, on the curve of
one radius r; see `joint` for its use.

The curve is p_a = Phi(t + rho), p_b = Phi(t - rho) with rho = r / sigma and
t <= 0. It is covered completely: left of the first point T is at most
P[N_a >= m] with the m votes that it takes beside none for b, right of the last
one it is at most T(p_a at t = 0, p_b at the last point), and between two points
h apart

    log T <= max over l in [0, 1] of
             (1 - l) * log T_0 + l * log T_1 + n * C * h**2 * l * (1 - l) / 2,

    C >= -(log p_a)'' - p_b * (log p_b)'' - p_c / (1 - p_b) * (log p_c)''

(derivatives in t, p_c = 1 - p_a - p_b), since T is a sum over x of
coefficients times p_a**x_a * p_b**x_b * p_c**x_c, hence (log T)'' =
variance + E[sum of x_i * (log p_i)'' | level] with all (log p_i)'' <= 0, and
E[x_a | .] <= n, E[x_b | .] <= n * p_b, E[x_c | .] <= n * p_c / (1 - p_b).

Far from the maximum, Chernoff's bound covers both ends at once. The points and
their number only decide how tight this is, not whether it holds.
"""

import numpy as np
import tensorflow as tf

from rs_keras.bounds.trinomial import Event
from rs_keras.bounds.trinomial import Shares
from rs_keras.bounds.trinomial import cdf
from rs_keras.bounds.trinomial import column
from rs_keras.bounds.trinomial import log_tail

# Between two points, log T is bounded to _GAP * (_SLACK + fall), where it is
# `fall` below its maximum: 0.1 there, or 0.03 standard errors of the radius.
_SLACK = 0.32
_GAP = 0.35
GAP_AT_MAXIMUM = _GAP * _SLACK
# As many more where points are few and their gaps uneven.
_MORE_POINTS = 24.0
# Points for the steps that prove nothing, and the grid to place points by.
_FEW_POINTS = 8
_GRID = 128

# Covers the rounding errors of a log of the tail, and per vote.
_MARGIN = 1e-7
_MARGIN_PER_VOTE = 2.0**-46


def score(t: tf.Tensor, rho: tf.Tensor, event: Event) -> tf.Tensor:
    """Returns z with P near Phi(-z) at t [R, P], from three moments."""
    p_a, p_b = (cdf(z)[..., None] for z in (t + rho, t - rho))
    s, w, n = event.lines()
    mean = p_a - w * p_b
    second = p_a + w**2 * p_b
    third = p_a - w**3 * p_b
    variance = second - mean**2
    deviation = tf.sqrt(n * variance)
    z = (s - n * mean) / deviation
    skewness = (third - 3 * mean * second + 2 * mean**3) / variance / deviation
    # Cornish and Fisher's correction, kept small where it is not one.
    correction = skewness * (tf.minimum(z**2, 25.0) - 1) / 6
    z -= tf.clip_by_value(correction, -0.5, 0.5)
    return tf.reduce_min(z, -1)


def log_excess(
    rho: tf.Tensor,
    first: tf.Tensor,
    alpha: tf.Tensor,
    event: Event,
    proof: bool,
) -> tf.Tensor:
    """Returns log(F / alpha), [R]: a bound on it, or that at a few points."""
    log_alpha = tf.math.log(alpha)
    t, corner, cut = _points_on_curve(rho, first, log_alpha, event, proof)
    shares = _shares(t, rho)
    shares = Shares(
        *(tf.concat(pair, -1) for pair in zip(shares, corner, strict=True))
    )
    tails = log_tail(shares, event)
    if not proof:
        return tf.reduce_max(tails[:, :-1], -1) - log_alpha
    # Right of the last point: the corner, or less than alpha.
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
    return tf.where(finite, largest - log_alpha, unproven)


def _points_on_curve(
    rho: tf.Tensor,
    first: tf.Tensor,
    log_alpha: tf.Tensor,
    event: Event,
    proof: bool,
) -> tuple[tf.Tensor, Shares, tf.Tensor]:
    """Returns the points between which the tail has to be summed.

    Returns:
        t [R, points], rising, < 0. Left of them, T is at most alpha.
        The last interval's corner, [R, 1].
        cut [R]: right of them, too, so that the corner is not needed.
    """
    rho, first, n = column(rho), column(first), column(event.n)
    # Here the corner is 0.004 standard deviations of S away.
    last = 0.004 * tf.sqrt(cdf(rho) * cdf(-rho) / n) / density(rho)
    last = tf.clip_by_value(last, 1e-12, 0.1)
    furthest = tf.maximum(rho - first, 2 * last)
    t = _grid_on_curve(furthest, last)
    low, high = _chernoff_on_curve(t, rho, event)
    enough = column(log_alpha) - (_MARGIN + _MARGIN_PER_VOTE * n)
    furthest = -tf.reduce_max(
        tf.where(low <= enough, t, -furthest), -1, keepdims=True
    )
    nearest = -tf.reduce_min(
        tf.where(high <= enough, t, -last), -1, keepdims=True
    )
    cut = nearest > last
    # Where all is covered, any two points do.
    furthest = tf.maximum(furthest, nearest * 1.001)
    t = _grid_on_curve(furthest, nearest)
    # Closer where T is near its maximum, so that no interval's gap matters.
    height = tf.maximum(score(t, rho, event), 0.0)
    fall = (height**2 - tf.reduce_min(height, -1, keepdims=True) ** 2) / 2
    curvature = _curvature(t, t, rho[:, 0])
    rate = tf.sqrt(n * curvature / (_SLACK + fall))
    widths = t[:, 1:] - t[:, :-1]
    parts = widths * (rate[:, 1:] + rate[:, :-1]) / 2
    starts = tf.cumsum(parts, -1, exclusive=True)
    length = tf.reduce_sum(parts, -1, keepdims=True)
    # At this distance, each gap is _GAP times _SLACK + fall.
    points = tf.reduce_max(length) / np.sqrt(8 * _GAP) + _MORE_POINTS
    points = tf.cast(points, tf.int32)
    points = points if proof else tf.constant(_FEW_POINTS)
    wanted = length * tf.linspace(tf.constant(0.0, tf.float64), 1.0, points)
    # The inverse of the piecewise linear sum, [R, points, grid - 1].
    covered = (wanted[..., None] - starts[:, None]) / parts[:, None]
    covered = tf.clip_by_value(covered, 0.0, 1.0)
    inner = tf.reduce_sum(covered * widths[:, None], -1) - furthest
    inner = tf.clip_by_value(inner[:, 1:-1], -furthest, -nearest)
    p_b = cdf(-last - rho)
    corner = Shares(cdf(rho), p_b, cdf(-rho) - p_b)
    return tf.concat([-furthest, inner, -nearest], -1), corner, cut[:, 0]


def _grid_on_curve(furthest: tf.Tensor, nearest: tf.Tensor) -> tf.Tensor:
    """Returns t from -furthest to -nearest, [R, grid], denser towards 0."""
    start, end = tf.sqrt(furthest), tf.sqrt(nearest)
    return -(
        (start + (end - start) * tf.constant(np.linspace(0, 1, _GRID))) ** 2
    )


def _chernoff_on_curve(
    t: tf.Tensor, rho: tf.Tensor, event: Event
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns bounds on log T left of t and right of t, both [R, grid].

    T is at most the sum over the weights w of P[N_a - w * N_b >= s]. For every
    x > 0, the log of each is at most n * log(M) - x * s with

        M = 1 + p_a * (exp(x) - 1) - p_b * (1 - exp(-w * x))

    and M rises along the curve until exp(-2 * t * rho) is
    (1 - exp(-w * x)) / (exp(x) - 1), and falls from there on.
    """
    s, w, n = event.lines()
    rho = column(rho, 3)
    p_a, p_b, p_c = (share[..., None] for share in _shares(t, rho[:, 0, 0]))

    def moments(x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        a, b = p_a * tf.exp(x), p_b * tf.exp(-w * x)
        mean = (a - w * b) / (a + b + p_c)
        return mean, (a + w**2 * b) / (a + b + p_c) - mean**2

    x = tf.zeros_like(p_a * s)
    for _ in range(4):  # Newton's steps; any x is as valid
        mean, variance = moments(x)
        x += tf.clip_by_value((s / n - mean) / variance, -1.0, 1.0)
        x = tf.clip_by_value(x, 1e-9, 20.0)
    up, down = tf.math.expm1(x), -tf.math.expm1(-w * x)
    peak = -tf.math.log(down / up) / (2 * rho)
    t = t[..., None]

    def bound(t: tf.Tensor) -> tf.Tensor:
        growth = cdf(t + rho) * up - cdf(t - rho) * down
        return tf.reduce_logsumexp(n * tf.math.log1p(growth) - x * s, -1)

    left = bound(tf.minimum(t, peak))
    return left, bound(tf.clip_by_value(peak, t, 0.0))


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


def density(z: tf.Tensor) -> tf.Tensor:
    """phi(z)."""
    return tf.exp(-0.5 * z**2) / np.sqrt(2 * np.pi)
