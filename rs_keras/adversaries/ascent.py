"""Gradient ascent on images (SmoothMix) and on their noise (CAT-RS)."""

from typing import Any

import keras
import tensorflow as tf

from rs_keras._checks import check_count
from rs_keras._checks import check_positive
from rs_keras.adversaries import base
from rs_keras.losses import divergence


@keras.saving.register_keras_serializable("rs_keras")
class Ascent(base.Adversary):
    """Gradient ascent that nothing but the pixels' range restrains.

    Formula, `steps` times, with g the gradient of
    -log(max(mean_j softmax_y, 1e-20)):

        x = clip(x + step_size * g / (|g| + 1e-8), 0, 1)

    Args:
        steps: T in the paper, >= 0.
        step_size: alpha in the paper, > 0.
        max_norm: Projects every step onto the ball of this radius around the
            images, before it is clipped; None for no ball.

    Raises:
        ValueError: If an argument is out of range.

    Example:

    >>> import tensorflow as tf
    >>> from rs_keras import adversaries
    >>> def classify(x):  # one copy, whose logits are its two pixels
    ...     return x[None, :, 0, 0, :]
    >>> image = tf.constant([0.75, 0.25], shape=[1, 1, 1, 2])
    >>> ascent = adversaries.Ascent(steps=8, step_size=0.5)
    >>> ascent(classify, image, labels=tf.constant([0])).numpy().ravel()
    array([0., 1.], dtype=float32)

    References:
    - [Jeong et al., 2021](https://arxiv.org/abs/2111.09277)
    """

    def __init__(
        self, steps: int, step_size: float, max_norm: float | None = None
    ) -> None:
        self.steps = check_count("steps", steps, 0)
        self.step_size = check_positive("step_size", step_size)
        self.max_norm = (
            None if max_norm is None else check_positive("max_norm", max_norm)
        )

    def __call__(
        self,
        classify: base.Classify,
        images: tf.Tensor,
        labels: tf.Tensor,
        start: tf.Tensor | None = None,
    ) -> tf.Tensor:
        """Returns adversarial images.

        Args:
            classify: From images [B, H, W, C] to noisy logits [m, B, C].
            images: [B, H, W, C] in [0, 1], the centre of the ball.
            labels: int64 [B].
            start: Where to begin; None for `images`.

        Returns:
            A tensor like `images`.
        """

        def loss_of(x: tf.Tensor) -> tf.Tensor:
            return base.smoothed_loss(classify(x), labels)

        def step(_: tf.Tensor, x: tf.Tensor) -> tuple:
            gradient = base.gradient_of(loss_of, x)
            x += self.step_size * base.unit(gradient, base.GRADIENT_FLOOR)
            if self.max_norm is not None:
                x = images + base.project(x - images, self.max_norm)
            return (tf.clip_by_value(x, 0.0, 1.0),)

        x = images if start is None else start
        return tf.stop_gradient(base.repeat(step, (x,), self.steps)[0])


@keras.saving.register_keras_serializable("rs_keras")
class NoiseAscent(base.Adversary):
    """Ascent on each noise by itself, that keeps its first two moments.

    Formula, `steps` times from n = noise, with g the gradient of
    mean_j KL(target || softmax(classify(n_j))) and, for each noise, mu and s
    its mean and root mean square over the pixels, e = epsilon * factor:

        n = n + 2 * e / steps * g / (|g| + 1e-8)
        n = noise + project(n - noise, e)
        n = mu(noise) + (n - mu(n)) / s(n) * s(noise)

    As in the authors' code the last line comes at every step, s is not the
    standard deviation, and nothing is clipped. So the result leaves the ball
    a little, and has the root mean square s only nearly.

    Args:
        steps: T in the paper, >= 0.
        epsilon: Radius of the ball around each noise, > 0.

    Raises:
        ValueError: If an argument is out of range.

    Example:

    >>> import tensorflow as tf
    >>> from rs_keras import adversaries
    >>> from rs_keras import noise
    >>> def classify(n):  # the logits of a copy are two of its pixels
    ...     return 10 * n[:, :, 0, :2, 0]
    >>> eps = 0.5 * noise.normal([1, 4, 4, 1], [7, 0], first=0, count=2)
    >>> climb = adversaries.NoiseAscent(steps=4, epsilon=0.25)
    >>> moved = climb(classify, eps, target=tf.constant([[1.0, 0.0]]))
    >>> def first_class(n):
    ...     return tf.nn.softmax(classify(n))[:, 0, 0]
    >>> bool(tf.reduce_all(first_class(moved) < first_class(eps)))
    True

    References:
    - [Jeong et al., 2023](https://arxiv.org/abs/2212.09000)
    """

    def __init__(self, steps: int, epsilon: float) -> None:
        self.steps = check_count("steps", steps, 0)
        self.epsilon = check_positive("epsilon", epsilon)

    def __call__(
        self,
        classify: base.Classify,
        noise: tf.Tensor,
        target: tf.Tensor,
        factor: Any = 1.0,
    ) -> tf.Tensor:
        """Returns adversarial noise.

        Args:
            classify: From noise [m, B, H, W, C] to logits [m, B, C].
            noise: [m, B, H, W, C].
            target: Distributions [B, C] to move away from.
            factor: Scales epsilon.

        Returns:
            A tensor like `noise`.
        """
        radius = self.epsilon * tf.cast(factor, noise.dtype)
        size = 2.0 * radius / max(1, self.steps)
        mean, scale = _moments(noise)
        # The loss is a mean over copies: it sets how small a gradient has to
        # be for the floor under its norm to matter.
        copies = tf.cast(tf.shape(noise)[0], noise.dtype)

        def loss_of(n: tf.Tensor) -> tf.Tensor:
            return divergence(target, classify(n))

        def step(_: tf.Tensor, n: tf.Tensor) -> tuple:
            gradient = base.gradient_of(loss_of, n) / copies
            n += size * base.unit(gradient, base.GRADIENT_FLOOR)
            n = noise + base.project(n - noise, radius)
            now, spread = _moments(n)
            return (mean + (n - now) / spread * scale,)

        return tf.stop_gradient(base.repeat(step, (noise,), self.steps)[0])


def _moments(noise: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns mean and root mean square over the pixels of each noise."""
    axes = [-3, -2, -1]
    mean = tf.reduce_mean(noise, axis=axes, keepdims=True)
    square = tf.reduce_mean(tf.square(noise), axis=axes, keepdims=True)
    return mean, tf.sqrt(square)
