"""How the command line says what is wrong: in one line, and what to do."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from rs_keras import _compat


class Parser(argparse.ArgumentParser):
    """A parser whose errors do not stand below a screen of usage."""

    def error(self, message: str) -> NoReturn:
        """Says what is wrong and where to read on; ends with exit code 2."""
        self.exit(2, f"{self.prog}: {message}\nsee {self.prog} --help\n")


def check_command(words: Sequence[str], commands: Sequence[str]) -> None:
    """Raises ValueError if the first word is no command; names the nearest."""
    if not words or words[0].startswith("-") or words[0] in commands:
        return
    # Needs NumPy, which `doctor` must do without.
    from rs_keras._checks import check_choice

    check_choice("COMMAND", words[0], commands)


def told(error: Exception, args: argparse.Namespace) -> str:
    """Returns an error's text; of a file's, with the argument that names it."""
    if not isinstance(error, OSError) or not error.filename:
        return str(error)
    actions = [
        action
        for action in _compat.arguments_of(args.parser)
        if _names(action, args, error)
    ]
    if not actions:
        return f"{error.filename}: {error.strerror}"
    flag = actions[0].option_strings[-1:] or [actions[0].metavar]
    what = "folder" if actions[0].metavar == "DIR" else "file"
    use = "written" if actions[0].dest == "out" else "read"
    return (
        f"`{flag[0]}` must name a {what} that can be {use}. "
        f"Received: {error.filename} ({error.strerror})"
    )


def _names(
    action: argparse.Action, args: argparse.Namespace, error: OSError
) -> bool:
    """Whether an argument's value is the file of an error."""
    value = getattr(args, action.dest, None)
    values = value if isinstance(value, list) else [value]
    place = Path(str(error.filename)).absolute()
    return any(
        Path(text).expanduser().absolute() == place
        for text in values
        if isinstance(text, str)
    )
