"""Checks of training data before the first step, of losses after each."""

import math
from typing import Any

import keras
import numpy as np

from rs_keras.datasets.elements import class_numbers

_REMEDY = "a lower learning rate or gradient clipping may help"


def check_labels(labels: Any, count: int, num_classes: int | None) -> None:
    """Raises unless `labels` are `count` class numbers in [0, num_classes).

    Or one-hot rows of them.

    Raises:
        ValueError: That names `labels`, or the model's number of classes.
    """
    if num_classes == 1:
        raise ValueError(
            "`model` must tell at least 2 classes apart. Received: one "
            "logit an image; `rs_keras.classifiers.with_logits(model, "
            "num_classes=2)` makes two of it"
        )
    array = class_numbers(labels, None, num_classes)
    if len(array) != count:
        raise ValueError(
            "`labels` must be one class number per image, shape "
            f"[{count}]. Received: shape={list(array.shape)}"
        )
    if array.min() < 0:
        raise ValueError(
            f"`labels` must be in [0, {num_classes or 'num_classes'}). "
            f"Received: min={array.min()}, max={array.max()}"
        )


class EpochStart(keras.callbacks.Callback):
    """Tells the trainer which epoch begins, so that warm-ups follow it."""

    def on_epoch_begin(self, epoch: int, logs: dict | None = None) -> None:
        """Passes the epoch on."""
        self.model.begin_epoch(epoch)


class StopOnNaN(keras.callbacks.Callback):
    """Stops a run whose loss or weights are not finite, and says where.

    Has to stand before every callback that writes checkpoints: then the last
    one written is from before the loss broke.
    """

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        """Raises once a running mean of this epoch is not finite.

        Raises:
            FloatingPointError: With the step and the part of the loss.
        """
        logs = logs or {}
        if math.isfinite(logs.get("loss", 0.0)):
            return
        broken = [
            f"{name}={float(logs[name])}"
            for name in self.model.loss_names
            if not math.isfinite(logs.get(name, 0.0))
        ]
        last = int(self.model.step.numpy())
        first = max(1, last - self.model.steps_per_execution + 1)
        when = f"step {last}" if first == last else f"steps {first} to {last}"
        raise FloatingPointError(
            f"The loss is not finite at {when} (counted from 1): "
            f"{', '.join(broken) or 'the regularization losses'}. No "
            f"checkpoint was written since; {_REMEDY}"
        )

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        """Raises if an update broke the weights after its loss was measured.

        The next step's loss would tell, but the epoch's checkpoint is written
        before it.

        Raises:
            FloatingPointError: With the weights that broke.
        """
        broken = [
            weight.path
            for weight in self.model.model.weights
            if not np.isfinite(weight.numpy()).all()
        ]
        if broken:
            raise FloatingPointError(
                f"The weights are not finite after epoch {epoch + 1}: "
                f"{', '.join(broken)}. No checkpoint was written; {_REMEDY}"
            )


def with_own_callbacks(callbacks: Any) -> Any:
    """Returns the user's callbacks behind the two that every run has.

    Those that say `runs_first` come next: they add to the logs that the others
    read. `keras.callbacks.TerminateOnNaN` takes the place of `StopOnNaN`: the
    run then ends as in Keras, without an error.
    """
    is_list = isinstance(callbacks, keras.callbacks.CallbackList)
    given = (
        callbacks.callbacks if is_list else keras.tree.flatten(callbacks or [])
    )
    own: list[keras.callbacks.Callback] = [EpochStart()]
    ends = keras.callbacks.TerminateOnNaN
    if not any(isinstance(callback, ends) for callback in given):
        own.append(StopOnNaN())
    # Sorting is stable: within each group the order stays.
    ordered = own + sorted(
        given, key=lambda callback: not getattr(callback, "runs_first", False)
    )
    if not is_list:
        return ordered
    for callback in own:
        callback.set_model(callbacks.model)
    callbacks.callbacks[:] = ordered
    return callbacks
