"""Group-sequential tests: deciding a radius with few draws."""

from typing import TYPE_CHECKING

from rs_keras._lazy import attach

if TYPE_CHECKING:
    from rs_keras.certification.sequential.boundaries import (
        boundary as boundary,
    )
    from rs_keras.certification.sequential.boundaries import (
        checkpoints as checkpoints,
    )
    from rs_keras.certification.sequential.boundaries import (
        crossing_probability as crossing_probability,
    )
    from rs_keras.certification.sequential.boundaries import (
        spending as spending,
    )

__all__, __getattr__, __dir__ = attach(__name__)
