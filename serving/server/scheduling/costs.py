"""What work costs, as measured, and how much of it is admitted."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from rs_keras.serving.server.grpc_errors import StatusError

# Seconds that a slice takes. A short request may wait so long for a core;
# shorter slices cost rate, as their first pass overlaps with nothing.
SLICE_SECONDS = 0.03
# How fast a measurement replaces the ones before.
_NEWEST = 0.2
# A slice has at most so many times the draws of the one before.
_GROWTH = 4


class DrawCost:
    """The cost of one draw of a model, and the size of its slices.

    Args:
        pass_size: Noisy copies of one pass of the network, about.

    Example:

    >>> from rs_keras.serving.server.scheduling.costs import DrawCost
    >>> cost = DrawCost(pass_size=100)
    >>> cost.seconds(1_000), cost.slice_draws()  # nothing is known
    (0.0, 16)
    >>> for _ in range(11):
    ...     cost.measured(cost.slice_draws(), cost.slice_draws() * 1e-4)
    >>> round(cost.seconds(1_000), 6), cost.slice_draws()
    (0.1, 300)
    """

    def __init__(self, pass_size: int) -> None:
        self._pass_size = pass_size
        self._lock = threading.Lock()
        self._seconds = 0.0
        self._draws = 4
        self._has_run = False

    def seconds(self, draws: int) -> float:
        """The estimated time of so many draws; 0 if nothing is known."""
        return self._seconds * draws

    def slice_draws(self) -> int:
        """The draws of the next slice."""
        with self._lock:
            draws = _GROWTH * self._draws
            if self._seconds:
                # Of a large network even one pass takes longer, but fewer
                # copies cost nearly as much.
                wanted = int(SLICE_SECONDS / self._seconds + 1e-6)
                draws = min(draws, max(self._pass_size, wanted))
        whole = draws - draws % self._pass_size
        return whole or draws

    def measured(self, draws: int, seconds: float) -> None:
        """Learns from a slice that was alone.

        Slices far below `slice_draws`, such as the last one of a request, are
        mostly overhead; they count only while nothing else is known.
        """
        wanted = self.slice_draws()
        each = max(seconds, 1e-9) / draws
        with self._lock:
            if not self._has_run:
                # Most of it is the graph's optimisation, once.
                self._has_run = True
            elif draws > self._draws or not self._seconds:
                self._seconds = each
                self._draws = draws
            elif 2 * draws >= wanted:
                self._seconds += _NEWEST * (each - self._seconds)
                self._draws = draws


class Slots:
    """So many requests at a time.

    Args:
        most: The number of slots.

    Example:

    >>> from rs_keras.serving.server.scheduling.costs import Slots
    >>> slots = Slots(most=4)
    >>> with slots.one():
    ...     slots.fullness
    0.25
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._taken = 0

    @property
    def fullness(self) -> float:
        """The part of the slots that is taken."""
        return self._taken / self._most

    @contextmanager
    def one(self) -> Iterator[None]:
        """Takes a slot until the block ends.

        Raises:
            StatusError: RESOURCE_EXHAUSTED if there is none, in TF Serving's
                words.
        """
        with self._lock:
            if self._taken == self._most:
                raise StatusError(
                    "RESOURCE_EXHAUSTED", "Server Threadpool Exhausted"
                )
            self._taken += 1
        try:
            yield
        finally:
            with self._lock:
                self._taken -= 1


class Backlog:
    """The estimated time and the memory of all admitted requests.

    Args:
        most_seconds: More than this is not admitted.
        most_bytes: As `most_seconds`, for the bytes of their tensors.

    Example:

    >>> from rs_keras.serving.server.scheduling.costs import Backlog
    >>> backlog = Backlog(most_seconds=100.0, most_bytes=10**6)
    >>> with backlog.admitted(seconds=25.0, size=400):
    ...     backlog.fullness
    0.25
    """

    def __init__(self, most_seconds: float, most_bytes: int) -> None:
        self._most_seconds, self._most_bytes = most_seconds, most_bytes
        self._lock = threading.Lock()
        self._seconds, self._bytes = 0.0, 0

    @property
    def fullness(self) -> float:
        """The part of what may be admitted that is: 0 to 1."""
        seconds = self._seconds / self._most_seconds
        return min(1.0, max(seconds, self._bytes / self._most_bytes))

    @contextmanager
    def admitted(self, seconds: float, size: int) -> Iterator[None]:
        """Admits a request until the block ends.

        A request that is alone is always admitted, and one that takes no time
        whatever time others take.

        Raises:
            StatusError: RESOURCE_EXHAUSTED if there is too much work.
        """
        with self._lock:
            too_long = self._seconds + seconds > self._most_seconds
            too_large = self._bytes + size > self._most_bytes
            if (seconds and self._seconds and too_long) or (
                self._bytes and too_large
            ):
                raise StatusError(
                    "RESOURCE_EXHAUSTED",
                    f"the server has {self._seconds:.0f} s of work already",
                )
            self._seconds += seconds
            self._bytes += size
        try:
            yield
        finally:
            with self._lock:
                self._bytes -= size
                # Rounding must not add up over a year.
                self._seconds = max(0.0, self._seconds - seconds)
                if not self._bytes:
                    self._seconds = 0.0
