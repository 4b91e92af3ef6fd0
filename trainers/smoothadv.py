"""Adversarial training of the smoothed classifier."""

from typing import Any

import keras
import tensorflow as tf

from rs_keras import adversaries
from rs_keras._checks import check_choice
from rs_keras._checks import check_count
from rs_keras._checks import check_positive
from rs_keras.losses import cross_entropy
from rs_keras.losses import labels_of
from rs_keras.trainers.base import Draw
from rs_keras.trainers.base import Losses
from rs_keras.trainers.base import SmoothTrainer
from rs_keras.trainers.tuning import ranges


@keras.saving.register_keras_serializable("rs_keras")
class SmoothAdv(SmoothTrainer):
    """Trains on images that fool the smoothed classifier.

    Formula, with x_adv found by the adversary inside a ball of radius epsilon
    around x, for the same noises eps_j:

        loss = mean_j CE(y, f(x_adv + eps_j))

    The m noises share one adversarial image, in the attack and in the loss.
    (Salman et al.'s own script keeps one noise for the loss unless told
    `--train-multi-noise`; the later papers' scripts keep all, as here.) One
    update per batch; the later scripts make m, each on an m-th of the batch:
    use batches of that size.

    Args:
        model: The classifier, from images to logits.
        sigma: Standard deviation of the noise, > 0.
        num_noise: Noisy copies of each image (m in the papers), >= 1.
        adversary: "pgd", "ddn", or an adversary with a radius and steps of
            its own, such as `adversaries.DDN(10, 1.0, init_norm=1.0)`.
        epsilon: Radius of the ball, > 0, in units of pixels in [0, 1].
        steps: Of the adversary (T in the papers), >= 0.
        warmup_epochs: Epochs over which the radius grows to epsilon.
        **kwargs: `seed`; see `SmoothTrainer`.

    Example:

    >>> import keras
    >>> from rs_keras.trainers import SmoothAdv
    >>> model = keras.Sequential(
    ...     [keras.Input([8, 8, 1]), keras.layers.Flatten(),
    ...      keras.layers.Dense(2)])
    >>> SmoothAdv(model, sigma=0.5, adversary="ddn").warmup(epoch=4)
    0.5

    References:
    - [Salman et al., 2019](https://arxiv.org/abs/1906.04584)
    """

    def __init__(
        self,
        model: keras.Model,
        sigma: float,
        num_noise: int = 4,
        adversary: Any = "pgd",
        epsilon: float = 1.0,
        steps: int = 10,
        warmup_epochs: int = 10,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            model,
            sigma,
            num_noise=num_noise,
            warmup_epochs=warmup_epochs,
            **kwargs,
        )
        self.adversary = adversary
        self.epsilon = check_positive("epsilon", epsilon)
        self.steps = check_count("steps", steps, 0)
        if not callable(adversary):
            check_choice("adversary", adversary, ("pgd", "ddn"))
            kind = adversaries.PGD if adversary == "pgd" else adversaries.DDN
            adversary = kind(self.steps, self.epsilon)
        self._adversary = adversary

    @classmethod
    def search_space(cls, sigma: float) -> dict[str, ranges.Range]:
        """Returns the ranges of a sweep."""
        return {
            "epsilon": ranges.Log(0.25, 2.0),
            "steps": ranges.Choice((2, 4, 10)),
        }

    def losses_and_logits(
        self, images: tf.Tensor, targets: Any, draw: Draw
    ) -> tuple[Losses, tf.Tensor]:
        adv = self.adversarial_inputs(images, targets, draw)["adv"]
        logits = self.noisy_logits(adv, draw["noise"])
        loss = cross_entropy(labels_of(targets), logits)
        return {"ce": tf.reduce_mean(loss, axis=0)}, logits

    def adversarial_inputs(
        self, images: tf.Tensor, targets: Any, draw: Draw
    ) -> Draw:
        classify = self.noisy_classifier(draw["noise"])
        labels = labels_of(targets)
        return {
            "adv": self._adversary(classify, images, labels, self.warmup_factor)
        }
