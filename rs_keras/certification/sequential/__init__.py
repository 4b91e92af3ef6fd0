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

_HOMES = {
    "boundary": "rs_keras.certification.sequential.boundaries",
    "checkpoints": "rs_keras.certification.sequential.boundaries",
    "crossing_probability": "rs_keras.certification.sequential.boundaries",
    "spending": "rs_keras.certification.sequential.boundaries",
}
__all__ = sorted(_HOMES)
__getattr__, __dir__ = attach(__name__, _HOMES)
