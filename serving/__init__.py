"""Certification over gRPC: client, embedded server, deployment."""

from rs_keras.serving.server import EmbeddedServer
from rs_keras.serving.tls import TLS

__all__ = ["TLS", "EmbeddedServer"]
