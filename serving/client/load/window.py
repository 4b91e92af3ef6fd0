"""The number of requests that may run on one server, over all calls.

The limit adapts as a TCP window does: it doubles per round trip until the
server first refuses a request, then grows by one per round trip, and is halved
by each burst of refusals (additive increase, multiplicative decrease). Calls
that find no room wait in line.

References:
- [Chiu and Jain, 1989](https://doi.org/10.1016/0169-7552(89)90019-6)
"""

import threading
import time
from collections.abc import Callable
from collections.abc import Iterable

# Requests on a server that has not answered yet, and after a lost connection.
_FIRST = 2.0
_MOST = 256.0
# Seconds after which a place that a call was given and did not use is taken
# back: the call may be a stream that nobody reads at the moment.
_UNUSED = 0.25

Wake = Callable[[], None]


class Window:
    """The limit of running requests of one server, and who waits for room.

    Calls are identified by the functions that wake them.

    Attributes:
        limit: The present limit; its whole part counts.
        running: Number of running requests.

    Example:

    >>> from rs_keras.serving.client.load.window import Window
    >>> window, woken = Window(), []
    >>> first, second = (lambda: woken.append(1)), (lambda: woken.append(2))
    >>> for _ in range(2):
    ...     if window.admits(first):
    ...         window.use(first)
    >>> window.admits(second)
    False
    >>> window.ended(begun=0.0, answered=True)
    >>> woken, window.admits(second)
    ([2], True)
    """

    def __init__(self) -> None:
        self.limit = _FIRST
        self.running = 0
        # Below it, the limit doubles per round trip.
        self._threshold = _MOST
        self._cut_at = float("-inf")
        # Places that were given to calls and are not used yet, and since when.
        self._given: dict[Wake, float] = {}
        self._line: dict[Wake, None] = {}
        self._lock = threading.Lock()

    def admits(self, wake: Wake) -> bool:
        """Whether a call may send a request; otherwise it waits in line.

        `use` or `leave` must follow.

        Args:
            wake: Is called, in any thread, when there is room for the call.
        """
        with self._lock:
            if wake not in self._given:
                self._line.setdefault(wake)
            woken = self._give()
            admitted = wake in self._given
        _wake(one for one in woken if one != wake)
        return admitted

    def use(self, wake: Wake) -> None:
        """Counts a request of an admitted call as running."""
        with self._lock:
            self._given.pop(wake, None)
            self.running += 1

    def leave(self, wake: Wake) -> None:
        """Takes a call out of the line."""
        with self._lock:
            self._line.pop(wake, None)
            given = self._given.pop(wake, None)
            woken = [] if given is None else self._give()
        _wake(woken)

    def ended(
        self, begun: float, answered: bool = False, refused: bool = False
    ) -> None:
        """Counts a request as ended, and adapts the limit.

        Args:
            begun: When it was sent (`time.monotonic`).
            answered: Whether the server answered it.
            refused: Whether the server, or the network, turned it away.
        """
        with self._lock:
            full = self.running >= int(self.limit)
            self.running -= 1
            # What was sent before the last cut says nothing about the new
            # limit.
            if refused and begun > self._cut_at:
                self.limit = self._threshold = max(1.0, self.limit / 2)
                self._cut_at = time.monotonic()
            elif answered and full:
                fast = self.limit < self._threshold
                grown = self.limit + (1.0 if fast else 1 / self.limit)
                self.limit = min(_MOST, grown)
            woken = self._give()
        _wake(woken)

    def restart(self) -> None:
        """Starts with few requests: the server may have just started."""
        with self._lock:
            self.limit = min(self.limit, _FIRST)

    def _give(self) -> list[Wake]:
        """Gives the free places to the first calls in line; returns them."""
        now = time.monotonic()
        for wake, since in list(self._given.items()):
            if now - since > _UNUSED:
                del self._given[wake]
        free = int(self.limit) - self.running - len(self._given)
        woken = list(self._line)[: max(0, free)]
        for wake in woken:
            del self._line[wake]
            self._given[wake] = now
        return woken


def _wake(woken: Iterable[Wake]) -> None:
    for wake in woken:
        wake()
