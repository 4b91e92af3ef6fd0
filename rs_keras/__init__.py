"""Randomized smoothing in Keras: train, certify and serve."""

from pathlib import Path
from typing import TYPE_CHECKING

from rs_keras._lazy import attach

# A checkout keeps trainers/, export/ and serving/ beside this folder; an
# installed package has them inside.
_checkout = Path(__file__).resolve().parent.parent
if (_checkout / "setup.py").is_file() and (_checkout / "trainers").is_dir():
    __path__.append(str(_checkout))

if TYPE_CHECKING:
    from rs_keras import adversaries as adversaries
    from rs_keras import attacks as attacks
    from rs_keras import bounds as bounds
    from rs_keras import datasets as datasets
    from rs_keras import models as models
    from rs_keras.certification.certificate import Certificate as Certificate
    from rs_keras.certification.certificate import Prediction as Prediction
    from rs_keras.certification.certifier import Certifier as Certifier
    from rs_keras.certification.sequential.decision import Decision as Decision
    from rs_keras.classifiers import ensembles as ensembles
    from rs_keras.classifiers.checkpoints import load_model as load_model
    from rs_keras.logs.evaluation import certify_dataset as certify_dataset
    from rs_keras.logs.log import CertificationLog as CertificationLog
    from rs_keras.per_input_sigma.ball_memory import BallMemory as BallMemory
    from rs_keras.per_input_sigma.certifier import (
        DataDependentCertifier as DataDependentCertifier,
    )
    from rs_keras.per_input_sigma.composition import compose as compose
    from rs_keras.per_input_sigma.optimization import (
        optimize_sigma as optimize_sigma,
    )
    from rs_keras.report import plots as plots
    from rs_keras.report import tables as tables
    from rs_keras.teacher import smoothed_labels as smoothed_labels

__version__ = "0.1.0"

# Loaded when first used, so that importing the package (and `rs-keras --help`)
# does not wait for TensorFlow.
_ROOMS = ("export", "serving", "trainers")
__all__, __getattr__, __dir__ = attach(__name__, _ROOMS)
# What `*` imports: these are names of other packages, too, or would import
# gRPC and all trainers.
__all__ = sorted({*__all__} - {"ensembles", "plots", "tables", *_ROOMS})
