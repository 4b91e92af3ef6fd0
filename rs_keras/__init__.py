"""Randomized smoothing in Keras: train, certify and serve."""

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING
from typing import Any

# A checkout keeps trainers/, export/ and serving/ beside this folder; an
# installed package has them inside.
_checkout = Path(__file__).resolve().parent.parent
if (_checkout / "setup.py").is_file() and (_checkout / "trainers").is_dir():
    __path__.append(str(_checkout))

if TYPE_CHECKING:
    from rs_keras import adversaries as adversaries
    from rs_keras import bounds as bounds
    from rs_keras import datasets as datasets
    from rs_keras import models as models
    from rs_keras.ball_memory import BallMemory as BallMemory
    from rs_keras.certificate import Certificate as Certificate
    from rs_keras.certificate import Prediction as Prediction
    from rs_keras.certifier import Certifier as Certifier
    from rs_keras.composition import compose as compose
    from rs_keras.data_dependent import optimize_sigma as optimize_sigma
    from rs_keras.decision import Decision as Decision
    from rs_keras.evaluation import certify_dataset as certify_dataset
    from rs_keras.log import CertificationLog as CertificationLog
    from rs_keras.per_input import (
        DataDependentCertifier as DataDependentCertifier,
    )
    from rs_keras.teacher import smoothed_labels as smoothed_labels

__version__ = "0.1.0"

# Loaded when first used, so that importing the package (and `rs-keras --help`)
# does not wait for TensorFlow.
_HOMES = {
    "adversaries": "rs_keras.adversaries",
    "bounds": "rs_keras.bounds",
    "datasets": "rs_keras.datasets",
    "models": "rs_keras.models",
    "BallMemory": "rs_keras.ball_memory",
    "Certificate": "rs_keras.certificate",
    "Certifier": "rs_keras.certifier",
    "CertificationLog": "rs_keras.log",
    "DataDependentCertifier": "rs_keras.per_input",
    "Decision": "rs_keras.decision",
    "Prediction": "rs_keras.certificate",
    "certify_dataset": "rs_keras.evaluation",
    "smoothed_labels": "rs_keras.teacher",
    "compose": "rs_keras.composition",
    "optimize_sigma": "rs_keras.data_dependent",
}
__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'rs_keras' has no attribute {name!r}")
    module = import_module(_HOMES[name])
    is_module = _HOMES[name] == f"rs_keras.{name}"
    value = module if is_module else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
