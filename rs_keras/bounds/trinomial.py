"""Tails of trinomial distributions along a line of counts, in float64.

P[8 * N_a - w * N_b >= s] for (N_a, N_b, N_c) of n draws with probabilities
(p_a, p_b, p_c), rounded up: a sum over the values of N_b of which only those
that matter are visited, and the rest is bounded.
"""

from typing import NamedTuple

import numpy as np
import tensorflow as tf

from rs_keras.bounds import binomial

# Eighths: the weights are multiples of 1/8, so that sums compare exactly.
PER_UNIT = 8

# Standard deviations on both sides of the window of values of N_b; the rest of
# the sum is bounded, so that this decides only how tight the bound is.
WINDOW = 4.2

# The log of a number that counts as 0, far above the smallest float64.
_LOG_TINY = -600.0


class Event(NamedTuple):
    """The event 8 * N_a - w * N_b >= s in n votes; each float64 [R]."""

    s: tf.Tensor
    n: tf.Tensor
    w: tf.Tensor

    def columns(self, rank: int = 2) -> "Event":
        """The same with axes of size 1 after the first."""
        return Event(*(column(part, rank) for part in self))


class Shares(NamedTuple):
    """Probabilities of the two classes and of all others; [R, P]."""

    a: tf.Tensor
    b: tf.Tensor
    c: tf.Tensor


def log_tail(shares: Shares, event: Event) -> tf.Tensor:
    """Returns log P[8 * N_a - w * N_b >= s], [R, P], rounded up.

    With F(b) = P[N_b <= b] and G(b) = P[N_a reaches its threshold | N_b = b],
    which falls, summation by parts gives for every `high`

        P <= sum over b < high of (G(b) - G(b + 1)) * F(b) + G(high),

    and the part of the sum below `low` is at most F(low - 1) * (1 - G(low)).
    """
    event = event.columns()
    n = event.n
    # Given N_b, the others are binomial.
    q, q_c = shares.a / (1 - shares.b), shares.c / (1 - shares.b)
    # No more votes for b than this leave enough for a.
    most = tf.floor((PER_UNIT * n - event.s) / (PER_UNIT + event.w))
    centre, deviation = _window(shares, q, event)
    low = tf.floor(centre - WINDOW * deviation - 4)
    low = tf.clip_by_value(low, 0.0, most)  # [R, P]
    size = tf.minimum(2 * WINDOW * deviation + 9, most - low + 1)
    size = tf.math.ceil(tf.reduce_max(size))
    high = low + size
    votes = _threshold(low, event)
    below = _binomial_tail(n - low + 1, n, 1 - shares.b, shares.b)
    below = tf.where(low > 0, below, 0.0)
    fails = _chernoff(n - low - votes + 1, n - low, q_c, q)
    above = _binomial_tail(_threshold(high, event), n - high, q, q_c)
    above = tf.where(high <= most, above, 0.0)
    inside = _window_sum(shares, event, low, size, below)
    total = inside + below * fails + above + np.exp(_LOG_TINY)
    return tf.math.log(total)


def _window(
    shares: Shares, q: tf.Tensor, event: Event
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns where most of the sum is, [R, P], as if all were normal."""
    mean = event.n * shares.b
    variance = mean * (1 - shares.b) + 1e-9
    spread = tf.sqrt((event.n - mean) * q * (1 - q)) + 1e-9
    # G(b) = Phi(-y): y at the mean, and its slope.
    y = (event.s + event.w * mean) / PER_UNIT - (event.n - mean) * q
    y /= spread
    slope = (event.w / PER_UNIT + q) / spread
    shrink = slope**2 * variance
    shrink = tf.where(y > 0, shrink / (1 + shrink), 1.0)
    return mean - y / slope * shrink, tf.sqrt(shrink) / slope


def _window_sum(
    shares: Shares,
    event: Event,
    low: tf.Tensor,
    size: tf.Tensor,
    below: tf.Tensor,
) -> tf.Tensor:
    """Returns the sum over low <= b < low + size of (G(b) - G(b + 1)) * F(b).

    With m(b) votes that N_a needs, N = n - b - 1 and c = N - m(b) + 1,

        G(b) - G(b + 1) = q * pmf(m(b) - 1) + sum over m(b) <= i < m(b + 1) of
                          pmf(i)

    in terms of Binomial(N, q). Each pmf follows from the one before it.
    """
    q, q_c = shares.a / (1 - shares.b), shares.c / (1 - shares.b)
    odds = (shares.a / shares.c)[..., None]
    columns = event.columns(3)
    b = low[..., None] + tf.range(size)  # [R, P, window]
    votes = _threshold(b, columns)
    steps = _threshold(b + 1, columns) - votes
    rest = columns.n - b - votes

    def add(
        i: tf.Tensor, product: tf.Tensor, total: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """From pmf(m + i - 2) to pmf(m + i - 1), both over pmf(m - 1)."""
        more = odds * tf.maximum(rest - (i - 1), 0.0) / (votes + (i - 1))
        counts = i <= steps
        product = tf.where(counts, product * more, product)
        return i + 1, product, tf.where(counts, total + product, total)

    _, product, total = tf.while_loop(
        lambda i, *_: i <= tf.reduce_max(steps),
        add,
        (
            tf.constant(1.0, tf.float64),
            tf.ones_like(b),
            tf.zeros_like(b) + q[..., None],
        ),
    )
    # From pmf(m(b) - 1) in N trials to pmf(m(b + 1) - 1) in N - 1.
    trials = tf.maximum(columns.n - b - 1, 1.0)
    ratio = product * tf.maximum(rest - steps, 0.0) / (trials * q_c[..., None])
    needed = _threshold(low, event)
    first = _binomial_pmf(needed - 1, event.n - low - 1, q, q_c)
    pmf = first[..., None] * tf.math.cumprod(ratio, -1, exclusive=True)
    # F(b), from the pmf of N_b.
    ratio = (columns.n - b) / (b + 1) * (shares.b / (1 - shares.b))[..., None]
    first = _binomial_pmf(low, event.n, shares.b, 1 - shares.b)
    terms = first[..., None] * tf.math.cumprod(ratio, -1, exclusive=True)
    cdf = below[..., None] + tf.cumsum(terms, -1)
    return tf.reduce_sum(pmf * total * cdf, -1)


def _threshold(b: tf.Tensor, event: Event) -> tf.Tensor:
    """Returns the fewest votes for a that reach s beside b for the other."""
    return tf.math.ceil((event.s + event.w * b) / PER_UNIT)


def _binomial_tail(
    k: tf.Tensor, n: tf.Tensor, p: tf.Tensor, q: tf.Tensor
) -> tf.Tensor:
    """Returns P[Binomial(n, p) >= k], rounded up, at most 1; q = 1 - p.

    1 where p is above k / n, or k is not in [1, n].
    """
    usable = (k >= 1) & (k <= n) & (k * q >= (n - k) * p)
    k, n = tf.where(usable, k, 1.0), tf.where(usable, n, 1.0)
    log_p = tf.where(p < 0.5, tf.math.log(p), tf.math.log1p(-q))
    # Where k = n, log(k / n) = 0 is above any.
    log_p = tf.where(usable, tf.minimum(log_p, -1e-300), -1.0)
    tail = tf.exp(tf.minimum(binomial.log_tail(k, n, log_p), 0.0))
    return tf.where(usable, tail, 1.0)


def _chernoff(
    k: tf.Tensor, n: tf.Tensor, p: tf.Tensor, q: tf.Tensor
) -> tf.Tensor:
    """Returns a bound on P[Binomial(n, p) >= k]; q = 1 - p."""
    bound = tf.exp(-_divergence(k, n, p, q))
    return tf.where(k * q > (n - k) * p, bound, 1.0)


def _binomial_pmf(
    k: tf.Tensor, n: tf.Tensor, p: tf.Tensor, q: tf.Tensor
) -> tf.Tensor:
    """Returns P[Binomial(n, p) = k], but never an underflow; q = 1 - p."""
    excess = binomial.log_factorial_excess
    log_pmf = excess(n) - excess(k) - excess(n - k) - _divergence(k, n, p, q)
    return tf.exp(tf.maximum(log_pmf, _LOG_TINY))


def _divergence(
    k: tf.Tensor, n: tf.Tensor, p: tf.Tensor, q: tf.Tensor
) -> tf.Tensor:
    """Returns n times the Kullback-Leibler divergence of p from k / n."""
    m = n - k
    return tf.math.xlogy(k, k / (n * p)) + tf.math.xlogy(m, m / (n * q))


def column(x: tf.Tensor, rank: int = 2) -> tf.Tensor:
    """Returns [R, 1] or [R, 1, 1] from [R]."""
    return tf.reshape(x, [-1] + [1] * (rank - 1))
