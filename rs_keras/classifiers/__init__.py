"""Any classifier as a function from images to logits."""

from typing import TYPE_CHECKING

from rs_keras._lazy import attach

if TYPE_CHECKING:
    from rs_keras.classifiers.checkpoints import (
        load_classifier as load_classifier,
    )
    from rs_keras.classifiers.checkpoints import load_model as load_model
    from rs_keras.classifiers.checkpoints import trained_sigma as trained_sigma

__all__, __getattr__, __dir__ = attach(__name__)
