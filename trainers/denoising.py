"""Training a denoiser in front of a classifier that knows no noise."""

from typing import Any

import keras
import tensorflow as tf

from rs_keras._checks import check_not_negative
from rs_keras.classifiers.denoisers import CLASSIFIER
from rs_keras.classifiers.denoisers import DENOISER
from rs_keras.losses import cross_entropy
from rs_keras.trainers.base import Draw
from rs_keras.trainers.base import Losses
from rs_keras.trainers.base import SmoothTrainer
from rs_keras.trainers.tuning import ranges


@keras.saving.register_keras_serializable("rs_keras")
class Denoising(SmoothTrainer):
    """Trains a denoiser; the classifier behind it stays as it is.

    Formula, with the denoiser D, the classifier f and eps_j ~ Normal(0,
    sigma**2 I), j = 1 .. num_noise:

        loss = mse_weight * mean_j mean((D(x + eps_j) - x)**2)
             + stability_weight * mean_j CE(argmax f(x), f(D(x + eps_j)))

    The second term takes the classifier's own predictions on clean images for
    labels: those of the data serve the metrics alone. The paper trains on the
    first term, and then on the second: that is two trainers of one model.

    Args:
        model: What `rs_keras.classifiers.with_denoiser` returns.
        sigma: Standard deviation of the noise, > 0.
        mse_weight: Of the first term, >= 0.
        stability_weight: Of the second term, >= 0.
        **kwargs: `num_noise`, `seed`; see `SmoothTrainer`.

    Raises:
        ValueError: If an argument is none of these, or both weights are 0.

    Example:

    >>> from rs_keras import models
    >>> from rs_keras.classifiers import with_denoiser
    >>> from rs_keras.trainers import Denoising
    >>> denoiser = models.dncnn((28, 28, 1), depth=3)
    >>> model = with_denoiser(models.lenet(), denoiser)
    >>> trainer = Denoising(model, sigma=0.5)
    >>> len(trainer.trainable_variables)  # of the denoiser alone
    6

    References:
    - [Salman et al., 2020](https://arxiv.org/abs/2003.01908)
    """

    loss_names = ("mse", "stability")

    def __init__(
        self,
        model: keras.Model,
        sigma: float,
        mse_weight: float = 1.0,
        stability_weight: float = 0.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(model, sigma, **kwargs)
        names = {layer.name for layer in getattr(model, "layers", ())}
        if not {DENOISER, CLASSIFIER} <= names:
            raise ValueError(
                "`model` must be one of rs_keras.classifiers.with_denoiser"
                "(classifier, denoiser). Received: model with the layers "
                f"{', '.join(sorted(names))}"
            )
        self.mse_weight = check_not_negative("mse_weight", mse_weight)
        self.stability_weight = check_not_negative(
            "stability_weight", stability_weight
        )
        if not (self.mse_weight or self.stability_weight):
            raise ValueError(
                "`mse_weight` or `stability_weight` must be > 0. "
                "Received: mse_weight=0, stability_weight=0"
            )

    @classmethod
    def search_space(cls, sigma: float) -> dict[str, ranges.Range]:
        """Returns the ranges of a sweep."""
        return {"stability_weight": ranges.Log(0.01, 10.0)}

    def losses_and_logits(
        self, images: tf.Tensor, targets: Any, draw: Draw
    ) -> tuple[Losses, tf.Tensor]:
        denoiser = self.model.get_layer(DENOISER)
        classifier = self.model.get_layer(CLASSIFIER)
        copies = images + draw["noise"]
        # [m * B, H, W, C], one pass for all copies.
        flat = tf.reshape(copies, [-1, *images.shape[1:]])
        cleaned = self._floats(denoiser(flat, training=True))
        logits = self._floats(classifier(cleaned, training=False))
        outer = tf.shape(copies)[:2]
        logits = tf.reshape(logits, [outer[0], outer[1], logits.shape[-1]])
        error = tf.reshape(cleaned, tf.shape(copies)) - images
        mse = tf.reduce_mean(tf.square(error), [0, 2, 3, 4])
        own = tf.argmax(classifier(images, training=False), -1)
        follow = tf.reduce_mean(cross_entropy(own, logits), axis=0)
        losses = {
            "mse": self.mse_weight * mse,
            "stability": self.stability_weight * follow,
        }
        return losses, logits
