"""Server addresses, gRPC channels and tokens, and why a connection fails."""

import ipaddress
import os
import re
import socket
import ssl
from collections.abc import Callable
from collections.abc import Iterable
from dataclasses import dataclass

import grpc

from rs_keras.serving.errors import ServingError
from rs_keras.serving.tls import ClientTLS

_OPTIONS = (
    # Batches of images exceed the default of 4 MB. No valid response is
    # longer than this limit; an invalid one must not fill the memory.
    ("grpc.max_receive_message_length", 256 * 2**20),
    ("grpc.max_send_message_length", -1),
    # Retries are decided in fanout.py.
    ("grpc.enable_retries", 0),
    # gRPC would wait up to two minutes before it reconnects.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1_000),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    # One connection each: else equal targets share one in this process.
    ("grpc.use_local_subchannel_pool", 1),
)
# gRPC's order; it reads the names in lower case only.
_PROXIES = ("grpc_proxy", "https_proxy", "http_proxy")
_NO_PROXY = ("no_grpc_proxy", "no_proxy")
# What RFC 6750 allows in a bearer token.
_TOKEN = re.compile(r"[A-Za-z0-9._~+/-]+=*")
_UNIX = "unix:"
_DNS = "dns:///"
_PROBE_SECONDS = 3.0
# OpenSSL's numbers for what is wrong with a certificate (X509_V_ERR_...).
_NOT_YET_VALID = 9
_EXPIRED = 10
_UNKNOWN_ISSUER = (18, 19, 20, 21)
_WRONG_NAME = (62, 64)


Token = str | Callable[[], str]
Metadata = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Address:
    """One address that the user gave.

    Attributes:
        text: What was given.
        host: The name or number; empty for a socket.
        port: 0 for a socket.
        all_of_name: Whether each machine behind the name is a server.
    """

    text: str
    host: str
    port: int
    all_of_name: bool = False


@dataclass(frozen=True)
class Endpoint:
    """One server.

    Attributes:
        label: Its name in messages.
        target: The target of the gRPC channel.
        name: The name that its certificate should be for.
    """

    label: str
    target: str
    name: str


def parse(servers: str | Iterable[str]) -> tuple[Address, ...]:
    """Reads addresses.

    Args:
        servers: `"host:port"`, `"[::1]:port"`, `"unix:/path"`, or
            `"dns:///name:port"`, which means every machine behind the name (a
            headless service); several in a list, or separated by commas.

    Raises:
        ValueError: If there is none, or one is not of this form or twice.

    Example:

    >>> from rs_keras.serving.client import channels
    >>> [address.port for address in channels.parse("a:8500,b:8501")]
    [8500, 8501]
    """
    if isinstance(servers, str):
        servers = servers.split(",")
    texts = [str(text).strip() for text in servers]
    if not any(texts):
        raise ValueError(
            "`servers` must name at least one server, as host:port. "
            f"Received: servers={texts!r}"
        )
    if len(set(texts)) < len(texts):
        raise ValueError(
            "`servers` must not name a server twice: it would be taken for "
            f"two. Received: servers={texts!r}"
        )
    return tuple(_address(text) for text in texts)


def _address(text: str) -> Address:
    if text.startswith(_UNIX) and len(text) > len(_UNIX):
        return Address(text, "", 0)
    host, _, port = text.removeprefix(_DNS).rpartition(":")
    inside = host.removeprefix("[").removesuffix("]")
    bracketed = host != inside
    if (
        not inside
        or "/" in inside
        or (":" in inside) != bracketed
        or not port.isdecimal()
        or not 0 < int(port) < 65536
    ):
        raise ValueError(
            "`servers` must be addresses such as host:8500, [::1]:8500, "
            "unix:/path, or dns:///name:8500 for all machines of a name. "
            f"Received: {text!r}"
        )
    return Address(text, inside, int(port), text.startswith(_DNS))


def resolve(address: Address) -> list[Endpoint]:
    """Returns the servers at an address; may block on a DNS query.

    Raises:
        ServingError: If the name does not resolve.
    """
    if not address.host:
        return [Endpoint(address.text, address.text, "localhost")]
    try:
        entries = socket.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM
        )
    except OSError as error:
        raise ServingError(
            f"`servers`: the name {address.host!r} does not resolve "
            f"({error.strerror or error}). Is it spelled right, and known to "
            f"this machine's DNS? Received: {address.text!r}",
            server=address.text,
        ) from error
    if not address.all_of_name:
        return [Endpoint(address.text, address.text, address.host)]
    numbers = dict.fromkeys(str(entry[4][0]) for entry in entries)
    return [
        Endpoint(
            f"{address.host} ({number}:{address.port})",
            _join(number, address.port),
            address.host,
        )
        for number in numbers
    ]


def _join(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def open_channel(endpoint: Endpoint, tls: ClientTLS | None) -> grpc.Channel:
    """Returns a channel; it connects when it is first used."""
    if tls is None:
        return grpc.insecure_channel(endpoint.target, _OPTIONS)
    name = tls.server_name or endpoint.name
    options = (*_OPTIONS, ("grpc.ssl_target_name_override", name))
    return grpc.secure_channel(endpoint.target, tls.credentials(), options)


def check_token(
    token: Token | None, addresses: Iterable[Address], tls: ClientTLS | None
) -> None:
    """Refuses a token that cannot be sent, or would be sent in the clear.

    Raises:
        ValueError: Without the token in its text.
    """
    if isinstance(token, str):
        bearer(token)
    elif token is not None and not callable(token):
        raise ValueError(
            "`token` must be a string, a function that returns one, or None. "
            f"Received: token of type {type(token).__name__}"
        )
    for address in addresses:
        if token is not None and tls is None and not _is_local(address.host):
            raise ValueError(
                "`token` must be sent over TLS, except to this machine: give "
                f"`tls`. Received: servers={address.text!r}, tls=None"
            )


def _is_local(host: str) -> bool:
    """Whether a host is this machine; a socket has no host."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host in ("", "localhost")


def bearer(token: Token | None) -> Metadata | None:
    """Returns the metadata of a request that carries a token.

    Args:
        token: The token, or a function that returns the one to use now.

    Raises:
        ValueError: If it is not a bearer token (RFC 6750). The text does not
            contain it.

    Example:

    >>> from rs_keras.serving.client import channels
    >>> channels.bearer(lambda: "abc.def")
    (('authorization', 'Bearer abc.def'),)
    """
    if token is None:
        return None
    text = token() if callable(token) else token
    if not isinstance(text, str) or not _TOKEN.fullmatch(text):
        what = f"{len(text)} characters" if isinstance(text, str) else "no text"
        raise ValueError(
            "`token` must consist of letters, digits and ._~+/- (`=` at its "
            f"end), without spaces or line ends. Received: {what}"
        )
    return (("authorization", f"Bearer {text}"),)


def proxy_note(endpoint: Endpoint) -> str:
    """Says that gRPC uses a proxy for a server; empty if it does not.

    Example:

    >>> import os
    >>> from rs_keras.serving.client import channels
    >>> os.environ["http_proxy"] = "http://proxy:3128"
    >>> os.environ["no_proxy"] = ""
    >>> [address] = channels.parse("127.0.0.1:8500")
    >>> [endpoint] = channels.resolve(address)
    >>> channels.proxy_note(endpoint)[:60]
    ' (http_proxy=http://proxy:3128 sends it through a proxy; ...'
    >>> del os.environ["http_proxy"], os.environ["no_proxy"]
    """
    if endpoint.target.startswith(_UNIX):
        return ""
    host = _address(endpoint.target).host
    variable = next((name for name in _PROXIES if os.environ.get(name)), None)
    if variable is None or _is_excepted(host):
        return ""
    # A proxy's address may contain a password.
    proxy = re.sub(r"//.*@", "//...@", os.environ[variable])
    return (
        f" ({variable}={proxy} sends it through a proxy; to connect directly, "
        f"add {host} to no_proxy)"
    )


def _is_excepted(host: str) -> bool:
    """Whether gRPC connects to a host directly, as `no_proxy` says."""
    lists = [os.environ[name] for name in _NO_PROXY if name in os.environ]
    entries = [entry.strip() for entry in (lists or [""])[0].split(",")]
    return any(_covers(entry, host) for entry in entries if entry)


def _covers(entry: str, host: str) -> bool:
    try:
        network = ipaddress.ip_network(entry, strict=False)
        return ipaddress.ip_address(host) in network
    except ValueError:
        return host.lower().endswith(entry.lower())


def trouble(endpoint: Endpoint, tls: ClientTLS | None) -> str | None:
    """Explains why a connection fails, in more detail than gRPC.

    Connects again and examines the TLS handshake; None without a result.
    """
    try:
        with _connected(endpoint.target) as plain:
            if tls is None:
                return _is_tls(plain)
            return _handshake_trouble(
                plain, tls, tls.server_name or endpoint.name
            )
    except OSError:
        return None


def _connected(target: str) -> socket.socket:
    if target.startswith(_UNIX):
        plain = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        plain.settimeout(_PROBE_SECONDS)
        plain.connect(target.removeprefix(_UNIX))
        return plain
    address = _address(target)
    return socket.create_connection(
        (address.host, address.port), _PROBE_SECONDS
    )


def _is_tls(plain: socket.socket) -> str | None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    try:
        with context.wrap_socket(plain):
            return "the server wants TLS; give `tls`"
    except OSError:
        return None


def _handshake_trouble(
    plain: socket.socket, tls: ClientTLS, name: str
) -> str | None:
    try:
        with tls.context().wrap_socket(plain, server_hostname=name) as secure:
            # A server that accepts the client sends data. In TLS 1.3 it
            # rejects a client certificate only after the handshake.
            if secure.recv(1):
                return None
    except ssl.SSLCertVerificationError as error:
        return _certificate_trouble(error, tls, name)
    except (ssl.SSLEOFError, ConnectionError):
        pass
    except ssl.SSLError as error:
        return _alert(error)
    if tls.certificate is None:
        return (
            "the server ends the connection where a client shows its "
            "certificate: it wants one; give `tls.certificate` and `tls.key`"
        )
    return (
        "the server ends the connection when it has seen the client's "
        "certificate: has that expired, or is its issuer one that the server "
        "does not trust?"
    )


def _certificate_trouble(
    error: ssl.SSLCertVerificationError, tls: ClientTLS, name: str
) -> str:
    if error.verify_code == _EXPIRED:
        return "its certificate has expired; it must be renewed on the server"
    if error.verify_code == _NOT_YET_VALID:
        return "its certificate is not valid yet; are both clocks right?"
    if error.verify_code in _WRONG_NAME:
        return (
            f"its certificate is not for {name!r} ({error.verify_message}); "
            "address it by a name in its certificate, or give "
            "`tls.server_name`"
        )
    if error.verify_code in _UNKNOWN_ISSUER:
        roots = "the system's" if tls.ca is None else str(tls.ca)
        return (
            "its certificate is from an issuer that is not among the trusted "
            f"ones ({roots}); give the right `tls.ca`"
        )
    return f"its certificate is refused: {error.verify_message}"


def _alert(error: ssl.SSLError) -> str:
    reason = (error.reason or str(error)).lower().replace("_", " ")
    if "wrong version number" in reason or "record layer" in reason:
        return "the server does not speak TLS; leave out `tls`"
    if "alert" in reason and ("certificate" in reason or "ca" in reason):
        return f"the server refuses the client's certificate ({reason})"
    return f"the TLS handshake fails ({reason})"
