"""Atomic file writes: readers see either the old file or the new one."""

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def written_whole(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Gives a temporary path beside `path`, and renames it when all went well.

    A reader, or a process that starts after a crash, finds the old file or the
    new one, never a part. The temporary name ends as `path` does.

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
    handle, name = tempfile.mkstemp(
        dir=path.parent, prefix=".writing.", suffix=path.suffix
    )
    os.close(handle)
    temporary = Path(name)
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
