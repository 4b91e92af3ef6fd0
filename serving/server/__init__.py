"""The embedded server: TF Serving's gRPC API in this process."""

from typing import TYPE_CHECKING

from rs_keras._lazy import attach

if TYPE_CHECKING:
    from rs_keras.serving.server.embedded_server import (
        EmbeddedServer as EmbeddedServer,
    )

_HOMES = {"EmbeddedServer": "rs_keras.serving.server.embedded_server"}
__all__ = sorted(_HOMES)
__getattr__, __dir__ = attach(__name__, _HOMES)
