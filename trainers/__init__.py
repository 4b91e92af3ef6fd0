"""Keras trainers for randomized smoothing, one file per method."""

from typing import TYPE_CHECKING

from rs_keras._lazy import attach
from rs_keras.trainers import methods
from rs_keras.trainers._distributed.batch_norm import (
    SynchronizedBatchNormalization,
)
from rs_keras.trainers._distributed.batch_norm import is_synchronized
from rs_keras.trainers._distributed.batch_norm import synchronized
from rs_keras.trainers._step.per_input_sigma import PerExampleSigma
from rs_keras.trainers.base import SmoothTrainer
from rs_keras.trainers.denoising import Denoising
from rs_keras.trainers.methods import *  # noqa: F403
from rs_keras.trainers.optimizers import SGD

__all__ = [
    "SGD",
    "Denoising",
    "PerExampleSigma",
    "SmoothTrainer",
    "SynchronizedBatchNormalization",
    "is_synchronized",
    "synchronized",
]
__all__ += [name for name in vars(methods) if not name.startswith("_")]

if TYPE_CHECKING:
    from rs_keras.trainers.tuning import search_spaces as search_spaces

# A module that also has a shorter name, loaded when first used.
_, __getattr__, __dir__ = attach(__name__)
