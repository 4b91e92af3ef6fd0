"""Who runs next: callers with deadlines, and turns that go around."""

import threading
import time
from collections import OrderedDict
from collections import deque
from collections.abc import Callable
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from rs_keras.serving.server.grpc_errors import StatusError

# Seconds between two looks at whether a caller that waits is still there.
_POLL = 0.25


class Caller(NamedTuple):
    """Who asks, and for how long.

    Attributes:
        client: The machine that asks.
        deadline: When its time is over (`time.monotonic`).
        active: Whether it still waits for the answer.
    """

    client: str
    deadline: float
    active: Callable[[], bool]

    def seconds_left(self) -> float:
        """Returns the seconds that are left.

        Raises:
            StatusError: If the caller is gone or its time is over.
        """
        if not self.active():
            raise StatusError("CANCELLED", "Cancelled")
        seconds = self.deadline - time.monotonic()
        if seconds <= 0:
            # The words of a session whose run is stopped.
            raise StatusError(
                "DEADLINE_EXCEEDED", "Timed out waiting for notification"
            )
        return seconds


class Turns:
    """A few turns at a time, given to clients one after the other.

    A client with many requests gets as many turns as one with a single
    request; among the requests of a client, the one that waits longest is
    next.

    Args:
        at_once: Turns at a time; one less, but not none, while there is a
            `reserve`.

    Example:

    >>> import time
    >>> from rs_keras.serving.server.scheduling.turns import Caller
    >>> from rs_keras.serving.server.scheduling.turns import Turns
    >>> turns = Turns(at_once=1)
    >>> with turns.turn(Caller("a", time.monotonic() + 1, lambda: True)):
    ...     pass  # run a slice
    """

    def __init__(self, at_once: int) -> None:
        self._lock = threading.Lock()
        self._at_once = at_once
        self._taken = self._reserved = 0
        # Tickets by client; the client in front is next.
        self._waiting: OrderedDict[str, deque[threading.Event]] = OrderedDict()

    @property
    def waiting(self) -> int:
        """How many callers wait for a turn."""
        with self._lock:
            return sum(map(len, self._waiting.values()))

    @contextmanager
    def turn(self, caller: Caller) -> Iterator[None]:
        """Waits for a turn, which lasts until the block ends.

        Raises:
            StatusError: If the caller's time is over before.
        """
        ticket = self._enqueue(caller.client)
        try:
            while not ticket.wait(min(_POLL, caller.seconds_left())):
                pass
        except BaseException:
            self._dequeue(caller.client, ticket)
            raise
        try:
            yield
        finally:
            self._pass_on()

    @contextmanager
    def reserve(self) -> Iterator[None]:
        """Gives one turn less until the block ends."""
        with self._lock:
            self._reserved += 1
        try:
            yield
        finally:
            with self._lock:
                self._reserved -= 1
                self._grant()

    def _enqueue(self, client: str) -> threading.Event:
        ticket = threading.Event()
        with self._lock:
            self._waiting.setdefault(client, deque()).append(ticket)
            self._grant()
        return ticket

    def _dequeue(self, client: str, ticket: threading.Event) -> None:
        with self._lock:
            if not ticket.is_set():
                tickets = self._waiting[client]
                tickets.remove(ticket)
                if not tickets:
                    del self._waiting[client]
                return
        self._pass_on()

    def _pass_on(self) -> None:
        with self._lock:
            self._taken -= 1
            self._grant()

    def _grant(self) -> None:
        """Gives the turns that are free to those that wait."""
        most = max(1, self._at_once - bool(self._reserved))
        while self._waiting and self._taken < most:
            client, tickets = self._waiting.popitem(last=False)
            tickets.popleft().set()
            self._taken += 1
            if tickets:
                self._waiting[client] = tickets
