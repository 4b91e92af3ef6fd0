"""Hashes in certification logs: of an example, and of a line.

`certify_dataset` and `decide_dataset` write both. The hash of an example tells
whether a log is continued on the data set that it was begun on; the checksum
of a line tells whether the line was altered. Neither is a signature.
"""

import hashlib
import os
import zlib
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import numpy as np

# The column of the examples' hashes, and the last column, of the checksums.
EXAMPLE = "example"
CHECKSUM = "checksum"

# The setting that holds the hash of example 0 of the data set: the same in all
# shards, and in no log without these columns.
FIRST = "first_example"

# 64 bits: among a million examples, two hashes agree with probability 3e-8.
_BYTES = 8


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
    >>> from rs_keras.logs.hashes import example_hash
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
    found = hashlib.blake2b(f"{text}\n".encode(), digest_size=_BYTES)
    found.update(pixels.tobytes())
    return found.hexdigest()


def line_checksum(header: Sequence[str]) -> Callable[[Sequence[str]], str]:
    """Returns the function from the values of a line to its checksum.

    CRC-32 (8 hexadecimal digits) of the header line, a line break, and the line
    without its columns `time` and `checksum`, tabs between the rest. Every
    change of up to 32 bits in a row is found, in the line or in the header.

    Args:
        header: The names of the columns; the last is `checksum`.

    Example:

    >>> from rs_keras.logs.hashes import line_checksum
    >>> checksum = line_checksum(["idx", "radius", "time", "checksum"])
    >>> checksum(["0", "0.5", "2.0"]), checksum(["0", "0.5", "3.0", "ignored"])
    ('7afd6944', '7afd6944')
    """
    start = zlib.crc32(("\t".join(header) + "\n").encode())
    time, last = header.index("time"), len(header) - 1

    def checksum(values: Sequence[str]) -> str:
        covered = "\t".join((*values[:time], *values[time + 1 : last]))
        return f"{zlib.crc32(covered.encode(), start):08x}"

    return checksum


def begun_header(path: str | os.PathLike[str]) -> list[str] | None:
    """Returns the columns of a log that holds a whole line; else None.

    Args:
        path: A log, or where there will be one.

    Example:

    >>> from rs_keras.logs.hashes import begun_header
    >>> print(begun_header("no-such-log.tsv"))
    None
    """
    if not os.path.isfile(path):
        return None
    with open(path, "rb") as file:
        header, row = file.readline(), file.readline()
    if not row.endswith(b"\n"):
        return None
    return header.decode(errors="replace").rstrip("\r\n").split("\t")
