"""What Keras configures of a trainer: losses, class weights, export."""

from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from rs_keras._checks import check_count
from rs_keras._checks import check_not_negative
from rs_keras._config import argument_names
from rs_keras.losses import labels_of
from rs_keras.trainers._step.noisy_model import NoisyModel

# Arguments of `__init__` that say nothing of the losses.
_NOT_OF_LOSSES = ("model", "sigma", "seed", "warmup_epochs")


class CompiledModel(NoisyModel):
    """A noisy model that Keras can compile, weight by class, save and export.

    Its methods are those of `keras.Model`, for a model with losses of its own.

    Example:

    >>> import keras
    >>> from rs_keras.trainers import SGD, Gaussian
    >>> model = keras.Sequential(
    ...     [keras.Input([8, 8, 1]), keras.layers.Flatten(),
    ...      keras.layers.Dense(2)])
    >>> trainer = Gaussian(model, sigma=0.25)
    >>> trainer.compile(optimizer=SGD(0.1), metrics=["accuracy"])
    >>> trainer.compile(optimizer="adam", loss="mse")
    Traceback (most recent call last):
    ValueError: `loss` must be left out: Gaussian trains on losses of its own...
    """

    def compile(
        self,
        optimizer: Any = "rmsprop",
        loss: Any = None,
        loss_weights: Any = None,
        **kwargs: Any,
    ) -> None:
        """Configures the training as `keras.Model.compile` does.

        Args:
            optimizer: As in Keras.
            loss: None: a method has losses of its own.
            loss_weights: None: they are arguments of the method.
            **kwargs: As in Keras.

        Raises:
            ValueError: For a loss or weights of losses.
        """
        for name, value in (("loss", loss), ("loss_weights", loss_weights)):
            if value is not None:
                raise ValueError(self._refused(name, value))
        super().compile(optimizer=optimizer, **kwargs)

    def _refused(self, name: str, value: Any) -> str:
        """Says which losses there are, and which arguments set them."""
        method = type(self).__name__
        names = argument_names(type(self), NoisyModel)
        own = [f"`{key}`" for key in names if key not in _NOT_OF_LOSSES]
        return (
            f"`{name}` must be left out: {method} trains on losses of its own, "
            f"{' + '.join(self.loss_names)}. Set {', '.join(own)} of {method} "
            "instead, or write a method (a subclass of SmoothTrainer). "
            f"Received: {name}={value!r}"
        )

    def compile_from_config(self, config: dict[str, Any]) -> None:
        """Compiles a loaded trainer as it was; Keras calls it."""
        arguments = keras.saving.deserialize_keras_object(config)
        self.compile(**arguments)
        if self.built:
            self.optimizer.build(self.trainable_variables)

    def export(self, filepath: Any, *args: Any, **kwargs: Any) -> None:
        """Exports the base classifier as `keras.Model.export` does.

        What is exported gives logits of images, without noise, votes or
        certificates; `rs_keras.export.export_certifier` exports the certifier.

        Args:
            filepath: As in Keras.
            *args: As in Keras.
            **kwargs: As in Keras.
        """
        self.model.export(filepath, *args, **kwargs)

    # -- weights of classes ----------------------------------------------------

    _class_weight: np.ndarray | None = None

    def set_class_weight(self, weights: Mapping[int, float] | None) -> None:
        """Sets the weights of classes that the next steps train with.

        Args:
            weights: From class numbers to weights >= 0, 1 for classes that are
                not there; None for none.

        Raises:
            ValueError: If a key is no class number, or a weight is negative.

        Example:

        >>> from rs_keras import models
        >>> from rs_keras.trainers import Gaussian
        >>> trainer = Gaussian(models.lenet(), sigma=0.25)
        >>> trainer.set_class_weight({3: 2.0})
        >>> trainer.weighted([3, 5], None).numpy()
        array([2., 1.], dtype=float32)
        """
        table = None
        if weights:
            shape = getattr(self.model, "output_shape", None) or (None,)
            for key, weight in weights.items():
                number = check_count("class_weight", key, 0)
                if shape[-1] is not None and number >= shape[-1]:
                    raise ValueError(
                        f"`class_weight` must name classes in [0, {shape[-1]})."
                        f" Received: class {key}"
                    )
                check_not_negative("class_weight", weight)
            table = np.ones(max(weights) + 2, np.float32)
            for key, weight in weights.items():
                table[key] = weight
        if table is not None or self._class_weight is not None:
            # The step is traced with the weights that it was made with.
            self.train_function = None
        self._class_weight = table

    def weighted(
        self, targets: Any, weights: tf.Tensor | None
    ) -> tf.Tensor | None:
        """Returns the weights [B] of examples, times those of their classes.

        Args:
            targets: As in `losses_of`.
            weights: Of the examples; None for none.
        """
        if self._class_weight is None:
            return weights
        table = tf.constant(self._class_weight)
        # All classes beyond the table share its last row, which is 1.
        last = tf.cast(tf.size(table) - 1, tf.int64)
        own = tf.gather(table, tf.minimum(labels_of(targets), last))
        return own if weights is None else weights * tf.cast(own, weights.dtype)
