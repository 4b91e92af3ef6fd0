"""What votes say: labels and certificates from counts, in tensors.

Shared by the certifier, which runs them eagerly, and by exported graphs.
"""

import numpy as np
import tensorflow as tf

from rs_keras import bounds
from rs_keras.certification.certificate import ABSTAIN


def decide_label(
    counts: tf.Tensor,
    alpha: tf.Tensor | float,
    n: tf.Tensor | int,
    distance: float = 0.0,
) -> tuple[tf.Tensor, tf.Tensor]:
    """PREDICT on counts.

    Noise that is `distance` away from the Gaussian gives votes that n draws of
    the Gaussian itself might have given, too, but for n * distance of the
    cases: so much is added to the p-value.

    Args:
        counts: int64 [B, C].
        alpha: In (0, 1).
        n: Draws behind `counts`, scalar or [B].
        distance: Total variation of one draw; see `bounds.two_count`.

    Returns:
        label int64 [B] (-1 where it abstains), p-value float64 [B].
    """
    counts = tf.convert_to_tensor(counts, tf.int64)
    top = tf.math.top_k(counts, 2)
    p_value = bounds.binomial_pvalue(top.values[:, 0], top.values[:, 1])
    draws = tf.cast(n, tf.float64)
    p_value = bounds.raised(p_value, tf.constant(distance, tf.float64) * draws)
    alpha = tf.convert_to_tensor(alpha, tf.float64)
    winner = tf.argmax(counts, -1)
    abstain = tf.constant(ABSTAIN, tf.int64)
    return tf.where(p_value <= alpha, winner, abstain), p_value


def vote_certificate(
    selection: tf.Tensor,
    counts: tf.Tensor,
    n: tf.Tensor | int,
    alpha: tf.Tensor | float,
    sigma: float,
    runner_up: bool,
    distance: float = 0.0,
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """CERTIFY on the votes of the two rounds.

    Args:
        selection: int64 [B, C], the votes that select the class.
        counts: int64 [B, C], the votes of fresh noise.
        n: Draws behind `counts`, scalar or [B].
        alpha: In (0, 1), scalar or [B].
        sigma: Of the noise.
        runner_up: Whether to bound the second class, too.
        distance: Total variation of one draw; see `bounds.two_count`.

    Returns:
        label int64 [B] (-1 where it abstains), radius float64 [B], p_lower
        float64 [B].
    """
    counts = tf.convert_to_tensor(counts, tf.int64)
    chosen = tf.argmax(tf.convert_to_tensor(selection, tf.int64), -1)
    k = tf.gather(counts, chosen, batch_dims=1)
    k2 = runner_up_count(counts, chosen) if runner_up else None
    p_lower, radius, certified = bounds.certificate(
        k, k2, n, alpha, sigma, distance
    )
    return _or_abstain(chosen, radius, p_lower, certified)


def runner_up_count(counts: tf.Tensor, chosen: tf.Tensor) -> tf.Tensor:
    """The most votes that another class than the chosen one got: int64 [B].

    In these very draws: taking the runner-up's index from the selection round
    would not be sound.
    """
    hot = tf.one_hot(chosen, tf.shape(counts)[1], True, False)
    others = tf.where(hot, tf.constant(-1, tf.int64), counts)
    return tf.reduce_max(others, -1)


def soft_certificate(
    selection: tf.Tensor,
    estimate: tf.Tensor,
    n: int | np.ndarray,
    alpha: float,
    sigma: float,
    bound: str,
    distance: float = 0.0,
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """CERTIFY on sums of soft predictions (Soft-RS).

    Args:
        selection: float64 [B, C], sums that select the class.
        estimate: float64 [B, 3, C], votes, sums and sums of squares.
        n: Draws behind `estimate`, a number or [B].
        alpha: In (0, 1).
        sigma: Of the noise.
        bound: "hoeffding" or "bernstein".
        distance: Total variation of one draw: the mean of a soft prediction,
            which lies in [0, 1], differs by no more.

    Returns:
        As `vote_certificate`.
    """
    chosen = tf.argmax(selection, -1)
    total, squares = (
        tf.gather(estimate[:, part], chosen, batch_dims=1) for part in (1, 2)
    )
    if bound == "hoeffding":
        p_lower = bounds.hoeffding_lower(total, n, alpha)
    else:
        p_lower = bounds.bernstein_lower(total, squares, n, alpha)
    p_lower = bounds.lowered(p_lower, distance)
    radius = bounds.radius(p_lower, sigma)
    return _or_abstain(chosen, radius, p_lower, p_lower >= 0.5)


def _or_abstain(
    label: tf.Tensor,
    radius: tf.Tensor,
    p_lower: tf.Tensor,
    certified: tf.Tensor,
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    return (
        tf.where(certified, label, tf.constant(ABSTAIN, tf.int64)),
        tf.where(certified, radius, tf.zeros_like(radius)),
        p_lower,
    )
