"""Adversaries against a smoothed classifier, in the L2 norm."""

from rs_keras.adversaries.attacks import DDN
from rs_keras.adversaries.attacks import PGD
from rs_keras.adversaries.attacks import Ascent
from rs_keras.adversaries.attacks import NoiseAscent

__all__ = [
    "DDN",
    "PGD",
    "Ascent",
    "NoiseAscent",
]
