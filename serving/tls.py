"""TLS of servers and clients: keys, certificates and their verification."""

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


@dataclass(frozen=True)
class ClientTLS:
    """The TLS settings of a client.

    Args:
        ca: Certificates to check servers against (PEM); the system's by
            default.
        certificate: The client's own certificate, for servers that want one
            (mutual TLS; PEM).
        key: Its private key (PEM, not encrypted).
        server_name: The name that the servers' certificates are for, where it
            is another than the one in the address.

    Raises:
        OSError: If a file cannot be read.
        ValueError: If a file is not what it should be, or only one of
            `certificate` and `key` is given.

    Example:

    >>> from rs_keras.serving import ClientTLS
    >>> tls = ClientTLS(ca="ca.crt", server_name="certifier.example")
    >>> tls.context().cert_store_stats()["x509_ca"]
    1
    >>> type(tls.credentials()).__name__
    'ChannelCredentials'
    """

    ca: PathLike | None = None
    certificate: PathLike | None = None
    key: PathLike | None = None
    server_name: str | None = None

    def __post_init__(self) -> None:
        if (self.certificate is None) != (self.key is None):
            raise ValueError(
                "`certificate` and `key` need each other. Received: "
                f"certificate={self.certificate!r}, key={self.key!r}"
            )
        self.context()

    def context(self) -> ssl.SSLContext:
        """The same checks in Python's ssl module, for better error messages."""
        if self.ca is None:
            context = ssl.create_default_context()
        else:
            # The default context would trust the system's issuers as well.
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        load(context, self.certificate, self.key, self.ca)
        context.set_alpn_protocols(["h2"])
        return context

    def credentials(self) -> grpc.ChannelCredentials:
        """Returns the credentials for `grpc.secure_channel`."""

        def content(path: PathLike | None) -> bytes | None:
            return None if path is None else Path(path).read_bytes()

        # By default gRPC uses a bundled list of CAs, not the system's.
        ca = self.ca or ssl.get_default_verify_paths().cafile
        return grpc.ssl_channel_credentials(
            content(ca), content(self.key), content(self.certificate)
        )


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
