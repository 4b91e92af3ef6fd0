"""Whether a log is continued on the data set that it was begun on."""

import os
import warnings
from collections.abc import Iterable
from collections.abc import Iterator
from itertools import chain
from itertools import islice

import numpy as np

from rs_keras.logs.file_format import read_settings
from rs_keras.logs.hashes import EXAMPLE
from rs_keras.logs.hashes import FIRST
from rs_keras.logs.hashes import begun_header
from rs_keras.logs.hashes import example_hash
from rs_keras.logs.writer import LogWriter

# Examples that are held back until all of the log's are compared.
_MOST_HELD = 1_000

# An image [H, W, C] and its label.
_Pair = tuple[np.ndarray, np.ndarray]


def first_example(
    examples: Iterator[_Pair],
) -> tuple[str | None, tuple[int, ...] | None, Iterator[_Pair]]:
    """Returns hash and shape of example 0 (None without any), and all examples.

    Args:
        examples: Yields (image [H, W, C], label).
    """
    first = list(islice(examples, 1))
    for image, label in first:
        found = example_hash(image, int(label))
        return found, image.shape, chain(first, examples)
    return None, None, examples


def is_hashed(path: str | os.PathLike[str], first: str | None) -> bool:
    """Tells whether a log holds hashes of its examples, or is yet to be begun.

    Args:
        path: The log, or where it will be.
        first: The hash of example 0 of the data set.

    Raises:
        ValueError: If it was begun on a data set with another example 0.
    """
    header = begun_header(path)
    if header is None:
        return True
    there = read_settings(path).get(FIRST, first)
    if EXAMPLE in header and there != first:
        raise ValueError(_another(path, 0, f"hash {there} there, {first} now"))
    return EXAMPLE in header


def warn_without_hashes(path: str | os.PathLike[str]) -> None:
    """Warns the caller of `certify_dataset` or `decide_dataset`."""
    warnings.warn(
        f"{os.fspath(path)} was begun by a version that wrote no hashes of "
        "examples: only their labels are compared with those of `dataset`, not "
        "the images. It is continued without hashes and checksums.",
        UserWarning,
        # This function, what both share, the one called, its caller.
        stacklevel=4,
    )


def compared(
    examples: Iterable[tuple[int, np.ndarray, int]], writer: LogWriter
) -> Iterator[tuple[int, np.ndarray, int, str]]:
    """Yields the examples that a log does not hold, with their hashes.

    Those that it holds are compared with it first.

    Args:
        examples: Yields (idx, image [1, H, W, C], label).
        writer: Of the log.

    Raises:
        ValueError: At the first example that the log holds with another label
            or hash.
    """
    done = writer.previous
    hashes = done.extra.get(EXAMPLE, [None] * len(done))
    labels = dict(zip(done.idx.tolist(), done.label.tolist(), strict=True))
    known = dict(zip(done.idx.tolist(), hashes, strict=True))
    last = max(labels, default=-1)
    held: list[tuple[int, np.ndarray, int, str]] = []
    for idx, image, label in examples:
        found = example_hash(image[0], label)
        old_label, old = labels.get(idx, label), known.get(idx)
        if old_label != label:
            what = f"label {old_label} there, {label} now"
            raise ValueError(_another(writer.path, idx, what))
        if old is not None and old != found:
            what = f"hash {old} there, {found} now"
            raise ValueError(_another(writer.path, idx, what))
        if idx not in labels:
            held.append((idx, image, label, found))
        # Nothing is written before all of the log is compared, but for a log
        # with more gaps than fit into memory.
        if idx >= last or len(held) == _MOST_HELD:
            yield from held
            held = []
    yield from held


def _another(path: str | os.PathLike[str], idx: int, what: str) -> str:
    return (
        f"{os.fspath(path)} was made of another data set: example {idx} is not "
        f"the same ({what}). Pass the data set that it was begun with, or "
        "choose another name"
    )
