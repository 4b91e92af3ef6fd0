"""Hyper-parameter sweeps with Keras Tuner."""

from typing import TYPE_CHECKING

from rs_keras._lazy import attach

if TYPE_CHECKING:
    from rs_keras.trainers.tuning.hypermodel import (
        SmoothingHyperModel as SmoothingHyperModel,
    )
    from rs_keras.trainers.tuning.hypermodel import best_recipe as best_recipe
    from rs_keras.trainers.tuning.hypermodel import tuner as tuner
    from rs_keras.trainers.tuning.own_models import (
        CertifiedHyperModel as CertifiedHyperModel,
    )

__all__, __getattr__, __dir__ = attach(__name__)
