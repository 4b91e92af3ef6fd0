"""Server addresses: their syntax, and whether they are available."""

import os
import socket
import stat
from typing import Any

from rs_keras._checks import check_count

# The longest path of a socket (sockaddr_un), without its final zero.
_LONGEST_SOCKET = 107
_LARGEST_PORT = 65_535
_EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1", "[::]": "::1"}


def check_port(name: str, port: Any) -> int:
    """Returns the number of a port, 0 for any free one.

    Raises:
        ValueError: If it is not such a number.
    """
    if check_count(name, port, 0) > _LARGEST_PORT:
        raise ValueError(
            f"`{name}` must be between 0 and {_LARGEST_PORT}. "
            f"Received: {name}={port}"
        )
    return int(port)


def reachable(host: str, port: int) -> str:
    """The address by which this machine reaches a server on `host`.

    Example:

    >>> from rs_keras.serving.server.addresses import reachable
    >>> reachable("0.0.0.0", 8500)
    '127.0.0.1:8500'
    """
    return join(_EVERYWHERE.get(host, host), port)


def checked_socket(path: str | os.PathLike[str] | None) -> str | None:
    """Makes the path of a socket absolute.

    Raises:
        ValueError: If it is longer than the system takes.
    """
    if path is None:
        return None
    path = os.path.abspath(path)
    if len(os.fsencode(path)) > _LONGEST_SOCKET:
        raise ValueError(
            f"`unix_socket` must have at most {_LONGEST_SOCKET} bytes. "
            f"Received: unix_socket={path!r}"
        )
    return path


def join(host: str, port: int) -> str:
    """Writes an address as gRPC reads it.

    Example:

    >>> from rs_keras.serving.server.addresses import join
    >>> join("::1", 8500)
    '[::1]:8500'
    """
    if ":" in host and not host.startswith("["):
        host = f"[{host}]"
    return f"{host}:{port}"


def require_free(host: str, port: int) -> None:
    """Checks that a port is available, before a model is loaded.

    Raises:
        OSError: If it cannot.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(
            host.strip("[]"), port, type=socket.SOCK_STREAM
        )[0]
        with socket.create_server(address[:2], family=family):
            pass
    except OSError as error:
        # A name that does not resolve has a negative number and a text.
        number = error.errno or 0
        reason = os.strerror(number) if number > 0 else error.strerror
        raise OSError(
            f"Cannot listen on {join(host, port)}: {reason}. "
            "Choose another port, or stop the server that has it."
        ) from error


def require_free_socket(path: str) -> None:
    """Checks that a socket is available; that of a dead server is replaced.

    Raises:
        OSError: If a server listens there, or it is another kind of file.
    """
    if not os.path.lexists(path):
        return
    if not stat.S_ISSOCK(os.lstat(path).st_mode):
        raise OSError(f"Cannot listen on unix:{path}: it is not a socket.")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            return
    raise OSError(f"Cannot listen on unix:{path}: Address already in use.")
