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

from rs_keras.serving.client.channels import Metadata
from rs_keras.serving.client.fleet import Fleet
from rs_keras.serving.client.fleet import Server
from rs_keras.serving.errors import Kind
from rs_keras.serving.errors import ServingError
from rs_keras.serving.errors import describe_failure
from rs_keras.serving.errors import kind_of

_FIRST_PAUSE = 0.1
# Seconds for the other servers once most have answered.
_MOST_ANSWERED = 0.5


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
        has_ended: Whether it ended; `Call.next` may not have returned it yet.
        code: The gRPC status code, once it has ended.
        details: The server's message after a failure.
        response: The response, if there is one.
        cancelled: Whether the client gave it up.
    """

    def __init__(self, server: Server, task: Any = None) -> None:
        self.server = server
        self.task = task
        self.begun = time.monotonic()
        self.ended = self.begun
        self.has_ended = False
        # The status of a request that could not be sent.
        self.code = grpc.StatusCode.CANCELLED
        self.details = "the connection was closed"
        self.response: Any = None
        self.cancelled = False
        self._future: Any = None

    def send(
        self,
        method: Any,
        message: Any,
        timeout: float,
        metadata: Metadata | None,
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
            self._future = method.future(
                message, timeout=timeout, metadata=metadata
            )
        except ValueError:
            deliver(self)
            # Another call may close the connection at any moment.
            if not self.server.closed:
                raise
        else:
            self._future.add_done_callback(end)

    def cancel(self) -> None:
        """Cancels the request, which soon ends with CANCELLED."""
        self.cancelled = True
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
        metadata = self.fleet.metadata()
        self.under_way.add(request)
        if task is not None:
            server.window.use(self.wake)
        request.send(method, message, timeout, metadata, self._deliver)
        return request

    def _deliver(self, request: Request) -> None:
        """Hands a request that has ended to the thread of this call."""
        request.has_ended = True
        server = request.server
        if request.ok:
            server.answered_at = request.ended
        if request.task is not None:
            no_failure = request.ok or request.cancelled
            kind = None if no_failure else request.kind
            # Here and not in the thread of the call, which may be a stream
            # that nobody reads at the moment.
            server.ended(request.begun, request.ok, kind)
        self._ended.put(request)

    def wake(self) -> None:
        """Makes `next` return, from another thread."""
        self._ended.put(None)

    def next(self, seconds: float | None = None) -> Request | None:
        """Waits for a request to end.

        Returns:
            The request; None if none ends within `seconds`, or after `wake`.

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
            if request is None:
                return None
            # Cancelled requests also end; skip them.
            if request in self.under_way:
                self.under_way.remove(request)
                return request

    def gather(
        self, requests: Iterable[Request], patience: float
    ) -> list[Request]:
        """Waits for requests; `patience` seconds after the first success.

        Once most have succeeded, the others have half a second.
        """
        missing, ended = set(requests), []
        until: float | None = None
        while missing:
            left = None if until is None else max(0, until - time.monotonic())
            request = self.next(left)
            if request is None and left == 0:
                break
            if request is None:
                continue
            missing.discard(request)
            ended.append(request)
            now = time.monotonic()
            if request.ok and until is None:
                until = now + patience
            if 2 * sum(one.ok for one in ended) > len(ended) + len(missing):
                until = min(until or now, now + _MOST_ANSWERED)
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
