"""The file of a snapshot: arrays, and a state of JSON values, in one .npz."""

import contextlib
import json
import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rs_keras import _npz
from rs_keras._atomic_files import written_whole

_FORMAT = 2

# Variables by what they belong to: "model", "optimizer" or "metrics".
Groups = Mapping[str, list[Any]]


def write(path: Path, arrays: dict[str, Any], state: dict[str, Any]) -> None:
    """Writes a snapshot, whole or not at all; the one before stays, too.

    Under the name that `before` gives, for the day on which a disk damages
    this one.
    """
    text = json.dumps({"format": _FORMAT, **state})
    with written_whole(path) as temporary:
        with temporary.open("wb") as file:
            np.savez(file, **arrays, state=text)
        if path.exists():
            _keep(path, before(path))


def before(path: Path) -> Path:
    """Returns where the snapshot before the last one lies.

    Example:

    >>> from pathlib import Path
    >>> from rs_keras.trainers.runs import snapshot_file
    >>> snapshot_file.before(Path("run/snapshot.npz")).name
    'snapshot.before.npz'
    """
    return path.with_suffix(f".before{path.suffix}")


def _keep(path: Path, other: Path) -> None:
    """Gives a file another name, too."""
    other.unlink(missing_ok=True)
    try:
        os.link(path, other)
    except OSError:
        # A file system without a second name for a file.
        shutil.copy2(path, other)


def readable(path: Path) -> bytes:
    """Returns the bytes of the last snapshot that is not damaged.

    Says so where it is not the last one.

    Args:
        path: Where the last one is.

    Raises:
        ValueError: If neither the last one nor the one before can be read.
    """
    data = path.read_bytes()
    try:
        read(path, data)
    except ValueError as damage:
        with contextlib.suppress(OSError, ValueError):
            older = before(path).read_bytes()
            read(before(path), older)
            print(f"{damage}. Going on from {before(path)}", file=sys.stderr)
            return older
        raise
    return data


def read(
    path: Path, data: bytes
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Returns the arrays and the state of a snapshot, the bytes at `path`.

    Raises:
        ValueError: If the file is not a snapshot, or has another format.
    """
    with _npz.opened(data, f"{path} is not a snapshot") as archive:
        arrays = {name: archive[name] for name in archive.files}
        state = json.loads(str(arrays.pop("state")))
        known = state["format"] == _FORMAT
    if not known:
        raise ValueError(
            f"{path} is a snapshot of another version of this package: format "
            f"{state['format']}, not {_FORMAT}"
        )
    return arrays, state


def values_of(groups: Groups) -> dict[str, np.ndarray]:
    """Returns the arrays of variables, by group and number."""
    return {
        f"{name}/{i}": variable.numpy()
        for name, group in groups.items()
        for i, variable in enumerate(group)
    }


def kinds_of(groups: Groups) -> dict[str, list]:
    """Returns shapes and types of variables, as JSON has them."""
    return {
        name: [[list(v.shape), str(v.dtype)] for v in group]
        for name, group in groups.items()
    }


def assign(groups: Groups, arrays: Mapping[str, np.ndarray]) -> None:
    """Sets variables to the arrays that `values_of` gave."""
    for name, group in groups.items():
        for i, variable in enumerate(group):
            dtype = variable.numpy().dtype
            variable.assign(typed(arrays[f"{name}/{i}"], dtype))


def typed(array: np.ndarray, dtype: Any) -> np.ndarray:
    """Returns an array of a file as it was written.

    NumPy's files know bfloat16 as two bytes without a meaning.

    Args:
        array: Of an .npz file.
        dtype: That it had.
    """
    return array.view(dtype) if array.dtype.kind == "V" else array
