"""The command line: `rs-keras COMMAND ...`.

Each command is one module of this folder with `HELP` (one line), `EXAMPLE` (a
line to copy), `add_arguments(parser)` and `run(args)`, and with
`TENSORFLOW = False` where it does without. Modules import TensorFlow and the
other rooms inside `run`, so that `--help` answers at once.
"""

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module

import rs_keras
from rs_keras._compat import import_tensorflow
from rs_keras.cli import _errors

COMMANDS = (
    "train",
    "tune",
    "certify",
    "predict",
    "decide",
    "merge",
    "table",
    "plot",
    "report",
    "export",
    "serve",
    "request",
    "reproduce",
    "demo",
    "doctor",
)

# What is told to someone who calls `rs-keras` alone: from data to requests.
_USUAL = """\
rs-keras: {about}

The five usual commands:
  rs-keras train mnist --method smoothmix_T1 --sigma 1.0 --out runs/mnist
  rs-keras certify mnist --model runs/mnist --skip 10 --out mnist.tsv
  rs-keras report mnist.tsv --out mnist.html
  rs-keras export runs/mnist --out exports/mnist
  rs-keras serve exports/mnist

`rs-keras demo` shows it in the browser, `rs-keras doctor` checks the
installation, `rs-keras COMMAND --help` explains one command, and
`rs-keras --help` lists them all."""


class _Formatter(argparse.RawDescriptionHelpFormatter):
    """Shows defaults and keeps the example's line breaks."""


def make_parser() -> argparse.ArgumentParser:
    """Returns the parser of all commands: what help and docs are made from."""
    parser = _errors.Parser(
        prog="rs-keras",
        description=rs_keras.__doc__,
        formatter_class=_Formatter,
    )
    parser.add_argument(
        "--version", action="version", version=rs_keras.__version__
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    for name in COMMANDS:
        module = import_module(f"rs_keras.cli.{name}")
        command = commands.add_parser(
            name,
            help=module.HELP,
            description=module.HELP,
            epilog=f"example:\n  {module.EXAMPLE}",
            formatter_class=_Formatter,
        )
        module.add_arguments(command)
        needs = getattr(module, "TENSORFLOW", True)
        command.set_defaults(run=module.run, tensorflow=needs, parser=command)
    return parser


def _parsed(
    parser: argparse.ArgumentParser, words: Sequence[str]
) -> argparse.Namespace:
    """Reads the words; what is wrong with them is told by their command."""
    try:
        _errors.check_command(words, COMMANDS)
    except ValueError as error:
        parser.error(str(error))
    args, unknown = parser.parse_known_args(words)
    if unknown:
        command = args.parser if args.command else parser
        command.error(f"unrecognized arguments: {' '.join(unknown)}")
    return args


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code.

    0: done. 1: done, and the answer is no. 2: the call, a file or a value is
    wrong (said in one line on stderr). 130: stopped with Ctrl-C.
    """
    parser = make_parser()
    args = _parsed(parser, sys.argv[1:] if argv is None else argv)
    if args.command is None:
        print(_USUAL.format(about=rs_keras.__doc__))
        return 0
    try:
        if args.tensorflow:
            import_tensorflow()
        return args.run(args) or 0
    except (ValueError, OSError) as error:
        text = _errors.told(error, args)
        print(f"rs-keras {args.command}: {text}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(
            f"\nrs-keras {args.command}: stopped. What was written is kept; "
            "the same command goes on from there.",
            file=sys.stderr,
        )
        return 130
