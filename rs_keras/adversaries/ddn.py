"""Decoupled direction and norm, the attack of Rony et al."""

import math
from typing import Any

import keras
import tensorflow as tf

from rs_keras._checks import check_count
from rs_keras._checks import check_not_negative
from rs_keras._checks import check_positive
from rs_keras.adversaries import base
from rs_keras.losses import cross_entropy

# Grey levels of the images that DDN rounds to.
_LEVELS = 255.0


@keras.saving.register_keras_serializable("rs_keras")
class DDN(base.Adversary):
    """Decoupled direction and norm: the smallest perturbation that fools.

    Each step goes along the normalised gradient by a length that falls from
    1 to 0.01 like a cosine, then is given the norm

        norm = min(norm * (1 - gamma if fooled else 1 + gamma), farthest corner)

    and rounded to 256 grey levels. The smallest perturbation that fooled the
    classifier (by the majority of the noisy copies, ties to the lower class)
    is returned, projected onto the ball of radius epsilon and rounded again,
    which can leave the ball by half a grey level a pixel. As in the authors'
    code, images that are misclassified from the start and images for which
    nothing was found stay as they are, and the last step is never looked at.

    Args:
        steps: >= 0.
        epsilon: Radius of the ball, > 0.
        gamma: By which the norm changes, in [0, 1).
        init_norm: The first norm; None for epsilon * factor.

    Raises:
        ValueError: If an argument is out of range.

    Example:

    >>> import tensorflow as tf
    >>> from rs_keras import adversaries
    >>> def classify(x):  # one copy, whose logits are its two pixels
    ...     return x[None, :, 0, 0, :]
    >>> image = tf.constant([0.75, 0.25], shape=[1, 1, 1, 2])
    >>> ddn = adversaries.DDN(steps=20, epsilon=1.0)
    >>> adv = ddn(classify, image, labels=tf.constant([0], tf.int64))
    >>> adv.numpy().ravel().round(2)
    array([0.46, 0.54], dtype=float32)
    >>> round(float(tf.norm(adv - image)), 2)  # the shortest is 0.35
    0.42

    References:
    - [Rony et al., 2019](https://arxiv.org/abs/1811.09600)
    - [Salman et al., 2019](https://arxiv.org/abs/1906.04584)
    """

    def __init__(
        self,
        steps: int,
        epsilon: float,
        gamma: float = 0.05,
        init_norm: float | None = None,
    ) -> None:
        self.steps = check_count("steps", steps, 0)
        self.epsilon = check_positive("epsilon", epsilon)
        self.gamma = check_not_negative("gamma", gamma)
        if self.gamma >= 1:
            raise ValueError(
                f"`gamma` must be in [0, 1). Received: gamma={gamma}"
            )
        self.init_norm = (
            None
            if init_norm is None
            else check_positive("init_norm", init_norm)
        )

    def __call__(
        self,
        classify: base.Classify,
        images: tf.Tensor,
        labels: tf.Tensor,
        factor: Any = 1.0,
    ) -> tf.Tensor:
        """Returns adversarial images; arguments and result as in `PGD`."""
        radius = self.epsilon * tf.cast(factor, images.dtype)
        corner = base.norms(tf.maximum(images, 1.0 - images))
        first = radius if self.init_norm is None else self.init_norm
        start = tf.ones_like(corner) * tf.cast(first, images.dtype)
        # Cosine annealing from 1 to 0.01, stepped before it is used.
        cosines = [
            math.cos(math.pi * (i + 1) / self.steps) for i in range(self.steps)
        ]
        sizes = tf.constant([0.505 + 0.495 * c for c in cosines], images.dtype)

        def step(i, delta, norm, best, best_norm):  # type: ignore[no-untyped-def]
            gradient, fooled = self._evaluate(classify, images + delta, labels)
            length = base.norms(delta)
            better = fooled & (length < best_norm)
            best = tf.where(better, delta, best)
            best_norm = tf.where(better, length, best_norm)
            sign = 1.0 - 2.0 * tf.cast(fooled, norm.dtype)
            norm = tf.minimum(norm * (1.0 + sign * self.gamma), corner)
            delta += sizes[i] * base.unit(gradient)
            x = _rounded(images + norm * base.unit(delta))
            delta = tf.clip_by_value(x, 0.0, 1.0) - images
            return delta, norm, best, best_norm

        zeros = tf.zeros_like(images)
        state = (zeros, start, zeros, corner)
        _, _, best, _ = base.repeat(step, state, self.steps)
        return tf.stop_gradient(images + _rounded(base.project(best, radius)))

    @staticmethod
    def _evaluate(
        classify: base.Classify, x: tf.Tensor, labels: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the gradient and whether the majority is wrong."""
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(x)
            logits = classify(x)
            if logits.shape[0] == 1:
                loss = tf.reduce_sum(cross_entropy(labels, logits))
            else:
                loss = tf.reduce_sum(base.smoothed_loss(logits, labels))
        votes = tf.one_hot(tf.argmax(logits, -1), logits.shape[-1])
        winner = tf.argmax(tf.reduce_sum(votes, axis=0), axis=-1)
        fooled = tf.not_equal(winner, labels)
        return tape.gradient(loss, x), fooled[:, None, None, None]


def _rounded(x: tf.Tensor) -> tf.Tensor:
    return tf.round(x * _LEVELS) / _LEVELS
