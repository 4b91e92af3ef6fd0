"""Version folders in the layout of TF Serving: `exports/mnist/1`, `2`, ...

A server loads a folder as soon as its name is a number. A version is therefore
written under another name and renamed when it is complete.

The graph contains the secret of its seeds, so only the owner and the group can
read the files: the group of the folder of all versions, if that has the
set-group-ID bit, otherwise the group of the exporting user.
"""

import contextlib
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

from rs_keras._atomic_files import remove_left_over
from rs_keras._locks import only_writer
from rs_keras._paths import expanded

# Servers read the names as int64 and ignore larger numbers.
LARGEST = 2**63 - 1

_FOLDER_MODE = 0o750
_FILE_MODE = 0o640


def existing(base: str | Path) -> list[int]:
    """Returns the numbers of the versions in a folder, ascending."""
    return sorted({n for n, entry in _numbered(base) if entry.is_dir()})


def folder_of(base: str | Path, number: int) -> Path:
    """Returns the folder of a version that exists: `1`, but `0001` as well."""
    return next(entry for n, entry in _numbered(base) if n == number)


def _numbered(base: str | Path) -> Iterator[tuple[int, Path]]:
    folder = Path(base)
    for entry in folder.iterdir() if folder.is_dir() else ():
        name = entry.name
        if name.isascii() and name.isdigit() and int(name) <= LARGEST:
            yield int(name), entry


def check_target(base: str | Path, version: int | None) -> Path:
    """Returns the folder of all versions, which need not exist yet.

    Raises:
        ValueError: If the version is larger than servers read.
        FileExistsError: If the version exists.
        NotADirectoryError: If there is a file in its place.
        PermissionError: If it cannot be written to.
    """
    folder = expanded(base)
    if version is not None:
        if version > LARGEST:
            raise ValueError(
                f"`version` must be <= {LARGEST}, the largest that servers "
                f"load. Received: version={version}"
            )
        if version in dict(_numbered(folder)):
            raise _exists(version, folder)
    # The nearest ancestor that exists; the other folders are created.
    parent = next(p for p in (folder, *folder.parents) if p.exists())
    if not parent.is_dir():
        raise NotADirectoryError(
            f"`directory` must be a folder. Received: {folder} ({parent} is a "
            "file)"
        )
    if not os.access(parent, os.W_OK | os.X_OK):
        raise PermissionError(
            f"`directory` must be writable. Received: {folder} (no permission "
            f"to write in {parent})"
        )
    return folder


@contextlib.contextmanager
def scratch(base: Path) -> Iterator[Path]:
    """Creates a temporary folder beside the versions, which servers ignore.

    It is removed at the end, unless `publish` renamed it. Only the owner can
    open it.
    """
    base.mkdir(parents=True, exist_ok=True)
    remove_left_over(base, "tmp.*")
    folder = base / f"tmp.{os.getpid()}.{secrets.token_hex(4)}"
    folder.mkdir(mode=0o700)
    try:
        with only_writer(folder):
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def publish(folder: Path, base: Path, version: int | None) -> Path:
    """Renames a complete export to its version number (None: the next).

    Raises:
        FileExistsError: If another export took the number meanwhile.
    """
    _restrict(folder)
    while True:
        number = version
        if number is None:
            # Including files: they are not versions, but block the name.
            number = max(dict(_numbered(base)), default=0) + 1
        target = base / str(number)
        try:
            os.rename(folder, target)
            return target
        except OSError:
            # The folder is not empty: another export took the number.
            if not target.exists():
                raise
        if version is not None:
            raise _exists(version, base)


def _exists(version: int, base: Path) -> FileExistsError:
    return FileExistsError(
        f"`version` must be new. Received: version={version}, which exists in "
        f"{base}"
    )


def _restrict(folder: Path) -> None:
    """Makes a version readable for its owner and group only.

    Regardless of the umask: a server run by another user of the group must be
    able to read it. The folder comes last, so that its files stay closed until
    then.
    """
    for path in folder.rglob("*"):
        path.chmod(_FOLDER_MODE if path.is_dir() else _FILE_MODE)
    folder.chmod(_FOLDER_MODE)
