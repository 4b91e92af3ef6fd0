"""Projected gradient ascent, as SmoothAdv and Consistency run it."""

from typing import Any

import keras
import tensorflow as tf

from rs_keras._checks import check_choice
from rs_keras._checks import check_count
from rs_keras._checks import check_positive
from rs_keras.adversaries import base
from rs_keras.losses import cross_entropy


@keras.saving.register_keras_serializable("rs_keras")
class PGD(base.Adversary):
    """Projected gradient ascent on the smoothed prediction's loss.

    Formula, `steps` times from x = images, with e = epsilon * factor:

        x = project_and_clip(x + 2 * e / steps * g / |g|)

    The two published codes differ, and `order` chooses between them:

    - "clip_project" (SmoothAdv): g is the gradient of the cross-entropy for
      one noisy copy, of -log(max(mean_j softmax_y, 1e-20)) for more. Pixels
      are clipped to [0, 1] first and projected second.
    - "project_clip" (Consistency): always the latter loss, its mean over the
      batch, with 1e-8 added to |g|; projected first, clipped second.

    Args:
        steps: T in the papers, >= 0.
        epsilon: Radius of the ball, > 0.
        order: "clip_project" or "project_clip".

    Raises:
        ValueError: If an argument is out of range.

    Example:

    >>> import tensorflow as tf
    >>> from rs_keras import adversaries
    >>> def classify(x):  # one copy, whose logits are its two pixels
    ...     return x[None, :, 0, 0, :]
    >>> image = tf.constant([0.75, 0.25], shape=[1, 1, 1, 2])
    >>> pgd = adversaries.PGD(steps=4, epsilon=0.5)
    >>> adv = pgd(classify, image, labels=tf.constant([0]))
    >>> adv.numpy().ravel().round(2)
    array([0.4, 0.6], dtype=float32)
    >>> round(float(tf.norm(adv - image)), 3)
    0.5

    References:
    - [Salman et al., 2019](https://arxiv.org/abs/1906.04584)
    - [Jeong and Shin, 2020](https://arxiv.org/abs/2006.04062)
    """

    def __init__(
        self, steps: int, epsilon: float, order: str = "clip_project"
    ) -> None:
        self.steps = check_count("steps", steps, 0)
        self.epsilon = check_positive("epsilon", epsilon)
        self.order = check_choice(
            "order", order, ("clip_project", "project_clip")
        )

    def __call__(
        self,
        classify: base.Classify,
        images: tf.Tensor,
        labels: tf.Tensor,
        factor: Any = 1.0,
    ) -> tf.Tensor:
        """Returns adversarial images.

        Args:
            classify: From images [B, H, W, C] to noisy logits [m, B, C].
            images: [B, H, W, C] in [0, 1].
            labels: int64 [B].
            factor: Scales epsilon; a warm-up.

        Returns:
            A tensor like `images`.
        """
        radius = self.epsilon * tf.cast(factor, images.dtype)
        size = 2.0 * radius / max(1, self.steps)
        clip_first = self.order == "clip_project"

        def loss_of(x: tf.Tensor) -> tf.Tensor:
            logits = classify(x)
            if clip_first and logits.shape[0] == 1:
                return cross_entropy(labels, logits)
            return base.smoothed_loss(logits, labels)

        def step(_: tf.Tensor, x: tf.Tensor) -> tuple:
            gradient = base.gradient_of(loss_of, x)
            if clip_first:
                x = tf.clip_by_value(x + size * base.unit(gradient), 0.0, 1.0)
                return (images + base.project(x - images, radius),)
            # The loss is a mean over the batch: its size sets how small a
            # gradient has to be for the floor under its norm to matter.
            rows = tf.cast(tf.shape(images)[0], images.dtype)
            x += size * base.unit(gradient / rows, base.GRADIENT_FLOOR)
            x = images + base.project(x - images, radius)
            return (tf.clip_by_value(x, 0.0, 1.0),)

        return tf.stop_gradient(base.repeat(step, (images,), self.steps)[0])
