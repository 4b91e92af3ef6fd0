"""Hashes of examples: whether a log is resumed on its own data set."""

import hashlib
import os
import warnings
from collections.abc import Iterable
from collections.abc import Iterator
from itertools import chain
from itertools import islice
from typing import Any

import numpy as np

from rs_keras.logs.file_format import EXAMPLE
from rs_keras.logs.file_format import FIRST
from rs_keras.logs.file_format import begun_header
from rs_keras.logs.file_format import read_settings
from rs_keras.logs.writer import LogWriter

# 64 bits: among a million examples, two hashes agree with probability 3e-8.
_BYTES = 8

# Examples that wait, at most, until all of the log's are compared.
_MAX_HELD = 1_000

# An image [H, W, C] and its label.
_Pair = tuple[np.ndarray, np.ndarray]


def example_hash(image: Any, label: int) -> str:
    """Returns 16 hexadecimal digits that identify an image and its label.

    BLAKE2b of the text "HEIGHT,WIDTH,CHANNELS,LABEL" with a line break, and of
    the pixels as float32 (little-endian, row by row). Pixels of type uint8 are
    divided by 255 first, as the certifier does.

    Args:
        image: [H, W, C].
        label: The true label.

    Example:

    >>> import numpy as np
    >>> from rs_keras.logs.examples import example_hash
    >>> image = np.full([2, 2, 1], 51, np.uint8)
    >>> example_hash(image, 7)
    'a3cc52f75e2fb6fb'
    >>> example_hash(np.float32(image) / np.float32(255), 7) == (
    ...     example_hash(image, 7))
    True
    """
    array = np.asarray(image)
    pixels = array.astype("<f4")
    if array.dtype == np.uint8:
        pixels /= np.float32(255)
    text = ",".join(map(str, [*array.shape, int(label)]))
    digest = hashlib.blake2b(f"{text}\n".encode(), digest_size=_BYTES)
    digest.update(pixels.tobytes())
    return digest.hexdigest()


def first_example(
    examples: Iterator[_Pair],
) -> tuple[str | None, tuple[int, ...] | None, Iterator[_Pair]]:
    """Returns hash and shape of example 0 (None without any), and all examples.

    Args:
        examples: Yields (image [H, W, C], label).
    """
    first = list(islice(examples, 1))
    for image, label in first:
        digest = example_hash(image, int(label))
        return digest, image.shape, chain(first, examples)
    return None, None, examples


def is_hashed(path: str | os.PathLike[str], first: str | None) -> bool:
    """Whether a log has hashes of its examples; a new one will have.

    Args:
        path: The log, or where it will be.
        first: The hash of example 0 of the data set.

    Raises:
        ValueError: If it was begun on a data set with another example 0.
    """
    header = begun_header(path)
    if header is None:
        return True
    known = read_settings(path).get(FIRST, first)
    if EXAMPLE in header:
        _check_same(path, 0, "hash", known, first)
    return EXAMPLE in header


def warn_without_hashes(path: str | os.PathLike[str]) -> None:
    """Warns the caller of `certify_dataset` or `decide_dataset`."""
    warnings.warn(
        f"{os.fspath(path)} was begun by a version that wrote no hashes of "
        "examples: only their labels are compared with those of `dataset`, not "
        "the images. It is continued without hashes and checksums.",
        UserWarning,
        # Past this function, the logging of both, and the one called.
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
    digests = dict(zip(done.idx.tolist(), hashes, strict=True))
    last = max(labels, default=-1)
    waiting: list[tuple[int, np.ndarray, int, str]] = []
    for idx, image, label in examples:
        digest = example_hash(image[0], label)
        if idx not in labels:
            waiting.append((idx, image, label, digest))
        else:
            _check_same(writer.path, idx, "label", labels[idx], label)
            if digests[idx] is not None:
                _check_same(writer.path, idx, "hash", digests[idx], digest)
        # Nothing is written before all of the log is compared, unless it has
        # more gaps than fit into memory.
        if idx >= last or len(waiting) == _MAX_HELD:
            yield from waiting
            waiting = []
    yield from waiting


def _check_same(
    path: str | os.PathLike[str], idx: int, kind: str, old: Any, new: Any
) -> None:
    if old != new:
        raise ValueError(
            f"{os.fspath(path)} was made of another data set: example {idx} is "
            f"not the same ({kind}: stored {old}, given {new}). Pass the data "
            "set that it was begun with, or choose another name"
        )
