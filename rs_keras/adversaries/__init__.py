"""Adversaries against a smoothed classifier, in the L2 norm."""

from rs_keras.adversaries.ascent import Ascent
from rs_keras.adversaries.ascent import NoiseAscent
from rs_keras.adversaries.base import Adversary
from rs_keras.adversaries.base import gradient_of
from rs_keras.adversaries.base import norms
from rs_keras.adversaries.base import project
from rs_keras.adversaries.base import repeat
from rs_keras.adversaries.base import smoothed_loss
from rs_keras.adversaries.base import unit
from rs_keras.adversaries.ddn import DDN
from rs_keras.adversaries.pgd import PGD

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
