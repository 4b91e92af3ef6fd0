"""TLS of a server: key, certificate and verification of clients."""

import json
import os
import ssl
from dataclasses import dataclass
from pathlib import Path

import grpc

PathLike = str | os.PathLike[str]


@dataclass(frozen=True)
class TLS:
    """The TLS files of a server.

    Args:
        key: The server's private key (PEM, not encrypted).
        certificate: Its certificate, followed by any intermediate ones (PEM).
        ca: Certificates to check clients against (PEM); the system's by
            default.
        client_verify: Whether a client must show a certificate (mutual TLS).

    Raises:
        OSError: If a file cannot be read.
        ValueError: If a file is not what it should be, or key and certificate
            do not belong together.

    Example:

    >>> from rs_keras.serving import TLS
    >>> tls = TLS("server.key", "server.crt", ca="ca.crt", client_verify=True)
    >>> type(tls.credentials()).__name__  # for EmbeddedServer(..., tls=tls)
    'ServerCredentials'
    >>> tls.text_proto().splitlines()[-1]  # for tensorflow_model_server
    'client_verify: true'
    """

    key: PathLike
    certificate: PathLike
    ca: PathLike | None = None
    client_verify: bool = False

    def __post_init__(self) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        load(context, self.certificate, self.key, self.ca)

    def credentials(self) -> grpc.ServerCredentials:
        """What `grpc.Server.add_secure_port` takes."""
        pair = (
            Path(self.key).read_bytes(),
            Path(self.certificate).read_bytes(),
        )
        roots = Path(self.ca).read_bytes() if self.ca else None
        if not self.client_verify:
            return grpc.ssl_server_credentials([pair])
        if roots is None:
            roots = _system_roots()
        return grpc.ssl_server_credentials([pair], roots, True)

    def text_proto(self) -> str:
        """An `SSLConfig` for `tensorflow_model_server --ssl_config_file`."""
        fields = {
            "server_key": Path(self.key),
            "server_cert": Path(self.certificate),
        }
        if self.ca is not None:
            fields["custom_ca"] = Path(self.ca)
        lines = [
            f"{name}: {json.dumps(path.read_text(), ensure_ascii=False)}"
            for name, path in fields.items()
        ]
        lines.append(f"client_verify: {str(self.client_verify).lower()}")
        return "\n".join(lines) + "\n"


def load(
    context: ssl.SSLContext,
    certificate: PathLike | None,
    key: PathLike | None,
    ca: PathLike | None,
) -> None:
    """Loads the files that are given, or says what is wrong with them.

    Raises:
        OSError: If a file cannot be read.
        ValueError: If a file is not what it should be, or key and certificate
            do not belong together.
    """
    for path in (key, certificate, ca):
        if path is not None:
            Path(path).read_bytes()
    if certificate is not None and key is not None:
        try:
            # An empty password, so that an encrypted key is refused rather
            # than asked about.
            context.load_cert_chain(certificate, key, password=lambda: b"")
        except ssl.SSLError as error:
            raise ValueError(
                "`key` and `certificate` must be PEM files that belong "
                f"together. Received: key={str(key)!r}, certificate="
                f"{str(certificate)!r}: {error.reason or error}"
            ) from error
    if ca is not None:
        try:
            context.load_verify_locations(ca)
        except ssl.SSLError as error:
            raise ValueError(
                "`ca` must be a PEM file of certificates. Received: "
                f"ca={str(ca)!r}: {error.reason or error}"
            ) from error


def _system_roots() -> bytes:
    path = ssl.get_default_verify_paths().cafile
    if path is None:
        raise ValueError(
            "`ca` must be given with `client_verify`: this system has no "
            "certificates of its own. Received: ca=None"
        )
    return Path(path).read_bytes()
