"""The embedded server: TF Serving's gRPC API in this process."""

from typing import TYPE_CHECKING

from rs_keras._lazy import attach

if TYPE_CHECKING:
    from rs_keras.serving.server.embedded_server import (
        EmbeddedServer as EmbeddedServer,
    )

__all__, __getattr__, __dir__ = attach(__name__)
