"""Certification over gRPC: client, embedded server, deployment."""

from importlib import import_module
from typing import TYPE_CHECKING
from typing import Any

if TYPE_CHECKING:
    from rs_keras.serving.aio import (
        AsyncCertificationClient as AsyncCertificationClient,
    )
    from rs_keras.serving.channels import ClientTLS as ClientTLS
    from rs_keras.serving.client import (
        CertificationClient as CertificationClient,
    )
    from rs_keras.serving.failures import ServingError as ServingError
    from rs_keras.serving.server import EmbeddedServer as EmbeddedServer
    from rs_keras.serving.tls import TLS as TLS

# Loaded when first used: a client has no need of the server, nor the reverse.
_HOMES = {
    "AsyncCertificationClient": "rs_keras.serving.aio",
    "CertificationClient": "rs_keras.serving.client",
    "ClientTLS": "rs_keras.serving.channels",
    "EmbeddedServer": "rs_keras.serving.server",
    "ServingError": "rs_keras.serving.failures",
    "TLS": "rs_keras.serving.tls",
}
__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
