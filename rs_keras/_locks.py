"""Locks on files and folders, which end with the process that has them."""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path


def lock(handle: int, name: object) -> None:
    """Locks an open file or folder until it is closed.

    Where the file system has no locks, nothing happens.

    Args:
        handle: Of the open file.
        name: What the error calls it.

    Raises:
        BlockingIOError: If another process has locked it.
    """
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise BlockingIOError(
            f"{name} is being written by another process: let it finish, or "
            "choose another name"
        ) from error
    except OSError:
        # A file system without locks.
        pass


@contextlib.contextmanager
def only_writer(folder: str | os.PathLike[str]) -> Iterator[None]:
    """Lets one process at a time write a folder.

    Raises:
        BlockingIOError: If another process does.
        OSError: If there is no such folder.

    Example:

    >>> import tempfile
    >>> from rs_keras._locks import only_writer
    >>> folder = tempfile.mkdtemp()
    >>> with only_writer(folder):
    ...     with only_writer(folder):
    ...         pass
    Traceback (most recent call last):
    BlockingIOError: ... is being written by another process: let it finish...
    """
    handle = os.open(folder, os.O_RDONLY)
    try:
        lock(handle, folder)
        yield
    finally:
        os.close(handle)


def is_left_over(path: Path) -> bool:
    """Returns whether the process that locked a file or folder is gone.

    False where it cannot be told.
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(handle)
    return True
