"""`rs-keras demo`: a page on which to draw, certify and attack an image."""

import argparse
import contextlib
import json
import signal
import time
import webbrowser
from collections.abc import Sequence

from rs_keras import datasets
from rs_keras import models
from rs_keras._paths import expanded
from rs_keras.cli import _certification
from rs_keras.serving.demo import DemoServer


def run(args: argparse.Namespace) -> int:
    """Serves the page until Ctrl-C or SIGTERM."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with contextlib.suppress(KeyboardInterrupt):
        certifier = _certification.load_certifier(args.model, args.sigma)
        names = _class_names(args.model)
        with DemoServer(certifier, names, args.model, args.port) as demo:
            print(f"{demo.address} (Ctrl-C ends it)", flush=True)
            if not args.no_browser:
                webbrowser.open(demo.address)
            # A signal delivered to another thread does not wake this one.
            while True:
                time.sleep(0.5)
    return 0


def _class_names(model: str) -> Sequence[str] | None:
    """Returns the class names, where the training's data set is known."""
    # Without a recipe or its data set, the page shows class numbers.
    with contextlib.suppress(OSError, ValueError, KeyError):
        return datasets.info(_dataset(model)).class_names
    return None


def _dataset(model: str) -> str:
    kind, _, name = model.partition(":")
    if kind == "pretrained":
        return models.PRETRAINED[name].dataset
    recipe = expanded(model) / "recipe.json"
    return str(json.loads(recipe.read_text(encoding="utf-8"))["dataset"])
