"""The standard library's HTTP server, without what small pages trip over."""

import socket
from http.server import ThreadingHTTPServer
from socketserver import TCPServer
from typing import Any


class HTTPServer(ThreadingHTTPServer):
    """A thread a connection; asks no DNS, waits for no reader.

    Args:
        host: Where to listen, IPv6 in brackets or without.
        port: 0 for any free one.
        handler: Of one request.
    """

    daemon_threads = True
    # Otherwise closing waits for every slow reader.
    block_on_close = False

    def __init__(self, host: str, port: int, handler: type) -> None:
        if ":" in host:
            self.address_family = socket.AF_INET6
        super().__init__((host.strip("[]"), port), handler)

    def server_bind(self) -> None:
        """Without the base class's question to the DNS for a name."""
        TCPServer.server_bind(self)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A reader that went away is no event."""
