"""The trainer that every method builds on: one training step, one test."""

from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from rs_keras import _compat
from rs_keras._checks import check_images
from rs_keras.classifiers.adapters import image_shape
from rs_keras.classifiers.probe import check_no_softmax
from rs_keras.datasets.elements import labels_in
from rs_keras.losses import cross_entropy
from rs_keras.losses import labels_of
from rs_keras.trainers._distributed import replicas
from rs_keras.trainers._distributed import startup
from rs_keras.trainers._step import data_checks
from rs_keras.trainers._step.compiled_model import CompiledModel
from rs_keras.trainers._step.data_forms import DataForm
from rs_keras.trainers._step.network_pass import network_pass
from rs_keras.trainers._step.noisy_model import Draw as Draw
from rs_keras.trainers._step.noisy_model import Losses as Losses
from rs_keras.trainers.tuning.ranges import Range

# Training steps count from 0, so evaluation has this one to itself.
EVALUATION_STEP = -1


@keras.saving.register_keras_serializable("rs_keras")
class SmoothTrainer(CompiledModel):
    """Trains a classifier to be smoothed with Gaussian noise.

    A method is a subclass. It names its losses in `loss_names`, makes its
    random numbers in `draw`, and computes in `losses_and_logits` each loss, one
    value per example, and the logits of the noisy copies; `search_space` gives
    the ranges of a sweep. This class does the rest: one update of

        loss = sum(sample_weight * sum(losses.values())) / global_batch_size
               + sum(model.losses)

    per batch, under mixed precision and distribution strategies too. The
    metrics of `compile` are measured on the logits of the noisy copies, each
    copy counted as one image, as the references report their accuracy; this
    needs no further forward pass.

    The arguments of `__init__` are those of `NoisyModel`. Layers with
    randomness of their own, such as Dropout, draw as in Keras: their draws are
    neither addressed nor saved, so a resumed run repeats them only nearly.

    Attributes:
        step: int64 variable, the number of steps taken. Saved, so that a run
            that was resumed goes on with the noise it would have seen.

    Example:

    >>> import keras
    >>> import numpy as np
    >>> import tensorflow as tf
    >>> from rs_keras.losses import cross_entropy, labels_of
    >>> from rs_keras.trainers import SGD, SmoothTrainer
    >>> class Hardest(SmoothTrainer):
    ...     def losses_and_logits(self, images, targets, draw):
    ...         logits = self.noisy_logits(images, draw["noise"])
    ...         losses = cross_entropy(labels_of(targets), logits)
    ...         return {"ce": tf.reduce_max(losses, axis=0)}, logits
    >>> model = keras.Sequential(
    ...     [keras.Input([8, 8, 1]), keras.layers.Flatten(),
    ...      keras.layers.Dense(2)])
    >>> trainer = Hardest(model, sigma=0.25, num_noise=4, warmup_epochs=2)
    >>> trainer.compile(optimizer=SGD(0.1))
    >>> images, labels = np.full([6, 8, 8, 1], 0.5), np.arange(6) % 2
    >>> trainer.check_batch(images, labels)
    >>> trainer.build_variables()
    >>> history = trainer.fit(images, labels, batch_size=3, verbose=0)
    >>> sorted(history.history), int(trainer.step.numpy())
    (['ce', 'loss'], 2)
    >>> [trainer.warmup(epoch) for epoch in range(3)]
    [0.5, 1.0, 1.0]
    >>> trainer.begin_epoch(0)
    >>> float(trainer.warmup_factor.numpy())
    0.5
    >>> trainer.search_space(sigma=0.25)
    {}
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._terms = {
            name: keras.metrics.Mean(name=name) for name in self.loss_names
        }
        self.step = self._counter("step")
        self._evaluated = self._counter("evaluated")

    def _counter(self, name: str) -> keras.Variable:
        return self.add_weight(
            shape=(),
            initializer="zeros",
            dtype="int64",
            trainable=False,
            aggregation="only_first_replica",
            name=name,
        )

    @classmethod
    def search_space(cls, sigma: float) -> dict[str, Range]:
        """Returns the ranges of the arguments of `__init__` for a sweep.

        Args:
            sigma: Of the noise, for ranges in proportion to it.

        Returns:
            Ranges of `rs_keras.trainers.tuning.search_spaces` by name. A sweep
            adds the learning rate.
        """
        return {}

    # -- steps ---------------------------------------------------------------

    def train_step(self, data: Any) -> dict[str, Any]:
        """Makes one update and returns the running means of the epoch."""
        images, targets, weights = self._unpack(data)
        weights = self.weighted(targets, weights)
        place = replicas.place_of(images)
        rows, row_targets = replicas.never_empty((images, targets))
        with replicas.counting(images):
            draw = self._draw_for(rows, row_targets, place, tf.shape(images)[0])
        with replicas.counting(images), tf.GradientTape() as tape:
            losses, logits = self.losses_and_logits(rows, row_targets, draw)
            losses = self._counted(losses, images, weights)
            total = tf.add_n(list(losses.values()))
            # The layers' regularization losses.
            terms = [tf.cast(term, total.dtype) for term in self.model.losses]
            penalty = tf.add_n(terms) if terms else tf.zeros([], total.dtype)
            loss = tf.reduce_sum(total) / tf.cast(place.total, total.dtype)
            # Gradients are summed over replicas; the penalty counts once.
            loss += penalty / replicas.count()
            scaled = self.optimizer.scale_loss(loss)
        variables = self.trainable_variables
        gradients = tape.gradient(scaled, variables)
        self.optimizer.apply(gradients, variables)
        replicas.average(self.model.non_trainable_variables, images, place)
        self.step.assign_add(1)
        for name, value in losses.items():
            self._terms[name].update_state(value)
        results = self._results(total + penalty, logits, targets, weights)
        return replicas.reports(results)

    def test_step(self, data: Any) -> dict[str, Any]:
        """Measures the cross-entropy under one draw of noise an image.

        The noise of image i is the same in every evaluation, whatever the
        batch size, and is never used in training.
        """
        images, targets, weights = self._unpack(data)
        place = replicas.place_of(images)
        first = self._evaluated + place.first
        rows, row_targets = replicas.never_empty((images, targets))
        seed = self._seed_of(EVALUATION_STEP)
        noise = self._gaussian(rows, seed, first, copies=1)
        self._evaluated.assign_add(place.total)
        logits = self.noisy_logits(rows, noise, training=False)
        loss = {"ce": cross_entropy(labels_of(row_targets), logits)[0]}
        loss = self._counted(loss, images, weights)["ce"]
        results = self._results(loss, logits, targets, weights)
        return replicas.reports(
            {k: v for k, v in results.items() if k not in self._terms}
        )

    def _draw_for(
        self,
        rows: tf.Tensor,
        row_targets: Any,
        place: replicas.Place,
        real: Any,
    ) -> Draw:
        """Returns the draw of a training step, with the examples' sigmas."""
        seed = self._seed_of(self.step)
        draw = self.draw(rows, seed, place.first)

        def classify(images: tf.Tensor) -> tf.Tensor:
            return network_pass(self.model, images, training=True)

        return self.sigma.vary(
            classify,
            draw,
            images=rows,
            targets=row_targets,
            seed=seed,
            first=place.first,
            real=real,
        )

    def _unpack(self, data: Any) -> tuple[tf.Tensor, Any, tf.Tensor | None]:
        images, targets, weights = keras.utils.unpack_x_y_sample_weight(data)
        images = self._pixels(images)
        if weights is not None:
            weights = tf.reshape(self._floats(weights), [-1])
        return images, targets, weights

    def _pixels(self, images: Any) -> tf.Tensor:
        """Returns images as floats in [0, 1]; bytes are divided by 255."""
        is_bytes = tf.as_dtype(getattr(images, "dtype", "float32")) == tf.uint8
        floats = self._floats(images)
        return floats / 255.0 if is_bytes else floats

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

    def _results(
        self,
        loss: tf.Tensor,
        logits: tf.Tensor,
        targets: Any,
        weights: tf.Tensor | None,
    ) -> dict[str, Any]:
        """Updates the metrics, one prediction a noisy copy."""
        _compat.loss_tracker(self).update_state(loss)
        logits = logits[:, : tf.shape(loss)[0]]
        copies = tf.shape(logits)[0]
        labels = tf.tile(labels_of(targets), [copies])
        if weights is not None:
            weights = tf.tile(weights, [copies])
        flat = tf.reshape(logits, [-1, logits.shape[-1]])
        return self.compute_metrics(None, labels, flat, weights)

    def reset_metrics(self) -> None:
        """Forgets the running means; the next evaluation starts afresh."""
        super().reset_metrics()
        self._evaluated.assign(0)

    @_compat.keras_hook
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
        *,
        class_names: Sequence[str] | None = None,
        class_weight: Mapping[int, float] | None = None,
        **kwargs: Any,
    ) -> keras.callbacks.History:
        """Trains as `keras.Model.fit` does, after checking the data.

        Arrays are checked from end to end, data sets by their first batch.

        Args:
            x: Images [B, H, W, C], floats in [0, 1] or uint8; or a data set of
                images and labels, of this package or another library, or a
                pair of arrays: see `rs_keras.datasets.ElementReader`.
            y: Labels [B], one-hot rows, words, or a dict with `label`.
            batch_size: As in Keras; also of a data set that yields images one
                by one.
            epochs: As in Keras.
            verbose: As in Keras.
            callbacks: As in Keras.
            class_names: The words of classes 0, 1, ..., where labels are words.
            class_weight: Weights by class number, which multiply those of the
                examples; 1 for classes that are not there.
            **kwargs: As in Keras.

        Returns:
            The history.

        Raises:
            ValueError: If images or targets are not what they should be, a
                batch has fewer rows than there are replicas, or workers do not
                run the same job.
            FloatingPointError: If the loss is not finite any more; with the
                step and the part of the loss that broke.
        """
        # Keras refuses to go on if it is not.
        if self.compiled:
            form = self._form(batch_size, class_names)
            shuffle = kwargs.get("shuffle", True)
            form = replace(form, order=self._order if shuffle else None)
            x, y = startup.prepare(self, x, y, form, kwargs)
        self.set_class_weight(class_weight)
        try:
            with startup.device_queues(self.distribute_strategy):
                return super().fit(
                    x,
                    y,
                    batch_size=batch_size,
                    epochs=epochs,
                    verbose=verbose,
                    callbacks=data_checks.with_own_callbacks(callbacks),
                    **kwargs,
                )
        finally:
            self.set_class_weight(None)

    def evaluate(
        self,
        x: Any = None,
        y: Any = None,
        batch_size: int | None = None,
        verbose: Any = "auto",
        *,
        class_names: Sequence[str] | None = None,
        **kwargs: Any,
    ) -> Any:
        """Measures as `keras.Model.evaluate` does, after checking the data.

        Args:
            x: As in `fit`.
            y: As in `fit`.
            batch_size: As in `fit`.
            verbose: As in Keras.
            class_names: As in `fit`.
            **kwargs: As in Keras.

        Returns:
            As in Keras.

        Raises:
            ValueError: If images or targets are not what they should be.
        """
        # The data of an evaluation within `fit` are checked before.
        if self.compiled and not _compat.is_evaluation_of_fit(kwargs):
            form = self._form(batch_size, class_names)
            x, y = startup.evaluated(self, x, y, form)
        return super().evaluate(
            x, y, batch_size=batch_size, verbose=verbose, **kwargs
        )

    def _form(
        self, batch_size: int | None, class_names: Sequence[str] | None
    ) -> DataForm:
        shape = getattr(self.model, "output_shape", None)
        classes = shape[-1] if isinstance(shape, tuple) and shape else None
        # One logit is refused by name.
        classes = None if classes == 1 else classes
        shape = image_shape(self.model)
        return DataForm(batch_size, class_names, shape, classes)

    def _order(self, count: int, epoch: int) -> np.ndarray:
        """Returns the order of an epoch of data that are read by number."""
        return np.random.default_rng([self.seed, epoch]).permutation(count)

    def check_batch(
        self, images: Any, targets: Any, training: bool = True
    ) -> None:
        """Raises unless a step can be made on a batch; builds the model.

        Args:
            images: [B, H, W, C], floats in [0, 1] or uint8.
            targets: Labels [B], one-hot rows, or a dict with `label`.
            training: Whether the step is one of training, which may need more
                targets than evaluation.

        Raises:
            ValueError: That names `images` or `labels`.
        """
        check_images(images, image_shape(self.model))
        labels = labels_in(targets)
        data_checks.check_labels(labels, len(images), self._classes(images))
        if training:
            self.sigma.check_targets(targets)
            self._check_logits(images)

    def _check_logits(self, images: Any) -> None:
        """Refuses probabilities of a model whose last layer does not tell."""
        if getattr(self.model, "outputs", None):
            return
        with self.distribute_strategy.scope():
            logits = self(self._floats(images[:8]), training=False)
        check_no_softmax(self._floats(logits).numpy())

    def _classes(self, images: Any) -> int | None:
        """Returns the number of classes, by a forward pass if need be."""
        shape = getattr(self.model, "output_shape", None)
        if shape is None or not self.built:
            with self.distribute_strategy.scope():
                shape = self(self._floats(images[:1]), training=False).shape
        return shape[-1]

    @_compat.keras_hook
    def _maybe_symbolic_build(
        self, iterator: Any = None, data_batch: Any = None
    ) -> None:
        """Makes all variables; Keras calls it with the data of `fit`."""
        if not self.built and data_batch is not None:
            self._classes(data_batch[0])
        if self.built:
            self.build_variables()
        else:
            super()._maybe_symbolic_build(iterator, data_batch)

    def build_variables(self) -> None:
        """Makes the optimizer's and the metrics' variables of a built model.

        It comes before the first step is traced: an optimizer must be built
        before its loss scale is read, or the scale it started with is frozen
        into the step.
        """
        with self.distribute_strategy.scope():
            metrics = _compat.compiled_metrics(self)
            if metrics is not None and not metrics.built:
                metrics.build(
                    keras.KerasTensor([None], "int64"),
                    keras.KerasTensor([None, None]),
                )
            if not self.optimizer.built:
                self.optimizer.build(self.trainable_variables)

    def make_test_function(self, force: bool = False) -> Any:
        """Returns the step of `evaluate`, as in Keras.

        Raises:
            ValueError: If a call makes several steps on several devices.
        """
        startup.check_steps(self.distribute_strategy, self.steps_per_execution)
        return super().make_test_function(force)

    def begin_epoch(self, epoch: int) -> None:
        """Sets what depends on the epoch, counted from 0; `fit` calls it."""
        self.warmup_factor.assign(self.warmup(epoch))
        self.sigma.begin_epoch(epoch)

    def warmup(self, epoch: int) -> float:
        """Returns the `warmup_factor` of an epoch, counted from 0."""
        return min(1.0, (epoch + 1) / max(1, self.warmup_epochs))
