"""Sends work to the servers of a fleet until it is done.

One operation is one loop: it gives tasks to servers that have room, waits for
the next answer, books it. It never blocks: it yields how long it may wait, and
is sent the call that ended, so that threads and asyncio drive the same code.
What gRPC is told is in `Operation.send`; the rules, in order:

- Two requests a server are under way: one runs, one waits.
- A task is as many draws as take about a second, less towards the end.
- A task that fails is put back, whole, and goes to whoever has room; one whose
  deadline passed is cut in two.
- A server that failed rests, longer each time. If its connection was lost it
  must then describe the same model again before it gets more.
- When nothing waits, a server that is idle repeats the task that is longest
  under way elsewhere. The first answer counts.
- A server whose answer no export can give, or that refuses what it was asked,
  is left out of the operation: the task goes to another. So is one that an
  audit finds to be odd; then everything that it counted is made again, under
  the same seeds.
- A server that lost the version is left out, or that answers as another
  export, which has the version's number now. If all have, the work starts
  again on the version that there is now.
"""

import logging
import random
import time
from collections.abc import Callable
from collections.abc import Generator
from dataclasses import dataclass

import numpy as np

from rs_keras.export import signature
from rs_keras.serving import wire
from rs_keras.serving.client.audit import Audits
from rs_keras.serving.client.audit import Repeat
from rs_keras.serving.client.draw_ranges import Job
from rs_keras.serving.client.draw_ranges import Task
from rs_keras.serving.client.draw_ranges import Work
from rs_keras.serving.client.fleet import Fleet
from rs_keras.serving.client.fleet import Server
from rs_keras.serving.client.requests import Call
from rs_keras.serving.client.requests import Operation
from rs_keras.serving.client.requests import Wait
from rs_keras.serving.client.requests import tell_left_out
from rs_keras.serving.client.served_model import ServedModel
from rs_keras.serving.errors import Kind
from rs_keras.serving.errors import ServingError
from rs_keras.serving.errors import WrongAnswer
from rs_keras.serving.errors import described
from rs_keras.serving.errors import kind_of
from rs_keras.serving.errors import refusal
from rs_keras.serving.event_log import event

_FIRST_CHUNK = 1_000
_SECONDS_A_CHUNK = 1.0
# Towards the end chunks get shorter, so that all servers end together.
_SHARES_LEFT = 2
_LEAST_SECONDS = 0.05
_LEAST_CHUNK = 100
# Deadline of a chunk: this times what it should take, and never less than ...
_DEADLINE_FACTOR = 5.0
_LEAST_DEADLINE = 5.0
# A task is repeated elsewhere after this times what it should take there.
_HEDGE_FACTOR = 2.0
_LEAST_HEDGE = 0.5
# Between two looks, where no answer may come to wake the loop.
_LOOKS = 0.1
_REST_BASE = 0.1
_LONGEST_REST = 5.0
# A model that is rolled more often than this in one operation is not served.
_MOST_RESTARTS = 3


@dataclass
class _Turn:
    """What one operation knows of one server.

    Attributes:
        in_flight: Requests under way.
        failures: In a row.
        rest_until: Nothing is sent before.
        gone: Whether it lost the version.
        left_out: Whether it is not to be trusted, or of no use.
        excused: Whether it is too slow to make audits.
        probing: Whether it is being asked what it serves.
        limit: The most draws a task, after a deadline passed.
        words: Its last failure.
    """

    in_flight: int = 0
    failures: int = 0
    rest_until: float = 0.0
    gone: bool = False
    left_out: bool = False
    excused: bool = False
    probing: bool = False
    limit: int | None = None
    words: str = ""

    def usable(self, retries: int) -> bool:
        """Whether it may yet do some work."""
        out = self.gone or self.left_out
        return not out and self.failures <= retries


class _Distrusted(Exception):
    """An audit found a server to be odd, of which votes were counted."""


Restart = Callable[[ServedModel], Work]


class FanOut:
    """Does one piece of work.

    Args:
        operation: What sends.
        make: Makes the work, for the model that is served; called again if
            that version is unloaded everywhere. It may raise instead.
        chunk: Draws a task; None adapts.
        again: Whether `make` may be called again for the same version.
    """

    def __init__(
        self,
        operation: Operation,
        make: Restart,
        chunk: int | None = None,
        again: bool = True,
    ) -> None:
        self._operation = operation
        self._fleet: Fleet = operation.fleet
        self._make = make
        self._chunk = chunk
        self._again = again
        self._turns: dict[Server, _Turn] = {}
        self._model: ServedModel
        self._work: Work
        self._audits: Audits
        # Whose votes were counted, and who is left out for which error.
        self._counted: set[Server] = set()
        self._errors: dict[Server, ServingError] = {}
        # How a server said so, if a version's number was given anew.
        self._replaced = ""

    def run(self) -> Generator[Wait | list[Job], Call | None, Work]:
        """Yields how long to wait, and jobs as they finish."""
        for _ in range(_MOST_RESTARTS + 1):
            self._model = yield from self._operation.connected()
            if (yield from self._until_trusted()):
                return self._work
            event(
                logging.WARNING,
                "version_gone",
                model=self._model.name,
                version=self._model.version,
            )
            self._operation.cancel()
            self._fleet.forget(self._model)
            if self._replaced and self._fleet.version is not None:
                raise ServingError(
                    f"version {self._fleet.version} is not what it was when "
                    f"this call began: {self._replaced}"
                )
        raise ServingError(
            f"the versions of model {self._model.name!r} come and go: one was "
            f"unloaded everywhere {_MOST_RESTARTS + 1} times while this call "
            "ran, the last was "
            f"{self._model.version}. Let the roll-out end first. "
            f"{self._replaced}".rstrip()
        )

    def _until_trusted(
        self,
    ) -> Generator[Wait | list[Job], Call | None, bool]:
        """Does the work; again if the votes of a server must not count."""
        while True:
            self._begin()
            try:
                return (yield from self._until_done())
            except _Distrusted:
                self._operation.cancel()

    def _begin(self) -> None:
        self._work = self._make(self._model)
        self._counted = set()
        servers = self._fleet.servers
        share = self._fleet.audit if len(servers) > 1 else 0.0
        self._audits = Audits(share, self._model.metadata["dtype"])
        self._turns = {server: _Turn() for server in servers}
        for server, error in self._errors.items():
            if server in self._turns:
                self._turns[server].left_out = True
                self._turns[server].words = str(error)

    def _until_done(
        self,
    ) -> Generator[Wait | list[Job], Call | None, bool]:
        """Returns False if the version is gone from all servers."""
        while not self._finished():
            now = time.monotonic()
            self._leave_closed()
            self._probe(now)
            self._assign(now)
            if not self._operation.calls and not self._hopeful():
                if any(turn.gone for turn in self._turns.values()):
                    return False
                raise self._nobody()
            call = yield Wait(self._patience(now))
            if call is not None:
                finished = self._handle(call)
                if finished:
                    yield finished
        return True

    def _finished(self) -> bool:
        self._audits.route(list(self._turns), self._may_audit)
        return self._work.finished and self._audits.finished

    # -- giving out ------------------------------------------------------------

    def _assign(self, now: float) -> None:
        """Gives each server with room a task, the idlest first."""
        while True:
            free = [
                server
                for server, turn in self._turns.items()
                if server.ready
                and turn.usable(self._fleet.retries)
                and turn.rest_until <= now
                and turn.in_flight < self._room(turn)
            ]
            if not free:
                return
            given = False
            # One each, then look again: else the first would get all.
            for server in sorted(free, key=self._load):
                task = self._task_for(server, now)
                if task is None:
                    continue
                self._send(server, task, now)
                given = True
            if not given:
                return

    def _task_for(self, server: Server, now: float) -> Task | None:
        audit = self._audits.take(server)
        if audit is not None or self._audits.full:
            return audit
        task = self._work.take(self._size(server))
        return task or self._repeatable(server, now)

    def _may_audit(self, server: Server) -> bool:
        """Whether a server can make audits; at the end nobody is waited for."""
        turn = self._turns[server]
        here = server.ready or not self._work.finished
        return here and not turn.excused and turn.usable(self._fleet.retries)

    def _room(self, turn: _Turn) -> int:
        # One that failed is tried with one request.
        return 1 if turn.failures else self._fleet.in_flight

    def _load(self, server: Server) -> tuple[int, int]:
        return self._turns[server].in_flight, server.asked

    def _size(self, server: Server) -> int:
        """Draws that this server should be given now."""
        turn = self._turns[server]
        size = self._chunk or self._adapted(server)
        return min(size, turn.limit) if turn.limit else size

    def _adapted(self, server: Server) -> int:
        size, least = float(_FIRST_CHUNK), float(_LEAST_CHUNK)
        if server.rate is not None:
            size = server.rate * _SECONDS_A_CHUNK
            least = server.rate * _LEAST_SECONDS
        ready = sum(
            other.ready and turn.usable(self._fleet.retries)
            for other, turn in self._turns.items()
        )
        shares = _SHARES_LEFT * self._fleet.in_flight * ready
        waiting = self._work.waiting(size * shares)
        if waiting is not None:
            size = min(size, max(waiting / shares, least))
        return max(1, int(size))

    def _repeatable(self, server: Server, now: float) -> Task | None:
        """The task that is longest under way elsewhere, if it is overdue."""
        if self._turns[server].in_flight:
            return None
        overdue = [
            call
            for call in self._operation.calls
            if isinstance(call.tag, Task)
            and not isinstance(call.tag, Repeat)
            and call.tag.copies == 1
            and not call.tag.done
            and call.server is not server
            and now - call.begun > self._overdue_after(server, call.tag)
        ]
        if not overdue:
            return None
        task = min(overdue, key=lambda call: call.begun).tag
        return task if isinstance(task, Task) else None

    def _overdue_after(self, server: Server, task: Task) -> float:
        expected = task.draws / server.rate if server.rate else 1.0
        return max(_LEAST_HEDGE, _HEDGE_FACTOR * expected)

    def _send(self, server: Server, task: Task, now: float) -> None:
        turn = self._turns[server]
        message = wire.request(
            self._model.name, self._model.version, task.signature, task.inputs
        )
        turn.in_flight += 1
        task.copies += 1
        server.asked += 1
        self._operation.send(
            server, server.predict, message, self._deadline(server, task), task
        )

    def _deadline(self, server: Server, task: Task) -> float:
        timeout, rate = self._fleet.timeout, server.rate
        if isinstance(task, Repeat) and rate is None:
            # Who answered it may be left with nothing but to wait for this.
            rate = next(iter(task.answers)).rate
        elif not task.pieces:
            return timeout
        if rate is None:
            return timeout
        # Others of this operation run on the same cores.
        expected = task.draws / rate
        return min(timeout, max(_LEAST_DEADLINE, _DEADLINE_FACTOR * expected))

    def _leave_closed(self) -> None:
        """Leaves out servers that another operation found to be gone."""
        for server, turn in self._turns.items():
            if server.closed:
                turn.gone = True
                server.ready = False

    def _probe(self, now: float) -> None:
        """Asks servers that are not ready what they serve."""
        for server, turn in self._turns.items():
            if (
                server.ready
                or turn.probing
                or turn.rest_until > now
                or not turn.usable(self._fleet.retries)
            ):
                continue
            turn.probing = True
            self._operation.describe(server, self._model.version)

    # -- taking in -------------------------------------------------------------

    def _handle(self, call: Call) -> list[Job]:
        turn = self._turns[call.server]
        task = call.tag
        if not isinstance(task, Task):
            turn.probing = False
            if turn.left_out:
                return []
            if call.ok:
                self._welcome(call)
            else:
                self._failed(call, turn)
            return []
        turn.in_flight -= 1
        task.copies -= 1
        if task.done:
            return []
        if turn.left_out:
            self._take_back([task])
        elif call.ok:
            return self._answered(call, turn, task)
        else:
            self._failed(call, turn)
            slow = kind_of(call.future) is Kind.SLOW
            self._take_back(task.halves() if slow else [task], task)
        return []

    def _take_back(self, tasks: list[Task], of: Task | None = None) -> None:
        """Gives the draws of a task to another, unless one makes them."""
        task = of or tasks[0]
        if not task.copies and not isinstance(task, Repeat):
            self._work.put_back(tasks)

    def _answered(self, call: Call, turn: _Turn, task: Task) -> list[Job]:
        try:
            outputs = wire.outputs(
                call.future.result(),
                call.server.label,
                self._model.name,
                task.signature,
                self._model.version,
                task.rows,
                self._model.num_classes,
                self._model.identity,
            )
            outputs = self._work.check(task, outputs, call.server.label)
        except wire.OtherExport as error:
            self._anew(call.server, turn, str(error))
            self._take_back([task])
            return []
        except WrongAnswer as error:
            self._leave_out(call.server, error)
            self._take_back([task])
            return []
        task.done = not isinstance(task, Repeat)
        turn.failures = 0
        turn.rest_until = 0.0
        if task.draws:
            call.server.measured(task.draws, call.seconds)
            if turn.limit and task.draws >= turn.limit:
                turn.limit *= 2
        if isinstance(task, Repeat):
            self._audited(task, call.server, outputs)
            return []
        if task.copies:
            self._operation.cancel(task)
        self._counted.add(call.server)
        self._audits.choose(task, call.server, outputs)
        return self._work.accept(task, outputs)

    def _audited(
        self, repeat: Repeat, server: Server, outputs: dict[str, np.ndarray]
    ) -> None:
        """Leaves out servers that this answer shows to be odd."""
        odd = self._audits.answered(repeat, server, outputs)
        for other, why in odd:
            self._leave_out(other, WrongAnswer(why, server=other.label))
        counted = [other for other, _ in odd if other in self._counted]
        if counted and not self._again:
            label = counted[0].label
            raise ServingError(
                f"{self._errors[counted[0]]}. Some of what was finished before "
                f"may rest on votes that {label} counted: start again without "
                "it",
                server=label,
            )
        if counted:
            raise _Distrusted

    def _welcome(self, call: Call) -> None:
        """A server is there, again: with the same model?"""
        try:
            found = self._operation.check_described(call)
        except WrongAnswer as error:
            self._leave_out(call.server, error)
            return
        differing = self._model.differences(found)
        if differing:
            words = f"{call.server.label} came back with another export as "
            words += f"version {found.version}, which differs in {differing}"
            self._anew(call.server, self._turns[call.server], words)
            return
        call.server.ready = True
        event(logging.INFO, "server_ready", server=call.server.label)

    def _failed(self, call: Call, turn: _Turn) -> None:
        """Notes a failure; leaves the server out if it would fail again."""
        kind = kind_of(call.future)
        server = call.server
        task = call.tag if isinstance(call.tag, Task) else None
        audit = isinstance(task, Repeat)
        turn.excused |= kind is Kind.SLOW and audit
        whole = task is not None and not task.pieces and not audit
        if kind is Kind.FINAL or (kind is Kind.SLOW and whole):
            name = task.signature if task else signature.DESCRIBE
            error = refusal(server.label, call.future, f"`{name}`")
            self._leave_out(server, error)
            return
        if kind is Kind.GONE:
            self._lost(server, turn, described(server.label, call.future))
            return
        turn.words = described(server.label, call.future)
        turn.failures += 1
        longest = min(_LONGEST_REST, _REST_BASE * 2**turn.failures)
        rest = longest * random.uniform(0.5, 1.0)
        turn.rest_until = time.monotonic() + rest
        if kind is Kind.SLOW and task is not None:
            turn.limit = max(1, task.draws // 2)
        if kind in (Kind.AWAY, Kind.SLOW):
            server.ready = False
        if server.ready and turn.failures > self._fleet.retries:
            server.ready = False
        event(logging.WARNING, "request_failed", what=turn.words)

    def _leave_out(self, server: Server, error: ServingError) -> None:
        """Asks a server nothing more in this operation."""
        turn = self._turns[server]
        turn.left_out = True
        turn.words = str(error)
        self._errors[server] = error
        tell_left_out(server, error)
        for call in self._operation.calls:
            if call.server is server:
                call.future.cancel()

    def _anew(self, server: Server, turn: _Turn, words: str) -> None:
        """Leaves out a server that gave the version's number anew."""
        self._replaced = words
        self._lost(server, turn, words)

    def _lost(self, server: Server, turn: _Turn, words: str) -> None:
        """Leaves out a server that has the version no more."""
        turn.words = words
        turn.gone = True
        server.ready = False
        event(logging.WARNING, "request_failed", what=words)

    # -- waiting ---------------------------------------------------------------

    def _hopeful(self) -> bool:
        retries = self._fleet.retries
        return any(turn.usable(retries) for turn in self._turns.values())

    def _patience(self, now: float) -> float | None:
        """Seconds until something is to be done even if no answer comes."""
        ends = [
            turn.rest_until
            for turn in self._turns.values()
            if turn.rest_until > now and turn.usable(self._fleet.retries)
        ]
        idle = any(
            server.ready
            and turn.usable(self._fleet.retries)
            and not turn.in_flight
            for server, turn in self._turns.items()
        )
        if idle and len(self._turns) > 1:
            ends.append(now + _LOOKS)
        if not self._operation.calls:
            # A connection may be lost, in another thread, at any moment.
            ends.append(now + _LOOKS)
        return max(0.0, min(ends) - now) if ends else None

    def _nobody(self) -> ServingError:
        errors = [self._errors.get(server) for server in self._turns]
        if len(errors) == 1 and errors[0] is not None:
            return errors[0]
        words = [turn.words for turn in self._turns.values() if turn.words]
        told = [error for error in errors if error is not None]
        often = f"each failed {self._fleet.retries + 1} times in a row. "
        return ServingError(
            f"no server is left: {'' if told else often}{'; '.join(words)}",
            told[0].code if told else None,
        )
