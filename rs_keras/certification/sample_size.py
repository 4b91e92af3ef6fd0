"""Sample sizes: how many estimation draws each image needs.

The selection draws determine class and sample size; the bound uses only fresh
draws, so it holds at the full confidence level.
"""

import numpy as np
import tensorflow as tf

from rs_keras import bounds
from rs_keras.certification.spec import PILOT
from rs_keras.certification.spec import CertifySpec

# The numbers of draws to choose from: 1,000, 1,300, ..., n.
_SMALLEST = 1_000
_RATIO = 1.3


def candidate_sizes(n: int) -> np.ndarray:
    """The numbers of draws to choose from, up to `n`: int64 [G].

    Example:

    >>> from rs_keras.certification import sample_size
    >>> sample_size.candidate_sizes(2_000).tolist()
    [1000, 1300, 1690, 2000]
    """
    steps = int(np.log(max(n / _SMALLEST, 1)) / np.log(_RATIO)) + 1
    sizes = np.rint(_SMALLEST * _RATIO ** np.arange(steps)).astype(np.int64)
    return np.unique(np.append(sizes[sizes < n], n))


def sample_sizes(
    pilot: np.ndarray, spec: CertifySpec, sigma: float
) -> np.ndarray:
    """The fewest draws that are expected to lose no more than the tolerance.

    With R(g) the radius if g draws voted as the pilot's did, and at most
    `max_radius`: the first g in `candidate_sizes(n)` with

        R(n) - R(g) <= tolerance.

    Without a tolerance, n.

    Args:
        pilot: Votes int64 [B, C] of the pilot, or its soft sums float64
            [B, 3, C], as `Sampler.soft_sums` gives them.
        spec: Of the certificate.
        sigma: Of the noise.

    Returns:
        int64 [B].

    Example:

    >>> import numpy as np
    >>> from rs_keras.certification import sample_size
    >>> from rs_keras.certification.spec import CertifySpec
    >>> votes = np.array([[1000, 0], [900, 100], [520, 480]])  # of 1,000 draws
    >>> sample_size.sample_sizes(votes, CertifySpec(tolerance=0.05), sigma=0.5)
    array([30288,  2197,  1000])
    """
    if spec.tolerance is None:
        return np.full(len(pilot), spec.n)
    sizes = candidate_sizes(spec.n)
    certificate_of = _mean_certificate if spec.soft else _vote_certificate
    _, radius, certified = certificate_of(pilot, sizes, spec, sigma)
    radius = np.where(certified, radius, 0.0)
    if spec.max_radius is not None:
        radius = np.minimum(radius, spec.max_radius)
    enough = radius[:, -1:] - radius <= spec.tolerance
    return sizes[enough.argmax(1)]


def _vote_certificate(
    pilot: np.ndarray, sizes: np.ndarray, spec: CertifySpec, sigma: float
) -> tuple[tf.Tensor, ...]:
    """Bound, radius and whether there is one, of [B, G] hypothetical votes."""
    # [2, B, 1]: half a vote keeps a class that had all from being certain.
    top_two = tf.math.top_k(pilot, 2).values.numpy().T[:, :, None]
    k, k2 = np.rint((top_two + 0.5) / (PILOT + 1) * sizes).astype(np.int64)
    # Of both counts, the bounds on each: the joint one loses about as much by
    # fewer draws, but takes longer than the votes that it may save.
    return bounds.certificate(
        k,
        np.minimum(k2, sizes - k) if spec.runner_up else None,
        np.broadcast_to(sizes, k.shape),
        spec.alpha,
        sigma,
    )


def _mean_certificate(
    pilot: np.ndarray, sizes: np.ndarray, spec: CertifySpec, sigma: float
) -> tuple[tf.Tensor, ...]:
    """As `_vote_certificate`, of hypothetical sums of soft predictions."""
    chosen = pilot[:, 1].argmax(-1)
    rows = np.arange(len(pilot))
    means = np.minimum(pilot[rows, 1:, chosen] / PILOT, 1.0)
    total, squares = means.T[:, :, None] * sizes
    return bounds.mean_certificate(
        spec.bound, total, squares, sizes, spec.alpha, sigma=sigma
    )
