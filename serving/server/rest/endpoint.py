"""The HTTP server of the REST API: waitress, in a thread."""

import threading
from typing import Any
from typing import Self

from rs_keras.serving.server.addresses import join
from rs_keras.serving.server.scheduling.limits import Limits

_THREADS = 32
_CONNECTIONS = 1024
# Of a request's JSON, which is read into memory as a whole, and then as
# Python's numbers; and its bytes for one of a tensor.
_LARGEST_BODY = 2**26
_BYTES_OF_JSON = 16


class Endpoint:
    """Serves a WSGI application within a `with` block.

    Requests that arrive slowly hold no thread; connections that are idle are
    closed.

    Args:
        app: The application.
        host: The interface to listen on, IPv6 with or without brackets.
        port: 0 for any free one.
        limits: Of requests.

    Attributes:
        port: The port it listens on.

    Raises:
        ValueError: If waitress is not installed.
        OSError: If the port is taken.
    """

    def __init__(self, app: Any, host: str, port: int, limits: Limits) -> None:
        try:
            from waitress.server import create_server
        except ImportError as error:
            raise ValueError(
                "`rest_port` needs waitress: pip install 'rs-keras[rest]'"
            ) from error
        # Of this server alone: sockets by number.
        self._sockets: dict[int, Any] = {}
        self._server = create_server(
            app,
            map=self._sockets,
            listen=join(host, port),
            threads=_THREADS,
            connection_limit=_CONNECTIONS,
            channel_timeout=max(1, int(limits.receive_seconds)),
            cleanup_interval=max(1, int(limits.receive_seconds / 4)),
            max_request_body_size=min(
                _LARGEST_BODY, _BYTES_OF_JSON * limits.max_request_bytes
            ),
            # Tells the application when a client is gone.
            channel_request_lookahead=1,
            ident=None,
            clear_untrusted_proxy_headers=True,
        )
        self.port = int(self._server.effective_port)
        self._thread = threading.Thread(
            target=self._server.run, name="rest", daemon=True
        )

    def finish(self, seconds: float) -> None:
        """Takes no more requests, and waits for those that run.

        Args:
            seconds: How long at most.
        """
        self._server.accepting = False
        self._server.task_dispatcher.shutdown(timeout=seconds)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        server = self._server

        def close() -> None:
            for channel in list(server.active_channels.values()):
                channel.handle_close()
            server.close()

        # In its own thread, between two events.
        server.trigger.pull_trigger(close)
        self._thread.join()
