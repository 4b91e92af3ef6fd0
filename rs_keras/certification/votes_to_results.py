"""Labels and certificates from the votes of both rounds, in tensors.

The bounds themselves are those of `rs_keras.bounds`. Shared by the certifier,
which calls this eagerly, and by exported graphs.
"""

import numpy as np
import tensorflow as tf

from rs_keras import bounds
from rs_keras.certification.certificate import ABSTAIN
from rs_keras.certification.spec import CertifySpec
from rs_keras.certification.spec import SmoothingSpec


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
    spec: CertifySpec,
    smoothing: SmoothingSpec,
    n: tf.Tensor | int | None = None,
    alpha: tf.Tensor | float | None = None,
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """CERTIFY on the votes of the two rounds.

    Args:
        selection: int64 [B, C], the votes that select the class.
        counts: int64 [B, C], the votes of fresh noise.
        spec: Which bound there is, at which alpha.
        smoothing: The noise.
        n: Draws behind `counts`, scalar or [B]; None for those of `spec`.
        alpha: Scalar or [B]; None for that of `spec`.

    Returns:
        label int64 [B] (-1 where it abstains), radius float64 [B] (at most
        `spec.max_radius`), p_lower float64 [B] (NaN with the joint bound).
    """
    counts = tf.convert_to_tensor(counts, tf.int64)
    chosen = tf.argmax(tf.convert_to_tensor(selection, tf.int64), -1)
    k = tf.gather(counts, chosen, batch_dims=1)
    k2 = runner_up_count(counts, chosen) if spec.runner_up else None
    bound = bounds.certificate(
        k,
        k2,
        spec.n if n is None else n,
        spec.alpha if alpha is None else alpha,
        smoothing.sigma,
        distance=smoothing.distance,
        bound=spec.bound,
    )
    return _certified(chosen, *bound, spec)


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
    spec: CertifySpec,
    smoothing: SmoothingSpec,
    n: int | np.ndarray | None = None,
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """CERTIFY on sums of soft predictions (Soft-RS).

    Args:
        selection: float64 [B, C], sums that select the class.
        estimate: float64 [B, 3, C], votes, sums and sums of squares.
        spec: Which bound there is, at which alpha.
        smoothing: The noise.
        n: Draws behind `estimate`, a number or [B]; None for those of `spec`.

    Returns:
        As `vote_certificate`.
    """
    chosen = tf.argmax(selection, -1)
    total, squares = (
        tf.gather(estimate[:, part], chosen, batch_dims=1) for part in (1, 2)
    )
    mean = bounds.mean_certificate(
        spec.bound,
        total,
        squares,
        spec.n if n is None else n,
        spec.alpha,
        sigma=smoothing.sigma,
        distance=smoothing.distance,
    )
    return _certified(chosen, *mean, spec)


def _certified(
    label: tf.Tensor,
    p_lower: tf.Tensor,
    radius: tf.Tensor,
    certified: tf.Tensor,
    spec: CertifySpec,
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Label, radius and bound, where there is a certificate; else abstains."""
    if spec.max_radius is not None:
        radius = tf.minimum(radius, tf.constant(spec.max_radius, tf.float64))
    return (
        tf.where(certified, label, tf.constant(ABSTAIN, tf.int64)),
        tf.where(certified, radius, tf.zeros_like(radius)),
        p_lower,
    )
