"""Training that maximises the certified radius."""

import math
from typing import Any

import keras
import tensorflow as tf

from rs_keras._checks import check_count
from rs_keras._checks import check_not_negative
from rs_keras._checks import check_positive
from rs_keras.losses import labels_of
from rs_keras.losses import smoothed
from rs_keras.trainers.base import Draw
from rs_keras.trainers.base import Losses
from rs_keras.trainers.base import SmoothTrainer
from rs_keras.trainers.tuning import ranges


@keras.saving.register_keras_serializable("rs_keras")
class MACER(SmoothTrainer):
    """Trains the certified radius to be large where the prediction is right.

    Formula, with z = mean_j softmax(f(x + eps_j)), z_beta the same at inverse
    temperature beta, p1 >= p2 the two largest of z_beta, and icdf the inverse
    of the normal distribution function:

        xi   = icdf(p1) - icdf(p2)
        kept = (class of p1 == y) and isfinite(xi) and |xi| <= gamma
        loss = -log(z[y] + 1e-10) + weight * kept * sigma / 2 * (gamma - xi)

    As in the authors' code: beta enters the second term alone; infinite xi and
    those above gamma drop out before the term is built, so their gradients are
    zero; and the mean is over all images of the batch. The inverse is computed
    as theirs, from 2 p - 1, which calls a probability infinite sooner than the
    lower tail would need.

    Args:
        model: The classifier, from images to logits.
        sigma: Standard deviation of the noise, > 0.
        num_noise: Noisy copies of each image (k in the paper), >= 1.
        weight: Of the robustness loss, >= 0 (lambda in the paper).
        beta: Inverse temperature, > 0.
        gamma: Margin beyond which a radius is large enough, > 0.
        deferred_epochs: The first epochs, trained at weight 0. (The authors'
            `--deferred` counts one more than the step of the learning rate
            that it follows.)
        **kwargs: `seed`; see `SmoothTrainer`.

    Example:

    >>> import keras
    >>> from rs_keras.trainers import MACER
    >>> model = keras.Sequential(
    ...     [keras.Input([8, 8, 1]), keras.layers.Flatten(),
    ...      keras.layers.Dense(2)])
    >>> trainer = MACER(model, sigma=0.25, deferred_epochs=2)
    >>> [trainer.warmup(epoch) for epoch in range(4)]
    [0.0, 0.0, 1.0, 1.0]

    References:
    - [Zhai et al., 2020](https://arxiv.org/abs/2001.02378)
    """

    loss_names = ("ce", "robustness")

    def __init__(
        self,
        model: keras.Model,
        sigma: float,
        num_noise: int = 16,
        weight: float = 12.0,
        beta: float = 16.0,
        gamma: float = 8.0,
        deferred_epochs: int = 0,
        **kwargs: Any,
    ) -> None:
        super().__init__(model, sigma, num_noise=num_noise, **kwargs)
        self.weight = check_not_negative("weight", weight)
        self.beta = check_positive("beta", beta)
        self.gamma = check_positive("gamma", gamma)
        self.deferred_epochs = check_count(
            "deferred_epochs", deferred_epochs, 0
        )

    @classmethod
    def search_space(cls, sigma: float) -> dict[str, ranges.Range]:
        """Returns the ranges of a sweep."""
        return {"weight": ranges.Log(1.0, 32.0), "gamma": ranges.Log(2.0, 16.0)}

    def warmup(self, epoch: int) -> float:
        """Returns 0 in the deferred epochs, else the base class's factor."""
        if epoch < self.deferred_epochs:
            return 0.0
        return super().warmup(epoch)

    def losses_and_logits(
        self, images: tf.Tensor, targets: Any, draw: Draw
    ) -> tuple[Losses, tf.Tensor]:
        labels = labels_of(targets)
        logits = self.noisy_logits(images, draw["noise"])
        chosen = tf.gather(smoothed(logits), labels, axis=1, batch_dims=1)
        weight = self.weight * tf.cast(self.warmup_factor, logits.dtype)
        sigma = draw.get("sigma", self.sigma0)
        losses = {
            "ce": -tf.math.log(chosen + 1e-10),
            "robustness": weight * self._shortfall(logits, labels, sigma),
        }
        return losses, logits

    def _shortfall(
        self, logits: tf.Tensor, labels: tf.Tensor, sigma: Any
    ) -> tf.Tensor:
        """kept * sigma / 2 * (gamma - xi), [B]."""
        top, classes = tf.math.top_k(smoothed(self.beta * logits), k=2)
        xi = _margin(top)
        kept = (
            (tf.cast(classes[:, 0], labels.dtype) == labels)
            & tf.math.is_finite(xi)
            & (tf.abs(xi) <= self.gamma)
        )
        # Safe probabilities where an infinite gradient would be multiplied by
        # zero.
        harmless = tf.constant([0.75, 0.25], top.dtype)
        xi = _margin(tf.where(kept[:, None], top, harmless))
        missing = sigma / 2 * (self.gamma - xi)
        return tf.where(kept, missing, tf.zeros_like(xi))


def _margin(top: tf.Tensor) -> tf.Tensor:
    """icdf(top[:, 0]) - icdf(top[:, 1])."""
    normal = math.sqrt(2.0) * tf.math.erfinv(2.0 * top - 1.0)
    return normal[:, 0] - normal[:, 1]
