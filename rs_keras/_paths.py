"""Paths as users give them."""

import os
from pathlib import Path


def expanded(path: str | os.PathLike[str]) -> Path:
    """Returns a path with a home folder for its "~", as a shell does.

    Raises:
        ValueError: If there is no such user.

    Example:

    >>> from rs_keras._paths import expanded
    >>> expanded("runs/mnist").as_posix()
    'runs/mnist'
    """
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise ValueError(
            "a path with ~ must begin with the home of a user that there is. "
            f"Received: {path}"
        ) from error
