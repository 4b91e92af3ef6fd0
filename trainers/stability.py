"""Training whose noisy prediction follows the clean one."""

from typing import Any

import keras
import tensorflow as tf

from rs_keras._checks import check_not_negative
from rs_keras.losses import cross_entropy
from rs_keras.losses import labels_of
from rs_keras.trainers.base import Draw
from rs_keras.trainers.base import Losses
from rs_keras.trainers.base import SmoothTrainer
from rs_keras.trainers.tuning import ranges


@keras.saving.register_keras_serializable("rs_keras")
class Stability(SmoothTrainer):
    """Trains on clean images, and the noisy prediction to follow the clean.

    Formula, with p = softmax(f) and eps ~ Normal(0, sigma**2 I):

        loss = CE(y, f(x)) + weight * CE(p(x), f(x + eps))

    The target p(x) is not detached: gradients flow through it. The clean pass
    comes first and both update the moving statistics.

    Args:
        model: The classifier, from images to logits.
        sigma: Standard deviation of the noise, > 0.
        weight: Of the second term, >= 0 (lambda in the paper). At 0 this is
            plain training on clean images.
        **kwargs: `seed`; see `SmoothTrainer`.

    Example:

    >>> import keras
    >>> from rs_keras.trainers import Stability
    >>> model = keras.Sequential(
    ...     [keras.Input([8, 8, 1]), keras.layers.Flatten(),
    ...      keras.layers.Dense(2)])
    >>> Stability(model, sigma=0.25).loss_names
    ('ce', 'stability')

    References:
    - [Li et al., 2019](https://arxiv.org/abs/1809.03113)
    """

    loss_names = ("ce", "stability")

    def __init__(
        self,
        model: keras.Model,
        sigma: float,
        weight: float = 2.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(model, sigma, **kwargs)
        self.weight = check_not_negative("weight", weight)

    @classmethod
    def search_space(cls, sigma: float) -> dict[str, ranges.Range]:
        """Returns the ranges of a sweep."""
        return {"weight": ranges.Log(0.5, 8.0)}

    def losses_and_logits(
        self, images: tf.Tensor, targets: Any, draw: Draw
    ) -> tuple[Losses, tf.Tensor]:
        noise = draw["noise"]
        clean = self.noisy_logits(images, tf.zeros_like(noise[:1]))[0]
        noisy = self.noisy_logits(images, noise)
        follow = tf.reduce_sum(
            -tf.nn.softmax(clean) * tf.nn.log_softmax(noisy), axis=-1
        )
        losses = {
            "ce": cross_entropy(labels_of(targets), clean),
            "stability": self.weight * tf.reduce_mean(follow, axis=0),
        }
        return losses, noisy
