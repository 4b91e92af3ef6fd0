"""Any classifier as a function from images to logits."""

from typing import TYPE_CHECKING

from rs_keras._lazy import attach

if TYPE_CHECKING:
    from rs_keras.classifiers.checkpoints import (
        load_classifier as load_classifier,
    )
    from rs_keras.classifiers.checkpoints import load_model as load_model
    from rs_keras.classifiers.checkpoints import trained_sigma as trained_sigma
    from rs_keras.classifiers.denoisers import (
        diffusion_denoiser as diffusion_denoiser,
    )
    from rs_keras.classifiers.denoisers import with_denoiser as with_denoiser
    from rs_keras.classifiers.numpy_functions import from_numpy as from_numpy
    from rs_keras.classifiers.outputs import with_logits as with_logits
    from rs_keras.classifiers.preprocessing import (
        with_preprocessing as with_preprocessing,
    )

__all__, __getattr__, __dir__ = attach(__name__)
