"""The demonstration page's HTTP server: files, and requests to its API.

It listens on the loopback interface alone. A page of another site can still
make this browser send requests to it, so requests for other hosts are refused
(a name that was rebound to 127.0.0.1), and API requests from other pages.
Responses of the API are lines of JSON, sent one by one.
"""

import json
import logging
import select
import socket
import threading
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rs_keras.serving.errors import ServingError
from rs_keras.serving.event_log import LOGGER
from rs_keras.serving.http import HTTPHandler
from rs_keras.serving.http import HTTPServer

HOST = "127.0.0.1"
_HTTP_PORT = 80

# The content type and the body of a response.
File = tuple[str, bytes]
Line = dict[str, Any]
# From the body of a request to the lines of the response.
Endpoint = Callable[[Mapping[str, Any]], Iterator[Line]]

_FOLDER = Path(__file__).parent
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
}
_JSON = "application/json"
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; "
    "style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}
# API requests at a time; while the last one ends, a new one waits for a while.
_MAX_REQUESTS = 4
MAX_WAIT = 2.0
# A browser that sends or reads slower than this loses its connection.
_HTTP_TIMEOUT = 30


class Refusal(Exception):
    """A request that is turned away, with a status and a reason in words."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


def page_files(about: Line) -> dict[str, File]:
    """Returns the page's files by path, with what it is told at first."""
    files = {
        f"/{path.name}": (_TYPES[path.suffix], path.read_bytes())
        for path in _FOLDER.iterdir()
        if path.suffix in _TYPES
    }
    files["/"] = files.pop("/index.html")
    files["/about.json"] = (_JSON, json.dumps(about).encode())
    return files


class WebServer(HTTPServer):
    """Serves on the loopback interface within a `with` block.

    Args:
        files: By path.
        endpoints: By path: from the body, a JSON object, to the lines of the
            response. A ValueError or ServingError is shown on the page.
        max_bytes: The longest body.
        port: 0 for any free one.

    Raises:
        OSError: If the port is taken.
    """

    def __init__(
        self,
        files: Mapping[str, File],
        endpoints: Mapping[str, Endpoint],
        max_bytes: int,
        port: int,
    ) -> None:
        self.files = files
        self.endpoints = endpoints
        self.max_bytes = max_bytes
        self.slots = threading.BoundedSemaphore(_MAX_REQUESTS)
        self.closing = threading.Event()
        super().__init__(HOST, port, _Handler)

    @property
    def address(self) -> str:
        """The page's address for a browser."""
        return f"http://{HOST}:{self.port}/"

    @property
    def hosts(self) -> tuple[str, str]:
        """The names that browsers on this machine call it."""
        # Browsers leave out the port that HTTP has by default.
        port = "" if self.port == _HTTP_PORT else f":{self.port}"
        return f"{HOST}{port}", f"localhost{port}"

    def __exit__(self, *error: object) -> None:
        self.closing.set()
        super().__exit__(*error)
        # All slots are free once the running responses have ended, which they
        # do at their next line; connections without a request may stay.
        for _ in range(_MAX_REQUESTS):
            self.slots.acquire(timeout=MAX_WAIT)


class _Handler(HTTPHandler):
    server: WebServer
    timeout = _HTTP_TIMEOUT
    server_version = "rs-keras"
    sys_version = ""

    def do_GET(self) -> None:
        self._respond(self._send_file)

    def do_POST(self) -> None:
        self._respond(self._call_endpoint)

    def end_headers(self) -> None:
        """Adds the security headers that all responses have."""
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        super().end_headers()

    def _respond(self, respond: Callable[[], None]) -> None:
        try:
            if self.headers.get("Host") not in self.server.hosts:
                raise Refusal(
                    421, f"This page is at {self.server.address} only."
                )
            respond()
        except Refusal as refusal:
            body = json.dumps({"error": str(refusal)}).encode()
            self.send(refusal.status, _JSON, body)

    def _send_file(self) -> None:
        path = self.path.partition("?")[0]
        self.send(200, *self._at(path, self.server.files))

    def _call_endpoint(self) -> None:
        endpoint = self._at(self.path, self.server.endpoints)
        self._check_origin()
        body = self._body()
        if not self.server.slots.acquire(timeout=MAX_WAIT):
            raise Refusal(
                503,
                "The server is busy with other images. Try again in a moment.",
            )
        try:
            self._stream(endpoint(body))
        finally:
            self.server.slots.release()

    def _at(self, path: str, responses: Mapping[str, Any]) -> Any:
        if path not in responses:
            raise Refusal(404, f"There is nothing at {path}.")
        return responses[path]

    def _check_origin(self) -> None:
        origins = [f"http://{host}" for host in self.server.hosts]
        if self.headers.get("Origin") not in origins:
            raise Refusal(
                403,
                f"Only the page at {self.server.address} may send requests.",
            )
        if self.headers.get_content_type() != _JSON:
            raise Refusal(415, f"Requests must be {_JSON}.")

    def _body(self) -> Line:
        size = self.headers.get("Content-Length", "")
        if not (size.isascii() and size.isdigit()):
            raise Refusal(411, "Requests must have a Content-Length.")
        # Not as a number first: it may have any number of digits.
        if len(size) > 15 or int(size) > self.server.max_bytes:
            raise Refusal(
                413,
                "The image is too large: a request for this model has at "
                f"most {self.server.max_bytes} bytes.",
            )
        try:
            body = json.loads(self.rfile.read(int(size)))
        except (ValueError, RecursionError):
            body = None
        if not isinstance(body, dict):
            raise Refusal(400, "Requests must be one JSON object.")
        return body

    def _stream(self, lines: Iterator[Line]) -> None:
        """Sends lines as they come, until the browser goes away."""
        try:
            line = next(lines)
        except (ValueError, ServingError) as error:
            raise _refusal(error) from error
        self.send_response(200)
        self.send_header("Content-Type", "application/x-ndjson")
        self.end_headers()
        try:
            self._write(line)
            for line in lines:
                if self.server.closing.is_set() or self._disconnected():
                    return
                self._write(line)
        except (ValueError, ServingError) as error:
            self._write({"error": str(_refusal(error))})

    def _write(self, line: Line) -> None:
        self.wfile.write(json.dumps(line).encode() + b"\n")

    def _disconnected(self) -> bool:
        """Whether the browser has closed its side: it sends nothing else."""
        ready = select.poll()
        ready.register(self.connection, select.POLLIN)
        try:
            return bool(ready.poll(0)) and not self.connection.recv(
                1, socket.MSG_PEEK
            )
        except OSError:
            return True


def _refusal(error: Exception) -> Refusal:
    if isinstance(error, ServingError):
        LOGGER.log(logging.WARNING, "demo_server_failed", exc_info=error)
        return Refusal(503, f"The server cannot: {error}")
    return Refusal(400, str(error))
