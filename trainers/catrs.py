"""Confidence-aware training of the smoothed classifier."""

from typing import Any

import keras
import tensorflow as tf

from rs_keras import _compat
from rs_keras._checks import check_count
from rs_keras._checks import check_distributions
from rs_keras._checks import check_flag
from rs_keras._checks import check_not_negative
from rs_keras._checks import check_positive
from rs_keras.adversaries.ascent import NoiseAscent
from rs_keras.losses import cross_entropy
from rs_keras.losses import divergence
from rs_keras.losses import labels_of
from rs_keras.losses import smoothed
from rs_keras.trainers._step.input_gradients import only_cpus
from rs_keras.trainers.base import Draw
from rs_keras.trainers.base import Losses
from rs_keras.trainers.base import SmoothTrainer
from rs_keras.trainers.tuning import ranges

# The number of attacked images is a multiple of this: oneDNN prepares each
# operation anew for each batch size that it meets.
_TOGETHER = 4

_NO_TEACHER = (
    "`soft_label` must be among the targets, {'label': y, 'soft_label': p}, "
    "for `confidence_mask=True`: the mask is the teacher's confidence. "
    "Received: labels alone"
)


@keras.saving.register_keras_serializable("rs_keras")
class CATRS(SmoothTrainer):
    """Trains each image as hard as its confidence under noise allows.

    Formula, with p the share of the m noisy copies that are voted y, K ~
    Binomial(m, p) clamped to at least 1, CE_j = CE(y, f(x + eps_j)), the soft
    target t, and the noises eps'_j that ascent on KL(t || F) finds in balls of
    radius epsilon around the eps_j:

        loss = sum of the K smallest CE_j / m
               + weight * [K == m] * max_j KL(t || softmax(f(x + eps'_j)))

    As in the authors' code: the first pass, in training mode, comes before the
    attack, which sees the moving statistics that it left; the first term is
    made of that pass's logits; the sum is divided by m, not by K; and with
    m = 1 every image is masked in.

    Targets are dicts of `label` and `soft_label`, the probabilities [B,
    num_classes] that a teacher gives under noise. For plain labels there is
    no teacher: t is then the mean prediction over the m noisy copies in the
    first pass, detached (the simpler target in section 3.2 of the paper).

    One update per batch; the reference makes m, each on an m-th of the batch:
    use batches of that size.

    Args:
        model: The classifier, from images to logits.
        sigma: Standard deviation of the noise, > 0.
        num_noise: Noisy copies of each image (M in the paper), >= 1.
        steps: Of the adversary (T in the paper), >= 0.
        epsilon: Radius of the balls around the noises, > 0.
        weight: Of the worst-case loss, >= 0 (lambda in the paper).
        confidence_mask: Whether p is the teacher's t[y] instead.
        doubled_from: The epoch, counted from 0, from which on the radius is
            2 * epsilon, as the authors' ImageNet command has it; None: never.
        **kwargs: `seed`; see `SmoothTrainer`.

    Example:

    >>> import keras
    >>> from rs_keras.trainers import CATRS
    >>> model = keras.Sequential(
    ...     [keras.Input([8, 8, 1]), keras.layers.Flatten(),
    ...      keras.layers.Dense(2)])
    >>> sorted(CATRS(model, sigma=0.5).draw(keras.ops.zeros(
    ...     [2, 8, 8, 1]), seed=[0, 0]))
    ['noise', 'uniform']

    References:
    - [Jeong et al., 2023](https://arxiv.org/abs/2212.09000)
    """

    loss_names = ("ce", "worst")

    def __init__(
        self,
        model: keras.Model,
        sigma: float,
        num_noise: int = 4,
        steps: int = 4,
        epsilon: float = 1.0,
        weight: float = 1.0,
        confidence_mask: bool = False,
        doubled_from: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(model, sigma, num_noise=num_noise, **kwargs)
        self.steps = check_count("steps", steps, 0)
        self.epsilon = check_positive("epsilon", epsilon)
        self.weight = check_not_negative("weight", weight)
        self.confidence_mask = check_flag("confidence_mask", confidence_mask)
        self.doubled_from = (
            None
            if doubled_from is None
            else check_count("doubled_from", doubled_from, 0)
        )
        self._adversary = NoiseAscent(self.steps, self.epsilon)

    @classmethod
    def search_space(cls, sigma: float) -> dict[str, ranges.Range]:
        """Returns the ranges of a sweep."""
        return {
            "weight": ranges.Log(0.25, 4.0),
            "epsilon": ranges.Log(0.25, 2.0),
            "steps": ranges.Choice((2, 4, 8)),
        }

    def warmup(self, epoch: int) -> float:
        """Returns the factor of epsilon in an epoch, counted from 0."""
        late = self.doubled_from is not None and epoch >= self.doubled_from
        return (2.0 if late else 1.0) * super().warmup(epoch)

    def draw(self, images: Any, seed: Any, first: Any = 0) -> Draw:
        """Adds `uniform`, [m, B] in [0, 1), to the noise.

        K is the number of copies whose `uniform` is below p.
        """
        draw = super().draw(images, seed, first)
        copies = (self.num_noise,)
        uniform = self.uniform(images, seed, first, copies, stream=1)
        return {**draw, "uniform": tf.transpose(uniform)}

    def losses_and_logits(
        self, images: tf.Tensor, targets: Any, draw: Draw
    ) -> tuple[Losses, tf.Tensor]:
        labels = labels_of(targets)
        logits = self.noisy_logits(images, draw["noise"])
        target = self._target(targets, logits)
        losses = cross_entropy(labels, logits)
        copies = tf.shape(losses)[0]
        num_easy = self._easy(labels, logits, target, draw["uniform"])
        below = tf.range(copies)[:, None] < num_easy
        lowest = tf.where(below, tf.sort(losses, axis=0), 0.0)
        worst = self._worst_loss(
            images, target, draw["noise"], num_easy == copies
        )
        return {
            "ce": tf.reduce_mean(lowest, axis=0),
            "worst": self.weight * worst,
        }, logits

    def _worst_loss(
        self,
        images: tf.Tensor,
        target: tf.Tensor,
        noise: tf.Tensor,
        masked_in: tf.Tensor,
    ) -> tf.Tensor:
        """Returns the largest divergence of each masked-in image, else 0.

        Where possible, the others (about a quarter of MNIST at sigma 1.0) are
        not attacked, and a second pass computes the gradient of the noise with
        the largest divergence only.
        """
        if self._takes_images_apart():
            rows = _rows_of(masked_in)
            images, target = tf.gather(images, rows), tf.gather(target, rows)
            noise = self._worst(images, target, tf.gather(noise, rows, axis=1))
            divergences = self._divergences(images, target, noise)
            which = tf.argmax(divergences, axis=0, output_type=tf.int32)
            which = tf.stack([which, tf.range(tf.size(rows))], axis=-1)
            noise = tf.gather_nd(noise, which)[None]
            largest = self._divergences(images, target, noise)[0]
            worst = tf.scatter_nd(rows[:, None], largest, tf.shape(masked_in))
        else:
            noise = self._worst(images, target, noise)
            divergences = self._divergences(images, target, noise)
            worst = tf.reduce_max(divergences, axis=0)
        return tf.cast(masked_in, worst.dtype) * worst

    def _divergences(
        self, images: tf.Tensor, target: tf.Tensor, noise: tf.Tensor
    ) -> tf.Tensor:
        """Returns how far each noisy copy is from its target, [m, B]."""
        return divergence(target, self.noisy_logits(images, noise))

    def _takes_images_apart(self) -> bool:
        """Whether images can be left out of the attack, and this is faster.

        Not with batch normalisation, which depends on all images of a pass, nor
        with losses of layers, which are those of the last pass. XLA and
        accelerators need a fixed number of images.
        """
        layers = _compat.flat_layers(self.model)
        return (
            not self.model.non_trainable_variables
            and not any(map(_compat.has_added_losses, layers))
            and not _compat.is_compiled_by_xla()
            and only_cpus()
        )

    def adversarial_inputs(
        self, images: tf.Tensor, targets: Any, draw: Draw
    ) -> Draw:
        """Runs the attack as a step does, without changing the statistics.

        The attack sees the moving statistics after the first pass; they are
        restored afterwards.
        """
        statistics = self.model.non_trainable_variables
        before = [tf.identity(variable.value) for variable in statistics]
        logits = self.noisy_logits(images, draw["noise"])
        target = self._target(targets, logits)
        adv_noise = self._worst(images, target, draw["noise"])
        for variable, value in zip(statistics, before, strict=True):
            variable.assign(value)
        return {"adv_noise": adv_noise}

    def _worst(
        self, images: tf.Tensor, target: tf.Tensor, noise: tf.Tensor
    ) -> tf.Tensor:
        def classify(moved: tf.Tensor) -> tf.Tensor:
            return self.noisy_logits(images, moved, training=False)

        return self._adversary(classify, noise, target, self.warmup_factor)

    def _easy(
        self,
        labels: tf.Tensor,
        logits: tf.Tensor,
        target: tf.Tensor,
        uniform: tf.Tensor,
    ) -> tf.Tensor:
        """Returns K, int32 [B]."""
        if self.confidence_mask:
            share = tf.gather(target, labels, axis=1, batch_dims=1)
        else:
            votes = tf.cast(tf.argmax(logits, -1) == labels, logits.dtype)
            share = tf.reduce_mean(votes, axis=0)
        heads = tf.reduce_sum(tf.cast(uniform < share, tf.int32), axis=0)
        return tf.maximum(heads, 1)

    def _target(self, targets: Any, logits: tf.Tensor) -> tf.Tensor:
        if isinstance(targets, dict) and "soft_label" in targets:
            return tf.cast(targets["soft_label"], logits.dtype)
        if self.confidence_mask:
            raise ValueError(_NO_TEACHER)
        return tf.stop_gradient(smoothed(logits))

    def check_batch(
        self, images: Any, targets: Any, training: bool = True
    ) -> None:
        """As `SmoothTrainer.check_batch`; checks `soft_label` too."""
        super().check_batch(images, targets, training)
        if not training:
            return
        if isinstance(targets, dict) and "soft_label" in targets:
            classes = self._classes(images)
            check_distributions(targets["soft_label"], len(images), classes)
        elif self.confidence_mask:
            raise ValueError(_NO_TEACHER)


def _rows_of(masked_in: tf.Tensor) -> tf.Tensor:
    """Returns the rows where `masked_in` is true, padded with other rows."""
    order = tf.argsort(tf.cast(masked_in, tf.int32), direction="DESCENDING")
    needed = tf.maximum(tf.reduce_sum(tf.cast(masked_in, tf.int32)), 1)
    return order[: -(-needed // _TOGETHER) * _TOGETHER]
