"""The command line: `rs-keras COMMAND ...`.

`commands.toml` declares the commands and their flags. Each command is one
module of this folder with a function `run(args)`. It is imported only when it
is called, after TensorFlow, so that `--help` answers at once: these modules
alone may import all packages.
"""

import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Sequence
from importlib import import_module

import rs_keras
from rs_keras._compat import import_tensorflow
from rs_keras.cli._parser import COMMANDS as COMMANDS
from rs_keras.cli._parser import error_text
from rs_keras.cli._parser import make_parser as make_parser
from rs_keras.cli._parser import parse
from rs_keras.cli._parser import visible

# Printed by `rs-keras` alone: from data to requests.
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


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code.

    0: success. 1: success, but the answer is no. 2: an argument, a file or a
    value is wrong (reported in one line on stderr). 70: a defect, whose
    traceback is kept in a file. 130: stopped with Ctrl-C. 141: nobody reads
    the output any more.
    """
    args = parse(sys.argv[1:] if argv is None else argv)
    if args.command is None:
        print(_USUAL.format(about=rs_keras.__doc__))
        return 0
    try:
        if args.tensorflow:
            import_tensorflow()
        for name in getattr(args, "imports", ()):
            _import(name)
        command = import_module(f"rs_keras.cli.{args.command}")
        code = command.run(args) or 0
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        # Whoever read the output has enough, such as `| head`. What is left
        # in the buffer goes nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except (ValueError, OSError, ImportError, FloatingPointError) as error:
        text = visible(error_text(error, args))
        print(f"rs-keras {args.command}: {text}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(
            f"\nrs-keras {args.command}: stopped. Finished results are kept; "
            "run the same command again to continue.",
            file=sys.stderr,
        )
        return 130
    except MemoryError:
        print(
            f"rs-keras {args.command}: there is not enough memory. Smaller "
            "passes (--batch-size) need less, where the command has them.",
            file=sys.stderr,
        )
        return 2
    except Exception as error:
        told = visible(f"{type(error).__name__}: {error}")
        print(
            f"rs-keras {args.command}: {told}\nThis is a defect of rs-keras: "
            f"its traceback is in {_kept_traceback()}",
            file=sys.stderr,
        )
        return 70


def _kept_traceback() -> str:
    """Writes the traceback of the error in hand to a file of its own."""
    handle, name = tempfile.mkstemp(prefix="rs-keras-", suffix=".txt")
    with open(handle, "w", errors="replace") as file:
        file.write(f"rs-keras {rs_keras.__version__}\n")
        file.write(f"{' '.join(sys.argv)}\n{traceback.format_exc()}")
    return name


def _import(name: str) -> None:
    """Imports a module that registers a user's own layers."""
    here = os.getcwd()
    if here not in sys.path:
        # The command itself stands in another folder.
        sys.path.insert(0, here)
    try:
        import_module(name)
    except ImportError as error:
        raise ValueError(
            "--import must name a module that Python can import from here. "
            f"Received: {name} ({error})"
        ) from error
