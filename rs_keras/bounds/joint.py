"""The certified radius from one test on two counts, in float64.

`two_count` bounds two probabilities separately and pays for both. Here one
exact test is inverted, of which level the votes reach in the fixed order of
`vote_order`.

Theorem. Let p_a be the probability of the chosen class a, and p_b that of the
most probable other class b. With n votes, k of them for a and at most k2 for
any other class, let T(p_a, p_b) be the probability that the votes (N_a, N_b)
of the trinomial (N_a, N_b, n - N_a - N_b) reach the level l of (k, k2), and

    F(r) = max T(p_a, p_b) over Phi^-1(p_a) - Phi^-1(p_b) = 2 * r / sigma,
           p_a + p_b <= 1.

Then "F(r) <= alpha" holds for an r above the true radius
R = sigma / 2 * (Phi^-1(p_a) - Phi^-1(p_b)) with probability at most alpha.

Proof. (1) Class b is fixed, though unknown, and k2 is at least its count N_b.
The level does not rise with that count. So l is at most the level L of
(N_a, N_b), whatever the remaining classes do. Were k2 the count of a class
chosen earlier, which may not be b, this step would fail. (2) The level rises
with N_a and falls with N_b, so that T grows with p_a and falls with p_b (move
the mass from or to the remaining classes). Thus over all (p_a, p_b) of radius
at most r its maximum lies on the curve above, F does not fall with r, and
T(p_a, p_b) <= F(R). (3) The votes that reach a level are among those that reach
a lower one, so that F falls as l rises. So F(r) <= alpha with r > R implies
F(R) <= alpha, which is the event l >= l_0 for some l_0, of probability at most
P[L >= l_0] <= F(R) at l_0 <= alpha. Votes of equal level count as reaching it.

`radius_curve` bounds F; `trinomial` computes T.
"""

from typing import Any
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from rs_keras.bounds.confidence import Value
from rs_keras.bounds.confidence import check_ranges
from rs_keras.bounds.confidence import check_votes
from rs_keras.bounds.confidence import check_whole
from rs_keras.bounds.confidence import clopper_pearson_lower
from rs_keras.bounds.confidence import float64
from rs_keras.bounds.confidence import possible_votes
from rs_keras.bounds.radius_curve import GAP_AT_MAXIMUM
from rs_keras.bounds.radius_curve import density
from rs_keras.bounds.radius_curve import log_excess
from rs_keras.bounds.trinomial import PER_UNIT
from rs_keras.bounds.trinomial import Event
from rs_keras.bounds.trinomial import cdf
from rs_keras.bounds.vote_order import WEIGHTS
from rs_keras.bounds.vote_order import level_of
from rs_keras.bounds.vote_order import radius_of
from rs_keras.bounds.vote_order import thresholds

# The search stops where F is within this part below alpha. The first steps
# look at few points.
_TOLERANCE = 2e-2
_FIRST_STEPS = 2
_STEPS = 12
# The smallest rho that is tried: an image with less abstains.
_SMALLEST = 1e-5

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

        P[the votes reach the level of (k, k2)] <= alpha

    (the exact trinomial tail; ties count). It abstains where there is no
    positive one.

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
    """
    check_ranges(sigma=sigma, distance=distance, alpha=alpha, k=k, k2=k2)
    check_whole(k=k, n=n)
    check_votes(k, k2, n)
    k, k2, n, sigma = float64(k), float64(k2), float64(n), float64(sigma)
    alpha = float64(alpha) - n * float64(distance) * (1 + 2.0**-50)
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
    radius = tf.where(certified, sigma * rho * (1 - 2.0**-50), 0.0)
    return JointCount(radius, tf.logical_not(certified))


# Traced once, as `binomial.confidence_limit` is.
@tf.function(input_signature=[tf.TensorSpec([None], tf.float64)] * 4)
def _largest_rho(
    k: tf.Tensor, k2: tf.Tensor, n: tf.Tensor, alpha: tf.Tensor
) -> tf.Tensor:
    """Returns the largest rho = r / sigma proven, [R]; 0 where there is none.

    Row by row, so that no row's depends on another's.
    """
    return tf.map_fn(
        lambda row: _search(*(x[None] for x in row))[0],
        (k, k2, n, alpha),
        fn_output_signature=tf.TensorSpec([], tf.float64),
    )


def _search(
    k: tf.Tensor, k2: tf.Tensor, n: tf.Tensor, alpha: tf.Tensor
) -> tf.Tensor:
    """Returns the largest rho proven, [R], by Newton steps in a bracket."""
    level, reached = level_of(k, k2, n, alpha)
    event = Event(thresholds(level, n, alpha), WEIGHTS, n)
    # Left of this, p_a alone makes the event too improbable.
    votes = event.votes(tf.zeros_like(n)[:, None])[:, 0]
    reached &= (votes >= 1) & (votes <= n)
    votes = tf.clip_by_value(votes, 1.0, n)
    first = tf.math.ndtri(clopper_pearson_lower(votes, n, alpha)) - 1e-9
    # At t = 0 there are two classes: their radius is an upper limit.
    votes = tf.math.ceil(
        (event.s + WEIGHTS * n[:, None]) / (PER_UNIT + WEIGHTS)
    )
    votes = tf.reduce_min(votes, -1)
    limit = tf.math.ndtri(clopper_pearson_lower(votes, n, alpha))
    limit = tf.where(reached, tf.maximum(limit, 0.0), 0.0)
    highest = tf.maximum(limit, _SMALLEST)
    rho = tf.clip_by_value(radius_of(level), _SMALLEST, highest)
    # That of a normal tail beyond z, by the standard error of two classes.
    z = tf.maximum(-tf.math.ndtri(alpha), 1.0)
    slope = z * tf.sqrt(n / (cdf(rho) * cdf(-rho))) * density(rho)
    for _ in range(_FIRST_STEPS):
        near = log_excess(rho, first, alpha, event, proof=False)
        rho -= (near + GAP_AT_MAXIMUM) / slope
        rho = tf.clip_by_value(rho, _SMALLEST, highest)

    def step(
        count: tf.Tensor,
        rho: tf.Tensor,
        slope: tf.Tensor,
        last: tuple[tf.Tensor, tf.Tensor],
        bracket: tuple[tf.Tensor, tf.Tensor],
        done: tf.Tensor,
    ) -> tuple[Any, ...]:
        excess = log_excess(rho, first, alpha, event, proof=True)
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
    start = (none, none + np.inf), (none, limit), limit <= _SMALLEST
    state = tf.while_loop(
        lambda count, *state: (count < _STEPS) & ~tf.reduce_all(state[-1]),
        step,
        (tf.constant(0), rho, slope, *start),
    )
    return state[-2][0]
