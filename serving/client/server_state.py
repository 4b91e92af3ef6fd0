"""The state of one server in one call: failures, pauses and sizes of tasks."""

import time
from dataclasses import dataclass

from rs_keras.serving.client.audit import Repeat
from rs_keras.serving.client.fleet import Server
from rs_keras.serving.client.requests import pause_after
from rs_keras.serving.client.tasks import Task
from rs_keras.serving.errors import ServingError

_FIRST_CHUNK = 1_000
_SECONDS_A_CHUNK = 1.0
# Towards the end tasks get shorter, so that all servers finish together.
_LEAST_SECONDS = 0.05
_LEAST_CHUNK = 100
# Timeout of a task: this factor times its expected duration, and at least ...
_DEADLINE_FACTOR = 5.0
_LEAST_DEADLINE = 5.0
# Another server repeats a task after this factor times its expected duration.
_HEDGE_FACTOR = 2.0
_LEAST_HEDGE = 0.5
_LONGEST_PAUSE = 5.0


@dataclass
class ServerState:
    """The state of one server in one call.

    Attributes:
        server: The server.
        retries: Maximum number of consecutive failures.
        excluded: The error for which the server is left out of the call; None
            while it is used.
        in_flight: Number of running requests.
        failures: Number of consecutive failures.
        paused_until: Time before which nothing is sent.
        lacks_version: Whether the server lost the version.
        audits: Whether the server is fast enough to make audits.
        probing: Whether a description has been requested.
        limit: Maximum number of draws per task, after a timeout.
        failure: Message of the last failure.
    """

    server: Server
    retries: int
    excluded: ServingError | None = None
    in_flight: int = 0
    failures: int = 0
    paused_until: float = 0.0
    lacks_version: bool = False
    audits: bool = True
    probing: bool = False
    limit: int | None = None
    failure: str = ""

    @property
    def usable(self) -> bool:
        """Whether the server can still be used in this call."""
        available = not self.lacks_version and self.excluded is None
        return available and self.failures <= self.retries

    def has_room(self, now: float, in_flight: int) -> bool:
        """Whether a request may be sent now."""
        # After a failure, one request at a time.
        room = 1 if self.failures else in_flight
        return (
            self.server.ready
            and self.usable
            and self.paused_until <= now
            and self.in_flight < room
        )

    def chunk(self, share: float | None) -> int:
        """Draws of the next task: about a second, at most a share of the queue.

        Args:
            share: Of the queued draws; None if there are many.
        """
        rate = self.server.rate
        size = _SECONDS_A_CHUNK * rate if rate else _FIRST_CHUNK
        if share is not None:
            shortest = _LEAST_SECONDS * rate if rate else _LEAST_CHUNK
            size = min(size, max(share, shortest))
        return max(1, int(size))

    def overdue_after(self, task: Task) -> float:
        """Seconds after which this server repeats another server's task."""
        rate = self.server.rate
        expected = task.draws / rate if rate else 1.0
        return max(_LEAST_HEDGE, _HEDGE_FACTOR * expected)

    def deadline(self, task: Task, timeout: float) -> float:
        """Timeout of a request for this task, in seconds."""
        rate = self.server.rate
        if isinstance(task, Repeat) and rate is None:
            # The server that answered it may have to wait for this audit.
            rate = next(iter(task.answers)).rate
        elif not task.pieces:
            return timeout
        if rate is None:
            return timeout
        # Other requests of this call run on the same cores.
        expected = task.draws / rate
        return min(timeout, max(_LEAST_DEADLINE, _DEADLINE_FACTOR * expected))

    def answered(self, task: Task, seconds: float) -> None:
        """Records a valid response."""
        self.failures = 0
        self.paused_until = 0.0
        self.server.measured(task.draws, seconds)
        if self.limit and task.draws >= self.limit:
            self.limit *= 2

    def failed(self, failure: str) -> None:
        """Records a failure and pauses the server, longer each time."""
        self.failure = failure
        self.failures += 1
        pause = pause_after(self.failures, _LONGEST_PAUSE)
        self.paused_until = time.monotonic() + pause
        if self.failures > self.retries:
            self.server.ready = False

    def lost(self, failure: str) -> None:
        """Records that the server no longer has the version."""
        self.failure = failure or self.failure
        self.lacks_version = True
        self.server.ready = False
