"""The state of one server in one call: failures, pauses and sizes of tasks."""

import math
import time
from dataclasses import dataclass
from dataclasses import field

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
# Another server repeats a task after this factor times its usual duration, and
# at least ... seconds; the last for a server whose latency is not known.
_HEDGE_FACTOR = 3.0
_LEAST_HEDGE = 0.25
_FIRST_HEDGE = 2.0
_LONGEST_PAUSE = 5.0
# The longest pause of a server that is busy; it answered at once.
_LONGEST_REFUSAL = 1.0


@dataclass
class ServerState:
    """The state of one server in one call.

    Attributes:
        server: The server.
        retries: Maximum number of consecutive failures.
        patience: Seconds after which a server that only refuses is not used.
        excluded: The error for which the server is left out of the call; None
            while it is used.
        in_flight: Number of running requests.
        failures: Number of consecutive failures.
        refusals: Number of consecutive refusals of a busy server.
        refused_since: Time of the first of these refusals.
        refused_until: Time of the last of them.
        paused_until: Time before which nothing is sent.
        lacks_version: Whether the server lost the version.
        audits: Whether the server is fast enough to make audits.
        probing: Whether a description has been requested.
        limit: Maximum number of draws per task, after a timeout.
        failure: Message of the last failure.
        failed_probes: Those of the server that this call has counted.
    """

    server: Server
    retries: int
    patience: float
    excluded: ServingError | None = None
    in_flight: int = 0
    failures: int = 0
    refusals: int = 0
    refused_since: float = math.inf
    refused_until: float = 0.0
    paused_until: float = 0.0
    lacks_version: bool = False
    audits: bool = True
    probing: bool = False
    limit: int | None = None
    failure: str = ""
    failed_probes: int = field(init=False)

    def __post_init__(self) -> None:
        self.failed_probes = self.server.failed_probes

    @property
    def usable(self) -> bool:
        """Whether the call may still count on the server."""
        refused = self.refused_until > self.refused_since + self.patience
        return self.may_return and self.failures <= self.retries and not refused

    @property
    def may_return(self) -> bool:
        """Whether the server may be used again if it answers."""
        return not self.lacks_version and self.excluded is None

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
        rate = self.server.latency.rate
        size = _SECONDS_A_CHUNK * rate if rate else _FIRST_CHUNK
        if share is not None:
            shortest = _LEAST_SECONDS * rate if rate else _LEAST_CHUNK
            size = min(size, max(share, shortest))
        return max(1, int(size))

    def hedging_delay(self, task: Task) -> float:
        """Seconds after which another server repeats a task of this one."""
        usual = self.server.latency.expected(task.draws)
        if usual is None:
            return _FIRST_HEDGE
        return max(_LEAST_HEDGE, _HEDGE_FACTOR * usual)

    def deadline(self, task: Task, timeout: float) -> float:
        """Timeout of a request for this task, in seconds."""
        latency = self.server.latency
        if isinstance(task, Repeat) and latency.rate is None:
            # The server that answered it may have to wait for this audit.
            latency = next(iter(task.answers)).latency
        elif not task.pieces:
            return timeout
        usual = latency.expected(task.draws)
        if usual is None:
            return timeout
        # Other requests of this client run on the same cores.
        return min(timeout, max(_LEAST_DEADLINE, _DEADLINE_FACTOR * usual))

    def answered(self, task: Task, seconds: float) -> None:
        """Records a valid response."""
        self.failures = self.refusals = 0
        self.refused_since = math.inf
        self.paused_until = 0.0
        self.server.latency.measured(task.draws, seconds)
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

    def refused(self, failure: str) -> None:
        """Records that the server is busy, and pauses it for a moment."""
        self.failure = failure
        self.refused_until = time.monotonic()
        self.refused_since = min(self.refused_since, self.refused_until)
        pause = pause_after(self.refusals, _LONGEST_REFUSAL)
        self.refusals += 1
        self.paused_until = self.refused_until + pause

    def probe_failed(self, failure: str) -> None:
        """Records a failed probe, for all calls."""
        self.server.failed_probes += 1
        self.server.failure = failure
        self.count_probes()

    def count_probes(self) -> None:
        """Counts the failed probes of other calls, too, as one failure."""
        if self.failed_probes != self.server.failed_probes:
            self.failed_probes = self.server.failed_probes
            self.failed(self.server.failure)

    def described(self) -> None:
        """Records that the server describes the model of the call."""
        # One more chance, if it was given up.
        self.failures = min(self.failures, self.retries)
        self.server.ready = True

    def lost(self, failure: str) -> None:
        """Records that the server no longer has the version."""
        self.failure = failure or self.failure
        self.lacks_version = True
        self.server.ready = False
