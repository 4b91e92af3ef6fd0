"""The states of callbacks, as a snapshot of a run keeps them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np

from rs_keras import _compat
from rs_keras._atomic_files import written_whole
from rs_keras.trainers.runs.snapshot_file import typed

Callbacks = Sequence[keras.callbacks.Callback]


def gather(
    callbacks: Callbacks,
) -> tuple[list[dict[str, Any]], dict[str, np.ndarray]]:
    """Returns the callbacks' states as JSON values, and the arrays in them."""
    arrays: dict[str, np.ndarray] = {}
    states = []
    for number, callback in enumerate(callbacks):
        state: dict[str, Any] = {"class": type(callback).__name__}
        for name in _names(callback):
            key = f"callbacks/{number}/{name}"
            state[name] = _packed(getattr(callback, name, None), key, arrays)
        if isinstance(callback, keras.callbacks.CSVLogger):
            # The text of the log: rows after the snapshot must be removed.
            log = Path(callback.filename)
            text = log.read_bytes().decode() if log.exists() else ""
            state |= {"text": text, "keys": callback.keys}
        states.append(state)
    return states, arrays


def check(callbacks: Callbacks, states: list[dict[str, Any]]) -> None:
    """Raises unless the states were gathered from such callbacks.

    Raises:
        ValueError: If these are not the callbacks of the snapshot.
    """
    given = [type(callback).__name__ for callback in callbacks]
    wanted = [state["class"] for state in states]
    if given != wanted:
        raise ValueError(
            "`callbacks` must be those of the snapshot: "
            f"{', '.join(wanted)}. Received: {', '.join(given)}"
        )


def restore(
    callbacks: Callbacks,
    states: list[dict[str, Any]],
    arrays: dict[str, np.ndarray],
) -> None:
    """Restores the states, after `on_train_begin`."""
    for callback, state in zip(callbacks, states, strict=True):
        for name in _names(callback):
            setattr(callback, name, _unpacked(state[name], arrays))
        if isinstance(callback, keras.callbacks.CSVLogger):
            _rewind(callback, state)


def close(callbacks: Callbacks) -> None:
    """Closes the files that a run leaves open when it ends in an error."""
    for callback in callbacks:
        is_log = isinstance(callback, keras.callbacks.CSVLogger)
        if is_log and callback.csv_file is not None:
            callback.csv_file.close()


def _names(callback: keras.callbacks.Callback) -> tuple[str, ...]:
    """Returns the attributes that a callback's state is made of."""
    own = tuple(getattr(callback, "state_attributes", ()))
    return _compat.callback_attributes(callback) + own


def _packed(value: Any, key: str, arrays: dict[str, np.ndarray]) -> Any:
    """Returns JSON values in which arrays are replaced by their names."""
    if isinstance(value, np.ndarray | np.generic):
        arrays[key] = np.asarray(value)
        return {"array": key, "dtype": value.dtype.name}
    if isinstance(value, list | tuple):
        return [_packed(v, f"{key}/{i}", arrays) for i, v in enumerate(value)]
    if isinstance(value, dict):
        packed = {k: _packed(v, f"{key}/{k}", arrays) for k, v in value.items()}
        return {"dict": packed}
    if hasattr(value, "numpy"):
        return _packed(value.numpy(), key, arrays)
    return value


def _unpacked(value: Any, arrays: dict[str, np.ndarray]) -> Any:
    if isinstance(value, list):
        return [_unpacked(item, arrays) for item in value]
    if isinstance(value, dict) and "array" in value:
        # A number, such as a scalar weight, has a type, too.
        return typed(arrays[value["array"]], value.get("dtype"))[()]
    if isinstance(value, dict):
        return {k: _unpacked(v, arrays) for k, v in value["dict"].items()}
    return value


def _rewind(logger: keras.callbacks.CSVLogger, state: dict[str, Any]) -> None:
    logger.csv_file.close()
    with written_whole(logger.filename) as temporary:
        temporary.write_bytes(state["text"].encode())
    logger.csv_file = open(logger.filename, "a", newline="")
    logger.keys = state["keys"]
    logger.append_header = not state["text"]
