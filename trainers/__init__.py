"""Keras trainers for randomized smoothing, one file a method."""

from typing import TYPE_CHECKING

from rs_keras._lazy import attach
from rs_keras.trainers._distributed.batch_norm import (
    SynchronizedBatchNormalization,
)
from rs_keras.trainers._distributed.batch_norm import is_synchronized
from rs_keras.trainers._distributed.batch_norm import synchronized
from rs_keras.trainers._step.per_input_sigma import PerExampleSigma
from rs_keras.trainers.base import SmoothTrainer
from rs_keras.trainers.catrs import CATRS
from rs_keras.trainers.consistency import Consistency
from rs_keras.trainers.gaussian import Gaussian
from rs_keras.trainers.macer import MACER
from rs_keras.trainers.optimizers import SGD
from rs_keras.trainers.smoothadv import SmoothAdv
from rs_keras.trainers.smoothmix import SmoothMix
from rs_keras.trainers.stability import Stability

__all__ = [
    "CATRS",
    "MACER",
    "SGD",
    "Consistency",
    "Gaussian",
    "PerExampleSigma",
    "SmoothAdv",
    "SmoothMix",
    "SmoothTrainer",
    "Stability",
    "SynchronizedBatchNormalization",
    "is_synchronized",
    "synchronized",
]

if TYPE_CHECKING:
    from rs_keras.trainers.tuning import search_spaces as search_spaces

# A module that also has a shorter name, loaded when first used.
__getattr__, __dir__ = attach(
    __name__,
    {"search_spaces": "rs_keras.trainers.tuning.search_spaces"},
)
