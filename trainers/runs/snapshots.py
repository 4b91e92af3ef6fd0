"""Training that can be interrupted anywhere and resumes bit for bit.

`fit` trains a compiled trainer for a number of epochs and keeps one file, the
snapshot: every weight and moving statistic, the optimiser's slots, the running
metrics, the epoch and the step in it, the state of the callbacks. It is
written to a temporary name, flushed and renamed, so it is always complete; the
one before it stays, and is taken if a disk has damaged the last one. A resumed
run sees the same batches, noise and warm-ups as an uninterrupted run, and its
final weights are bit-for-bit identical, on one device with the same number of
threads.

Several workers take their snapshots at the same step; the chief writes them,
and tells the others what they hold when a run begins.
"""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from rs_keras import distribution
from rs_keras._checks import check_count
from rs_keras._checks import check_not_negative
from rs_keras.logs.file_format import differences
from rs_keras.logs.file_format import json_values
from rs_keras.trainers.base import SmoothTrainer
from rs_keras.trainers.runs import callback_states
from rs_keras.trainers.runs import snapshot_file

Passes = Callable[[int, int], tf.data.Dataset]

# How often workers ask each other whether to stop or to take a snapshot.
_SECONDS_BETWEEN_MESSAGES = 1.0


def fit(
    trainer: SmoothTrainer,
    passes: Passes,
    epochs: int,
    path: str | Path,
    *,
    callbacks: Sequence[keras.callbacks.Callback] = (),
    validation_data: Any = None,
    settings: Mapping[str, Any] | None = None,
    steps: int | None = None,
    every_seconds: float = 60.0,
    resume: bool = True,
    verbose: Any = "auto",
) -> keras.callbacks.History:
    """Trains as `trainer.fit` does, and resumes from its last snapshot.

    A snapshot is taken when an epoch ends and, within an epoch, after the
    first step that ends `every_seconds` after the last one. Ctrl-C and SIGTERM
    finish the step, or the evaluation after an epoch, take one more and raise
    KeyboardInterrupt; of several workers, a signal to one does so in all,
    within a second or a step. A second signal waits for no more than what
    TensorFlow has in hand.

    Of the callbacks, EarlyStopping, ModelCheckpoint, ReduceLROnPlateau,
    CSVLogger, TensorBoard, History and those of this package keep their state.
    Your own does if its attribute `state_attributes` names the attributes to
    store.

    Args:
        trainer: Compiled.
        passes: From an epoch and its first step to the batches from there on,
            such as `functools.partial(datasets.epoch, ...)`: a function of
            these two numbers.
        epochs: Of the whole run, >= 1.
        path: The snapshot. Its folder is made.
        callbacks: As in Keras; they see one run, not one per epoch.
        validation_data: As in Keras.
        settings: JSON values that the weights depend on. A snapshot taken
            under others is refused, and so are workers that differ in them.
        steps: Batches an epoch; asked of the data where it tells.
        every_seconds: Between two snapshots within an epoch, >= 0; 0 takes one
            after every step.
        resume: Whether to go on from a snapshot that is there; if not, the
            snapshot is an error.
        verbose: As in Keras.

    Returns:
        The history of the whole run.

    Raises:
        ValueError: If an argument is out of range, the snapshot was taken
            under other settings (names each), or does not fit the trainer.
        FileExistsError: If there is a snapshot and `resume` is False (several
            workers: ValueError, in each).
        FloatingPointError: If the loss is not finite any more.
        KeyboardInterrupt: After Ctrl-C or SIGTERM.

    Example:

    >>> import functools
    >>> import tempfile
    >>> from rs_keras import datasets
    >>> from rs_keras.trainers import recipes
    >>> from rs_keras.trainers.runs import snapshots
    >>> recipe = recipes.get("fashion_mini", "gaussian", 0.5, batch_size=2_000)
    >>> passes = lambda epoch, step: datasets.epoch(
    ...     "fashion_mini", epoch, 2_000, first_step=step)
    >>> path = tempfile.mkdtemp() + "/snapshot.npz"
    >>> history = snapshots.fit(
    ...     recipe.build(), passes, 2, path, verbose=0)
    >>> history.epoch
    [0, 1]
    """
    check_count("epochs", epochs)
    check_not_negative("every_seconds", every_seconds)
    run = _Run(trainer, Path(path), json_values(settings or {}), every_seconds)
    first = passes(0, 0)
    run.build(first)
    known = int(first.cardinality())
    steps = steps or known
    if steps < 1:
        raise ValueError(
            "`steps` must be given for data that do not tell their length. "
            f"Received: steps={steps}"
        )
    history = keras.callbacks.History()
    watched = [*callbacks, history]
    bars = [_Progress()] if verbose else []
    each = _OneRun(
        [*watched, *bars, run],
        model=trainer,
        verbose=verbose,
        epochs=epochs,
        steps=steps,
    )
    try:
        run.begin(each, watched, steps, resume)
        with run.interruptible():
            while not run.is_over:
                each.callbacks = [*watched, *bars, run]
                for bar in bars:
                    bar.done = run.step
                trainer.fit(
                    passes(run.epoch, run.step),
                    initial_epoch=run.epoch,
                    epochs=run.epoch + 1,
                    # The passes are shuffled; Keras warns that it will not.
                    shuffle=False,
                    steps_per_epoch=steps - run.step if known < 0 else None,
                    validation_data=validation_data,
                    callbacks=each,
                    verbose=verbose,
                )
                run.next_epoch(each)
    finally:
        callback_states.close(watched)
    return history


class _OneRun(keras.callbacks.CallbackList):
    """Callbacks that see one begin and one end of a run of many `fit`s."""

    def begin(self) -> None:
        super().on_train_begin()

    def end(self, logs: dict | None) -> None:
        super().on_train_end(logs)

    def on_train_begin(self, logs: dict | None = None) -> None:
        """Does nothing: see `begin`."""

    def on_train_end(self, logs: dict | None = None) -> None:
        """Does nothing: see `end`."""


class _Progress(keras.callbacks.ProgbarLogger):
    """A progress bar that counts the steps made before the run resumed."""

    done = 0

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        super().on_train_batch_end(
            min(batch + self.done, self.target - 1), logs
        )


class _Run(keras.callbacks.Callback):
    """The position and the snapshots of a run; the last callback."""

    def __init__(
        self,
        trainer: SmoothTrainer,
        path: Path,
        settings: Mapping[str, Any],
        every_seconds: float,
    ) -> None:
        super().__init__()
        self.trainer = trainer
        self.path = path
        self.settings = settings
        self.every_seconds = every_seconds
        self.epoch = 0
        self.step = 0
        self.stopped = False
        self.strategy = trainer.distribute_strategy
        self._watched: list[keras.callbacks.Callback] = []
        self._steps = 0
        self._first = 0
        self._metrics: list[np.ndarray] = []
        self._taken = time.monotonic()
        self._asked_to_stop = False
        # Step and time of the last agreement of the workers; the next step.
        self._agreed_at = (0, time.monotonic())
        self._agree_next = 0

    @property
    def is_over(self) -> bool:
        """Whether no epoch is left to train."""
        return self.stopped or self.epoch >= self.params["epochs"]

    # -- beginning and resuming ----------------------------------------------

    def build(self, data: tf.data.Dataset) -> None:
        """Makes all variables, so that they can be restored."""
        batch = next(iter(data.take(1)), None)
        if batch is None:
            raise ValueError("`passes` must give at least one batch per epoch")
        images, targets, _ = keras.utils.unpack_x_y_sample_weight(batch)
        images, targets = keras.tree.map_structure(
            lambda value: value.numpy(), (images, targets)
        )
        distribution.everywhere(
            self.strategy, lambda: self.trainer.check_batch(images, targets)
        )
        self.trainer.build_variables()

    def begin(
        self,
        each: _OneRun,
        watched: list[keras.callbacks.Callback],
        steps: int,
        resume: bool,
    ) -> None:
        """Starts the run: notifies the callbacks, restores a snapshot."""
        self._steps, self._watched = steps, watched
        distribution.agree(
            self.strategy,
            {
                "settings": self.settings,
                "epochs": self.params["epochs"],
                "steps": steps,
                # When they ask each other follows from it.
                "every_seconds": self.every_seconds,
            },
        )
        data = distribution.everywhere(
            self.strategy, lambda: self._existing(resume)
        )
        data = distribution.from_chief(self.strategy, data)
        if data is None:
            each.begin()
            return
        arrays, state = snapshot_file.read(self.path, data)
        self._check(state)
        groups = self._variables()
        metrics = groups.pop("metrics")
        callback_states.check(watched, state["callbacks"])
        each.begin()
        snapshot_file.assign(groups, arrays)
        callback_states.restore(watched, state["callbacks"], arrays)
        self.epoch, self.step = state["epoch"], state["step"]
        self.stopped = state["stopped"]
        # Between epochs they hold what the last evaluation left.
        if self.step:
            self._metrics = [
                arrays[f"metrics/{i}"] for i in range(len(metrics))
            ]

    def _existing(self, resume: bool) -> bytes | None:
        """Returns the chief's snapshot; None if there is none.

        Other workers do not read files, which may be outdated there.
        """
        is_chief = distribution.member_of(self.strategy).is_chief
        if not (is_chief and self.path.exists()):
            return None
        if not resume:
            raise FileExistsError(
                f"{self.path} holds a run already: resume it, or choose "
                "another folder"
            )
        return snapshot_file.readable(self.path)

    def _check(self, state: Mapping[str, Any]) -> None:
        differing = differences(_flat(state["settings"]), _flat(self.settings))
        if differing:
            raise ValueError(
                f"{self.path} was taken under other settings and cannot be "
                f"resumed. Differing: {differing}"
            )
        method = type(self.trainer).__name__
        if state["trainer"] != method:
            raise ValueError(
                f"{self.path} was taken of a {state['trainer']} and cannot be "
                f"resumed by a {method}"
            )
        if snapshot_file.kinds_of(self._variables()) != state["variables"]:
            raise ValueError(
                f"{self.path} does not fit this trainer: it has variables of "
                "other shapes or types"
            )

    def _variables(self) -> dict[str, list[Any]]:
        return {
            "model": list(self.trainer.variables),
            "optimizer": list(self.trainer.optimizer.variables),
            "metrics": list(self.trainer.metrics_variables),
        }

    # -- training ------------------------------------------------------------

    def on_epoch_begin(self, epoch: int, logs: dict | None = None) -> None:
        """Puts back the metrics, which `fit` has just reset."""
        self._first = self.step
        for variable, value in zip(
            self._variables()["metrics"], self._metrics, strict=False
        ):
            variable.assign(value)
        self._metrics = []
        self._taken = time.monotonic()
        self._agreed_at, self._agree_next = (self.step, self._taken), self.step

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        """Takes a snapshot if it is time; after the last, the epoch does."""
        self.step = min(self._first + batch + 1, self._steps)
        late, stop = self._agree()
        if self.step < self._steps and (late or stop):
            self.take()
            if stop:
                raise KeyboardInterrupt

    def _agree(self) -> tuple[bool, bool]:
        """Returns whether to take a snapshot and whether to stop now.

        Workers have to do both at the same step, and their clocks differ: they
        ask each other, so seldom that it costs nothing.
        """
        now = time.monotonic()
        late = now - self._taken >= self.every_seconds
        if distribution.member_of(self.strategy).size == 1:
            return late, self._asked_to_stop
        if self.step < self._agree_next:
            return False, False
        step, then = self._agreed_at
        pace = (now - then) / max(1, self.step - step)
        one_late, one_stops, slowest = distribution.largest(
            self.strategy, [late, self._asked_to_stop, pace]
        )
        wait = min(_SECONDS_BETWEEN_MESSAGES, self.every_seconds)
        self._agreed_at = (self.step, now)
        self._agree_next = self.step + max(1, int(wait / max(slowest, 1e-6)))
        return bool(one_late), bool(one_stops)

    def next_epoch(self, each: _OneRun) -> None:
        """Counts an epoch that ended, and takes its snapshot."""
        self.epoch, self.step = self.epoch + 1, 0
        self.stopped = bool(self.trainer.stop_training)
        if self.is_over:
            each.callbacks = [*self._watched, self]
            each.end(None)
        self.take()
        [stop] = distribution.largest(self.strategy, [self._asked_to_stop])
        if stop:
            raise KeyboardInterrupt

    def take(self) -> None:
        """Writes the snapshot, whole or not at all.

        All workers read their variables, some of which are sums over them.
        """
        groups = self._variables()
        arrays = snapshot_file.values_of(groups)
        self._taken = time.monotonic()
        if not distribution.member_of(self.strategy).is_chief:
            return
        callbacks, callback_arrays = callback_states.gather(self._watched)
        state = {
            "trainer": type(self.trainer).__name__,
            "settings": self.settings,
            "epoch": self.epoch,
            "step": self.step,
            "stopped": self.stopped,
            "callbacks": callbacks,
            "variables": snapshot_file.kinds_of(groups),
        }
        snapshot_file.write(self.path, arrays | callback_arrays, state)
        self._taken = time.monotonic()

    @contextlib.contextmanager
    def interruptible(self) -> Iterator[None]:
        """Lets Ctrl-C and SIGTERM wait until all workers can stop at once.

        One that stopped by itself, if only between two steps, would be lost to
        the others, who go back to the last snapshot and wait for it.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def stop(number: int, frame: Any) -> None:
            if self._asked_to_stop:
                raise KeyboardInterrupt
            self._asked_to_stop = True
            # A handler may not write to a stream that may be writing.
            os.write(2, b"\nstopping after this step\n")

        signals = (signal.SIGINT, signal.SIGTERM)
        before = {number: signal.signal(number, stop) for number in signals}
        try:
            yield
        except distribution.LOST as error:
            # The other workers are gone.
            if self._asked_to_stop:
                raise KeyboardInterrupt from error
            raise
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
        if self._asked_to_stop:
            raise KeyboardInterrupt


def _flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Returns nested settings by dotted name."""
    flat: dict[str, Any] = {}
    for key, value in settings.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat
