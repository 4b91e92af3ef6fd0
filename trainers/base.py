"""The trainer that every method builds on: one training step, one test."""

import inspect
from typing import Any

import keras
import tensorflow as tf

from rs_keras import noise as addressed
from rs_keras.adversaries import Classify
from rs_keras.checks import check_count
from rs_keras.checks import check_positive
from rs_keras.losses import cross_entropy
from rs_keras.losses import labels_of
from rs_keras.trainers import batches
from rs_keras.trainers import replicas

# Streams of random numbers under the seed of one step; below them, stream j
# is the noise of copy j.
MIX_STREAM = 1 << 14
UNIFORM_STREAM = MIX_STREAM + 1

# Training steps count from 0, so evaluation has this one to itself.
EVALUATION_STEP = -1

Losses = dict[str, tf.Tensor]
Draw = dict[str, tf.Tensor]


@keras.saving.register_keras_serializable("rs_keras")
class SmoothTrainer(keras.Model):
    """Trains a classifier to be smoothed with Gaussian noise.

    A method is a subclass. It names its losses in `loss_names`, draws what is
    random in `draw`, and computes in `_losses_and_logits` one value an example
    for each loss, with the noisy logits that it came by. All else is here: one
    update of

        loss = sum(sample_weight * sum(losses.values())) / global_batch_size
               + sum(model.losses)

    a batch, under mixed precision and distribution strategies too. What
    `compile(metrics=...)` asks for is measured on the logits of the noisy
    copies, each copy counted like an image of its own, as the references
    report their accuracy; it costs no other pass.

    Every argument of `__init__` is an attribute of the same name and goes into
    `get_config`.

    Args:
        model: The classifier, from images [B, H, W, C] in [0, 1] to logits
            [B, num_classes].
        sigma: Standard deviation of the noise, > 0, in units of pixels in
            [0, 1].
        num_noise: Noisy copies of each image (m in the papers), >= 1.
        warmup_epochs: Epochs over which `warmup_factor` rises to 1; 0 for
            none.
        seed: Of the noise. Step t uses the numbers addressed by (seed, t).
        **kwargs: As in `keras.Model`.

    Attributes:
        step: int64 variable, the number of steps taken. Saved, so that a run
            that was resumed goes on with the noise it would have seen.
        warmup_factor: float32 variable, min(1, (epoch + 1) / warmup_epochs).
            Saved; `fit` sets it when an epoch begins.

    Raises:
        ValueError: If an argument is out of range.
    """

    loss_names: tuple[str, ...] = ("ce",)

    def __init__(
        self,
        model: keras.Model,
        sigma: float,
        num_noise: int = 1,
        warmup_epochs: int = 0,
        seed: int = 0,
        **kwargs: Any,
    ) -> None:
        if not isinstance(model, keras.Layer):
            raise ValueError(
                "`model` must be a Keras model from images to logits. "
                f"Received: model={model!r}"
            )
        kwargs.setdefault("dtype", model.dtype_policy)
        super().__init__(**kwargs)
        self.model = model
        self.sigma = check_positive("sigma", sigma)
        self.num_noise = check_count("num_noise", num_noise)
        self.warmup_epochs = check_count("warmup_epochs", warmup_epochs, 0)
        self.seed = check_count("seed", seed, -(2**63))
        self._terms = {
            name: keras.metrics.Mean(name=name) for name in self.loss_names
        }
        self.step = self._counter("step")
        self._evaluated = self._counter("evaluated")
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

    def _counter(self, name: str) -> keras.Variable:
        return self.add_weight(
            shape=(),
            initializer="zeros",
            dtype="int64",
            trainable=False,
            aggregation="only_first_replica",
            name=name,
        )

    def call(self, images: Any, training: bool | None = None) -> tf.Tensor:
        """Returns the base classifier's logits, without noise."""
        return self.model(images, training=training)

    # -- randomness in, losses out -------------------------------------------

    def draw(self, images: Any, seed: Any, first: Any = 0) -> Draw:
        """Makes every random number of one step.

        Args:
            images: [B, H, W, C]; only their shape matters.
            seed: int64 [2], in training (seed, step).
            first: The number of the first image in the global batch. Draws
                of two halves of a batch, joined, are those of the whole.

        Returns:
            A dict with `noise`, [m, B, H, W, C], already times sigma.

        Raises:
            ValueError: If the shape of an image is not known.
        """
        images = self._floats(images)
        return {"noise": self._noise(images, seed, first, self.num_noise)}

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
        return self._losses_and_logits(*self._tensors(images, targets, draw))[0]

    def attack(self, images: Any, targets: Any, draw: Draw) -> Draw:
        """Returns what the method's adversary finds; without one, nothing.

        The arguments are those of `losses_of`. The network runs in inference
        mode, so its moving statistics stay as they are.
        """
        return self._attack(*self._tensors(images, targets, draw))

    def _losses_and_logits(
        self, images: tf.Tensor, targets: Any, draw: Draw
    ) -> tuple[Losses, tf.Tensor]:
        """Returns the losses, each [B], and the noisy logits [m, B, C]."""
        raise NotImplementedError

    def _attack(self, images: tf.Tensor, targets: Any, draw: Draw) -> Draw:
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

    def _noise(
        self, images: tf.Tensor, seed: Any, first: Any, copies: int
    ) -> tf.Tensor:
        shape = images.shape[1:]
        if not shape.is_fully_defined():
            raise ValueError(
                "`images` must have a known height, width and number of "
                f"channels. Received: shape={images.shape}"
            )
        size = tf.shape(images)[0]
        draws = [
            addressed.normal(shape, seed, first, size, images.dtype, stream=j)
            for j in range(copies)
        ]
        return self.sigma * tf.stack(draws)

    def _uniform(
        self, images: Any, seed: Any, first: Any, shape: list, stream: int
    ) -> tf.Tensor:
        images = self._floats(images)
        size = tf.shape(images)[0]
        return addressed.uniform(
            shape, seed, first, size, images.dtype, stream=stream
        )

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
        flat = self.model(tf.reshape(copies, shape), training=training)
        logits = self._floats(flat)
        outer = tf.concat([tf.shape(copies)[:2], tf.shape(logits)[1:]], 0)
        logits = tf.reshape(logits, outer)
        logits.set_shape([noise.shape[0], images.shape[0], flat.shape[-1]])
        return logits

    def _classifier(self, noise: tf.Tensor) -> Classify:
        """Returns the function that an adversary climbs: images to logits."""
        return lambda images: self.noisy_logits(images, noise, training=False)

    # -- steps ---------------------------------------------------------------

    def train_step(self, data: Any) -> dict[str, Any]:
        """Makes one update and returns the running means of the epoch."""
        images, targets, weights = self._unpack(data)
        place = replicas.place_of(images)
        rows, goals = replicas.never_empty((images, targets))
        draw = self.draw(rows, self._seed_of(self.step), place.first)
        statistics = self.model.non_trainable_variables
        before = replicas.snapshot(statistics)
        with tf.GradientTape() as tape:
            losses, logits = self._losses_and_logits(rows, goals, draw)
            losses = self._counted(losses, images, weights)
            total = tf.add_n(list(losses.values()))
            penalty = self._penalty(total.dtype)
            loss = tf.reduce_sum(total) / tf.cast(place.total, total.dtype)
            # Gradients are summed over replicas; the penalty counts once.
            loss += penalty / replicas.count()
            scaled = self.optimizer.scale_loss(loss)
        variables = self.trainable_variables
        gradients = tape.gradient(scaled, variables)
        self.optimizer.apply(gradients, variables)
        replicas.keep_if_empty(images, statistics, before)
        self.step.assign_add(1)
        for name, value in losses.items():
            self._terms[name].update_state(value)
        return self._results(total + penalty, logits, targets, weights)

    def test_step(self, data: Any) -> dict[str, Any]:
        """Measures the cross-entropy under one draw of noise an image.

        The noise of image i is the same in every evaluation, whatever the
        batch size, and is never used in training.
        """
        images, targets, weights = self._unpack(data)
        place = replicas.place_of(images)
        first = self._evaluated + place.first
        rows, goals = replicas.never_empty((images, targets))
        noise = self._noise(rows, self._seed_of(EVALUATION_STEP), first, 1)
        self._evaluated.assign_add(place.total)
        logits = self.noisy_logits(rows, noise, training=False)
        loss = {"ce": cross_entropy(labels_of(goals), logits)[0]}
        loss = self._counted(loss, images, weights)["ce"]
        results = self._results(loss, logits, targets, weights)
        return {k: v for k, v in results.items() if k not in self._terms}

    def _unpack(self, data: Any) -> tuple[tf.Tensor, Any, tf.Tensor | None]:
        images, targets, weights = keras.utils.unpack_x_y_sample_weight(data)
        images = self._floats(images)
        if weights is not None:
            weights = tf.reshape(self._floats(weights), [-1])
        return images, targets, weights

    def _seed_of(self, step: Any) -> tf.Tensor:
        return tf.stack([tf.cast(word, tf.int64) for word in (self.seed, step)])

    def _counted(
        self, losses: Losses, images: tf.Tensor, weights: tf.Tensor | None
    ) -> Losses:
        """Returns the losses of the real rows, times their weights."""
        if replicas.count() > 1:
            real = tf.shape(images)[0]
            losses = {name: loss[:real] for name, loss in losses.items()}
        if weights is None:
            return losses
        return {
            name: loss * tf.cast(weights, loss.dtype)
            for name, loss in losses.items()
        }

    def _penalty(self, dtype: tf.DType) -> tf.Tensor:
        """Returns the sum of the layers' regularization losses."""
        terms = [tf.cast(term, dtype) for term in self.model.losses]
        return tf.add_n(terms) if terms else tf.zeros([], dtype)

    def _results(
        self,
        loss: tf.Tensor,
        logits: tf.Tensor,
        targets: Any,
        weights: tf.Tensor | None,
    ) -> dict[str, Any]:
        """Updates the metrics, one prediction a noisy copy."""
        self._loss_tracker.update_state(loss)
        logits = logits[:, : tf.shape(loss)[0]]
        copies = tf.shape(logits)[0]
        labels = tf.tile(labels_of(targets), [copies])
        if weights is not None:
            weights = tf.tile(weights, [copies])
        flat = tf.reshape(logits, [-1, logits.shape[-1]])
        return self.compute_metrics(None, labels, flat, weights)

    def compute_metrics(
        self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None
    ) -> dict[str, Any]:
        """Updates the compiled metrics and returns all running values."""
        if self._compile_metrics is not None:
            self._compile_metrics.update_state(y, y_pred, sample_weight)
        return self.get_metrics_result()

    def reset_metrics(self) -> None:
        """Forgets the running means; the next evaluation starts afresh."""
        super().reset_metrics()
        self._evaluated.assign(0)

    def _get_metrics_result_or_logs(self, logs: dict) -> dict:
        """Reads what the step reported from the metrics, over all replicas."""
        results = self.get_metrics_result()
        return {name: results.get(name, value) for name, value in logs.items()}

    # -- before the first step -----------------------------------------------

    def fit(
        self,
        x: Any = None,
        y: Any = None,
        batch_size: int | None = None,
        epochs: int = 1,
        verbose: Any = "auto",
        callbacks: Any = None,
        **kwargs: Any,
    ) -> keras.callbacks.History:
        """Trains as `keras.Model.fit` does, on data that was looked at first.

        Arrays are checked from end to end, data sets by their first batch.

        Args:
            x: Images in [0, 1], [B, H, W, C], or a data set of pairs.
            y: Labels [B], or a dict with `label`.
            batch_size: As in Keras.
            epochs: As in Keras.
            verbose: As in Keras.
            callbacks: As in Keras.
            **kwargs: As in Keras.

        Returns:
            The history.

        Raises:
            ValueError: If images or targets are not what they should be.
            FloatingPointError: If the loss is not finite any more; with the
                step and the part of the loss that broke.
        """
        self._assert_compile_called("fit")
        x = batches.look_at(x, y, self.check_batch)
        return super().fit(
            x,
            y,
            batch_size,
            epochs,
            verbose,
            batches.with_own_callbacks(callbacks),
            **kwargs,
        )

    def check_batch(self, images: Any, targets: Any) -> None:
        """Raises unless a step can be made on a batch; builds the model.

        Args:
            images: [B, H, W, C] in [0, 1].
            targets: Labels [B], or a dict with `label`.

        Raises:
            ValueError: That names `images` or `labels`.
        """
        shape = getattr(self.model, "input_shape", None)
        batches.check_images(images, shape)
        if not self.built:
            with self.distribute_strategy.scope():
                self(self._floats(images[:1]), training=False)
        labels = targets["label"] if isinstance(targets, dict) else targets
        classes = self.model.compute_output_shape(images.shape)[-1]
        batches.check_labels(labels, len(images), classes)

    def _maybe_symbolic_build(
        self, iterator: Any = None, data_batch: Any = None
    ) -> None:
        """Makes all variables before the first step is traced.

        Keras calls this with the data; a model that is built does not need
        them. An optimiser must be built before its loss scale is read, or the
        scale it started with is frozen into the step.
        """
        if not self.built:
            super()._maybe_symbolic_build(iterator, data_batch)
            return
        with self.distribute_strategy.scope():
            metrics = self._compile_metrics
            if metrics is not None and not metrics.built:
                metrics.build(
                    keras.KerasTensor([None], "int64"),
                    keras.KerasTensor([None, None]),
                )
            if not self.optimizer.built:
                self.optimizer.build(self.trainable_variables)

    def warmup(self, epoch: int) -> float:
        """Returns the `warmup_factor` of an epoch, counted from 0."""
        return min(1.0, (epoch + 1) / max(1, self.warmup_epochs))

    # -- saving --------------------------------------------------------------

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments of `__init__`, ready for JSON."""
        own = {
            name: keras.saving.serialize_keras_object(getattr(self, name))
            for name in _argument_names(type(self))
        }
        return {**super().get_config(), **own}

    @classmethod
    def from_config(
        cls, config: dict[str, Any], custom_objects: dict | None = None
    ) -> "SmoothTrainer":
        """Returns the trainer that `get_config` described."""
        arguments = {
            name: keras.saving.deserialize_keras_object(value, custom_objects)
            for name, value in config.items()
        }
        return cls(**arguments)


def _argument_names(cls: type) -> list[str]:
    """Returns the names of all arguments of `__init__`, bases included."""
    names = []
    for base in cls.__mro__:
        if not issubclass(base, SmoothTrainer):
            break
        for parameter in inspect.signature(base.__init__).parameters.values():
            named = parameter.kind is parameter.POSITIONAL_OR_KEYWORD
            if named and parameter.name not in ("self", *names):
                names.append(parameter.name)
    return names
