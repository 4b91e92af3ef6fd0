"""The classifier under noise: draws, noisy logits and a method's hooks."""

from typing import Any

import keras
import tensorflow as tf

from rs_keras._checks import check_count
from rs_keras._compat import check_backend
from rs_keras._config import arguments_of
from rs_keras.adversaries.base import Classify
from rs_keras.classifiers.checkpoints import opened
from rs_keras.classifiers.outputs import for_training
from rs_keras.noise import normal
from rs_keras.noise import uniform
from rs_keras.trainers._step import input_gradients
from rs_keras.trainers._step.network_pass import network_pass
from rs_keras.trainers._step.per_input_sigma import PerExampleSigma
from rs_keras.trainers._step.per_input_sigma import sigma_of

# Streams under the seed of one step: stream j is the noise of copy j. Those of
# a method lie above any number of copies, `SIGMA_STREAM` above them.
MOST_COPIES = 1 << 14
_METHOD_STREAMS = (MOST_COPIES, MOST_COPIES + 1)

Losses = dict[str, tf.Tensor]
Draw = dict[str, tf.Tensor]


class NoisyModel(keras.Model):
    """A classifier whose losses under noise are functions of what is drawn.

    `draw` makes every random number from a seed; `losses_of` and `attack`
    depend on weights, images, targets and draw alone. How steps are made of
    them is `SmoothTrainer`'s matter.

    Every argument of `__init__` is an attribute of the same name and goes into
    `get_config`.

    Args:
        model: The classifier, from images [B, H, W, C] in [0, 1] to logits
            [B, num_classes], or the path of one (see `rs_keras.load_model`);
            of a softmax or a sigmoid at its end, see
            `rs_keras.classifiers.with_logits`.
        sigma: Standard deviation of the noise, > 0, in units of pixels in
            [0, 1]; or a `PerExampleSigma`.
        num_noise: Noisy copies of each image (m in the papers), >= 1.
        warmup_epochs: Epochs over which `warmup_factor` rises to 1; 0 for
            none.
        seed: Of the noise, in [0, 2**63). Step t uses what (seed, t)
            addresses.
        **kwargs: As in `keras.Model`.

    Attributes:
        warmup_factor: float32 variable, `warmup(epoch)`: min(1, (epoch + 1)
            / warmup_epochs), unless the method says otherwise. Saved; `fit`
            sets it when an epoch begins.

    Raises:
        ValueError: If an argument is out of range.

    Example:

    >>> import keras
    >>> import numpy as np
    >>> import tensorflow as tf
    >>> from rs_keras import adversaries
    >>> from rs_keras.trainers import SmoothAdv
    >>> model = keras.Sequential(
    ...     [keras.Input([8, 8, 1]), keras.layers.Flatten(),
    ...      keras.layers.Dense(2)])
    >>> trainer = SmoothAdv(model, sigma=0.25, num_noise=4, epsilon=0.5)
    >>> images, labels = np.full([6, 8, 8, 1], 0.5), np.arange(6) % 2
    >>> draw = trainer.draw(images, seed=[7, 0])
    >>> draw["noise"].shape.as_list(), trainer.sigma0
    ([4, 6, 8, 8, 1], 0.25)
    >>> half = trainer.draw(images[3:], seed=[7, 0], first=3)
    >>> bool((half["noise"] == draw["noise"][:, 3:]).numpy().all())
    True
    >>> losses = trainer.losses_of(images, labels, draw)
    >>> {name: loss.shape.as_list() for name, loss in losses.items()}
    {'ce': [6]}
    >>> adv = trainer.attack(images, labels, draw)["adv"]
    >>> round(float(adversaries.norms(adv - images).numpy().max()), 3)
    0.5
    >>> logits = trainer.noisy_logits(images, draw["noise"], training=False)
    >>> logits.shape.as_list()
    [4, 6, 2]
    >>> trainer.uniform(images, seed=[7, 0], first=0).shape.as_list()
    [6]

    What a method overrides gets tensors:

    >>> images, labels = tf.constant(images, tf.float32), tf.constant(labels)
    >>> classify = trainer.noisy_classifier(draw["noise"])
    >>> bool(tf.reduce_all(classify(images) == logits))
    True
    >>> list(trainer.adversarial_inputs(images, labels, draw))
    ['adv']
    >>> losses, logits = trainer.losses_and_logits(images, labels, draw)
    >>> list(losses), logits.shape.as_list()
    (['ce'], [4, 6, 2])
    """

    loss_names: tuple[str, ...] = ("ce",)

    def __init__(
        self,
        model: keras.Model,
        sigma: float | PerExampleSigma,
        num_noise: int = 1,
        warmup_epochs: int = 0,
        seed: int = 0,
        **kwargs: Any,
    ) -> None:
        check_backend()
        model, _ = opened(model)
        if not isinstance(model, keras.Layer):
            raise ValueError(
                "`model` must be a Keras model from images to logits. "
                f"Received: model={model!r}"
            )
        # A softmax at the end is left out; the weights are the same.
        model = for_training(model)
        kwargs.setdefault("dtype", model.dtype_policy)
        super().__init__(**kwargs)
        self.model = model
        input_gradients.prepare(model)
        self.sigma = sigma_of(sigma)
        self.num_noise = check_count("num_noise", num_noise)
        if num_noise > MOST_COPIES:
            raise ValueError(
                f"`num_noise` must be <= {MOST_COPIES}. "
                f"Received: num_noise={num_noise}"
            )
        self.warmup_epochs = check_count("warmup_epochs", warmup_epochs, 0)
        self.seed = check_count("seed", seed, 0)
        if seed >= 2**63:
            raise ValueError(f"`seed` must be < 2**63. Received: seed={seed}")
        self.warmup_factor = self.add_weight(
            shape=(),
            initializer="ones",
            dtype="float32",
            trainable=False,
            autocast=False,
            aggregation="only_first_replica",
            name="warmup_factor",
        )
        self.built = model.built

    @property
    def sigma0(self) -> float:
        """`sigma`, or where the sigmas of the examples start."""
        return self.sigma.sigma0

    def call(self, images: Any, training: bool | None = None) -> tf.Tensor:
        """Returns the base classifier's logits, without noise."""
        return self.model(images, training=training)

    def draw(self, images: Any, seed: Any, first: Any = 0) -> Draw:
        """Makes every random number of one step.

        XLA turns the same random bits into other numbers: a step compiled
        with `jit_compile=True` sees noise of its own, the same in every run.

        Args:
            images: [B, H, W, C]; only their shape matters.
            seed: int64 [2], in training (seed, step).
            first: The number of the first image in the global batch. Draws
                of two halves of a batch, joined, are those of the whole.

        Returns:
            A dict with `noise`, [m, B, H, W, C], already times `sigma0`.

        Raises:
            ValueError: If the shape of an image is not known.
        """
        images = self._floats(images)
        return {"noise": self._gaussian(images, seed, first, self.num_noise)}

    def _gaussian(
        self, images: tf.Tensor, seed: Any, first: Any, copies: int
    ) -> tf.Tensor:
        """Draws noise of deviation `sigma0` for copies of a batch.

        Args:
            images: [B, H, W, C], float32 or float64.
            seed: As in `draw`.
            first: As in `draw`.
            copies: m, at most `MOST_COPIES`.

        Returns:
            A tensor [m, B, H, W, C]. The noise of an image depends on seed,
            copy and number alone.

        Raises:
            ValueError: If the shape of an image is not known.
        """
        shape, rows = images.shape[1:], tf.shape(images)[0]
        if not shape.is_fully_defined():
            raise ValueError(
                "`images` must have a known height, width and number of "
                f"channels. Received: shape={images.shape}"
            )
        copies_of_noise = [
            normal(shape, seed, first, rows, images.dtype, stream=copy)
            for copy in range(copies)
        ]
        return self.sigma0 * tf.stack(copies_of_noise)

    def uniform(
        self,
        images: Any,
        seed: Any,
        first: Any,
        shape: tuple[int, ...] = (),
        stream: int = 0,
    ) -> tf.Tensor:
        """Draws uniform random numbers, for methods that override `draw`.

        Args:
            images: As in `draw`.
            seed: As in `draw`.
            first: As in `draw`.
            shape: Of the numbers of one image.
            stream: A different one, 0 or 1, for each tensor of a method.

        Returns:
            A tensor [B, *shape] in [0, 1); independent of the noise.
        """
        images = self._floats(images)
        rows, stream = tf.shape(images)[0], _METHOD_STREAMS[stream]
        return uniform(
            list(shape), seed, first, rows, images.dtype, stream=stream
        )

    def losses_of(self, images: Any, targets: Any, draw: Draw) -> Losses:
        """Returns the losses, a deterministic function of what is given.

        Moving statistics are updated as in a step; nothing else is.

        Args:
            images: [B, H, W, C] in [0, 1].
            targets: Labels [B], or a dict with `label`.
            draw: As from `draw`.

        Returns:
            One tensor [B] a loss, weights included; their sum is trained on.
        """
        return self.losses_and_logits(*self._tensors(images, targets, draw))[0]

    def attack(self, images: Any, targets: Any, draw: Draw) -> Draw:
        """Returns the result of `adversarial_inputs` on arrays or tensors.

        The arguments are those of `losses_of`. The network runs in inference
        mode, so its moving statistics stay as they are.
        """
        return self.adversarial_inputs(*self._tensors(images, targets, draw))

    def losses_and_logits(
        self, images: tf.Tensor, targets: Any, draw: Draw
    ) -> tuple[Losses, tf.Tensor]:
        """Computes the losses of a batch: every method overrides this.

        Args:
            images: [B, H, W, C], float32 or float64.
            targets: Labels [B], or a dict with `label`.
            draw: As from `draw`.

        Returns:
            One tensor [B] a name of `loss_names`, weights included; and the
            logits [m, B, C] of the noisy copies, for the metrics.
        """
        raise NotImplementedError

    def adversarial_inputs(
        self, images: tf.Tensor, targets: Any, draw: Draw
    ) -> Draw:
        """Runs the adversary: methods that have one override this.

        Args:
            images: [B, H, W, C], float32 or float64.
            targets: Labels [B], or a dict with `label`.
            draw: As from `draw`.

        Returns:
            Adversarial images or noises by name; without an adversary, none.
        """
        return {}

    def _tensors(
        self, images: Any, targets: Any, draw: Draw
    ) -> tuple[tf.Tensor, Any, Draw]:
        if isinstance(targets, dict):
            targets = {
                name: tf.convert_to_tensor(value)
                for name, value in targets.items()
            }
        draw = {name: self._floats(value) for name, value in draw.items()}
        return self._floats(images), targets, draw

    def _floats(self, values: Any) -> tf.Tensor:
        """Returns values as float32, or float64 for a float64 model.

        Noise and attacks live in pixel space: half precision begins inside
        the network.
        """
        double = self.dtype_policy.variable_dtype == "float64"
        return tf.cast(values, tf.float64 if double else tf.float32)

    def noisy_logits(
        self, images: tf.Tensor, noise: tf.Tensor, training: bool = True
    ) -> tf.Tensor:
        """Classifies all noisy copies in one pass.

        Args:
            images: [B, H, W, C].
            noise: [m, B, H, W, C].
            training: Whether batch normalisation uses, and records, the
                statistics of these m * B images.

        Returns:
            Logits [m, B, C], in float32 at least.
        """
        copies = images + noise
        shape = [-1, *images.shape[1:]]
        flat = network_pass(self.model, tf.reshape(copies, shape), training)
        logits = self._floats(flat)
        outer = tf.concat([tf.shape(copies)[:2], tf.shape(logits)[1:]], 0)
        logits = tf.reshape(logits, outer)
        logits.set_shape([noise.shape[0], images.shape[0], flat.shape[-1]])
        return logits

    def noisy_classifier(self, noise: tf.Tensor) -> Classify:
        """Returns the function that an adversary attacks, for fixed noise.

        Args:
            noise: [m, B, H, W, C].

        Returns:
            A function from images [B, H, W, C] to logits [m, B, C], in
            inference mode.
        """
        return lambda images: self.noisy_logits(images, noise, training=False)

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments of `__init__`, ready for JSON."""
        own = {
            name: keras.saving.serialize_keras_object(value)
            for name, value in arguments_of(self, NoisyModel).items()
        }
        return {**super().get_config(), **own}

    @classmethod
    def from_config(
        cls, config: dict[str, Any], custom_objects: dict | None = None
    ) -> "NoisyModel":
        """Returns the trainer that `get_config` described."""
        arguments = {
            name: keras.saving.deserialize_keras_object(value, custom_objects)
            for name, value in config.items()
        }
        return cls(**arguments)
