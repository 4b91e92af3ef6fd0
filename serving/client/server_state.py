"""What one call knows of one server: failures, pauses and sizes of tasks."""

import time
from dataclasses import dataclass

from rs_keras.serving.client.audit import Repeat
from rs_keras.serving.client.fleet import Server
from rs_keras.serving.client.requests import pause_after
from rs_keras.serving.client.tasks import Task
from rs_keras.serving.errors import ServingError

_FIRST_CHUNK = 1_000
_SECONDS_A_CHUNK = 1.0
# Towards the end chunks get shorter, so that all servers end together.
_LEAST_SECONDS = 0.05
_LEAST_CHUNK = 100
# Deadline of a chunk: this times what it should take, and never less than ...
_DEADLINE_FACTOR = 5.0
_LEAST_DEADLINE = 5.0
# A task is repeated elsewhere after this times what it should take there.
_HEDGE_FACTOR = 2.0
_LEAST_HEDGE = 0.5
_LONGEST_PAUSE = 5.0


@dataclass
class ServerState:
    """What one call knows of one server.

    Attributes:
        server: The server.
        retries: How many failures in a row are borne.
        left_out: Why it is not asked any more: not to be trusted, or of no
            use; None where it is.
        in_flight: Requests under way.
        failures: In a row.
        paused_until: Nothing is sent before.
        gone: Whether it lost the version.
        audits: Whether it is fast enough to make audits.
        probing: Whether it is being asked what it serves.
        limit: The most draws a task, after a deadline passed.
        failure: Its last one, in words.
    """

    server: Server
    retries: int
    left_out: ServingError | None = None
    in_flight: int = 0
    failures: int = 0
    paused_until: float = 0.0
    gone: bool = False
    audits: bool = True
    probing: bool = False
    limit: int | None = None
    failure: str = ""

    @property
    def usable(self) -> bool:
        """Whether it may yet do some work."""
        there = not self.gone and self.left_out is None
        return there and self.failures <= self.retries

    def has_room(self, now: float, in_flight: int) -> bool:
        """Whether it may be sent a request now."""
        # One that failed is tried with one request.
        room = 1 if self.failures else in_flight
        return (
            self.server.ready
            and self.usable
            and self.paused_until <= now
            and self.in_flight < room
        )

    def chunk(self, share: float | None) -> int:
        """Draws of its next task: a second's, at most its share of the rest.

        Args:
            share: Of the draws that wait; None where they are many.
        """
        rate = self.server.rate
        size = _SECONDS_A_CHUNK * rate if rate else _FIRST_CHUNK
        if share is not None:
            least = _LEAST_SECONDS * rate if rate else _LEAST_CHUNK
            size = min(size, max(share, least))
        return max(1, int(size))

    def overdue_after(self, task: Task) -> float:
        """Seconds after which it repeats a task that is under way elsewhere."""
        rate = self.server.rate
        expected = task.draws / rate if rate else 1.0
        return max(_LEAST_HEDGE, _HEDGE_FACTOR * expected)

    def deadline(self, task: Task, timeout: float) -> float:
        """Seconds that a request for this task may take."""
        rate = self.server.rate
        if isinstance(task, Repeat) and rate is None:
            # Who answered it may be left with nothing but to wait for this.
            rate = next(iter(task.answers)).rate
        elif not task.pieces:
            return timeout
        if rate is None:
            return timeout
        # Others of this call run on the same cores.
        expected = task.draws / rate
        return min(timeout, max(_LEAST_DEADLINE, _DEADLINE_FACTOR * expected))

    def answered(self, task: Task, seconds: float) -> None:
        """Notes an answer that may be used."""
        self.failures = 0
        self.paused_until = 0.0
        self.server.measured(task.draws, seconds)
        if self.limit and task.draws >= self.limit:
            self.limit *= 2

    def failed(self, failure: str) -> None:
        """Notes a failure, after which it rests, longer each time."""
        self.failure = failure
        self.failures += 1
        pause = pause_after(self.failures, _LONGEST_PAUSE)
        self.paused_until = time.monotonic() + pause
        if self.failures > self.retries:
            self.server.ready = False

    def lost(self, failure: str) -> None:
        """Notes that it has the version no more."""
        self.failure = failure or self.failure
        self.gone = True
        self.server.ready = False
