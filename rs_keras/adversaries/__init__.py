"""Adversaries against a smoothed classifier, in the L2 norm."""

from rs_keras.adversaries.attacks import DDN
from rs_keras.adversaries.attacks import PGD
from rs_keras.adversaries.attacks import Ascent
from rs_keras.adversaries.attacks import NoiseAscent
from rs_keras.adversaries.gradients import Adversary
from rs_keras.adversaries.gradients import gradient_of
from rs_keras.adversaries.gradients import norms
from rs_keras.adversaries.gradients import project
from rs_keras.adversaries.gradients import repeat
from rs_keras.adversaries.gradients import smoothed_loss
from rs_keras.adversaries.gradients import unit

__all__ = [
    "DDN",
    "PGD",
    "Adversary",
    "Ascent",
    "NoiseAscent",
    "gradient_of",
    "norms",
    "project",
    "repeat",
    "smoothed_loss",
    "unit",
]
