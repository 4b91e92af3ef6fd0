"""The certified radius from one test on two counts, in float64.

`two_count` bounds two probabilities separately and pays for both. Here one
exact test is inverted, of which level the votes reach in the fixed order of
`vote_order`.

Theorem. Let p_a be the probability of the chosen class a, and p_b that of the
most probable other class b. With n votes, k of them for a and at most k2 for
any other class, let T(p_a, p_b) be the probability that the votes (N_a, N_b)
of the trinomial (N_a, N_b, n - N_a - N_b) reach the level l of (k, k2). Let
[L, U] be an interval, made from k, in which p_a lies with probability at least
1 - gamma, and

    F(r) = max T(p_a, p_b) over Phi^-1(p_a) - Phi^-1(p_b) = 2 * r / sigma,
           L <= p_a <= U, p_a + p_b <= 1.

Then "F(r) <= alpha - gamma" holds for an r above the true radius
R = sigma / 2 * (Phi^-1(p_a) - Phi^-1(p_b)) with probability at most alpha.

Proof. (1) Class b is fixed, though unknown, and k2 is at least its count N_b.
The level does not rise with that count. So l is at most the level of
(N_a, N_b), whatever the remaining classes do. Were k2 the count of a class
chosen earlier, which may not be b, this step would fail. (2) The level rises
with N_a and falls with N_b, so that T grows with p_a and falls with p_b (move
the mass from or to the remaining classes). If the true p_a lies in [L, U], the
point of the curve of r > R with the same p_a has a smaller p_b, so that it is
among those of F, and T(p_a, p_b) at the true ones is at most F(r). (3) The
votes that reach a level are among those that reach a lower one, so that T falls
as l rises. So T(p_a, p_b) <= alpha - gamma is the event l >= l_0 for some l_0,
of probability at most P[(N_a, N_b) reach l_0] <= alpha - gamma. With (2) that
makes alpha. Votes of equal level count as reaching it.

The level need not be the highest that the votes reach, and [L, U] may be any
such interval: neither changes the proof. Without the interval, T would have to
be bounded along the whole curve, on which it hardly changes, at some
2 * sqrt(n) points; with it, forty do.

`radius_curve` bounds F; `trinomial` computes T.
"""

from typing import Any
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from rs_keras.bounds.confidence import ROUNDING
from rs_keras.bounds.confidence import Value
from rs_keras.bounds.confidence import check_ranges
from rs_keras.bounds.confidence import check_votes
from rs_keras.bounds.confidence import check_whole
from rs_keras.bounds.confidence import float64
from rs_keras.bounds.confidence import possible_votes
from rs_keras.bounds.radius_curve import Part
from rs_keras.bounds.radius_curve import log_excess
from rs_keras.bounds.radius_curve import log_excess_nearly
from rs_keras.bounds.radius_curve import points_needed
from rs_keras.bounds.trinomial import Event
from rs_keras.bounds.trinomial import cdf
from rs_keras.bounds.trinomial import density
from rs_keras.bounds.vote_order import WEIGHTS
from rs_keras.bounds.vote_order import level_of
from rs_keras.bounds.vote_order import radius_of

# What the interval of p_a takes of alpha.
_SHARE = 2.0**-9

# The search stops where F is within this part below alpha.
_TOLERANCE = 4e-2
_STEPS = 12
# The smallest rho that is tried, where an image with less abstains, and the
# largest.
_SMALLEST = 1e-5
_LARGEST = 8.0

# k, k2, n and alpha of a row that makes no sense: one vote never certifies.
_HARMLESS = (1.0, 0.0, 1.0, 0.5)


class JointCount(NamedTuple):
    """What the votes for two classes certify together; see `joint_count`.

    There is no lower bound on the top class's probability: that would be a
    second statement, with another error probability.

    Example:

    >>> from rs_keras import bounds
    >>> found = bounds.joint_count(700, 100, 1000, 0.001, sigma=0.5)
    >>> bool(found.abstain)
    False
    """

    radius: tf.Tensor
    abstain: tf.Tensor


def joint_count(
    k: Value,
    k2: Value,
    n: Value,
    alpha: Value,
    sigma: Value,
    distance: Value = 0.0,
) -> JointCount:
    """Certificate from one test of the two counts.

    Votes are ordered by the radius that they suggest, in an order fixed by n
    and alpha. The result is the largest radius r such that, for all
    probabilities of the top class and of the runner-up with which the true
    radius is at most r,

        P[the votes reach the level of (k, k2)] <= alpha * (1 - 2**-9)

    (the exact trinomial tail; ties count). The probability of the top class may
    be restricted to an interval, for which the rest of alpha pays. It abstains
    where there is no positive radius.

    With up to some ten classes it is above that of `two_count`. Where the
    runner-up is rare beside the rest, as with hundreds of classes, it can be
    far below: a vote for the runner-up weighs 4 at most.

    Sound, with probability 1 - alpha, if the top class was chosen before these
    n samples were drawn, and `k2` is the largest count among ALL the other
    classes in these samples. The latter is at least the count of the class that
    is truly second, and the level falls with it; the votes for the remaining
    classes may be spread in any way.

    Args:
        k: Votes for the chosen class, whole numbers in [0, n].
        k2: The largest number of votes for another class, in [0, n - k].
        n: Votes in all. Below 1 it abstains.
        alpha: Error probability, in (0, 1).
        sigma: Standard deviation of the noise, > 0.
        distance: Total variation between the noise of one draw and the
            Gaussian, at most, in [0, 1). Any event of n draws is that much
            times n more probable at most, which is taken off `alpha`.

    Returns:
        `JointCount(radius, abstain)`: float64 and bool, of the broadcast shape.
        The radius is rounded down, 0 where it abstains. A row's does not
        depend on the other rows.

    Raises:
        ValueError: If an argument is a number or array out of its range, or a
            count is not whole.

    Example:

    >>> from rs_keras import bounds
    >>> found = bounds.joint_count(700, 100, 1000, alpha=0.001, sigma=0.5)
    >>> separate = bounds.two_count(700, 100, 1000, alpha=0.001, sigma=0.5)
    >>> bool(found.radius > 1.03 * separate.radius)
    True

    References:
    - [Cohen et al., 2019](https://arxiv.org/abs/1902.02918), theorem 1
    - [Buehler, 1957](https://doi.org/10.1080/01621459.1957.10501404): exact
      limits in a given order of the outcomes
    - [Berger and Boos, 1994](https://doi.org/10.1080/01621459.1994.10476836):
      maxima over a confidence set of a nuisance parameter
    """
    check_ranges(sigma=sigma, distance=distance, alpha=alpha, k=k, k2=k2)
    check_whole(k=k, n=n)
    check_votes(k, k2, n)
    k, k2, n, sigma = float64(k), float64(k2), float64(n), float64(sigma)
    alpha = float64(alpha) - n * float64(distance) * (1 + ROUNDING)
    conditions = [
        possible_votes(k, k2, n),
        tf.equal(k, tf.floor(k)),
        tf.equal(n, tf.floor(n)),
        (n >= 1) & (alpha > 0) & (alpha < 1) & (sigma > 0),
        # Others have no radius, and no vote for the class reaches every level.
        k > k2,
    ]
    valid = conditions[0]
    for condition in conditions[1:]:
        valid = valid & condition
    arguments = [
        tf.reshape(tf.where(valid, x, tf.constant(y, tf.float64)), [-1])
        for x, y in zip((k, k2, n, alpha), _HARMLESS, strict=True)
    ]
    rho = tf.reshape(_largest_rho(*arguments), tf.shape(valid))
    certified = valid & (rho > 0)
    radius = tf.where(certified, sigma * rho * (1 - ROUNDING), 0.0)
    return JointCount(radius, tf.logical_not(certified))


# Traced once, as `binomial.confidence_limit` is.
@tf.function(
    input_signature=[tf.TensorSpec([None], tf.float64)] * 4, autograph=False
)
def _largest_rho(
    k: tf.Tensor, k2: tf.Tensor, n: tf.Tensor, alpha: tf.Tensor
) -> tf.Tensor:
    """Returns the largest rho = r / sigma proven, [R]; 0 where there is none.

    Row by row, so that no row's depends on another's.
    """
    return tf.map_fn(
        lambda row: _search(*(x[None] for x in row))[0],
        (k, k2, n, alpha),
        # More take more memory.
        parallel_iterations=4,
        fn_output_signature=tf.TensorSpec([], tf.float64),
    )


def _search(
    k: tf.Tensor, k2: tf.Tensor, n: tf.Tensor, alpha: tf.Tensor
) -> tf.Tensor:
    """Returns the largest rho proven, [R], by Newton steps in a bracket."""
    level, needed, reached = level_of(k, k2, n, alpha)
    event = Event(needed, tf.constant(WEIGHTS), n)
    part = _part(k, n, alpha)
    # That of a normal tail beyond z, by the standard error of two classes.
    rho = tf.clip_by_value(radius_of(level, n), _SMALLEST, _LARGEST)
    z = tf.maximum(-tf.math.ndtri(alpha), 1.0)
    slope = z * tf.sqrt(n / (cdf(rho) * cdf(-rho))) * density(rho)
    points = points_needed(rho, part, event)
    near = log_excess_nearly(rho, part, event) + _TOLERANCE / 2
    move = near / slope
    rho -= tf.where(tf.math.is_finite(move), move, 0.0)
    rho = tf.clip_by_value(rho, _SMALLEST, _LARGEST)

    def step(
        count: tf.Tensor,
        rho: tf.Tensor,
        slope: tf.Tensor,
        last: tuple[tf.Tensor, tf.Tensor],
        bracket: tuple[tf.Tensor, tf.Tensor],
        done: tf.Tensor,
    ) -> tuple[Any, ...]:
        excess = log_excess(rho, part, event, points)
        proven, above = bracket
        holds = excess <= 0
        proven = tf.where(holds & ~done, tf.maximum(proven, rho), proven)
        above = tf.where(holds | done, above, tf.minimum(above, rho))
        done |= holds & (excess >= -_TOLERANCE)
        done |= above <= 2 * _SMALLEST
        # The slope of the secant, where it rises.
        secant = (excess - last[1]) / (rho - last[0])
        rises = tf.math.is_finite(secant) & (secant > 0)
        slope = tf.where(rises, secant, slope)
        target = rho - (excess + _TOLERANCE / 2) / slope
        target = tf.maximum(target, _SMALLEST)
        inside = (target > proven) & (target < above)
        target = tf.where(inside, target, (proven + above) / 2)
        state = target, slope, (rho, excess), (proven, above), done
        return count + 1, *state

    none = tf.zeros_like(n)
    first = (none, none + np.inf), (none, none + _LARGEST), ~reached
    state = tf.while_loop(
        lambda count, *state: (count < _STEPS) & ~tf.reduce_all(state[-1]),
        step,
        (tf.constant(0), rho, slope, *first),
    )
    return state[-2][0]


def _part(k: tf.Tensor, n: tf.Tensor, alpha: tf.Tensor) -> Part:
    """Returns where p_a may be, but for _SHARE of alpha, and the rest of it.

    By Chernoff's bound, a share of votes q is above p_a with
    n * KL(q, p_a) >= c with probability at most exp(-c); and so below. KL is
    the integral of (q - x) / (x * (1 - x)) over x from p_a to q, so that
    (q - p_a)**2 = (2 * c / n) * x * (1 - x), with the largest x * (1 - x)
    between the two, gives such a p_a. At few votes, P[N_a >= k] is at most
    (e * n * p_a / k)**k.
    """
    c = tf.math.log(2 / (_SHARE * alpha))

    def least(k: tf.Tensor) -> tf.Tensor:
        q, v = k / n, 2 * c / n
        # x * (1 - x) is largest at p_a if that is above 1/2 (the equation is
        # Wilson's), at q if that is below, and else 1/4 at most.
        root = tf.sqrt(v * q * (1 - q) + v**2 / 4)
        wilson = (q + v / 2 - root) / (1 + v)
        across = tf.minimum(q - tf.sqrt(v) / 2, 0.5)
        wald = q - tf.sqrt(v * q * (1 - q))
        p = tf.where(wilson >= 0.5, wilson, across)
        of_few = q * tf.exp(-c / k - 1)
        return tf.maximum(tf.where(q <= 0.5, wald, p), of_few)

    # Phi^-1 is rounded outwards.
    low, high = tf.math.ndtri(least(k)), -tf.math.ndtri(least(n - k))
    rest = tf.math.log(alpha * (1 - _SHARE)) - ROUNDING
    return Part(low - 1e-9, high + 1e-9, rest)
