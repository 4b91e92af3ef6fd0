"""The random numbers of one step, addressed by seed and global position."""

from typing import Any

import tensorflow as tf

from rs_keras import noise

# Streams under the seed of one step: stream j is the noise of copy j, and
# these lie above any number of copies.
MOST_COPIES = 1 << 14
METHOD_STREAMS = (MOST_COPIES, MOST_COPIES + 1)
SIGMA_STREAM = MOST_COPIES + 2


def gaussian(
    images: tf.Tensor, seed: Any, first: Any, copies: int, sigma: float
) -> tf.Tensor:
    """Returns Gaussian noise for copies of a batch.

    Args:
        images: [B, H, W, C], float32 or float64.
        seed: int64 [2].
        first: The number of the first image in the global batch.
        copies: m, at most `MOST_COPIES`.
        sigma: The standard deviation.

    Returns:
        A tensor [m, B, H, W, C]. The noise of an image depends on seed, copy
        and number alone.

    Raises:
        ValueError: If the shape of an image is not known.

    Example:

    >>> import tensorflow as tf
    >>> from rs_keras.trainers._step import draws
    >>> images = tf.zeros([6, 28, 28, 1])
    >>> noise = draws.gaussian(images, [7, 0], first=0, copies=4, sigma=0.5)
    >>> noise.shape.as_list(), round(float(tf.math.reduce_std(noise)), 2)
    ([4, 6, 28, 28, 1], 0.5)
    """
    shape = images.shape[1:]
    if not shape.is_fully_defined():
        raise ValueError(
            "`images` must have a known height, width and number of "
            f"channels. Received: shape={images.shape}"
        )
    rows = tf.shape(images)[0]
    draws = [
        noise.normal(shape, seed, first, rows, images.dtype, stream=copy)
        for copy in range(copies)
    ]
    return sigma * tf.stack(draws)


def uniform(
    images: tf.Tensor, seed: Any, first: Any, shape: list[int], stream: int
) -> tf.Tensor:
    """Returns numbers in [0, 1), [B, *shape], addressed as in `gaussian`.

    Example:

    >>> import tensorflow as tf
    >>> from rs_keras.trainers._step import draws
    >>> images = tf.zeros([6, 28, 28, 1])
    >>> found = draws.uniform(
    ...     images, [7, 0], 0, shape=[2], stream=draws.METHOD_STREAMS[0])
    >>> found.shape.as_list(), bool(tf.reduce_all((found >= 0) & (found < 1)))
    ([6, 2], True)
    """
    rows = tf.shape(images)[0]
    return noise.uniform(shape, seed, first, rows, images.dtype, stream=stream)
