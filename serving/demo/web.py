"""The demo's HTTP: files, and questions whose answers stream.

It listens on the loopback interface alone. A page of another site can still
make this browser ask it, so names of other hosts are refused (a name that was
rebound to 127.0.0.1), and questions from pages that are not this one.
Answers are lines of JSON, one as each part is known.
"""

import json
import logging
import select
import socket
import threading
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from types import TracebackType
from typing import Any
from typing import NamedTuple
from typing import Self

from rs_keras.serving.errors import ServingError
from rs_keras.serving.event_log import LOGGER
from rs_keras.serving.http import HTTPServer

HOST = "127.0.0.1"
_HTTP_PORT = 80

Answer = dict[str, Any]
Question = Callable[[Mapping[str, Any]], Iterator[Answer]]

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
# Questions at a time; a browser that asks anew may still be ending the last.
_AT_A_TIME = 4
_PATIENCE = 2.0
# A browser that sends or reads slower than this loses its connection.
_HTTP_TIMEOUT = 30


class File(NamedTuple):
    """What is sent for a path."""

    content_type: str
    body: bytes


class Refusal(Exception):
    """A request that is turned away, with a status and a reason in words."""

    def __init__(self, status: HTTPStatus, reason: str) -> None:
        super().__init__(reason)
        self.status = status


def page_files(about: Answer) -> dict[str, File]:
    """Returns the page's files by path, with what it is told at first."""
    files = {
        f"/{path.name}": File(_TYPES[path.suffix], path.read_bytes())
        for path in _FOLDER.iterdir()
        if path.suffix in _TYPES
    }
    files["/"] = files.pop("/index.html")
    files["/about.json"] = File(_JSON, json.dumps(about).encode())
    return files


class WebServer:
    """Listens on the loopback interface until it is closed.

    Args:
        files: By path.
        questions: By path: from the body, a JSON object, to the answer's
            lines. A ValueError or ServingError is told to the page.
        most_bytes: Of a body.
        port: 0 for any free one.

    Raises:
        OSError: If the port is taken.
    """

    def __init__(
        self,
        files: Mapping[str, File],
        questions: Mapping[str, Question],
        most_bytes: int,
        port: int,
    ) -> None:
        self.files = files
        self.questions = questions
        self.most_bytes = most_bytes
        self.room = threading.BoundedSemaphore(_AT_A_TIME)
        self.closing = threading.Event()
        self._server = _WebServer(HOST, port, _handler(self))
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.1,), name="demo"
        )

    @property
    def address(self) -> str:
        """What to type into a browser."""
        return f"http://{HOST}:{self.port}/"

    @property
    def hosts(self) -> tuple[str, str]:
        """The names that browsers on this machine call it."""
        # Browsers leave out the port that HTTP has by default.
        port = "" if self.port == _HTTP_PORT else f":{self.port}"
        return f"{HOST}{port}", f"localhost{port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.closing.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
        # All the room is free once the answers under way have ended, which
        # they do at their next line; connections that ask nothing may stay.
        for _ in range(_AT_A_TIME):
            self.room.acquire(timeout=_PATIENCE)


class _WebServer(HTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that went away is no event; anything else is."""
        LOGGER.debug("demo_request_failed", exc_info=True)


def _handler(server: WebServer) -> type[BaseHTTPRequestHandler]:
    return type("Handler", (_Handler,), {"web": server})


class _Handler(BaseHTTPRequestHandler):
    """One request; HTTP/1.0, so an answer ends where the connection does."""

    web: WebServer
    timeout = _HTTP_TIMEOUT
    server_version = "rs-keras"
    sys_version = ""

    def do_GET(self) -> None:
        self._refusable(self._send_file)

    def do_POST(self) -> None:
        self._refusable(self._answer)

    def log_message(self, format: str, *args: Any) -> None:
        """Who looks at the page knows what was asked."""
        LOGGER.debug(format, *args)

    def end_headers(self) -> None:
        """Adds to all answers what the browser is to hold them to."""
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        super().end_headers()

    def _refusable(self, answer: Callable[[], None]) -> None:
        try:
            if self.headers.get("Host") not in self.web.hosts:
                raise Refusal(
                    HTTPStatus.MISDIRECTED_REQUEST,
                    f"This page is at {self.web.address} only.",
                )
            answer()
        except Refusal as refusal:
            body = json.dumps({"error": str(refusal)}).encode()
            self._send(refusal.status, File(_JSON, body))

    def _send(self, status: HTTPStatus, file: File) -> None:
        self.send_response(status)
        self.send_header("Content-Type", file.content_type)
        self.send_header("Content-Length", str(len(file.body)))
        self.end_headers()
        self.wfile.write(file.body)

    def _send_file(self) -> None:
        path = self.path.partition("?")[0]
        if path not in self.web.files:
            raise Refusal(HTTPStatus.NOT_FOUND, f"There is nothing at {path}.")
        self._send(HTTPStatus.OK, self.web.files[path])

    def _answer(self) -> None:
        if self.path not in self.web.questions:
            raise Refusal(
                HTTPStatus.NOT_FOUND, f"There is nothing at {self.path}."
            )
        self._check_origin()
        body = self._body()
        if not self.web.room.acquire(timeout=_PATIENCE):
            raise Refusal(
                HTTPStatus.SERVICE_UNAVAILABLE,
                "The server is busy with other images. Try again in a moment.",
            )
        try:
            self._stream(self.web.questions[self.path](body))
        finally:
            self.web.room.release()

    def _check_origin(self) -> None:
        origins = [f"http://{host}" for host in self.web.hosts]
        if self.headers.get("Origin") not in origins:
            raise Refusal(
                HTTPStatus.FORBIDDEN,
                f"Only the page at {self.web.address} may ask.",
            )
        if self.headers.get_content_type() != _JSON:
            raise Refusal(
                HTTPStatus.UNSUPPORTED_MEDIA_TYPE, f"Questions are {_JSON}."
            )

    def _body(self) -> dict[str, Any]:
        size = self.headers.get("Content-Length", "")
        if not (size.isascii() and size.isdigit()):
            raise Refusal(
                HTTPStatus.LENGTH_REQUIRED, "A question must tell its length."
            )
        # Not as a number first: it may have any number of digits.
        if len(size) > 15 or int(size) > self.web.most_bytes:
            raise Refusal(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
                f"The image is too large: a question for this model has at "
                f"most {self.web.most_bytes} bytes.",
            )
        try:
            body = json.loads(self.rfile.read(int(size)))
        except (ValueError, RecursionError):
            body = None
        if not isinstance(body, dict):
            raise Refusal(
                HTTPStatus.BAD_REQUEST, "A question is one JSON object."
            )
        return body

    def _stream(self, lines: Iterator[Answer]) -> None:
        """Sends lines as they come, until the browser goes away."""
        try:
            line = next(lines)
        except (ValueError, ServingError) as error:
            raise _refused(error) from error
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", "application/x-ndjson")
        self.end_headers()
        try:
            self._write(line)
            for line in lines:
                if self.web.closing.is_set() or self._left():
                    return
                self._write(line)
        except (ValueError, ServingError) as error:
            self._write({"error": str(_refused(error))})

    def _write(self, line: Answer) -> None:
        self.wfile.write(json.dumps(line).encode() + b"\n")

    def _left(self) -> bool:
        """Whether the browser has closed its side: nothing else comes."""
        ready = select.poll()
        ready.register(self.connection, select.POLLIN)
        if not ready.poll(0):
            return False
        try:
            return not self.connection.recv(1, socket.MSG_PEEK)
        except OSError:
            return True


def _refused(error: Exception) -> Refusal:
    if isinstance(error, ServingError):
        LOGGER.log(logging.WARNING, "demo_server_failed", exc_info=error)
        return Refusal(
            HTTPStatus.SERVICE_UNAVAILABLE, f"The server cannot: {error}"
        )
    return Refusal(HTTPStatus.BAD_REQUEST, str(error))
