"""Stopping rules of a group-sequential decision, in tensors.

Given the votes so far: how many of the radii are certified by now, and whether
the others can be given up. What certifies is exact; what gives up, or saves the
computation of an exact bound, may be rough, as it can only certify less.
"""

import tensorflow as tf

from rs_keras.bounds import radii as bounds
from rs_keras.certification.certificate import ABSTAIN
from rs_keras.certification.votes_to_results import runner_up_count

# Of the normal bounds that tell where the exact ones are worth computing. At
# 0.7 of the distance they are above the exact bounds for any alpha; where they
# are not, an image is certified a stage later.
OPTIMISM = 0.7

# Standard errors by which both counts would have to err for an image to be
# given up wrongly.
_HOPE = 3.3


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
    top = tf.where(label < 0, tf.argmax(counts, -1), label)
    k = tf.gather(counts, top, batch_dims=1)
    reached = tf.searchsorted(upper, k, side="right", out_type=tf.int64)
    accepted = tf.maximum(accepted, reached)
    radii = tf.size(upper, tf.int64)
    nearest = tf.gather(lower, tf.minimum(accepted, radii - 1))
    abstain = tf.constant(ABSTAIN, tf.int64)
    label = tf.where((label >= 0) | (accepted > 0), top, abstain)
    return label, accepted, (accepted == radii) | (k <= nearest)


def two_count_rule(
    counts: tf.Tensor,
    label: tf.Tensor,
    accepted: tf.Tensor,
    n: tf.Tensor,
    alpha: tf.Tensor,
    radii: tf.Tensor,
    sigma: tf.Tensor,
    distance: tf.Tensor,
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """The rule on the votes for a class fixed beforehand and for the runner-up.

    Args:
        counts: int64 [B, C], the votes so far.
        label: int64 [B], the class.
        accepted: int64 [B], how many radii are certified already.
        n: int64, the draws behind `counts`.
        alpha: float64, this stage's share.
        radii: float64 [J] or [B, J], increasing.
        sigma: float64.
        distance: float64, total variation of one draw.

    Returns:
        label, accepted, and done (bool [B]).
    """
    # Votes for the class and for its runner-up: int64 [B] each.
    k = tf.gather(counts, label, batch_dims=1)
    k2 = runner_up_count(counts, label)
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
    none = tf.zeros([0], tf.float64)
    exact = tf.cond(
        tf.size(rows) > 0,
        lambda: bounds.two_count(
            tf.gather(k, rows),
            tf.gather(k2, rows),
            n,
            alpha,
            sigma,
            distance=distance,
        ),
        lambda: bounds.TwoCount(none, none, none, none > 0),
    )
    # [rows, J]: which radii lie within the exact one, and so how many.
    within = tf.gather(radii, rows) <= exact.radius[:, None]
    reached = tf.reduce_sum(tf.cast(within, tf.int64), -1)
    reached = tf.where(exact.abstain, tf.zeros_like(reached), reached)
    accepted = tf.tensor_scatter_nd_max(accepted, rows[:, None], reached)
    # Given up: the radius is too small even if both counts err by many
    # standard errors.
    hope = tf.constant(_HOPE, tf.float64)
    highest = normal_radius(k, k2, n, sigma, hope, width2=-hope)
    done = (accepted == num_radii) | (highest < next_radius(accepted))
    return label, accepted, done


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
