"""Stopping rules of a group-sequential decision, in tensors.

Given the votes so far: how many of the radii are certified by now, and whether
the others can be given up. What certifies is exact; what gives up, or saves the
computation of an exact bound, may be rough, as it can only certify less.
"""

from typing import NamedTuple

import tensorflow as tf

from rs_keras.bounds import confidence
from rs_keras.bounds import radii as bounds
from rs_keras.certification.certificate import ABSTAIN
from rs_keras.certification.sequential.boundaries import OTHER_CLASSES
from rs_keras.certification.votes_to_results import runner_up_count

# Of the normal bounds that tell where the exact ones are worth computing. At
# 0.7 of the distance they are above the exact bounds for any alpha; where they
# are not, an image is certified a stage later.
OPTIMISM = 0.7


class Stage(NamedTuple):
    """A stage of the test of two counts.

    Attributes:
        n: int64, the draws up to here, without the selection.
        alpha: float64, this stage's share.
        futility: float64, the standard errors below a radius at which there is
            no hope.
    """

    n: tf.Tensor
    alpha: tf.Tensor
    futility: tf.Tensor


def one_count_rule(
    counts: tf.Tensor,
    label: tf.Tensor,
    accepted: tf.Tensor,
    upper: tf.Tensor,
    lower: tf.Tensor,
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """The rule on the votes for the top class alone.

    Args:
        counts: int64 [B, C], the votes so far.
        label: int64 [B]; -1 where no class is fixed: the top class is taken,
            and stays once a radius is certified.
        accepted: int64 [B], how many radii are certified already.
        upper: int64 [J], the counts that certify each radius.
        lower: int64 [J], the counts at which there is no hope.

    Returns:
        label, accepted, and done (bool [B]).
    """
    top = _top_class(counts, label)
    k = tf.gather(counts, top, batch_dims=1)
    reached = tf.searchsorted(upper, k, side="right", out_type=tf.int64)
    accepted = tf.maximum(accepted, reached)
    radii = tf.size(upper, tf.int64)
    nearest = tf.gather(lower, tf.minimum(accepted, radii - 1))
    done = (accepted == radii) | (k <= nearest)
    return _kept(label, top, accepted), accepted, done


def two_count_rule(
    counts: tf.Tensor,
    label: tf.Tensor,
    accepted: tf.Tensor,
    stage: Stage,
    radii: tf.Tensor,
    sigma: tf.Tensor,
    distance: tf.Tensor,
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """The rule on the votes for the top class and for the runner-up.

    Args:
        counts: int64 [B, C], the votes so far.
        label: int64 [B], as in `one_count_rule`.
        accepted: int64 [B], how many radii are certified already.
        stage: The draws behind `counts`, and what the stage may spend.
        radii: float64 [J] or [B, J], increasing.
        sigma: float64.
        distance: float64, total variation of one draw.

    Returns:
        label, accepted, and done (bool [B]).
    """
    n, alpha, futility = stage
    # Votes for the class and for its runner-up: int64 [B] each.
    top = _top_class(counts, label)
    k = tf.gather(counts, top, batch_dims=1)
    k2 = runner_up_count(counts, top)
    num_radii = tf.shape(radii, tf.int64)[-1]
    radii = tf.broadcast_to(radii, [tf.size(k, tf.int64), num_radii])

    def next_radius(accepted: tf.Tensor) -> tf.Tensor:
        return tf.gather(
            radii, tf.minimum(accepted, num_radii - 1), batch_dims=1
        )

    share = bounds.RUNNER_UP_SHARE
    width = -OPTIMISM * tf.math.ndtri(alpha * [1 - share, share])
    best = normal_radius(k, k2, n, sigma, -width[0], width2=width[1])
    # Exact bounds cost milliseconds: only for rows that may pass.
    rows = tf.where(best >= next_radius(accepted))[:, 0]
    votes = tf.gather(k, rows), tf.gather(k2, rows)
    others = tf.maximum(tf.cast(tf.shape(counts)[-1], tf.float64) - 1, 1)
    pair_share = alpha * (OTHER_CLASSES / (1 - OTHER_CLASSES)) / others

    def exact() -> tuple[tf.Tensor, tf.Tensor]:
        found = bounds.two_count(*votes, n, alpha, sigma, distance=distance)
        leads = confidence.binomial_pvalue(*votes) <= pair_share
        leads &= votes[0] > votes[1]
        return found.radius, leads & tf.logical_not(found.abstain)

    none = tf.zeros([0], tf.float64)
    proven, certified = tf.cond(
        tf.size(rows) > 0, exact, lambda: (none, none > 0)
    )
    # [rows, J]: which radii lie within the exact one, and so how many.
    within = tf.gather(radii, rows) <= proven[:, None]
    reached = tf.reduce_sum(tf.cast(within, tf.int64), -1)
    reached = tf.where(certified, reached, tf.zeros_like(reached))
    accepted = tf.tensor_scatter_nd_max(accepted, rows[:, None], reached)
    # Given up: the radius is too small even if the counts err by many standard
    # errors.
    highest = hopeful_radius(k, k2, n, sigma, futility)
    done = (accepted == num_radii) | (highest < next_radius(accepted))
    return _kept(label, top, accepted), accepted, done


def _top_class(counts: tf.Tensor, label: tf.Tensor) -> tf.Tensor:
    """The class that is tested: the fixed one, or that with the most votes."""
    return tf.where(label < 0, tf.argmax(counts, -1), label)


def _kept(label: tf.Tensor, top: tf.Tensor, accepted: tf.Tensor) -> tf.Tensor:
    """The label that stays: none until a class is fixed or certified."""
    abstain = tf.constant(ABSTAIN, tf.int64)
    return tf.where((label >= 0) | (accepted > 0), top, abstain)


def normal_radius(
    k: tf.Tensor,
    k2: tf.Tensor,
    n: tf.Tensor,
    sigma: tf.Tensor,
    width: tf.Tensor,
    width2: tf.Tensor,
) -> tf.Tensor:
    """The radius if both shares were off by so many standard errors."""
    top, second = (
        tf.math.ndtri(_shifted(count, n, w))
        for count, w in ((k, width), (k2, width2))
    )
    return 0.5 * sigma * (top - second)


def hopeful_radius(
    k: tf.Tensor,
    k2: tf.Tensor,
    n: tf.Tensor,
    sigma: tf.Tensor,
    errors: tf.Tensor,
) -> tf.Tensor:
    """The radius if the counts together were off by so many standard errors.

    Votes for one class are not there for the other: with both shares p and q
    the errors of the two counts, towards a larger radius each, have the
    correlation sqrt(p * q / ((1 - p) * (1 - q))).
    """
    counts = ((k, errors), (k2, -errors))
    draws = tf.cast(n, tf.float64)
    shares = [
        (tf.cast(count, tf.float64) + 0.5) / (draws + 1) for count, _ in counts
    ]
    top, second = (tf.math.ndtri(share) for share in shares)
    rise, fall = (
        tf.abs(tf.math.ndtri(_shifted(count, n, width)) - z)
        for (count, width), z in zip(counts, (top, second), strict=True)
    )
    odds = [share / (1 - share) for share in shares]
    correlation = tf.minimum(tf.sqrt(odds[0] * odds[1]), 1.0)
    off = tf.sqrt(rise**2 + fall**2 + 2 * correlation * rise * fall)
    return 0.5 * sigma * (top - second + off)


def _shifted(k: tf.Tensor, n: tf.Tensor, width: tf.Tensor) -> tf.Tensor:
    """The p at which k / n lies `width` standard errors below (Wilson, 1927).

    In (0, 1) even for k = 0 and k = n, where it takes a little off either end.
    """
    n = tf.cast(n, tf.float64)
    share = tf.cast(k, tf.float64) / n
    square = width**2 / n
    root = tf.sqrt(square * (share * (1 - share) + square / 4))
    p = (share + square / 2 + tf.sign(width) * root) / (1 + square)
    return tf.clip_by_value(p, 1e-300, 1 - 2.0**-53)
