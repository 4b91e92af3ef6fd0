"""Training on mixtures of images and their adversarial examples."""

from typing import Any

import keras
import tensorflow as tf

from rs_keras import adversaries
from rs_keras._checks import check_count
from rs_keras._checks import check_flag
from rs_keras._checks import check_not_negative
from rs_keras._checks import check_positive
from rs_keras.losses import cross_entropy
from rs_keras.losses import divergence
from rs_keras.losses import labels_of
from rs_keras.losses import smoothed
from rs_keras.trainers.base import Draw
from rs_keras.trainers.base import Losses
from rs_keras.trainers.base import SmoothTrainer
from rs_keras.trainers.tuning import ranges


@keras.saving.register_keras_serializable("rs_keras")
class SmoothMix(SmoothTrainer):
    """Trains the confidence to fall along the way to an adversarial example.

    Formula, with F = softmax(f), the adversarial image x_adv that `steps`
    unrestricted steps of ascent find for the noises eps_j, the clean side
    x_0 (x, or the adversary's first step), Fbar = mean_j F(x_0 + eps_j), w the
    warm-up factor, and lam uniform in [0, 1/2):

        x_mix  = (1 - lam) * x_0 + lam * x_adv
        target = (1 - lam) * Fbar + lam / num_classes
        loss   = mean_j CE(y, f(x_0 + eps_j))
                 + eta * w * [argmax Fbar == y]
                   * mean_j KL(target || F(x_mix + eps_j))

    As in the authors' code, where it differs from the text: the target is not
    detached, so the KL is not a cross-entropy; Fbar comes from the training
    pass; the means run over all images, masked or not. The one-step adversary
    is projected onto a ball around x whose radius is warmed up as well, and the
    code records it at the start of step 1: with `steps=1` it never does, and
    x_0 is x. So "T = 1 with the one-step adversary" of the text is not what
    the code computes; `steps=2` has the one-step x_0 and a two-step x_adv.

    One update per batch; the reference makes m, each on an m-th of the batch:
    use batches of that size.

    Args:
        model: The classifier, from images to logits.
        sigma: Standard deviation of the noise, > 0.
        num_noise: Noisy copies of each image (m in the paper), >= 1.
        steps: Of the adversary (T in the paper), >= 0.
        step_size: Of the adversary (alpha in the paper), > 0.
        eta: Weight of the mixture loss, >= 0.
        one_step_adversary: Whether x_0 is the adversary's first step.
        max_norm: Radius of a ball for the adversary; None for no ball.
        one_step_max_norm: Radius of the ball for x_0; None for `step_size`.
        warmup_epochs: Epochs over which w rises to 1.
        **kwargs: `seed`; see `SmoothTrainer`.

    Example:

    >>> import keras
    >>> from rs_keras.trainers import SmoothMix
    >>> model = keras.Sequential(
    ...     [keras.Input([8, 8, 1]), keras.layers.Flatten(),
    ...      keras.layers.Dense(2)])
    >>> sorted(SmoothMix(model, sigma=1.0).draw(keras.ops.zeros(
    ...     [2, 8, 8, 1]), seed=[0, 0]))
    ['mix', 'noise']

    References:
    - [Jeong et al., 2021](https://arxiv.org/abs/2111.09277)
    """

    loss_names = ("ce", "mixup")

    def __init__(
        self,
        model: keras.Model,
        sigma: float,
        num_noise: int = 4,
        steps: int = 8,
        step_size: float = 1.0,
        eta: float = 5.0,
        one_step_adversary: bool = True,
        max_norm: float | None = None,
        one_step_max_norm: float | None = None,
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
        self.steps = check_count("steps", steps, 0)
        self.step_size = check_positive("step_size", step_size)
        self.eta = check_not_negative("eta", eta)
        self.one_step_adversary = check_flag(
            "one_step_adversary", one_step_adversary
        )
        self.max_norm = max_norm
        self.one_step_max_norm = one_step_max_norm
        if one_step_max_norm is not None:
            check_positive("one_step_max_norm", one_step_max_norm)
        # The first step is separate if its result replaces the clean image.
        alone = 1 if self.one_step_adversary and self.steps > 1 else 0
        self._first = adversaries.Ascent(alone, step_size, max_norm)
        self._rest = adversaries.Ascent(self.steps - alone, step_size, max_norm)

    @classmethod
    def search_space(cls, sigma: float) -> dict[str, ranges.Range]:
        """Returns the ranges of a sweep."""
        # steps * step_size / sigma is 8 in the published settings on MNIST and
        # CIFAR-10; section 4 and appendix H advise to keep it.
        return {
            "eta": ranges.Log(0.5, 20.0),
            "steps": ranges.Choice((1, 2, 4, 8)),
            "one_step_adversary": ranges.Choice((False, True)),
            "step_size": ranges.Per(8.0 * sigma, "steps"),
        }

    def draw(self, images: Any, seed: Any, first: Any = 0) -> Draw:
        """Adds `mix`, [B] in [0, 1/2), to the noise."""
        draw = super().draw(images, seed, first)
        return {**draw, "mix": self.uniform(images, seed, first) / 2}

    def losses_and_logits(
        self, images: tf.Tensor, targets: Any, draw: Draw
    ) -> tuple[Losses, tf.Tensor]:
        labels, noise = labels_of(targets), draw["noise"]
        inputs = self.adversarial_inputs(images, targets, draw)
        clean, adv = inputs["init"], inputs["adv"]
        logits = self.noisy_logits(clean, noise)
        # Smoothed prediction [B, C]; mixing ratios [B, 1, 1, 1] for images.
        mean = smoothed(logits)
        share = draw["mix"][:, None, None, None]
        mixed = (1.0 - share) * clean + share * adv
        share = draw["mix"][:, None]
        classes = tf.cast(tf.shape(mean)[-1], mean.dtype)
        target = (1.0 - share) * mean + share / classes
        kl = divergence(target, self.noisy_logits(mixed, noise))
        correct = tf.cast(tf.argmax(mean, axis=-1) == labels, mean.dtype)
        eta = self.eta * tf.cast(self.warmup_factor, mean.dtype)
        losses = {
            "ce": tf.reduce_mean(cross_entropy(labels, logits), axis=0),
            "mixup": eta * correct * tf.reduce_mean(kl, axis=0),
        }
        return losses, logits

    def adversarial_inputs(
        self, images: tf.Tensor, targets: Any, draw: Draw
    ) -> Draw:
        labels = labels_of(targets)
        classify = self.noisy_classifier(draw["noise"])
        init = self._first(classify, images, labels)
        adv = self._rest(classify, images, labels, start=init)
        if self._first.steps:
            radius = self.one_step_max_norm or self.step_size
            radius *= tf.cast(self.warmup_factor, images.dtype)
            init = images + adversaries.project(init - images, radius)
        return {"adv": adv, "init": init}
