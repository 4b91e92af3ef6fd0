"""Tails of trinomial distributions along a staircase of counts, in float64.

The probability that 8 * N_a - w * N_b >= s_w for one of several weights w, for
(N_a, N_b, N_c) of n draws with probabilities (p_a, p_b, p_c), rounded up: a sum
over the values of N_b of which only those that matter are visited, and the rest
is bounded. That N_a needs the more votes the more N_b has is all it takes.
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

# Numbers of votes for b, of all points together; of more, nothing is computed.
_LONGEST_STAIRS = 2.0**20

# The log of a number that counts as 0, far above the smallest float64.
_LOG_TINY = -600.0


class Event(NamedTuple):
    """That 8 * N_a - w * N_b >= s for one of the weights, in n votes.

    Attributes:
        s: float64 [R, weights], whole numbers.
        w: float64 [weights], whole numbers.
        n: float64 [R].
    """

    s: tf.Tensor
    w: tf.Tensor
    n: tf.Tensor

    def lines(self) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Returns s [R, 1, weights], w and n [R, 1, 1], all in votes."""
        n = column(self.n, 3)
        return self.s[:, None] / PER_UNIT, self.w / PER_UNIT, n

    def votes(self, b: tf.Tensor) -> tf.Tensor:
        """Returns the fewest votes for a that do beside b [R, B], [R, B]."""
        needed = (self.s[:, None] + self.w * b[..., None]) / PER_UNIT
        return tf.reduce_min(tf.math.ceil(needed), -1)


class Shares(NamedTuple):
    """Probabilities of the two classes and of all others; [R, P]."""

    a: tf.Tensor
    b: tf.Tensor
    c: tf.Tensor


def log_tail(shares: Shares, event: Event) -> tf.Tensor:
    """Returns the log of the event's probability, [R, P], rounded up.

    With F(b) = P[N_b <= b] and G(b) = P[N_a has the votes it needs | N_b = b],
    which falls, summation by parts gives for every `high`

        P <= sum over b < high of (G(b) - G(b + 1)) * F(b) + G(high),

    and the part of the sum below `low` is at most F(low - 1) * (1 - G(low)).
    """
    n = column(event.n)
    # Given N_b, the others are binomial.
    q, q_c = shares.a / (1 - shares.b), shares.c / (1 - shares.b)
    # No more votes for b than this leave enough for a.
    most = tf.floor((PER_UNIT * n - event.s) / (PER_UNIT + event.w))
    most = tf.reduce_max(most, -1, keepdims=True)
    # Where a number is none, so is the sum, but not the size of the window.
    centre, deviation = (
        tf.where(tf.math.is_finite(x), x, 0.0)
        for x in _window(shares, q, event)
    )
    low = tf.floor(centre - WINDOW * deviation - 4)
    low = tf.clip_by_value(low, 0.0, most)  # [R, P]
    size = tf.minimum(2 * WINDOW * deviation + 9, most - low + 1)
    size = tf.math.ceil(tf.reduce_max(size))
    high = low + size
    # The votes that N_a needs, once for all points.
    first = tf.reduce_min(low, -1, keepdims=True)
    span = tf.reduce_max(high - first) + 1
    bounded = span <= _LONGEST_STAIRS
    stairs = event.votes(first + tf.range(tf.minimum(span, _LONGEST_STAIRS)))
    steps = (low - first)[..., None] + tf.range(size + 1)
    steps = tf.cast(tf.minimum(steps, _LONGEST_STAIRS - 1), tf.int32)
    votes = tf.gather(stairs, steps, batch_dims=1)  # [R, P, window + 1]
    # Both tails at once.
    below, above = tf.unstack(
        _binomial_tail(
            tf.stack([n - low + 1, votes[..., -1]]),
            tf.stack([n + tf.zeros_like(low), n - high]),
            tf.stack([1 - shares.b, q]),
            tf.stack([shares.b, q_c]),
        )
    )
    below = tf.where(low > 0, below, 0.0)
    above = tf.where(high <= most, above, 0.0)
    fails = _chernoff(n - low - votes[..., 0] + 1, n - low, q_c, q)
    inside = _window_sum(shares, event.n, low, votes, below)
    total = inside + below * fails + above + np.exp(_LOG_TINY)
    return tf.where(bounded, tf.math.log(total), 0.0)


def longest_window(n: tf.Tensor) -> tf.Tensor:
    """Returns the most terms that a sum over n votes has, [R]."""
    # No deviation of a count is larger than sqrt(n) / 2.
    return WINDOW * tf.sqrt(n) + 10


def _window(
    shares: Shares, q: tf.Tensor, event: Event
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns where most of the sum is, [R, P], as if all were normal."""
    s, w, n = event.lines()
    n = n[..., 0]
    mean = n * shares.b
    # The line that matters there.
    line = tf.argmin(s + w * mean[..., None], -1)
    s = tf.gather(s[:, 0], line, batch_dims=1)
    w = tf.gather(w, line)
    variance = mean * (1 - shares.b) + 1e-9
    spread = tf.sqrt((n - mean) * q * (1 - q)) + 1e-9
    # G(b) = Phi(-y): y at the mean, and its slope.
    y = (s + w * mean - (n - mean) * q) / spread
    slope = (w + q) / spread
    shrink = slope**2 * variance
    shrink = tf.where(y > 0, shrink / (1 + shrink), 1.0)
    return mean - y / slope * shrink, tf.sqrt(shrink) / slope


def _window_sum(
    shares: Shares,
    n: tf.Tensor,
    low: tf.Tensor,
    stairs: tf.Tensor,
    below: tf.Tensor,
) -> tf.Tensor:
    """Returns the sum over the window of (G(b) - G(b + 1)) * F(b), [R, P].

    With m(b) votes that N_a needs, N = n - b - 1 and c = N - m(b) + 1,

        G(b) - G(b + 1) = q * pmf(m(b) - 1) + sum over m(b) <= i < m(b + 1) of
                          pmf(i)

    in terms of Binomial(N, q). Each pmf follows from the one before it.

    Args:
        shares: Of the points.
        n: [R].
        low: The first b of the window, [R, P].
        stairs: m(b) of the window and of the b after it, [R, P, window + 1].
        below: P[N_b < low], [R, P].
    """
    q, q_c = shares.a / (1 - shares.b), shares.c / (1 - shares.b)
    odds = (shares.a / shares.c)[..., None]
    size = tf.shape(stairs)[-1] - 1
    b = low[..., None] + tf.cast(tf.range(size), tf.float64)
    votes = stairs[..., :-1]
    steps = stairs[..., 1:] - votes
    draws = column(n, 3)
    rest = draws - b - votes

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
    trials = tf.maximum(draws - b - 1, 1.0)
    ratio = product * tf.maximum(rest - steps, 0.0) / (trials * q_c[..., None])
    n = column(n) + tf.zeros_like(low)
    first, first_b = tf.unstack(
        _binomial_pmf(
            tf.stack([stairs[..., 0] - 1, low]),
            tf.stack([n - low - 1, n]),
            tf.stack([q, shares.b]),
            tf.stack([q_c, 1 - shares.b]),
        )
    )
    pmf = first[..., None] * tf.math.cumprod(ratio, -1, exclusive=True)
    # F(b), from the pmf of N_b.
    ratio = (draws - b) / (b + 1) * (shares.b / (1 - shares.b))[..., None]
    terms = first_b[..., None] * tf.math.cumprod(ratio, -1, exclusive=True)
    cdf = below[..., None] + tf.cumsum(terms, -1)
    return tf.reduce_sum(pmf * total * cdf, -1)


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
    excess = binomial.log_factorial_excess(tf.stack([n, k, n - k]))
    log_pmf = excess[0] - excess[1] - excess[2] - _divergence(k, n, p, q)
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


def cdf(z: tf.Tensor) -> tf.Tensor:
    """Phi(z), with all its digits on both sides."""
    return 0.5 * tf.math.erfc(z * -np.sqrt(0.5))


def density(z: tf.Tensor) -> tf.Tensor:
    """phi(z)."""
    return tf.exp(-0.5 * z**2) / np.sqrt(2 * np.pi)
