"""Hedging: an overdue task is repeated by another server.

The second request asks for the same draws: the same seed, first draw and number
of draws. Both answers are thus the same votes, whichever arrives first, and the
image has no second chance. Where a server makes the seed, each request has
other noise, and tasks are not repeated: an answer that is late need not be late
by chance alone.

References:
- [Dean and Barroso, 2013](https://doi.org/10.1145/2408776.2408794)
"""

import logging
import time

from rs_keras.serving.client.audit import Repeat
from rs_keras.serving.client.fleet import Server
from rs_keras.serving.client.requests import Call
from rs_keras.serving.client.requests import Request
from rs_keras.serving.client.tasks import Task
from rs_keras.serving.event_log import event


class Hedging:
    """Finds the overdue tasks of a call.

    Args:
        call: The call.
        keyed: Whether all servers make the same seed for an image.
    """

    def __init__(self, call: Call, keyed: bool) -> None:
        self._call = call
        self._keyed = keyed

    def overdue(self, server: Server, now: float) -> Task | None:
        """Returns the oldest overdue task that a server can repeat."""
        for request in sorted(self._call.under_way, key=lambda one: one.begun):
            task = request.task
            if (
                self._may_repeat(task)
                and task.overdue_at <= now
                and not request.has_ended
                and _is_alive(server, request.begun)
                and server not in self._requests(task)
            ):
                return task
        return None

    def times(self) -> list[float]:
        """Returns when each running task will be overdue."""
        requests = self._call.under_way
        tasks = {one.task for one in requests if self._may_repeat(one.task)}
        return [task.overdue_at for task in tasks]

    def mark_stalled(self, task: Task) -> None:
        """Marks the servers that have this task and answered nothing since.

        No call gives them tasks until they describe the model again.
        """
        for server, request in self._requests(task).items():
            if server.ready and server.answered_at < request.begun:
                server.ready = False
                event(logging.WARNING, "server_stalled", server=server.label)

    def cancel(self, task: Task) -> None:
        """Cancels the requests for a task that another server answered."""
        now = time.monotonic()
        for server, request in self._requests(task).items():
            request.cancel()
            if request.has_ended:
                continue
            # It would have taken longer still.
            server.latency.measured(task.draws, now - request.begun)

    def _may_repeat(self, task: Task | None) -> bool:
        """Whether another server would make the same draws.

        The client made the seeds of a task with pieces.
        """
        return (
            task is not None
            and (bool(task.pieces) or self._keyed)
            and task.answer is None
            and not isinstance(task, Repeat)
        )

    def _requests(self, task: Task) -> dict[Server, Request]:
        """The running requests for a task."""
        return {
            request.server: request
            for request in self._call.under_way
            if request.task is task
        }


def _is_alive(server: Server, since: float) -> bool:
    """Whether a server has answered since, or has nothing to do."""
    return server.answered_at > since or not server.window.running
