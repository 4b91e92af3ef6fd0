"""Version folders, as TF Serving looks for them: `exports/mnist/1`, `2`, ...

A server loads a folder as soon as its name is a number. So a version is
written under another name and renamed when it is whole.
"""

import contextlib
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path


def existing(base: str | Path) -> list[int]:
    """Returns the numbers of the versions in a folder, ascending."""
    place = Path(base)
    if not place.is_dir():
        return []
    names = [entry.name for entry in place.iterdir() if entry.is_dir()]
    return sorted({int(n) for n in names if n.isascii() and n.isdigit()})


def folder_of(base: str | Path, number: int) -> Path:
    """Returns the folder of a version that exists: `1`, but `0001` as well."""
    named = (entry for entry in Path(base).iterdir() if entry.name.isdigit())
    return next(entry for entry in named if int(entry.name) == number)


def check_target(base: str | Path, version: int | None) -> Path:
    """Returns the folder of all versions, which need not exist yet.

    Raises:
        FileExistsError: If the version exists.
        NotADirectoryError: If there is a file in its place.
        PermissionError: If it cannot be written to.
    """
    place = Path(base).expanduser()
    if version is not None and version in existing(place):
        raise FileExistsError(
            f"`version` must be new. Received: version={version}, which "
            f"exists in {place}"
        )
    # What exists of the path, as the rest will be made.
    ground = place
    while not ground.exists() and ground != ground.parent:
        ground = ground.parent
    if not ground.is_dir():
        raise NotADirectoryError(
            f"`directory` must be a folder. Received: {place} ({ground} is a "
            "file)"
        )
    if not os.access(ground, os.W_OK | os.X_OK):
        raise PermissionError(
            f"`directory` must be writable. Received: {place} (no permission "
            f"to write in {ground})"
        )
    return place


@contextlib.contextmanager
def scratch(base: Path) -> Iterator[Path]:
    """Gives a folder beside the versions that no server looks at.

    It is gone in the end, unless `publish` gave it a number.
    """
    base.mkdir(parents=True, exist_ok=True)
    folder = base / f"tmp.{os.getpid()}.{secrets.token_hex(4)}"
    folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def publish(folder: Path, base: Path, version: int | None) -> Path:
    """Renames a whole export to its number: the next one when None.

    Raises:
        FileExistsError: If another export took the number meanwhile.
    """
    while True:
        number = version
        if number is None:
            number = max(existing(base), default=0) + 1
        target = base / str(number)
        try:
            os.rename(folder, target)
        except OSError:
            # Not empty: another export was faster.
            if not target.exists():
                raise
            if version is not None:
                raise FileExistsError(
                    f"`version` must be new. Received: version={version}, "
                    f"which exists in {base}"
                ) from None
            continue
        return target
