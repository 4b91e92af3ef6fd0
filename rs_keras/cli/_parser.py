"""The parser of the command line: flags from `commands.toml`, short errors."""

import argparse
import importlib.util
import re
import tomllib
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any
from typing import NoReturn

import rs_keras
from rs_keras import _compat
from rs_keras._paths import expanded


def _methods() -> str:
    """Returns the names of the methods without importing TensorFlow.

    Importing `trainers/methods.py`, the list of them, would.
    """
    spec = importlib.util.find_spec("rs_keras.trainers")
    [folder] = (spec and spec.submodule_search_locations) or []
    text = Path(folder, "methods.py").read_text(encoding="utf-8")
    names = re.findall(r"^from rs_keras\.trainers\.(\w+) import", text, re.M)
    return ", ".join(names)


def _read_table() -> dict[str, Any]:
    path = Path(__file__).with_name("commands.toml")
    text = path.read_text(encoding="utf-8")
    return tomllib.loads(text.replace("{methods}", _methods()))


TABLE = _read_table()
SHARED = TABLE.pop("shared")
COMMANDS = tuple(TABLE)


def seed(text: str) -> int | str:
    """Reads a whole number, or `keyed`."""
    return text if text == "keyed" else int(text)


def radii(text: str) -> list[float]:
    """Reads numbers, separated by commas."""
    try:
        return [float(part) for part in text.split(",")]
    except ValueError as error:
        raise argparse.ArgumentTypeError(
            "must be numbers separated by commas, such as 0,0.25,0.5. "
            f"Received: {text}"
        ) from error


def shape(text: str) -> tuple[int, ...]:
    """Reads whole numbers, separated by commas."""
    return tuple(int(size) for size in text.split(","))


TYPES: dict[str, Callable[[str], Any]] = {
    "float": float,
    "int": int,
    "radii": radii,
    "seed": seed,
    "shape": shape,
}


class Parser(argparse.ArgumentParser):
    """A parser that reports an error in one line, without the usage."""

    def error(self, message: str) -> NoReturn:
        """Prints the error and where to find help; exits with code 2."""
        self.exit(2, f"{self.prog}: {message}\nsee {self.prog} --help\n")


def make_parser() -> argparse.ArgumentParser:
    """Returns the parser of all commands, from `commands.toml`."""
    layout = argparse.RawDescriptionHelpFormatter
    parser = Parser(
        prog="rs-keras",
        description=rs_keras.__doc__,
        formatter_class=layout,
    )
    parser.add_argument(
        "--version", action="version", version=rs_keras.__version__
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    for name, entry in TABLE.items():
        command = commands.add_parser(
            name,
            help=entry["help"],
            description=entry["help"],
            epilog=f"example:\n  {entry['example']}",
            formatter_class=layout,
        )
        for shared in entry.get("shared", ()):
            add_flags(command, SHARED[shared])
        own = {key: v for key, v in entry.items() if isinstance(v, dict)}
        add_flags(command, own)
        needs = entry.get("tensorflow", True)
        command.set_defaults(tensorflow=needs, parser=command)
    return parser


def add_flags(
    parser: argparse.ArgumentParser, flags: Mapping[str, Mapping[str, Any]]
) -> None:
    """Adds flags, each under its names, to their groups in the help."""
    group = cache(parser.add_argument_group)

    @cache
    def one_of(name: str, required: bool) -> Any:
        return parser.add_mutually_exclusive_group(required=required)

    for names, flag in flags.items():
        options = dict(flag)
        place: Any = parser
        if "group" in options:
            place = group(options.pop("group"))
        elif "one_of" in options:
            required = options.pop("required", False)
            place = one_of(options.pop("one_of"), required)
        if "type" in options:
            options["type"] = TYPES[options["type"]]
        place.add_argument(*names.split(), **options)


def parse(words: Sequence[str]) -> argparse.Namespace:
    """Parses a call; its own command reports what is wrong with it."""
    parser = make_parser()
    if words and not words[0].startswith("-") and words[0] not in COMMANDS:
        # Needs NumPy, which `doctor` must do without.
        from rs_keras._checks import check_choice

        try:
            check_choice("COMMAND", words[0], COMMANDS)
        except ValueError as error:
            parser.error(str(error))
    args, unknown = parser.parse_known_args(words)
    if unknown:
        command = args.parser if args.command else parser
        command.error(f"unrecognized arguments: {' '.join(unknown)}")
    return args


def visible(text: str) -> str:
    """Returns a text that does nothing to the terminal but stand in it.

    A name of a file, or what a file or a server says, may hold sequences that
    move the cursor or set the title.

    Example:

    >>> from rs_keras.cli._parser import visible
    >>> print(visible("clear\x1b[2J.tsv"))
    clear\\x1b[2J.tsv
    """
    return "".join(
        char
        if char.isprintable() or char in "\n\t"
        else char.encode("unicode_escape").decode()
        for char in text
    )


def error_text(error: Exception, args: argparse.Namespace) -> str:
    """Returns an error's text; for a file, with the argument that names it."""
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
    kind = "folder" if actions[0].metavar == "DIR" else "file"
    use = "written" if actions[0].dest == "out" else "read"
    return (
        f"`{flag[0]}` must name a {kind} that can be {use}. "
        f"Received: {error.filename} ({error.strerror})"
    )


def _names(
    action: argparse.Action, args: argparse.Namespace, error: OSError
) -> bool:
    """Whether an argument's value is the file of an error."""
    value = getattr(args, action.dest, None)
    values = value if isinstance(value, list) else [value]
    path = Path(str(error.filename)).absolute()
    return any(
        expanded(text).absolute() == path
        for text in values
        if isinstance(text, str)
    )
