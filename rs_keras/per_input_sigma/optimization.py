"""Per-input sigma: the ascent that chooses a sigma for each image.

The certificate at the sigma chosen for x speaks of the classifier smoothed
with that one sigma. It does not speak of the deployed classifier, which
chooses another sigma for the attacked image. `rs_keras.compose` is the sound
way to use several sigmas.

References:
- [Alfarra et al., 2022](https://arxiv.org/abs/2012.04351)
- [Sukenik et al., 2022](https://arxiv.org/abs/2110.05365), on why
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from rs_keras._checks import check_count
from rs_keras._checks import check_images
from rs_keras._checks import check_positive
from rs_keras.classifiers.adapters import Logits
from rs_keras.classifiers.adapters import as_logits
from rs_keras.noise import draws as noise_lib
from rs_keras.noise.keyed_seeds import Seed

# Streams of their own: the noise that chooses sigma must not be the noise
# that certifies at that sigma, even under the same seed.
_ASCENT_STREAM = 1
_SEARCH_STREAM = 2

# The released code clips the probabilities here; outside, no gradient flows.
_CLIP = (0.02, 0.98)

# Noise for the whole batch of one step: from the step's number to
# [B, num_noise, H, W, C].
Draws = Callable[[tf.Tensor], tf.Tensor]


def optimize_sigma(
    model: Any,
    images: Any,
    sigma0: Any,
    steps: int = 900,
    num_noise: int = 1,
    learning_rate: float = 1e-4,
    seed: Seed = None,
) -> np.ndarray:
    """Chooses for each image the sigma that promises the largest radius.

    Stochastic gradient ascent from sigma0, with fresh noise at each step, on

        sigma / 2 * (icdf(p1) - icdf(p2)),
        p = clip(mean_j softmax(f(x + sigma * eps_j)), .02, .98),

    p1 and p2 the two largest. The gradient flows through the factor sigma and
    through sigma * eps. As in the released code (the paper's listing keeps
    sigma0 inside the noise); like it, nothing keeps sigma from going to zero
    but the objective.

    Args:
        model: From images [m, H, W, C] to logits; see `Certifier`.
        images: [B, H, W, C] in [0, 1].
        sigma0: Where to start, > 0; a number or [B].
        steps: Of the ascent (K in the paper), >= 0.
        num_noise: Samples a step (n in the paper), >= 1.
        learning_rate: Of the ascent (alpha in the paper), > 0.
        seed: See `rs_keras.noise.as_seeds`. The same seed may certify
            afterwards: the streams are apart.

    Returns:
        float64 [B], > 0: an image whose sigma would leave (0, inf) keeps the
        last one inside.

    Raises:
        ValueError: If an argument is out of range.

    Example:

    >>> import tensorflow as tf
    >>> from rs_keras.per_input_sigma import optimize_sigma
    >>> def model(x):
    ...     score = tf.reduce_mean(x, [1, 2, 3]) - 0.4
    ...     return 50.0 * tf.stack([-score, score], -1)
    >>> image = tf.fill([1, 8, 8, 1], 0.7)
    >>> sigma = optimize_sigma(model, image, 0.25, 50, 4, 0.01, seed=1)
    >>> bool(sigma[0] > 0.25)
    True
    """
    return SigmaOptimizer(model, steps, num_noise, learning_rate)(
        images, sigma0, seed
    )


class SigmaOptimizer:
    """`optimize_sigma` for many calls: each image shape is traced once.

    Args:
        model: See `optimize_sigma`.
        steps: Of the ascent, >= 0.
        num_noise: Samples a step, >= 1.
        learning_rate: Of the ascent, > 0.

    Raises:
        ValueError: If an argument is out of range.

    Example:

    >>> import tensorflow as tf
    >>> from rs_keras.per_input_sigma import SigmaOptimizer
    >>> def model(x):
    ...     score = tf.reduce_mean(x, [1, 2, 3]) - 0.4
    ...     return 50.0 * tf.stack([-score, score], -1)
    >>> optimizer = SigmaOptimizer(model, 50, num_noise=4, learning_rate=0.01)
    >>> images = tf.stack([tf.fill([8, 8, 1], x) for x in (0.9, 0.5)])
    >>> clear, unclear = optimizer(images, 0.25, seed=1)
    >>> bool(clear > unclear)
    True
    """

    def __init__(
        self,
        model: Any,
        steps: int = 900,
        num_noise: int = 1,
        learning_rate: float = 1e-4,
    ) -> None:
        self.steps = check_count("steps", steps, 0)
        self.num_noise = check_count("num_noise", num_noise)
        self.learning_rate = check_positive("learning_rate", learning_rate)
        self._logits = as_logits(model)
        self._ascents: dict[tuple[int, ...], Callable[..., tf.Tensor]] = {}

    def __call__(
        self, images: Any, sigma0: Any, seed: Seed = None
    ) -> np.ndarray:
        """Returns float64 [B]; arguments as in `optimize_sigma`."""
        images = check_images(images)
        start = check_sigmas("sigma0", sigma0, len(images))
        shape = images.shape[1:]
        if shape not in self._ascents:
            self._ascents[shape] = self._traced(shape)
        sigma = self._ascents[shape](
            tf.constant(images),
            tf.constant(start, tf.float32),
            tf.constant(noise_lib.as_seeds(seed, len(images))),
        )
        return sigma.numpy().astype(np.float64)

    def _traced(self, shape: tuple[int, ...]) -> Callable[..., tf.Tensor]:
        """The ascent with addressed noise, for images of a shape."""
        drawn = tf.TensorSpec([self.num_noise, *shape], tf.float32)

        def ascent(
            images: tf.Tensor, sigma0: tf.Tensor, seeds: tf.Tensor
        ) -> tf.Tensor:
            def draws(step: tf.Tensor) -> tf.Tensor:
                first, n = step * self.num_noise, self.num_noise
                return tf.map_fn(
                    lambda seed: noise_lib.normal(
                        shape, seed, first, n, stream=_ASCENT_STREAM
                    ),
                    seeds,
                    fn_output_signature=drawn,
                )

            rate = tf.constant(self.learning_rate, tf.float32)
            return ascend(
                self._logits,
                images,
                sigma0,
                draws,
                steps=self.steps,
                learning_rate=rate,
            )

        return tf.function(
            ascent,
            [
                tf.TensorSpec([None, *shape], tf.float32),
                tf.TensorSpec([None], tf.float32),
                tf.TensorSpec([None, 2], tf.int64),
            ],
        )


def search_sigma(
    model: Any,
    images: Any,
    evaluations: int = 200,
    num_noise: int = 1,
    largest: float = 1.0,
    seed: Seed = None,
) -> np.ndarray:
    """Chooses sigma by trying a grid: the paper's baseline (appendix B).

    The same objective as `optimize_sigma` at `evaluations / num_noise` equally
    spaced sigmas up to `largest`, with `num_noise` samples each; the paper
    finds it far worse than the ascent at the same cost.

    Args:
        model: As in `optimize_sigma`.
        images: [B, H, W, C] in [0, 1].
        evaluations: Of the network, an image; >= num_noise.
        num_noise: Samples a sigma, >= 1.
        largest: The largest sigma tried, > 0.
        seed: See `rs_keras.noise.as_seeds`.

    Returns:
        float64 [B].

    Raises:
        ValueError: If an argument is out of range.

    Example:

    >>> import tensorflow as tf
    >>> from rs_keras.per_input_sigma import search_sigma
    >>> def model(x):
    ...     score = tf.reduce_mean(x, [1, 2, 3]) - 0.4
    ...     return 50.0 * tf.stack([-score, score], -1)
    >>> image = tf.fill([1, 8, 8, 1], 0.7)
    >>> float(search_sigma(model, image, 40, 4, seed=1)[0]) in (
    ...     [i / 10 for i in range(1, 11)])
    True
    """
    num_noise = check_count("num_noise", num_noise)
    evaluations = check_count("evaluations", evaluations, num_noise)
    largest = check_positive("largest", largest)
    images = check_images(images)
    logits = as_logits(model)
    size = evaluations // num_noise
    grid = largest * np.arange(1, size + 1) / size
    seeds = noise_lib.as_seeds(seed, len(images))
    shape = images.shape[1:]

    @tf.function
    def promises(image: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        eps = noise_lib.normal(
            shape, seed, 0, size * num_noise, stream=_SEARCH_STREAM
        )
        eps = tf.reshape(eps, [size, num_noise, *shape])
        sigma = tf.constant(grid, tf.float32)
        tiled = tf.repeat(image[None], size, axis=0)
        return _promise(logits, tiled, sigma, eps)

    best = [
        int(tf.argmax(promises(tf.constant(image), tf.constant(row))))
        for image, row in zip(images, seeds, strict=True)
    ]
    return grid[best]


def ascend(
    logits: Logits,
    images: tf.Tensor,
    sigma0: tf.Tensor,
    draws: Draws,
    steps: tf.Tensor | int,
    learning_rate: tf.Tensor | float,
) -> tf.Tensor:
    """The ascent of `optimize_sigma`, as a function of its random numbers.

    Args:
        logits: From images [m, H, W, C] to logits.
        images: [B, H, W, C].
        sigma0: [B], of the type of `images`.
        draws: From the number of a step to its noise [B, n, H, W, C].
        steps: Of the ascent.
        learning_rate: Of the ascent.

    Returns:
        sigma, [B].

    Example:

    >>> import tensorflow as tf
    >>> from rs_keras.per_input_sigma import ascend
    >>> def logits(x):
    ...     return tf.reshape(x, [-1, 2])
    >>> image = tf.constant([0.75, 0.25], shape=[1, 1, 1, 2])
    >>> def no_noise(step):  # then the promise is linear in sigma
    ...     return tf.zeros([1, 1, 1, 1, 2])
    >>> sigma0 = tf.constant([0.5])
    >>> bool(ascend(logits, image, sigma0, no_noise, 10, 0.1) > sigma0)
    True
    """

    def step(k: tf.Tensor, sigma: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        eps = draws(k)
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(sigma)
            total = tf.reduce_sum(_promise(logits, images, sigma, eps))
        moved = sigma + learning_rate * tape.gradient(total, sigma)
        inside = (moved > 0) & tf.math.is_finite(moved)
        return k + 1, tf.where(inside, moved, sigma)

    steps = tf.cast(steps, tf.int64)
    start = (tf.constant(0, tf.int64), sigma0)
    return tf.while_loop(lambda k, _: k < steps, step, start)[1]


def _promise(
    logits: Logits, images: tf.Tensor, sigma: tf.Tensor, eps: tf.Tensor
) -> tf.Tensor:
    """The radius that the mean softmax under noise promises, [B]."""
    # Noise [B, n, H, W, C] makes images [B * n, H, W, C].
    shape = tf.shape(eps)
    wide = sigma[:, None, None, None, None]
    noisy = tf.reshape(images[:, None] + wide * eps, [-1, *images.shape[1:]])
    soft = tf.nn.softmax(tf.cast(logits(noisy), sigma.dtype))
    soft = tf.reshape(soft, [shape[0], shape[1], soft.shape[-1]])
    # [B, C]: the mean soft prediction, whose two largest count.
    mean = tf.reduce_mean(soft, axis=1)
    top = tf.clip_by_value(tf.math.top_k(mean, 2).values, *_CLIP)
    quantiles = tf.math.ndtri(top)
    return sigma / 2 * (quantiles[:, 0] - quantiles[:, 1])


def check_sigmas(name: str, sigma: Any, rows: int) -> np.ndarray:
    """Returns one sigma a row, float64 [rows], or says what is wrong.

    Example:

    >>> from rs_keras.per_input_sigma.optimization import check_sigmas
    >>> check_sigmas("sigma", 0.5, rows=3)
    array([0.5, 0.5, 0.5])
    """
    array = np.asarray(sigma, np.float64)
    if array.shape not in ((), (rows,)):
        raise ValueError(
            f"`{name}` must be a number or have shape [{rows}]. "
            f"Received: shape={list(array.shape)}"
        )
    if not (np.isfinite(array) & (array > 0)).all():
        raise ValueError(
            f"`{name}` must be finite and > 0. Received: {name}={sigma!r}"
        )
    return np.broadcast_to(array, [rows])
