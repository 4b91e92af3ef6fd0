"""Hyper-parameter sweeps with Keras Tuner."""

from typing import TYPE_CHECKING

from rs_keras._lazy import attach

if TYPE_CHECKING:
    from rs_keras.trainers.tuning.hypermodel import (
        SmoothingHyperModel as SmoothingHyperModel,
    )
    from rs_keras.trainers.tuning.hypermodel import best_recipe as best_recipe
    from rs_keras.trainers.tuning.hypermodel import tuner as tuner

_HOMES = {
    "SmoothingHyperModel": "rs_keras.trainers.tuning.hypermodel",
    "best_recipe": "rs_keras.trainers.tuning.hypermodel",
    "tuner": "rs_keras.trainers.tuning.hypermodel",
}
__all__ = sorted(_HOMES)
__getattr__, __dir__ = attach(__name__, _HOMES)
