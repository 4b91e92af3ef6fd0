"""The standard library's HTTP server in a background thread."""

import socket
import threading
from http.server import BaseHTTPRequestHandler
from http.server import ThreadingHTTPServer
from socketserver import TCPServer
from typing import Any
from typing import Self

from rs_keras.serving.event_log import LOGGER


class HTTPServer(ThreadingHTTPServer):
    """Serves within a `with` block, with one thread for each connection.

    It makes no DNS queries, and leaving does not wait for slow readers.

    Args:
        host: The interface to listen on, IPv6 with or without brackets.
        port: 0 for any free port.
        handler: The class that answers a request.

    Attributes:
        port: The port it listens on.

    Raises:
        OSError: If the port is taken.
    """

    daemon_threads = True
    # Otherwise `server_close` waits for every slow reader.
    block_on_close = False

    def __init__(self, host: str, port: int, handler: type) -> None:
        if ":" in host:
            self.address_family = socket.AF_INET6
        super().__init__((host.strip("[]"), port), handler)
        self.port: int = self.server_address[1]
        self._thread = threading.Thread(
            target=self.serve_forever, args=(0.1,), name="http", daemon=True
        )

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.shutdown()
        self._thread.join()
        self.server_close()

    def server_bind(self) -> None:
        """Binds without the reverse DNS lookup of the base class."""
        TCPServer.server_bind(self)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that disconnects early is not an error."""
        LOGGER.debug("http_request_failed", exc_info=True)


class HTTPHandler(BaseHTTPRequestHandler):
    """Answers one request and closes the connection (HTTP/1.0)."""

    def send(self, status: int, content_type: str, body: bytes) -> None:
        """Sends a whole response."""
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Logs requests for debugging alone."""
        LOGGER.debug(format, *args)
