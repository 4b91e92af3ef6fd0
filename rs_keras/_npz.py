"""NumPy archives (.npz) from anywhere: whole, or an error that names them."""

import contextlib
import io
import os
from collections.abc import Iterator
from typing import IO

import numpy as np
from numpy.lib.npyio import NpzFile


@contextlib.contextmanager
def opened(
    source: str | os.PathLike[str] | bytes, complaint: str
) -> Iterator[NpzFile]:
    """Opens an archive of plain arrays; what fails in the block is its fault.

    A damaged archive raises nearly anything: errors of the zip file, of zlib,
    of the parser of array headers, a lack of memory for a shape that was never
    meant. So read in the block, and work outside of it. Nothing in the file is
    executed.

    Args:
        source: The file, or what it holds.
        complaint: What the error says first: which file, what it should be.

    Yields:
        The archive.

    Raises:
        OSError: If there is no such file.
        ValueError: For anything else that goes wrong.

    Example:

    >>> from rs_keras import _npz
    >>> with _npz.opened(b"PK?", "votes.npz is no archive") as archive:
    ...     votes = archive["votes"]
    Traceback (most recent call last):
    ValueError: votes.npz is no archive: ...
    """
    with contextlib.ExitStack() as stack:
        if isinstance(source, bytes):
            file: IO[bytes] = io.BytesIO(source)
        else:
            file = stack.enter_context(open(source, "rb"))
        try:
            # NumPy leaves a file open that it finds broken; this one is ours.
            archive = np.load(file, allow_pickle=False)
            if not isinstance(archive, NpzFile):
                raise ValueError("it holds one array")
            yield archive
        except Exception as error:
            told = str(error) or type(error).__name__
            raise ValueError(f"{complaint}: {told}") from error
