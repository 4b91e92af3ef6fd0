"""Which request runs when: limits, admission by cost, slices in turn."""

from typing import TYPE_CHECKING

from rs_keras._lazy import attach

if TYPE_CHECKING:
    from rs_keras.serving.server.scheduling.limits import Limits as Limits
    from rs_keras.serving.server.scheduling.scheduler import (
        Scheduler as Scheduler,
    )

__all__, __getattr__, __dir__ = attach(__name__)
