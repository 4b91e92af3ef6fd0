"""Probes: servers that are not ready are asked for their description."""

from collections.abc import Iterator
from collections.abc import Mapping

from rs_keras.serving.client import discovery
from rs_keras.serving.client.fleet import Server
from rs_keras.serving.client.requests import Call
from rs_keras.serving.client.server_state import ServerState

# Seconds between two probes of a server, over all calls: at least, and, while
# other servers work, at most.
_LEAST = 0.25
_MOST = 2.0


class Probes:
    """Asks servers for their descriptions.

    A server that was given up is asked, too, while others do the work: it may
    have been restarted.

    Args:
        call: Sends the requests.
        version: Of the model.
        states: The states of the servers.
    """

    def __init__(
        self, call: Call, version: int, states: Mapping[Server, ServerState]
    ) -> None:
        self._call = call
        self._version = version
        self._states = states

    def send(self, now: float) -> None:
        """Asks the servers whose time has come."""
        for server, state in self._states.items():
            if server.closed:
                # Another call closed the connection.
                state.lost("")
        for state in self._unready():
            state.count_probes()
            if self._time(state) <= now:
                state.probing = True
                state.server.probed_at = now
                discovery.describe(self._call, state.server, self._version)

    def times(self) -> list[float]:
        """Returns when servers are asked next, by this call or another."""
        return [self._time(state) for state in self._unready()]

    def _unready(self) -> Iterator[ServerState]:
        for state in self._states.values():
            needed = state.usable or self._others(state)
            idle = not state.server.ready and not state.probing
            if idle and state.may_return and needed:
                yield state

    def _others(self, state: ServerState) -> bool:
        """Whether there are other servers to do the work."""
        states = self._states.values()
        return any(one.usable for one in states if one is not state)

    def _time(self, state: ServerState) -> float:
        asked, paused = state.server.probed_at, state.paused_until
        if self._others(state):
            # Without them, each failure counts, so that none comes too soon.
            paused = min(paused, asked + _MOST)
        return max(asked + _LEAST, paused)
