"""Keras trainers for randomized smoothing, one file a method."""

from rs_keras.trainers.base import SmoothTrainer
from rs_keras.trainers.gaussian import Gaussian
from rs_keras.trainers.optimizers import SGD

__all__ = ["SGD", "Gaussian", "SmoothTrainer"]
