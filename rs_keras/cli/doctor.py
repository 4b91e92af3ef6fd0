"""Say what this installation has, and what is missing.

rs-keras doctor
"""

import argparse
import os
import platform
import shutil
from collections.abc import Iterator
from importlib import import_module
from importlib import metadata
from pathlib import Path

from rs_keras.quiet import import_tensorflow

HELP = "shows versions, devices and data, and what is missing"
EXAMPLE = "rs-keras doctor"
TENSORFLOW = False

OK, MISSING, NOTE = "ok", "MISSING", "note"

# Importing these is what can fail although pip is content.
_IMPORTS = (
    "tensorflow",
    "keras",
    "tensorflow_probability",
    "rs_keras.trainers",
)

_DATA_SETS = ("mnist", "fashion_mnist", "cifar10", "cifar100", "svhn_cropped")

Finding = tuple[str, str, str]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """There are none."""


def run(args: argparse.Namespace) -> int:
    """Prints the findings; returns 1 if the installation cannot work."""
    broken = False
    for state, what, told in findings():
        print(f"{state:8}{what:28}{told}", flush=True)
        broken |= state == MISSING
    print(
        "This installation cannot work: see MISSING above."
        if broken
        else "This installation works."
    )
    return int(broken)


def findings() -> Iterator[Finding]:
    """Yields what was looked at: (state, what, what was found)."""
    yield OK, "python", platform.python_version()
    yield from _packages()
    yield from _imports()
    yield from _devices()
    yield from _data()
    yield from _tools()


def _packages() -> Iterator[Finding]:
    """Compares what is installed with what the package asks for."""
    from packaging.requirements import Requirement

    try:
        wanted = metadata.requires("rs-keras") or []
    except metadata.PackageNotFoundError:
        yield NOTE, "rs-keras", "runs from a checkout; `make setup` installs it"
        return
    yield OK, "rs-keras", metadata.version("rs-keras")
    for requirement in map(Requirement, wanted):
        if requirement.marker and not requirement.marker.evaluate():
            continue
        name, allowed = requirement.name, requirement.specifier
        try:
            found = metadata.version(name)
        except metadata.PackageNotFoundError:
            yield MISSING, name, f"pip install '{requirement}'"
            continue
        if found in allowed:
            yield OK, name, found
        else:
            yield MISSING, name, f"{found}, but {allowed} is needed"


def _imports() -> Iterator[Finding]:
    for name in _IMPORTS:
        try:
            if name == "tensorflow":
                import_tensorflow()
            import_module(name)
        # Whatever breaks is what is to be told.
        except Exception as error:
            yield MISSING, f"import {name}", f"{type(error).__name__}: {error}"
        else:
            yield OK, f"import {name}", ""


def _devices() -> Iterator[Finding]:
    try:
        import tensorflow as tf
    except ImportError:
        return
    yield OK, "processors", f"{os.cpu_count()}"
    accelerators = tf.config.list_physical_devices("GPU")
    if accelerators:
        yield OK, "accelerators", f"{len(accelerators)} GPU"
    else:
        yield NOTE, "accelerators", "none: everything runs on the CPU"


def _data() -> Iterator[Finding]:
    folder = Path(
        os.environ.get("TFDS_DATA_DIR", "~/tensorflow_datasets")
    ).expanduser()
    there = [name for name in _DATA_SETS if (folder / name).is_dir()]
    told = ", ".join(there) or "empty"
    yield NOTE, "data", f"{folder}: {told} (others are fetched when used)"
    yield OK, "bundled data", "fashion_mini"


def _tools() -> Iterator[Finding]:
    server = shutil.which("tensorflow_model_server")
    told = server or "not on the PATH: `serve` starts the embedded server"
    yield (OK if server else NOTE), "tensorflow_model_server", told
