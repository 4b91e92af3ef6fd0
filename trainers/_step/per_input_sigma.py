"""The sigma of training: fixed, or one per example that training optimises."""

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from rs_keras import noise
from rs_keras._checks import check_count
from rs_keras._checks import check_positive
from rs_keras._checks import check_sigma
from rs_keras._config import arguments_of
from rs_keras.per_input_sigma.optimization import ascend

# Of the ascent's noise under the seed of a step, above those of noisy_model.py.
SIGMA_STREAM = (1 << 14) + 2

# Draws of one step of the ascent; a batch has fewer.
_DRAWS_A_STEP = 1 << 24
_MOST_STEPS = 256

# Lower limit of a sigma before the ascent.
_SMALLEST = 1e-3

_WANTED = (
    "`example_id` must be among the targets, {'label': y, 'example_id': i}, "
    "for `sigma=PerExampleSigma(...)`"
)


class FixedSigma(float):
    """A number that a trainer uses as it does a `PerExampleSigma`.

    Example:

    >>> from rs_keras.trainers._step.per_input_sigma import FixedSigma
    >>> sigma = FixedSigma(0.25)
    >>> sigma, sigma.sigma0, sigma.loops
    (0.25, 0.25, False)
    >>> sigma.begin_epoch(0)
    >>> sigma.check_targets([1, 0])
    >>> sigma.vary(None, {"noise": 1.0}, images=None)
    {'noise': 1.0}
    """

    loops = False

    @property
    def sigma0(self) -> float:
        """The number itself."""
        return float(self)

    def begin_epoch(self, epoch: int) -> None:
        """Does nothing: it is the same in every epoch."""

    def vary(
        self, classify: Any, draw: dict[str, tf.Tensor], **batch: Any
    ) -> dict[str, tf.Tensor]:
        """Returns the draw as it is."""
        return draw

    def check_targets(self, targets: Any) -> None:
        """Does nothing: no target is needed."""


@keras.saving.register_keras_serializable("rs_keras")
class PerExampleSigma(keras.layers.Layer):
    """Trains with the sigma that promises each example the largest radius.

    Give it to any trainer as `sigma`. Before each step, the examples of the
    batch move their sigma by `steps` steps of `rs_keras.optimize_sigma`, from
    where they stood an epoch ago; the step then uses noise of that deviation.
    As in the authors' code, the ascent runs the network in training mode.

    The data set's targets are {"label", "example_id"} (`datasets.load(...,
    example_id=True)`). The sigmas are weights of the trainer: saved with it,
    and resumed.

    Training alone certifies nothing for input-dependent sigma; see
    `rs_keras.per_input_sigma`.

    Args:
        sigma0: Where each example starts, > 0; what evaluation uses.
        num_examples: In the training set, >= 1.
        after_epoch: Epochs (counted from 0) before this one use sigma0.
        steps: Of the ascent in each training step (K in the paper), in
            1 .. 256.
        num_noise: Samples of the ascent (n in the paper), >= 1.
        learning_rate: Of the ascent, > 0.
        **kwargs: As in `keras.layers.Layer`.

    Attributes:
        values: float32 variable [num_examples], the sigmas.
        loops: Whether `vary` calls the model in a loop.

    Raises:
        ValueError: If an argument is out of range.

    Example:

    >>> import keras
    >>> from rs_keras.trainers import Gaussian, PerExampleSigma
    >>> model = keras.Sequential(
    ...     [keras.Input([8, 8, 1]), keras.layers.Flatten(),
    ...      keras.layers.Dense(2)])
    >>> trainer = Gaussian(model, sigma=PerExampleSigma(0.25, num_examples=9))
    >>> float(trainer.sigma.values[3])
    0.25

    References:
    - [Alfarra et al., 2022](https://arxiv.org/abs/2012.04351), algorithm 2
    """

    loops = True

    def __init__(
        self,
        sigma0: float,
        num_examples: int,
        after_epoch: int = 0,
        steps: int = 1,
        num_noise: int = 1,
        learning_rate: float = 1e-4,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.sigma0 = check_positive("sigma0", sigma0)
        self.num_examples = check_count("num_examples", num_examples)
        self.after_epoch = check_count("after_epoch", after_epoch, 0)
        self.steps = check_count("steps", steps)
        if steps > _MOST_STEPS:
            raise ValueError(
                f"`steps` must be <= {_MOST_STEPS}. Received: steps={steps}"
            )
        self.num_noise = check_count("num_noise", num_noise)
        self.learning_rate = check_positive("learning_rate", learning_rate)
        # Replicas move the rows of their own examples: the changes add up.
        self.values = self.add_weight(
            shape=(num_examples,),
            initializer=keras.initializers.Constant(sigma0),
            dtype="float32",
            trainable=False,
            autocast=False,
            aggregation="sum",
            name="values",
        )
        self.moving = self.add_weight(
            shape=(),
            initializer="zeros",
            dtype="bool",
            trainable=False,
            aggregation="only_first_replica",
            name="moving",
        )
        self.built = True

    def begin_epoch(self, epoch: int) -> None:
        """Lets the sigmas move from epoch `after_epoch` on.

        Example:

        >>> from rs_keras.trainers import PerExampleSigma
        >>> sigmas = PerExampleSigma(0.25, num_examples=9, after_epoch=2)
        >>> for epoch in range(3):
        ...     sigmas.begin_epoch(epoch)
        ...     print(epoch, bool(sigmas.moving.numpy()))
        0 False
        1 False
        2 True
        """
        self.moving.assign(epoch >= self.after_epoch)

    def vary(
        self,
        classify: Callable[[tf.Tensor], tf.Tensor],
        draw: dict[str, tf.Tensor],
        images: tf.Tensor,
        targets: Any,
        seed: tf.Tensor,
        first: Any,
        real: Any,
    ) -> dict[str, tf.Tensor]:
        """Moves the sigmas of a batch, and returns its draw with them.

        Args:
            classify: From images [B, H, W, C] to logits.
            draw: With `noise` of deviation `sigma0`.
            images: [B, H, W, C].
            targets: With `example_id`, [B].
            seed: int64 [2], of the step.
            first: The number of the first image in the global batch.
            real: How many of the rows are examples; the rest is padding.

        Returns:
            The draw, its noise rescaled, and with `sigma`, [B].

        Example:

        >>> import tensorflow as tf
        >>> from rs_keras.trainers import PerExampleSigma
        >>> sigmas = PerExampleSigma(0.5, num_examples=9, learning_rate=0.1)
        >>> sigmas.begin_epoch(0)
        >>> def classify(x):  # that the first class wins is certain far from 0
        ...     return 4.0 * tf.stack([x[:, 0, 0, 0], -x[:, 0, 0, 0]], axis=-1)
        >>> images = tf.ones([2, 1, 1, 1])
        >>> draw = sigmas.vary(
        ...     classify, {"noise": tf.ones([1, 2, 1, 1, 1])}, images,
        ...     {"example_id": tf.constant([3, 7])},
        ...     seed=tf.constant([7, 0], tf.int64), first=0, real=2)
        >>> draw["sigma"].shape.as_list(), draw["noise"].shape.as_list()
        ([2], [1, 2, 1, 1, 1])
        >>> moved = sigmas.values.numpy() != 0.5
        >>> moved.nonzero()[0]
        array([3, 7])
        """
        ids = tf.reshape(tf.cast(targets["example_id"], tf.int64), [-1])
        before = tf.cast(tf.gather(self.values.value, ids), images.dtype)
        # An example that occurs twice in a batch adds its change twice, which
        # may make its sigma too small.
        before = tf.maximum(before, _SMALLEST)
        shape, rows = images.shape[1:], tf.shape(images)[0]

        def draws(step: tf.Tensor) -> tf.Tensor:
            eps = noise.normal(
                shape,
                seed,
                step * _DRAWS_A_STEP
                + tf.cast(first, tf.int64) * self.num_noise,
                rows * self.num_noise,
                images.dtype,
                stream=SIGMA_STREAM,
            )
            return tf.reshape(eps, [-1, self.num_noise, *shape])

        def ascended() -> tf.Tensor:
            return ascend(
                classify,
                images,
                before,
                draws,
                steps=self.steps,
                learning_rate=tf.cast(self.learning_rate, images.dtype),
            )

        after = tf.cond(self.moving.value, ascended, lambda: before)
        change = tf.where(tf.range(rows) < real, after - before, 0.0)
        size = tf.constant([self.num_examples], tf.int64)
        change = tf.scatter_nd(ids[:, None], tf.cast(change, tf.float32), size)
        # Not Keras' own `assign_add`: it assigns the sum of value and change,
        # and so many replicas would add up as many values.
        self.values.value.assign_add(change)
        scale = (after / self.sigma0)[None, :, None, None, None]
        return {**draw, "noise": draw["noise"] * scale, "sigma": after}

    def check_targets(self, targets: Any) -> None:
        """Raises unless the targets say which examples they belong to.

        Raises:
            ValueError: That names `example_id`.

        Example:

        >>> from rs_keras.trainers import PerExampleSigma
        >>> sigmas = PerExampleSigma(0.25, num_examples=9)
        >>> sigmas.check_targets({"label": [1, 0], "example_id": [3, 8]})
        >>> sigmas.check_targets({"label": [1, 0], "example_id": [3, 9]})
        Traceback (most recent call last):
        ValueError: `example_id` must lie in [0, num_examples). Received: ...
        """
        if not isinstance(targets, dict) or "example_id" not in targets:
            raise ValueError(f"{_WANTED}. Received: none")
        ids = tf.cast(targets["example_id"], tf.int64)
        if bool(tf.reduce_any((ids < 0) | (ids >= self.num_examples))):
            raise ValueError(
                "`example_id` must lie in [0, num_examples). Received: "
                f"{int(tf.reduce_min(ids))} .. {int(tf.reduce_max(ids))}, "
                f"num_examples={self.num_examples}"
            )

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments of `__init__`, ready for JSON."""
        own = arguments_of(self, PerExampleSigma)
        return {**super().get_config(), **own}


def sigma_of(sigma: Any) -> FixedSigma | PerExampleSigma:
    """Returns the sigma that a trainer was given, checked, with its methods.

    Raises:
        ValueError: If it is no `PerExampleSigma`, nor a number > 0.

    Example:

    >>> from rs_keras.trainers._step.per_input_sigma import sigma_of
    >>> sigma_of(1)
    1.0
    """
    if hasattr(sigma, "vary"):
        return sigma
    return FixedSigma(check_sigma(sigma))
