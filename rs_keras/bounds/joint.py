"""The certified radius from one statistic of two counts, in float64.

`two_count` bounds two probabilities separately and pays for both. Here one
exact test is inverted: of S = k - w * k2, with a weight w >= 0 that was fixed
before the votes were drawn.

Theorem. Let p_a be the probability of the chosen class a, and p_b that of the
most probable other class b. With n votes, k of them for a and at most k2 for
any other class, let T(p_a, p_b) = P[N_a - w * N_b >= k - w * k2] for the
trinomial (N_a, N_b, n - N_a - N_b), and

    F(r) = max T(p_a, p_b) over Phi^-1(p_a) - Phi^-1(p_b) = 2 * r / sigma,
           p_a + p_b <= 1.

Then "F(r) <= alpha" holds for an r above the true radius
R = sigma / 2 * (Phi^-1(p_a) - Phi^-1(p_b)) with probability at most alpha.

Proof. (1) Class b is fixed, though unknown, and k2 is at least its count N_b.
So S is at most S* = N_a - w * N_b, whatever the remaining classes do, and
P[S >= s] <= P[S* >= s]. Were k2 the count of a class chosen earlier, which may
not be b, this step would fail. (2) T grows with p_a and falls with p_b (move
the mass from or to the remaining classes). Thus over all (p_a, p_b) of radius
at most r its maximum lies on the curve above, F does not fall with r, and
T(p_a, p_b) <= F(R). (3) F falls as s grows. So F(r) <= alpha with r > R implies
F(R) <= alpha, which is the event S >= s_0 for some s_0, of probability at most
P[S* >= s_0] <= F(R) at s_0 <= alpha. Equal values of S count as reached.

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
from rs_keras.bounds.radius_curve import MORE_POINTS
from rs_keras.bounds.radius_curve import density
from rs_keras.bounds.radius_curve import log_excess
from rs_keras.bounds.radius_curve import score
from rs_keras.bounds.radius_curve import uniform
from rs_keras.bounds.trinomial import PER_UNIT
from rs_keras.bounds.trinomial import WINDOW
from rs_keras.bounds.trinomial import Event

# The largest weight of the runner-up's count.
MAX_WEIGHT = 4.0

# The curve and the radius on which the first guess of the radius is made.
_GUESS_POINTS = 64
_GUESS_RADII = 24

# The search stops where F is within this part below alpha. The first steps
# look at few points.
_TOLERANCE = 2e-2
_FIRST_STEPS = 2
_STEPS = 12
# The smallest rho that is tried: an image with less abstains.
_SMALLEST = 1e-5

# Numbers in one array of the sum, at most (8 MB): more rows go one by one.
_ARRAY_SIZE = 2**20

# s, n, w and alpha of a row that makes no sense: one vote never certifies.
_HARMLESS = (8.0, 1.0, 0.0, 0.5)


class JointCount(NamedTuple):
    """What the votes for two classes certify together; see `joint_count`.

    There is no lower bound on the top class's probability: that would be a
    second statement, with another error probability.

    Example:

    >>> from rs_keras import bounds
    >>> found = bounds.joint_count(700, 100, 1000, 0.001, sigma=0.5, w=1.5)
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
    w: Value,
    distance: Value = 0.0,
) -> JointCount:
    """Certificate from one test of the two counts, on k - w * k2.

    The largest radius r such that, for all probabilities of the top class and
    of the runner-up with which the true radius is at most r,

        P[N_a - w * N_b >= k - w * k2] <= alpha

    (the exact trinomial tail; ties count). It abstains where there is no
    positive one.

    Sound, with probability 1 - alpha, if the top class AND `w` were chosen
    before these n samples were drawn, and `k2` is the largest count among ALL
    the other classes in these samples. The latter is at least the count of the
    class that is truly second, so that k - w * k2 is at most that class's; the
    votes for the remaining classes may be spread in any way.

    Args:
        k: Votes for the chosen class, whole numbers in [0, n].
        k2: The largest number of votes for another class, in [0, n - k].
        n: Votes in all. Below 1 it abstains.
        alpha: Error probability, in (0, 1).
        sigma: Standard deviation of the noise, > 0.
        w: The weight of the runner-up's count, a multiple of 1/8 in [0, 4];
            see `joint_weight`. At 0 the radius is Cohen et al.'s.
        distance: Total variation between the noise of one draw and the
            Gaussian, at most, in [0, 1). Any event of n draws is that much
            times n more probable at most, which is taken off `alpha`.

    Returns:
        `JointCount(radius, abstain)`: float64 and bool, of the broadcast shape.
        The radius is rounded down, 0 where it abstains.

    Raises:
        ValueError: If an argument is a number or array out of its range, or a
            count is not whole.

    Example:

    >>> from rs_keras import bounds
    >>> found = bounds.joint_count(700, 100, 1000, 0.001, sigma=0.5, w=1.5)
    >>> round(float(found.radius), 2)
    0.38
    >>> separate = bounds.two_count(700, 100, 1000, alpha=0.001, sigma=0.5)
    >>> round(float(separate.radius), 2)
    0.37
    """
    check_ranges(sigma=sigma, distance=distance, alpha=alpha, k=k, k2=k2)
    check_whole(k=k, n=n)
    if not tf.is_tensor(w):
        eighths = np.asarray(w, np.float64) * PER_UNIT
        whole = (eighths == np.floor(eighths)).all()
        if not (
            whole
            and (0 <= eighths).all()
            and (eighths <= MAX_WEIGHT * PER_UNIT).all()
        ):
            raise ValueError(
                f"`w` must be a multiple of 1/8 in [0, 4]. Received: w={w!r}"
            )
    check_votes(k, k2, n)
    k, k2, n, sigma = float64(k), float64(k2), float64(n), float64(sigma)
    alpha = float64(alpha) - n * float64(distance) * (1 + 2.0**-50)
    eighths = float64(w) * PER_UNIT
    statistic = PER_UNIT * k - eighths * k2
    conditions = [
        possible_votes(k, k2, n),
        tf.equal(k, tf.floor(k)),
        tf.equal(n, tf.floor(n)),
        tf.equal(eighths, tf.floor(eighths)),
        (eighths >= 0) & (eighths <= PER_UNIT * MAX_WEIGHT),
        (n >= 1) & (alpha > 0) & (alpha < 1) & (sigma > 0),
        # At p_a = p_b = 0 the statistic is 0 with certainty.
        statistic > 0,
    ]
    valid = conditions[0]
    for condition in conditions[1:]:
        valid = valid & condition
    arguments = [
        tf.reshape(tf.where(valid, x, tf.constant(y, tf.float64)), [-1])
        for x, y in zip((statistic, n, eighths, alpha), _HARMLESS, strict=True)
    ]
    rho = tf.reshape(_largest_rho(*arguments), tf.shape(valid))
    certified = valid & (rho > 0)
    radius = tf.where(certified, sigma * rho * (1 - 2.0**-50), 0.0)
    return JointCount(radius, tf.logical_not(certified))


def joint_weight(k: Value, k2: Value, n: Value) -> tf.Tensor:
    """The weight for `joint_count` from the votes that selected the class.

    phi(z_a) / phi(z_b) with z = Phi^-1((count + 1/2) / (n + 1)), rounded to a
    multiple of 1/8 and at most 4. So weighted, an excess of either count
    changes S as it changes the radius, which nearly makes the best event.

    Args:
        k: Votes for the selected class.
        k2: The largest number of votes for another class.
        n: Votes in all. Below 1 the weight is 1.

    Returns:
        float64, of the broadcast shape.

    Raises:
        ValueError: If a count is a number or array that is not whole or out of
            its range.

    Example:

    >>> from rs_keras import bounds
    >>> float(bounds.joint_weight(60, 15, 100))
    1.625

    References:
    - [Cohen et al., 2019](https://arxiv.org/abs/1902.02918), theorem 1
    """
    check_ranges(k=k, k2=k2)
    check_whole(k=k)
    check_votes(k, k2, n)
    k, k2, n = float64(k), float64(k2), float64(n)
    valid = possible_votes(k, k2, n) & (n >= 1)
    n = tf.where(valid, n, 1.0)
    z_a, z_b = (
        tf.math.ndtri((tf.where(valid, count, 0.0) + 0.5) / (n + 1))
        for count in (k, k2)
    )
    w = tf.exp((z_b**2 - z_a**2) / 2)
    # Never different on two machines whose last digits differ.
    w = tf.floor(w * PER_UNIT + (0.5 + 1e-9)) / PER_UNIT
    return tf.where(valid, tf.minimum(w, MAX_WEIGHT), 1.0)


# Traced once, as `binomial.confidence_limit` is.
@tf.function(input_signature=[tf.TensorSpec([None], tf.float64)] * 4)
def _largest_rho(
    s: tf.Tensor, n: tf.Tensor, w: tf.Tensor, alpha: tf.Tensor
) -> tf.Tensor:
    """Returns the largest rho = r / sigma proven, [R]; 0 where there is none.

    Args:
        s: In eighths, float64 [R], whole numbers in [1, 8 * n].
        n: Votes, float64 [R].
        w: In eighths, float64 [R], whole numbers in [0, 32].
        alpha: float64 [R].
    """
    # So many rows at once that the windows of all points fit: at most
    # 9 / 2 * sqrt(n) + 9 numbers at about 5 * n**(1 / 4) + 24 points.
    root = tf.sqrt(tf.reduce_max(tf.concat([n, [1.0]], 0)))
    numbers = (WINDOW * root + 9) * (5 * tf.sqrt(root) + MORE_POINTS)
    size = tf.cast(_ARRAY_SIZE / numbers, tf.int32)
    size = tf.clip_by_value(size, 1, tf.maximum(tf.size(s), 1))
    chunks = tf.maximum(-(-tf.size(s) // size), 1)  # map_fn needs one
    padding = [[0, chunks * size - tf.size(s)]]
    rows = [
        tf.reshape(tf.pad(x, padding, constant_values=harmless), [chunks, size])
        for x, harmless in zip((s, n, w, alpha), _HARMLESS, strict=True)
    ]
    rho = tf.map_fn(
        lambda row: _search(Event(*row[:3]), row[3]),
        tuple(rows),
        fn_output_signature=tf.TensorSpec([None], tf.float64),
    )
    return tf.reshape(rho, [-1])[: tf.size(s)]


def _search(event: Event, alpha: tf.Tensor) -> tf.Tensor:
    """Returns the largest rho proven by Newton steps within a bracket."""
    s, n, w = event
    # Left of this, p_a alone makes S >= s too improbable.
    votes = tf.math.ceil(s / PER_UNIT)
    first = tf.math.ndtri(clopper_pearson_lower(votes, n, alpha)) - 1e-9
    # At t = 0 there are two classes: their radius is an upper limit.
    votes = tf.math.ceil((s + w * n) / (PER_UNIT + w))
    limit = tf.math.ndtri(clopper_pearson_lower(votes, n, alpha))
    limit = tf.maximum(limit, 0.0)
    rho, slope = _guess(event, alpha, first, limit)

    highest = tf.maximum(limit, _SMALLEST)
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

    none = tf.zeros_like(s)
    start = (none, none + np.inf), (none, limit), limit <= _SMALLEST
    state = tf.while_loop(
        lambda count, *state: (count < _STEPS) & ~tf.reduce_all(state[-1]),
        step,
        (tf.constant(0), rho, slope, *start),
    )
    return state[-2][0]


def _guess(
    event: Event, alpha: tf.Tensor, first: tf.Tensor, limit: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns rho by the normal approximation, and d log F / d rho there."""
    z = -tf.math.ndtri(alpha)
    rho = limit[:, None] * uniform(_GUESS_RADII)  # [R, radii]
    furthest = tf.maximum(rho - first[:, None], 1e-3)
    t = -furthest[..., None] * (0.01 + 0.99 * uniform(_GUESS_POINTS)) ** 2
    scores = score(t, rho[..., None], event.columns(3))
    lowest = tf.reduce_min(scores, -1)  # [R, radii], falling
    # Between the last radius whose score is high enough and the next one.
    enough = tf.cast(lowest >= z[:, None], tf.int32)
    left = tf.clip_by_value(tf.reduce_sum(enough, -1) - 1, 0, _GUESS_RADII - 2)
    rho_0, rho_1, score_0, score_1 = [
        tf.gather(values, left + i, batch_dims=1)
        for values in (rho, lowest)
        for i in (0, 1)
    ]
    slope = (score_0 - score_1) / tf.maximum(rho_1 - rho_0, 1e-9)
    slope = tf.maximum(slope, 1e-3)
    rho = rho_0 + (score_0 - z) / slope
    rho = tf.clip_by_value(rho, _SMALLEST, tf.maximum(limit, _SMALLEST))
    return rho, slope * density(z) / alpha
