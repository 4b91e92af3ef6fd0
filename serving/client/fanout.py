"""Distributes the tasks of one call over the servers.

One loop assigns tasks to servers with free capacity, waits for the next
response and handles it. Rules:

- Each server has two running requests of a call: one computes, one waits. All
  calls together have as many as the server takes without refusing; a call that
  finds no room waits in line.
- The next task goes to a random server, rather to one that should answer soon:
  by its latency and its running requests.
- A task takes about a second, less towards the end.
- A failed task returns to the queue, and any server may take it; after a
  timeout it is cut in two.
- A server pauses after a failure, longer each time. After a lost connection it
  must describe the same model again before it gets another task. A server that
  is busy is asked again until `timeout` has passed; other failures are counted.
- A task that takes much longer than usual is repeated by another server: the
  same draws under the same seed. The first answer counts, whatever it says. A
  server that has answered nothing meanwhile gets no tasks until it describes
  the model again.
- A server whose answer no export can give, or that refuses a request, is left
  out of the call, and another server takes the task. So is a server that an
  audit outvotes; all of its draws are then repeated under the same seeds.
- A server that lost the version, or serves another export under its number, is
  left out.
"""

import logging
import time
from collections.abc import Iterable
from collections.abc import Iterator

from rs_keras._checks import check_count
from rs_keras.export import signature
from rs_keras.serving import errors
from rs_keras.serving import wire
from rs_keras.serving.client import discovery
from rs_keras.serving.client.audit import Audits
from rs_keras.serving.client.audit import Repeat
from rs_keras.serving.client.discovery import VersionUnavailable
from rs_keras.serving.client.fleet import Server
from rs_keras.serving.client.fleet import by_load
from rs_keras.serving.client.load.hedging import Hedging
from rs_keras.serving.client.load.probes import Probes
from rs_keras.serving.client.requests import Call
from rs_keras.serving.client.requests import Request
from rs_keras.serving.client.server_state import ServerState
from rs_keras.serving.client.tasks import Job
from rs_keras.serving.client.tasks import Task
from rs_keras.serving.client.tasks import Tasks
from rs_keras.serving.event_log import event

# Tasks per running request into which the last draws are cut.
_SHARES_LEFT = 2
# Seconds between two iterations if no response may wake the loop.
_POLL = 0.1


class _Distrusted(Exception):
    """An audit outvoted a server after some of its votes were counted."""


class FanOut:
    """Distributes the tasks of one call over the servers.

    Args:
        call: Sends the requests.
        tasks: The tasks.
        chunk: Draws per task; None adapts.
        restartable: Whether the tasks may be restarted.

    Raises:
        ValueError: If `chunk` is out of its range.
    """

    def __init__(
        self,
        call: Call,
        tasks: Tasks,
        chunk: int | None = None,
        restartable: bool = True,
    ) -> None:
        self._call = call
        self._fleet = call.fleet
        self._tasks = tasks
        self._model = tasks.model
        self._chunk = None if chunk is None else check_count("chunk", chunk)
        self._restartable = restartable
        self._hedging = Hedging(call, self._model.metadata["seed"] == "keyed")
        # A server's message if the version number has another export now.
        self._replaced = ""

    def run(self) -> Iterator[Job]:
        """Yields jobs as they finish.

        Raises:
            VersionUnavailable: If no server has the version any more.
            ServingError: If the servers fail, or differ.
        """
        while True:
            self._begin()
            try:
                while not self._finished():
                    yield from self._step()
                return
            except _Distrusted:
                self._call.cancel()
            finally:
                self._leave_line(self._states)

    def _begin(self) -> None:
        self._tasks.begin()
        servers = self._fleet.servers
        share = self._fleet.audit if len(servers) > 1 else 0.0
        self._audits = Audits(share, self._model.metadata["dtype"])
        self._states = {
            server: ServerState(
                server,
                self._fleet.retries,
                self._fleet.timeout,
                self._call.excluded.get(server),
            )
            for server in servers
        }
        self._probes = Probes(self._call, self._model.version, self._states)
        # The servers whose votes were counted.
        self._counted: set[Server] = set()
        # Whether a task waits for room on a server.
        self._in_line = False

    def _step(self) -> list[Job]:
        """Sends all possible requests, then handles one response."""
        now = time.monotonic()
        self._probes.send(now)
        self._assign(now)
        states = self._states.values()
        if not self._call.under_way and not any(one.usable for one in states):
            if any(state.lacks_version for state in states):
                raise VersionUnavailable(self._replaced)
            raise self._nobody_left()
        request = self._call.next(self._patience(now))
        return [] if request is None else self._handle(request)

    def _finished(self) -> bool:
        able = [
            server
            for server, state in self._states.items()
            # At the end, servers that are not ready are not waited for.
            if (server.ready or not self._tasks.finished)
            and state.audits
            and state.usable
        ]
        self._audits.route(able)
        return self._tasks.finished and self._audits.finished

    # -- sending ---------------------------------------------------------------

    def _assign(self, now: float) -> None:
        """Assigns tasks to servers with free capacity, until none is left."""
        full: set[Server] = set()
        assigned = True
        while assigned:
            assigned = False
            free = [
                state
                for state in self._states.values()
                if state.has_room(now, self._fleet.in_flight)
                and state.server not in full
            ]
            # One task per server and pass, least loaded first: otherwise the
            # first server would get all.
            for server in by_load(state.server for state in free):
                state = self._states[server]
                if not self._has_work_for(state, now):
                    continue
                if not server.window.admits(self._call.wake):
                    full.add(server)
                    continue
                task = self._task_for(state, now)
                if task is not None:
                    self._send(state, task)
                    assigned = True
        self._in_line = bool(full)
        self._leave_line(self._states.keys() - full)

    def _leave_line(self, servers: Iterable[Server]) -> None:
        for server in servers:
            server.window.leave(self._call.wake)

    def _has_work_for(self, state: ServerState, now: float) -> bool:
        audited = self._audits.take(state.server) is not None
        if audited or self._audits.full:
            return audited
        overdue = self._hedging.overdue(state.server, now)
        return overdue is not None or self._tasks.any_left()

    def _task_for(self, state: ServerState, now: float) -> Task | None:
        repeat = self._audits.take(state.server)
        if repeat is not None or self._audits.full:
            return repeat
        return self._hedging.overdue(state.server, now) or self._tasks.take(
            self._size(state)
        )

    def _size(self, state: ServerState) -> int:
        """Draws of the next task of this server."""
        size = self._chunk or state.chunk(self._share(state))
        return min(size, state.limit) if state.limit else size

    def _share(self, state: ServerState) -> float | None:
        """The queued draws divided by the number of tasks; None if many."""
        ready = sum(
            other.server.ready and other.usable
            for other in self._states.values()
        )
        # No server is ready if the last one just lost its connection.
        shares = _SHARES_LEFT * self._fleet.in_flight * max(1, ready)
        waiting = self._tasks.waiting(state.chunk(None) * shares)
        return None if waiting is None else waiting / shares

    def _send(self, state: ServerState, task: Task) -> None:
        self._hedging.mark_stalled(task)
        state.in_flight += 1
        task.copies += 1
        task.overdue_at = time.monotonic() + state.hedging_delay(task)
        self._call.send(
            state.server,
            state.server.predict,
            wire.request(self._request_spec(task.signature), task.inputs),
            state.deadline(task, self._fleet.timeout),
            task,
        )

    def _request_spec(self, name: str) -> wire.RequestSpec:
        return wire.RequestSpec(self._model.name, self._model.version, name)

    # -- receiving -------------------------------------------------------------

    def _handle(self, request: Request) -> list[Job]:
        state, task = self._states[request.server], request.task
        if task is None:
            state.probing = False
            if not state.excluded:
                self._described(request, state)
            return []
        state.in_flight -= 1
        task.copies -= 1
        if task.answer is not None:
            return []
        if request.ok and not state.excluded:
            finished = self._answered(request, state)
            if finished is not None:
                return finished
        elif not state.excluded:
            self._failed(request, state)
        # Back into the queue, unless another request for it is running.
        if not task.copies and not isinstance(task, Repeat):
            slow = not request.ok and request.kind is errors.Kind.SLOW
            self._tasks.put_back(task.halves() if slow else [task])
        return []

    def _answered(
        self, request: Request, state: ServerState
    ) -> list[Job] | None:
        """Returns the finished jobs; None if the answer cannot be used."""
        server, task = request.server, request.task
        try:
            outputs = wire.outputs(
                request.response,
                self._request_spec(task.signature),
                server.label,
                rows=task.rows,
                num_classes=self._model.num_classes,
                export=self._model.identity,
            )
            answer = task.read(server.label, outputs)
        except errors.OtherExport as error:
            self._lost(state, str(error), replaced=True)
            return None
        except errors.WrongAnswer as error:
            self._exclude(state, error)
            return None
        state.answered(task, request.ended - request.begun)
        if isinstance(task, Repeat):
            self._audited(self._audits.answered(task, server, outputs))
            return []
        self._hedging.cancel(task)
        self._counted.add(server)
        self._audits.choose(task, server, outputs)
        return self._tasks.accept(task, answer)

    def _audited(self, outvoted: dict[Server, errors.WrongAnswer]) -> None:
        """Leaves out the servers that an audit outvoted."""
        for server, error in outvoted.items():
            self._exclude(self._states[server], error)
        for server, error in outvoted.items():
            if server in self._counted and not self._restartable:
                raise errors.ServingError(
                    f"{error}. Some of what was finished before may rest on "
                    f"votes that {server.label} counted: start again without "
                    "it",
                    server=server.label,
                )
        if self._counted & outvoted.keys():
            raise _Distrusted

    def _described(self, request: Request, state: ServerState) -> None:
        """Checks that a server describes the model of this call."""
        if not request.ok:
            self._failed(request, state)
            return
        version, label = self._model.version, request.server.label
        try:
            model = discovery.read_description(self._call, request, version)
        except errors.WrongAnswer as error:
            self._exclude(state, error)
            return
        differing = self._model.differences(model)
        if differing:
            self._lost(
                state,
                f"{label} came back with another export as version {version}, "
                f"which differs in {differing}",
                replaced=True,
            )
            return
        state.described()
        event(logging.INFO, "server_ready", server=label)

    def _failed(self, request: Request, state: ServerState) -> None:
        """Records a failure; leaves the server out if retries are useless."""
        kind, task = request.kind, request.task
        audit = isinstance(task, Repeat)
        slow = kind is errors.Kind.SLOW and task is not None
        if kind is errors.Kind.SLOW and audit:
            state.audits = False
        whole = task is not None and not task.pieces and not audit
        if kind is errors.Kind.FINAL or (slow and whole):
            name = task.signature if task else signature.DESCRIBE
            self._exclude(state, request.refusal(f"`{name}`"))
            return
        if kind is errors.Kind.VERSION_UNAVAILABLE:
            self._lost(state, request.failure)
            return
        record = state.probe_failed if task is None else state.failed
        busy = kind is errors.Kind.BUSY
        (state.refused if busy else record)(request.failure)
        if slow:
            state.limit = max(1, task.draws // 2)
        if kind in (errors.Kind.AWAY, errors.Kind.SLOW):
            state.server.ready = False
        event(logging.WARNING, "request_failed", what=state.failure)

    def _exclude(self, state: ServerState, error: errors.ServingError) -> None:
        """Leaves a server out of this call."""
        state.excluded = self._call.excluded[state.server] = error
        discovery.log_excluded(state.server, error)
        for request in self._call.under_way:
            if request.server is state.server:
                request.cancel()

    def _lost(
        self, state: ServerState, failure: str, replaced: bool = False
    ) -> None:
        """Leaves out a server that no longer has the version."""
        if replaced:
            self._replaced = failure
        state.lost(failure)
        event(logging.WARNING, "request_failed", what=failure)

    # -- waiting ---------------------------------------------------------------

    def _patience(self, now: float) -> float | None:
        """Seconds until the loop must run even without a response."""
        states = self._states.values()
        ends = [one.paused_until for one in states if one.usable]
        ends += self._probes.times()
        overdue = self._hedging.times()
        late = any(end <= now for end in overdue) and len(states) > 1
        # A connection may be lost, or a server be ready, in another thread.
        if late or self._in_line or not self._call.under_way:
            ends.append(now + _POLL)
        later = [end - now for end in ends + overdue if end > now]
        return min(later, default=None)

    def _nobody_left(self) -> errors.ServingError:
        states = self._states.values()
        excluded = [state.excluded for state in states if state.excluded]
        if excluded and len(states) == 1:
            return excluded[0]
        text = "no server is left: "
        if not excluded:
            text += f"each failed {self._fleet.retries + 1} times in a row, or "
            text += f"was busy for {self._fleet.timeout:g} s. "
        reasons = [str(state.excluded or state.failure) for state in states]
        text += "; ".join(filter(None, reasons))
        code = excluded[0].code if excluded else None
        return errors.ServingError(text, code)
