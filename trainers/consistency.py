"""Training whose noisy predictions agree with their mean."""

from typing import Any

import keras
import tensorflow as tf

from rs_keras._checks import check_not_negative
from rs_keras.losses import cross_entropy
from rs_keras.losses import divergence
from rs_keras.losses import labels_of
from rs_keras.losses import smoothed
from rs_keras.trainers.base import Draw
from rs_keras.trainers.base import Losses
from rs_keras.trainers.base import SmoothTrainer
from rs_keras.trainers.tuning import ranges


@keras.saving.register_keras_serializable("rs_keras")
class Consistency(SmoothTrainer):
    """Trains the predictions under different noises to agree.

    Formula, with F_j = softmax(f(x + eps_j)), Fbar = mean_j F_j and the
    entropy H(p) = -sum(p * log(max(p, 1e-20))):

        loss = mean_j CE(y, f(x + eps_j))
               + weight * mean_j KL(Fbar || F_j) + entropy_weight * H(Fbar)

    Fbar is not detached. With an adversary, x is the adversarial image that
    it finds for these noises, as in the reference's `--adv-training`.

    Args:
        model: The classifier, from images to logits.
        sigma: Standard deviation of the noise, > 0.
        num_noise: Noisy copies of each image (m in the paper), >= 1.
        weight: Of the consistency, >= 0 (lambda in the paper).
        entropy_weight: Of the entropy, >= 0 (eta in the paper).
        adversary: None, or one like `adversaries.PGD(steps, epsilon,
            order="project_clip")`, the order of the reference. Its epsilon is
            multiplied by `warmup_factor`.
        **kwargs: `warmup_epochs`, `seed`; see `SmoothTrainer`.

    Example:

    >>> import keras
    >>> from rs_keras.trainers import Consistency
    >>> model = keras.Sequential(
    ...     [keras.Input([8, 8, 1]), keras.layers.Flatten(),
    ...      keras.layers.Dense(2)])
    >>> Consistency(model, sigma=0.25, weight=20.0).loss_names
    ('ce', 'consistency', 'entropy')

    References:
    - [Jeong and Shin, 2020](https://arxiv.org/abs/2006.04062)
    """

    loss_names = ("ce", "consistency", "entropy")

    def __init__(
        self,
        model: keras.Model,
        sigma: float,
        num_noise: int = 2,
        weight: float = 10.0,
        entropy_weight: float = 0.5,
        adversary: Any = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(model, sigma, num_noise=num_noise, **kwargs)
        self.weight = check_not_negative("weight", weight)
        self.entropy_weight = check_not_negative(
            "entropy_weight", entropy_weight
        )
        if adversary is not None and not callable(adversary):
            raise ValueError(
                "`adversary` must be None or an adversary such as "
                "adversaries.PGD(10, 1.0, order='project_clip'). "
                f"Received: adversary={adversary!r}"
            )
        self.adversary = adversary

    @classmethod
    def search_space(cls, sigma: float) -> dict[str, ranges.Range]:
        """Returns the ranges of a sweep."""
        return {
            "weight": ranges.Log(1.0, 40.0),
            "entropy_weight": ranges.Log(0.05, 1.0),
        }

    def losses_and_logits(
        self, images: tf.Tensor, targets: Any, draw: Draw
    ) -> tuple[Losses, tf.Tensor]:
        x = self.adversarial_inputs(images, targets, draw).get("adv", images)
        logits = self.noisy_logits(x, draw["noise"])
        ce = tf.reduce_mean(cross_entropy(labels_of(targets), logits), axis=0)
        mean = smoothed(logits)
        kl = tf.reduce_mean(divergence(mean, logits), axis=0)
        log_mean = tf.math.log(tf.maximum(mean, 1e-20))
        entropy = -tf.reduce_sum(mean * log_mean, axis=-1)
        losses = {
            "ce": ce,
            "consistency": self.weight * kl,
            "entropy": self.entropy_weight * entropy,
        }
        return losses, logits

    def adversarial_inputs(
        self, images: tf.Tensor, targets: Any, draw: Draw
    ) -> Draw:
        if self.adversary is None:
            return {}
        classify = self.noisy_classifier(draw["noise"])
        labels, factor = labels_of(targets), self.warmup_factor
        return {"adv": self.adversary(classify, images, labels, factor)}
