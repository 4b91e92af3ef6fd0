"""Loading saved classifiers: `.keras` files, run folders, SavedModels."""

import json
import zipfile
from importlib import import_module
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from rs_keras._checks import check_choice
from rs_keras._paths import expanded
from rs_keras.classifiers.adapters import network_of
from rs_keras.models.pretrained import PRETRAINED
from rs_keras.models.pretrained import Pretrained

# The file of the model in the folder of a training run.
RUN_MODEL = "model.keras"

# The prefix of the names of bundled models.
_BUNDLED = "pretrained:"

# Keras reads a saved trainer only once its class is registered: the packages
# that register classes when they are imported. By name, since they build on
# this one.
_REGISTERING = ("rs_keras.trainers",)

_WANTED = (
    "a `.keras` file (a classifier, or a trainer of this package), a run's "
    f"folder that holds `{RUN_MODEL}`, a SavedModel folder, or "
    f"`{_BUNDLED}NAME` for a model that comes with the package"
)


def load_classifier(path: str | Path) -> Any:
    """Loads the classifier that a file or folder holds.

    Args:
        path: A `.keras` file (a classifier, or a trainer of this package,
            whose classifier is returned), a run's folder that holds
            `model.keras`, a SavedModel folder, or `pretrained:NAME` for one of
            `rs_keras.models.PRETRAINED`.

    Returns:
        A Keras model, or a loaded SavedModel with a `serving_default`
        signature: what `rs_keras.Certifier` takes.

    Raises:
        FileNotFoundError: If there is nothing at `path`.
        ValueError: If the path holds none of these, or cannot be read.

    Example:

    >>> import tempfile
    >>> import keras
    >>> from rs_keras.classifiers import load_classifier
    >>> model = keras.Sequential([keras.Input([4, 4, 1]),
    ...                           keras.layers.Flatten(),
    ...                           keras.layers.Dense(3)])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     model.save(f"{folder}/model.keras")
    ...     load_classifier(folder).output_shape
    (None, 3)
    """
    return network_of(load_model(path, compile=False))


def load_model(path: str | Path, compile: bool = True) -> Any:
    """Loads the model or the trainer that a file or folder holds, as saved.

    `keras.saving.load_model` reads the same files once `rs_keras.trainers`,
    which registers the trainers, is imported.

    Args:
        path: As in `load_classifier`.
        compile: Whether to compile what was compiled when it was saved.

    Returns:
        A Keras model, a trainer, or a loaded SavedModel.

    Raises:
        FileNotFoundError: If there is nothing at `path`.
        ValueError: If what is there is none of these, or cannot be read.

    Example:

    >>> import rs_keras
    >>> from rs_keras import models
    >>> trainer = rs_keras.trainers.Gaussian(models.lenet(), sigma=0.25)
    >>> trainer.save("trainer.keras")
    >>> rs_keras.load_model("trainer.keras").sigma
    0.25
    """
    known = _bundled(path)
    path = known.weights if known else _existing(path)
    if path.is_dir():
        if (path / RUN_MODEL).is_file():
            return _load_keras(path / RUN_MODEL, compile)
        if (path / "saved_model.pb").is_file():
            return _load_saved_model(path)
    elif path.suffix == ".keras":
        return _load_keras(path, compile)
    raise ValueError(f"not a checkpoint: {path}. Give {_WANTED}")


def opened(model: Any, sigma: Any = None) -> tuple[Any, Any]:
    """Returns a classifier and its sigma; a path is loaded.

    Args:
        model: A classifier, or what `load_classifier` takes.
        sigma: None for that of a trainer at the path, where there is one.

    Example:

    >>> from rs_keras.classifiers.checkpoints import opened
    >>> model, sigma = opened("pretrained:mnist-gaussian-1.00")
    >>> model.output_shape, sigma
    ((None, 10), 1.0)
    """
    if not isinstance(model, str | Path):
        return model, sigma
    sigma = trained_sigma(model) if sigma is None else sigma
    return load_classifier(model), sigma


def trained_sigma(path: str | Path) -> float | None:
    """Returns the sigma of the trainer that a `.keras` file or run holds.

    Args:
        path: As in `load_classifier`.

    Returns:
        None where there is no trainer, or one whose sigma varies.

    Raises:
        FileNotFoundError: If there is nothing at `path`.

    Example:

    >>> from rs_keras import models
    >>> from rs_keras.classifiers import trained_sigma
    >>> from rs_keras.trainers import Gaussian
    >>> model = models.lenet()
    >>> model.save("classifier.keras")
    >>> Gaussian(model, sigma=0.25).save("trainer.keras")
    >>> trained_sigma("trainer.keras"), trained_sigma("classifier.keras")
    (0.25, None)
    """
    known = _bundled(path)
    if known:
        return known.sigma
    path = _existing(path)
    path = path / RUN_MODEL if path.is_dir() else path
    if path.suffix != ".keras" or not zipfile.is_zipfile(path):
        return None
    try:
        with zipfile.ZipFile(path) as archive:
            saved = json.loads(archive.read("config.json"))
        trainer = str(saved.get("registered_name")).startswith("rs_keras>")
        sigma = saved.get("config", {}).get("sigma") if trainer else None
        return float(sigma) if isinstance(sigma, int | float) else None
    except Exception as error:
        # A damaged file may fail anywhere.
        raise _unreadable(path, error) from error


def _bundled(path: str | Path) -> Pretrained | None:
    """The model of the package that `path` names, if it names one."""
    if not str(path).startswith(_BUNDLED):
        return None
    name = str(path).removeprefix(_BUNDLED)
    return PRETRAINED[check_choice("name", name, PRETRAINED)]


def _existing(path: str | Path) -> Path:
    path = expanded(path)
    if not path.exists():
        raise FileNotFoundError(f"no such checkpoint: {path}. Give {_WANTED}")
    return path


def _load_keras(path: Path, compile: bool) -> keras.Model:
    for package in _REGISTERING:
        import_module(package)
    try:
        return keras.saving.load_model(path, compile=compile)
    except Exception as error:
        # Keras, h5py and zipfile fail in many ways on a damaged file.
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: Exception) -> ValueError:
    return ValueError(
        f"cannot load {path}: {error}. A model with classes of its own needs "
        "them registered (keras.saving.register_keras_serializable) and "
        "imported before; a damaged file must be saved again"
    )


def _load_saved_model(path: Path) -> Any:
    try:
        loaded = tf.saved_model.load(str(path))
    except Exception as error:
        # As with damaged `.keras` files.
        raise ValueError(
            f"cannot load the SavedModel {path}: {error}"
        ) from error
    if "serving_default" not in loaded.signatures:
        raise ValueError(
            f"the SavedModel {path} needs a `serving_default` signature from "
            f"images to logits. It has: {sorted(loaded.signatures) or 'none'}"
        )
    return loaded
