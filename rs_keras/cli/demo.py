"""Opens a page on which to draw, certify and attack an image.

rs-keras demo --model runs/mnist
"""

import argparse
import contextlib
import json
import signal
import time
import webbrowser
from collections.abc import Sequence
from pathlib import Path

from rs_keras.cli import _certification

HELP = "opens a page to draw an image, certify it and try to break it"
EXAMPLE = "rs-keras demo --model runs/mnist"

_MODEL = "pretrained:mnist-smoothmix-1.00"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's flags."""
    parser.add_argument(
        "--model",
        default=_MODEL,
        metavar="CHECKPOINT",
        help="a .keras file, the folder of a training run, a SavedModel, or "
        "pretrained:NAME (default: %(default)s)",
    )
    _certification.add_sigma(parser)
    parser.add_argument(
        "--port", type=int, default=0, help="of the page (default: any free)"
    )
    parser.add_argument(
        "--no-browser",
        action="store_true",
        help="only print the page's address",
    )
    # What `certifier_of` asks for besides.
    parser.set_defaults(batch_size=None, noise="float", dtype=None)


def run(args: argparse.Namespace) -> int:
    """Serves the page until Ctrl-C or SIGTERM."""
    from rs_keras.serving.demo import DemoServer

    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with contextlib.suppress(KeyboardInterrupt):
        certifier = _certification.certifier_of(args)
        names = _class_names(args.model)
        with DemoServer(certifier, names, args.model, args.port) as demo:
            print(f"{demo.address} (Ctrl-C ends it)", flush=True)
            if not args.no_browser:
                webbrowser.open(demo.address)
            # A signal that another thread got does not wake this one.
            while True:
                time.sleep(0.5)
    return 0


def _class_names(model: str) -> Sequence[str] | None:
    """Names of the classes, where the data set of the training is known."""
    from rs_keras import datasets

    # Without them, or without the data that they lie with: numbers.
    with contextlib.suppress(OSError, ValueError, KeyError):
        return datasets.info(_dataset(model)).class_names
    return None


def _dataset(model: str) -> str:
    from rs_keras import models

    kind, _, name = model.partition(":")
    if kind == "pretrained":
        return models.PRETRAINED[name].dataset
    recipe = Path(model).expanduser() / "recipe.json"
    return str(json.loads(recipe.read_text(encoding="utf-8"))["dataset"])
