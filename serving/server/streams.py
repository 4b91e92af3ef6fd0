"""Requests on their way in: how many of one client, and for how long."""

import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from typing import Self

from rs_keras.serving.server.grpc_errors import StatusError


class Streams:
    """Counts requests by client, and ends those that do not arrive.

    A request holds a thread while it arrives. Within a `with` block, one that
    takes too long is cancelled, and one client has at most so many.

    Args:
        most: Requests of one client at a time.
        seconds: In which a request must have arrived.
    """

    def __init__(self, most: int, seconds: float) -> None:
        self._most, self._seconds = most, seconds
        self._lock = threading.Lock()
        self._of_client: Counter[str] = Counter()
        # When the time of a request that is arriving is over.
        self._arriving: dict[Any, float] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(
            target=self._end_late, name="streams", daemon=True
        )

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._thread.join()

    @contextmanager
    def one(self, client: str) -> Iterator[None]:
        """Counts a request of a client until the block ends.

        Raises:
            StatusError: RESOURCE_EXHAUSTED if the client has too many.
        """
        with self._lock:
            if self._of_client[client] >= self._most:
                raise StatusError(
                    "RESOURCE_EXHAUSTED",
                    f"one client may have {self._most} requests at a time",
                )
            self._of_client[client] += 1
        try:
            yield
        finally:
            with self._lock:
                self._of_client[client] -= 1
                if not self._of_client[client]:
                    del self._of_client[client]

    def receive(self, messages: Iterator[bytes], context: Any) -> bytes:
        """Waits for the only message of a request.

        Raises:
            StatusError: INTERNAL if there is none.
        """
        with self._lock:
            self._arriving[context] = time.monotonic() + self._seconds
        try:
            return next(messages)
        except StopIteration:
            raise StatusError("INTERNAL", "A request has one message") from None
        finally:
            with self._lock:
                del self._arriving[context]

    def _end_late(self) -> None:
        while not self._ended.wait(min(1.0, self._seconds / 4)):
            now = time.monotonic()
            with self._lock:
                late = [c for c, end in self._arriving.items() if end < now]
            for context in late:
                context.cancel()


def client_of(peer: str) -> str:
    """Returns the machine of a gRPC peer: its address without the port.

    Example:

    >>> from rs_keras.serving.server.streams import client_of
    >>> client_of("ipv4:127.0.0.1:51234")
    'ipv4:127.0.0.1'
    """
    return peer.rpartition(":")[0] if peer.startswith("ip") else peer
