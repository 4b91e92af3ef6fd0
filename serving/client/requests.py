"""Requests of one call: sending, waiting and cancellation."""

import queue
import random
import time
from collections.abc import Callable
from collections.abc import Iterable
from concurrent.futures import CancelledError
from typing import Any
from typing import Self

import grpc

from rs_keras.serving.client.fleet import Fleet
from rs_keras.serving.client.fleet import Server
from rs_keras.serving.errors import Kind
from rs_keras.serving.errors import ServingError
from rs_keras.serving.errors import describe_failure
from rs_keras.serving.errors import kind_of

_FIRST_PAUSE = 0.1


def pause_after(failures: int, longest: float) -> float:
    """Seconds to wait after so many failures: exponential, with jitter."""
    return min(longest, _FIRST_PAUSE * 2**failures) * random.uniform(0.5, 1.0)


class Request:
    """One request, running or ended.

    Args:
        server: The recipient.
        task: The task of the request; None for a description or status.

    Attributes:
        begun: Time at which it was sent (`time.monotonic`).
        ended: Time at which it ended.
        code: The gRPC status code, once it has ended.
        details: The server's message after a failure.
        response: The response, if there is one.
    """

    def __init__(self, server: Server, task: Any = None) -> None:
        self.server = server
        self.task = task
        self.begun = time.monotonic()
        self.ended = self.begun
        # The status of a request that could not be sent.
        self.code = grpc.StatusCode.CANCELLED
        self.details = "the connection was closed"
        self.response: Any = None
        self._future: Any = None

    def send(
        self,
        method: Any,
        message: Any,
        timeout: float,
        deliver: Callable[["Request"], None],
    ) -> None:
        """Sends it; `deliver` is called in a thread of gRPC when it ends."""

        def end(future: Any) -> None:
            self.ended = time.monotonic()
            self.code, self.details = future.code(), future.details() or ""
            if self.ok:
                self.response = future.result()
            deliver(self)

        try:
            self._future = method.future(message, timeout=timeout)
        except ValueError:
            # Another call may close the connection at any moment.
            if not self.server.closed:
                raise
            deliver(self)
        else:
            self._future.add_done_callback(end)

    def cancel(self) -> None:
        """Cancels the request, which soon ends with CANCELLED."""
        if self._future is not None:
            self._future.cancel()

    @property
    def ok(self) -> bool:
        """Whether the request succeeded."""
        return self.code is grpc.StatusCode.OK

    @property
    def kind(self) -> Kind:
        """The kind of failure, which determines the retry."""
        return kind_of(self.code, self.details)

    @property
    def failure(self) -> str:
        """One sentence on the failure and a possible remedy."""
        return describe_failure(self.server.label, self.code, self.details)

    def refusal(self, action: str) -> ServingError:
        """Returns the error for a final failure."""
        return ServingError(
            f"{action} failed on {self.failure}",
            self.code,
            self.server.label,
            self.details,
        )


class Call:
    """One call of a client: its requests, and the servers left out.

    Used by one thread; other threads may only call `stop`.

    Args:
        fleet: The servers.

    Attributes:
        under_way: Running requests.
        excluded: Servers that get no more requests, with the errors.
    """

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.under_way: set[Request] = set()
        self.excluded: dict[Server, ServingError] = {}
        self._ended: queue.SimpleQueue[Request | None] = queue.SimpleQueue()
        self._stopped = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.cancel()

    def send(
        self,
        server: Server,
        method: Any,
        message: Any,
        timeout: float,
        task: Any = None,
    ) -> Request:
        """Sends a request; `next` returns it when it has ended."""
        request = Request(server, task)
        self.under_way.add(request)
        request.send(method, message, timeout, self._ended.put)
        return request

    def next(self, seconds: float | None = None) -> Request | None:
        """Waits for a request to end; None if none does within `seconds`.

        Raises:
            CancelledError: If the call was stopped.
        """
        until = None if seconds is None else time.monotonic() + seconds
        while True:
            left = None if until is None else max(0, until - time.monotonic())
            try:
                request = self._ended.get(timeout=left)
            except queue.Empty:
                return None
            if self._stopped:
                raise CancelledError
            # Cancelled requests also end; skip them.
            if request in self.under_way:
                self.under_way.remove(request)
                return request

    def gather(
        self, requests: Iterable[Request], patience: float
    ) -> list[Request]:
        """Waits for requests; `patience` seconds after the first success."""
        missing, ended = set(requests), []
        until: float | None = None
        while missing:
            left = None if until is None else max(0, until - time.monotonic())
            request = self.next(left)
            if request is None:
                break
            missing.discard(request)
            ended.append(request)
            if request.ok and until is None:
                until = time.monotonic() + patience
        for request in missing:
            request.cancel()
        self.under_way -= missing
        return ended

    def cancel(self) -> None:
        """Cancels all running requests."""
        for request in list(self.under_way):
            request.cancel()
        self.under_way.clear()

    def stop(self) -> None:
        """Ends the call from another thread: `next` raises there."""
        self._stopped = True
        for request in list(self.under_way):
            request.cancel()
        self._ended.put(None)
