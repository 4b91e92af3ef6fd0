"""`rs-keras doctor`: what this installation has, and what is missing.

It runs without NumPy and TensorFlow, whose absence it reports.
"""

import argparse
import logging
import os
import platform
import shutil
import sys
import zipfile
import zlib
from collections.abc import Iterator
from collections.abc import Sequence
from importlib import import_module
from importlib import metadata
from pathlib import Path

import rs_keras
from rs_keras._compat import import_tensorflow
from rs_keras._paths import expanded

OK, MISSING, NOTE = "ok", "MISSING", "note"

# Imports that can fail although pip reports no conflict. tensorflow_probability
# imports all of itself if TensorFlow was imported before, otherwise nothing.
_IMPORTS = (
    "numpy",
    "scipy.stats",
    "matplotlib",
    "PIL",
    "tqdm",
    "sklearn",
    "tensorflow",
    "keras",
    "tf_keras",
    "tensorflow_probability",
    "rs_keras.bounds.radii",
    "tensorboard",
    "tensorflow_datasets",
    "importlib_resources",
    "keras_tuner",
    "grpc",
    "grpc_health.v1.health",
    "tensorflow_serving.apis",
    "rs_keras.models",
    "rs_keras.trainers",
    "rs_keras.export",
    "rs_keras.serving",
)

_DATA_SETS = ("mnist", "fashion_mnist", "cifar10", "cifar100", "svhn_cropped")
_BUNDLED = ("fashion_mini.npz", "mnist_test_order.npz")

Finding = tuple[str, str, str]


def run(args: argparse.Namespace) -> int:
    """Prints the findings; returns 1 if a needed part is missing."""
    broken = False
    for state, part, text in findings():
        print(f"{state:8}{part:28}{text}", flush=True)
        broken |= state == MISSING
    print(
        "This installation cannot work: see MISSING above."
        if broken
        else "This installation works."
    )
    return int(broken)


def findings() -> Iterator[Finding]:
    """Yields (state, part of the installation, finding)."""
    yield OK, "python", platform.python_version()
    yield from _packages()
    yield from _imports()
    yield _backend()
    yield from _devices()
    yield _data()
    yield from _bundled()
    yield from _tools()


def _packages() -> Iterator[Finding]:
    """Compares the installed packages with the requirements."""
    try:
        from packaging.requirements import Requirement
    except ImportError:
        yield (
            MISSING,
            "packaging",
            "pip install packaging; it compares versions",
        )
        return
    try:
        requirements = metadata.requires("rs-keras") or []
    except metadata.PackageNotFoundError:
        yield NOTE, "rs-keras", "runs from a checkout; `make setup` installs it"
        return
    yield OK, "rs-keras", metadata.version("rs-keras")
    for requirement in map(Requirement, requirements):
        if requirement.marker and not requirement.marker.evaluate():
            continue
        name, allowed = requirement.name, requirement.specifier
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
            yield MISSING, name, f"pip install '{requirement}'"
            continue
        if version in allowed:
            yield OK, name, version
        else:
            yield MISSING, name, f"{version}, but {allowed} is needed"


def _imports() -> Iterator[Finding]:
    working = []
    for name in _IMPORTS:
        error = _failure(name)
        if error is None:
            working.append(name)
        else:
            yield MISSING, f"import {name}", f"{type(error).__name__}: {error}"
    yield OK, "imports", ", ".join(working) or "none"


def _backend() -> Finding:
    """Names the backend of Keras, which must be TensorFlow's."""
    chosen = os.environ.get("KERAS_BACKEND")
    if "keras" in sys.modules:
        import keras

        chosen = keras.backend.backend()
    if chosen in (None, "tensorflow"):
        return OK, "keras backend", "tensorflow"
    return (
        MISSING,
        "keras backend",
        f"{chosen}, but tensorflow is needed: set KERAS_BACKEND=tensorflow",
    )


def _failure(name: str) -> Exception | None:
    """Imports a module; returns what went wrong."""
    # tensorflow-datasets would log a traceback beside the line printed here.
    logging.disable(logging.CRITICAL)
    try:
        if name == "tensorflow":
            import_tensorflow()
        import_module(name)
    # Any failure of an import is a finding.
    except Exception as error:
        return error
    finally:
        logging.disable(logging.NOTSET)
    return None


def _devices() -> Iterator[Finding]:
    if "tensorflow" not in sys.modules:
        return
    import tensorflow as tf

    yield OK, "processors", f"{os.cpu_count()}"
    accelerators = tf.config.list_physical_devices("GPU")
    if accelerators:
        yield OK, "accelerators", f"{len(accelerators)} GPU"
    else:
        yield NOTE, "accelerators", "none: everything runs on the CPU"


def _data() -> Finding:
    """Names the data sets on the disk, and marks broken downloads."""
    folder = expanded(os.environ.get("TFDS_DATA_DIR", "~/tensorflow_datasets"))
    names = [
        # Versions are numbers; `incomplete.*` is a download that stopped.
        name
        if any(dataset.glob("[0-9]*/dataset_info.json"))
        else f"{name} broken"
        for name in _DATA_SETS
        if (dataset := folder / name).is_dir()
    ]
    text = ", ".join(names) or "empty"
    return NOTE, "data", f"{folder}: {text} (others are fetched when used)"


def _bundled() -> Iterator[Finding]:
    """Checks the bundled data and weights, all of them zip archives."""
    data = Path(rs_keras.__file__).parent / "data"
    yield _archives("bundled data", [data / name for name in _BUNDLED])
    try:
        from rs_keras.models import PRETRAINED
    except Exception:
        # Reported among the imports.
        return
    weights = [known.weights for known in PRETRAINED.values()]
    yield _archives("bundled weights", weights)


def _archives(part: str, paths: Sequence[Path]) -> Finding:
    """Finds the first file that is missing or damaged."""
    for path in paths:
        if not path.is_file():
            return MISSING, part, f"{path}: no such file; install again"
        try:
            with zipfile.ZipFile(path) as archive:
                damaged = archive.testzip()
        except (OSError, zipfile.BadZipFile, zlib.error) as error:
            damaged = str(error)
        if damaged is not None:
            return MISSING, part, f"{path}: damaged ({damaged}); install again"
    return OK, part, ", ".join(path.stem for path in paths)


def _tools() -> Iterator[Finding]:
    server = shutil.which("tensorflow_model_server")
    text = server or "not on the PATH: `serve` starts the embedded server"
    yield (OK if server else NOTE), "tensorflow_model_server", text
