"""Keras trainers for randomized smoothing, one file a method."""

from rs_keras.trainers.base import SmoothTrainer
from rs_keras.trainers.batch_norm import SynchronizedBatchNormalization
from rs_keras.trainers.catrs import CATRS
from rs_keras.trainers.consistency import Consistency
from rs_keras.trainers.data_dependent import PerExampleSigma
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
]
