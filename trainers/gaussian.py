"""Training on noisy copies: the baseline of every other method."""

from typing import Any

import keras
import tensorflow as tf

from rs_keras.losses import cross_entropy
from rs_keras.losses import labels_of
from rs_keras.trainers.base import Draw
from rs_keras.trainers.base import Losses
from rs_keras.trainers.base import SmoothTrainer
from rs_keras.trainers.tuning import ranges


@keras.saving.register_keras_serializable("rs_keras")
class Gaussian(SmoothTrainer):
    """Trains the classifier to be right under Gaussian noise.

    Formula, with eps_j ~ Normal(0, sigma**2 I), j = 1 .. num_noise:

        loss = mean_j CE(y, f(x + eps_j))

    Args:
        model: The classifier, from images to logits.
        sigma: Standard deviation of the noise, > 0.
        num_noise: Noisy copies of each image, >= 1; the reference has one.
        **kwargs: `seed`; see `SmoothTrainer`.

    Example:

    >>> import keras, numpy
    >>> from rs_keras.trainers import SGD, Gaussian
    >>> model = keras.Sequential(
    ...     [keras.Input([8, 8, 1]), keras.layers.Flatten(),
    ...      keras.layers.Dense(2)])
    >>> trainer = Gaussian(model, sigma=0.25)
    >>> trainer.compile(optimizer=SGD(0.1), metrics=["accuracy"])
    >>> x, y = numpy.full([4, 8, 8, 1], 0.5), numpy.array([0, 1, 0, 1])
    >>> sorted(trainer.fit(x, y, verbose=0).history)
    ['accuracy', 'ce', 'loss']

    References:
    - [Cohen et al., 2019](https://arxiv.org/abs/1902.02918)
    """

    def __init__(
        self,
        model: keras.Model,
        sigma: float,
        num_noise: int = 1,
        **kwargs: Any,
    ) -> None:
        super().__init__(model, sigma, num_noise=num_noise, **kwargs)

    @classmethod
    def search_space(cls, sigma: float) -> dict[str, ranges.Range]:
        """Returns the ranges of a sweep."""
        return {"num_noise": ranges.Choice((1, 2, 4))}

    def losses_and_logits(
        self, images: tf.Tensor, targets: Any, draw: Draw
    ) -> tuple[Losses, tf.Tensor]:
        logits = self.noisy_logits(images, draw["noise"])
        loss = cross_entropy(labels_of(targets), logits)
        return {"ce": tf.reduce_mean(loss, axis=0)}, logits
