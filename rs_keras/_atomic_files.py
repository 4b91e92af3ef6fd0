"""Atomic file writes: readers see either the old file or the new one."""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from rs_keras._locks import is_left_over
from rs_keras._locks import lock

_PREFIX = ".writing."

# Folders and patterns that were looked at: a long run writes often.
_tidied: set[tuple[Path, str]] = set()


@contextlib.contextmanager
def written_whole(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Gives a temporary path beside `path`, and renames it when all went well.

    A reader, or a process that starts after a crash, finds the old file or the
    new one, never a part. The temporary name ends as `path` does. Temporary
    files that killed processes left in the folder are removed.

    Args:
        path: The path of the file. Its folder is created.

    Yields:
        Where to write it.

    Raises:
        OSError: If the file cannot be written.

    Example:

    >>> import tempfile
    >>> from pathlib import Path
    >>> from rs_keras._atomic_files import written_whole
    >>> path = Path(tempfile.mkdtemp()) / "note.txt"
    >>> with written_whole(path) as temporary:
    ...     _ = temporary.write_text("all of it")
    >>> path.read_text(), [file.name for file in path.parent.iterdir()]
    ('all of it', ['note.txt'])
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    remove_left_over(path.parent, f"{_PREFIX}*")
    handle, temporary = _created(path)
    try:
        yield temporary
        # mkstemp lets nobody else read.
        os.chmod(temporary, 0o666 & ~_umask())
        _flush(temporary)
        os.replace(temporary, path)
        _flush(path.parent)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    finally:
        os.close(handle)


def remove_left_over(folder: Path, pattern: str) -> None:
    """Removes what processes that are gone were writing.

    Args:
        folder: Where to look, once in each process.
        pattern: Of names: files or folders that their process has locked.
    """
    if (folder.absolute(), pattern) in _tidied:
        return
    _tidied.add((folder.absolute(), pattern))
    for path in folder.glob(pattern):
        if is_left_over(path):
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)


def _created(path: Path) -> tuple[int, Path]:
    """Creates a temporary file, locked while it is written."""
    while True:
        handle, name = tempfile.mkstemp(
            dir=path.parent, prefix=_PREFIX, suffix=path.suffix
        )
        try:
            lock(handle, name)
        except BlockingIOError:
            # Another process is removing it.
            os.close(handle)
            continue
        if os.fstat(handle).st_nlink:
            return handle, Path(name)
        os.close(handle)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _flush(path: Path) -> None:
    """Has the system write a file, or a folder's list of names, to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
