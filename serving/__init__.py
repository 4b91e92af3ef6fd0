"""Certification over gRPC: client, embedded server, deployment."""

from typing import TYPE_CHECKING

from rs_keras._lazy import attach

if TYPE_CHECKING:
    from rs_keras.serving.client.async_client import (
        AsyncCertificationClient as AsyncCertificationClient,
    )
    from rs_keras.serving.client.certification_client import (
        CertificationClient as CertificationClient,
    )
    from rs_keras.serving.errors import ServingError as ServingError
    from rs_keras.serving.server.embedded_server import (
        EmbeddedServer as EmbeddedServer,
    )
    from rs_keras.serving.server.scheduling.limits import Limits as Limits
    from rs_keras.serving.tls import TLS as TLS
    from rs_keras.serving.tls import ClientTLS as ClientTLS

# Loaded when first used: a client has no need of the server, nor the reverse.
__all__, __getattr__, __dir__ = attach(__name__)
