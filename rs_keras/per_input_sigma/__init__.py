"""Per-input sigma: optimization, certification and composition."""

from typing import TYPE_CHECKING

from rs_keras._lazy import attach

if TYPE_CHECKING:
    from rs_keras.per_input_sigma.ball_memory import BallMemory as BallMemory
    from rs_keras.per_input_sigma.certifier import (
        DataDependentCertifier as DataDependentCertifier,
    )
    from rs_keras.per_input_sigma.composition import Composition as Composition
    from rs_keras.per_input_sigma.composition import compose as compose
    from rs_keras.per_input_sigma.optimization import (
        SigmaOptimizer as SigmaOptimizer,
    )
    from rs_keras.per_input_sigma.optimization import ascend as ascend
    from rs_keras.per_input_sigma.optimization import (
        optimize_sigma as optimize_sigma,
    )
    from rs_keras.per_input_sigma.optimization import (
        search_sigma as search_sigma,
    )

__all__, __getattr__, __dir__ = attach(__name__)
