"""One thing that is asked of a fleet: its requests, and how it connects."""

import logging
import random
import threading
import time
from collections.abc import Callable
from collections.abc import Generator
from typing import Any
from typing import NamedTuple

import grpc
import numpy as np
from tensorflow_serving.apis import get_model_status_pb2

from rs_keras.export import signature
from rs_keras.serving import wire
from rs_keras.serving.client import channels
from rs_keras.serving.client.channels import Endpoint
from rs_keras.serving.client.fleet import Fleet
from rs_keras.serving.client.fleet import Server
from rs_keras.serving.client.served_model import ServedModel
from rs_keras.serving.client.served_model import read
from rs_keras.serving.errors import Kind
from rs_keras.serving.errors import ServingError
from rs_keras.serving.errors import WrongAnswer
from rs_keras.serving.errors import described
from rs_keras.serving.errors import kind_of
from rs_keras.serving.errors import refusal
from rs_keras.serving.event_log import event

# Questions that a server answers at once, however much it has to do.
_SHORT = 10.0
# How long the others are waited for when one server has answered.
_PATIENCE = 3.0
_REST_BASE = 0.1
_LONGEST_REST = 2.0

_States = get_model_status_pb2.ModelVersionStatus.State


class Wait(NamedTuple):
    """An operation has nothing to do for so long; None: until an answer."""

    seconds: float | None


class Call:
    """One request under way.

    Attributes:
        server: Who was asked.
        tag: What it is about.
        future: gRPC's; it is also the error, where there is one.
        begun: When it was sent, as `time.monotonic` tells it.
    """

    def __init__(self, server: Server, tag: Any) -> None:
        self.server = server
        self.tag = tag
        self.begun = time.monotonic()
        self.ended = 0.0
        self.future: Any = None

    @property
    def ok(self) -> bool:
        """Whether there is an answer."""
        return self.future.code() is grpc.StatusCode.OK

    @property
    def seconds(self) -> float:
        """How long it took."""
        return self.ended - self.begun


class _NotSent:
    """What a request comes to whose connection was closed before it."""

    def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.CANCELLED

    def details(self) -> str:
        return "the connection was closed"

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        callback(self)

    def cancel(self) -> None:
        pass


Steps = Generator[Wait, Any, Any]
# Why servers are left out: a `WrongAnswer` where they are broken.
_Failed = dict[Server, str | WrongAnswer]


def tell_left_out(
    server: Server, why: str | ServingError, **facts: object
) -> None:
    """Logs that a server is not asked, and whether it is broken."""
    wrong = isinstance(why, WrongAnswer)
    event(
        logging.ERROR if wrong else logging.WARNING,
        "server_broken" if wrong else "server_left_out",
        server=server.label,
        **facts,
        why=str(why),
    )


def _most_told(
    told: dict[Server, ServedModel], failed: _Failed
) -> tuple[ServedModel, list[Server]]:
    """The model that most servers describe, and which do.

    The others are put in `failed`.

    Raises:
        ServingError: If as many describe another.
    """
    held: dict[int, list[Server]] = {}
    for server, model in told.items():
        held.setdefault(model.identity, []).append(server)
    most, *others = sorted(held.values(), key=len, reverse=True)
    first = most[0]
    model = told[first]
    for group in others:
        differing = model.differences(told[group[0]])
        if len(group) == len(most):
            raise ServingError(
                f"the servers serve different models as {model.name!r}, "
                f"version {model.version}: {first.label} and {group[0].label} "
                f"differ in {differing}. Votes of different models cannot be "
                "added up: give each export a version number of its own, and "
                "roll it out to all servers",
                server=group[0].label,
            )
        for server in group:
            failed[server] = WrongAnswer(
                f"{server.label} describes another model as {model.name!r}, "
                f"version {model.version}, than most servers: {first.label} "
                f"and it differ in {differing}",
                server=server.label,
            )
    return model, most


class Operation:
    """One thing that is asked of a fleet: sends requests, and connects.

    Args:
        fleet: The servers.
        deliver: Takes each `Call` that ends; called in gRPC's threads.
    """

    def __init__(self, fleet: Fleet, deliver: Callable[[Any], None]) -> None:
        self.fleet = fleet
        self.calls: set[Call] = set()
        self._deliver = deliver

    def send(
        self,
        server: Server,
        method: Any,
        message: Any,
        timeout: float,
        tag: Any = None,
    ) -> Call:
        """Sends a request; `deliver` gets the call when it has ended."""
        call = Call(server, tag)

        def ended(_: Any) -> None:
            call.ended = time.monotonic()
            self._deliver(call)

        try:
            call.future = method.future(message, timeout=timeout)
        except ValueError:
            # Another operation may close it at any moment.
            if not server.closed:
                raise
            call.future = _NotSent()
        self.calls.add(call)
        call.future.add_done_callback(ended)
        return call

    def settle(self, call: Any) -> bool:
        """Notes that a call has ended; False if nobody waits for it."""
        if isinstance(call, Call):
            if call not in self.calls:
                return False
            self.calls.remove(call)
        return True

    def cancel(self, tag: Any = None) -> None:
        """Gives up calls: all, or those about `tag`."""
        for call in list(self.calls):
            if tag is None or call.tag is tag:
                call.future.cancel()
                if tag is None:
                    self.calls.remove(call)

    # -- which version there is ------------------------------------------------

    def connected(
        self, attempts: int | None = None
    ) -> Generator[Wait, Any, ServedModel]:
        """Returns the model that is served; asks if it is not known.

        Args:
            attempts: At finding a server that answers; as often as the fleet
                is retried when None.
        """
        fleet = self.fleet
        if fleet.closed:
            raise ValueError("The client was closed.")
        model = fleet.model
        if model is None:
            attempts = attempts or fleet.retries + 1
            return (yield from self._connect(attempts))
        if fleet.grows and not all(server.ready for server in fleet.servers):
            try:
                yield from self._resolve()
            except ServingError as error:
                # A headless service without a ready pod has no name at all.
                event(logging.WARNING, "name_unknown", why=str(error))
        return model

    def _resolve(self) -> Steps:
        def found() -> list[Endpoint]:
            return [
                endpoint
                for address in self.fleet.addresses
                for endpoint in channels.resolve(address)
            ]

        self.fleet.update((yield from self._aside(found)))

    def _connect(self, attempts: int) -> Generator[Wait, Any, ServedModel]:
        yield from self._resolve()
        available: dict[Server, list[int]] = {}
        failed: _Failed = {}
        for attempt in range(attempts):
            if attempt:
                longest = min(_LONGEST_REST, _REST_BASE * 2**attempt)
                yield from self.sleep(longest * random.uniform(0.5, 1.0))
            available, failed = yield from self._available()
            if not available:
                continue
            version, holders = self._choose(available)
            model = yield from self._described(version, holders, failed)
            if model is not None:
                self._tell_left_out(model, available, failed)
                return model
        raise (yield from self._unreachable(failed))

    def _tell_left_out(
        self,
        model: ServedModel,
        available: dict[Server, list[int]],
        failed: _Failed,
    ) -> None:
        for server in self.fleet.servers:
            if not server.ready:
                serves = f"it serves {available.get(server)}"
                why = failed.get(server) or serves
                tell_left_out(server, why, version=model.version)

    def _available(
        self,
    ) -> Generator[Wait, Any, tuple[dict[Server, list[int]], _Failed]]:
        """Asks all servers which versions they serve, and why not."""
        name = self.fleet.model_name
        message = get_model_status_pb2.GetModelStatusRequest()
        message.model_spec.name = name
        found: dict[Server, list[int]] = {}
        failed: _Failed = {}
        calls = yield from self._gather(
            [
                self.send(server, server.status, message, self._short())
                for server in self.fleet.servers
            ]
        )
        for server in self.fleet.servers:
            failed[server] = f"{server.label}: no answer within {_PATIENCE:g} s"
        for call in calls:
            if not call.ok:
                if kind_of(call.future) is Kind.FINAL:
                    raise refusal(
                        call.server.label,
                        call.future,
                        f"asking for model {name!r}",
                    )
                failed[call.server] = described(call.server.label, call.future)
                continue
            states = call.future.result().model_version_status
            versions = [
                one.version for one in states if one.state == _States.AVAILABLE
            ]
            if versions:
                found[call.server] = sorted(versions)
                del failed[call.server]
                continue
            words = ", ".join(
                f"version {one.version} is {_States.Name(one.state)}"
                for one in states
            )
            failed[call.server] = f"{call.server.label}: {words}"
        return found, failed

    def _choose(
        self, available: dict[Server, list[int]]
    ) -> tuple[int, list[Server]]:
        """The newest version that most servers have, and who has it."""
        wanted = self.fleet.version
        listed = "; ".join(
            f"{server.label} serves {versions}"
            for server, versions in available.items()
        )
        held: dict[int, list[Server]] = {}
        for server, versions in available.items():
            for version in versions:
                held.setdefault(version, []).append(server)
        if wanted is not None:
            if wanted not in held:
                raise ServingError(
                    f"`version` must be one that is served. Received: "
                    f"version={wanted}; {listed}",
                    grpc.StatusCode.NOT_FOUND,
                )
            return wanted, held[wanted]
        return max(held.items(), key=lambda item: (len(item[1]), item[0]))

    def _described(
        self, version: int, servers: list[Server], failed: _Failed
    ) -> Generator[Wait, Any, ServedModel | None]:
        """Asks the servers what they serve; returns what most of them say.

        Returns None if none answers; `failed` then says why.
        """
        calls = yield from self._gather(
            [self.describe(server, version) for server in servers]
        )
        told: dict[Server, ServedModel] = {}
        errors: list[ServingError] = []
        for call in calls:
            server = call.server
            if call.ok:
                try:
                    told[server] = self.check_described(call)
                except WrongAnswer as error:
                    failed[server] = error
                    errors.append(error)
                continue
            failed[server] = described(server.label, call.future)
            if kind_of(call.future) is Kind.FINAL:
                errors.append(refusal(server.label, call.future, "`describe`"))
        if told:
            model, holders = _most_told(told, failed)
            self.fleet.pin(model, holders)
            return model
        if errors:
            raise errors[0]
        return None

    def describe(self, server: Server, version: int) -> Call:
        """Asks a server what its version of the model is."""
        message = wire.request(
            self.fleet.model_name,
            version,
            signature.DESCRIBE,
            {"query": np.zeros(1, np.int64)},
        )
        return self.send(
            server, server.predict, message, self._short(), version
        )

    def check_described(self, call: Call) -> ServedModel:
        """Reads what a server describes."""
        server, version = call.server.label, call.tag
        outputs = wire.outputs(
            call.future.result(),
            server,
            self.fleet.model_name,
            signature.DESCRIBE,
            version,
            1,
            0,
        )
        text = outputs["metadata_json"][0]
        return read(self.fleet.model_name, version, text, server)

    def _unreachable(
        self, failed: _Failed
    ) -> Generator[Wait, Any, ServingError]:
        """The error for a fleet of which no server answers."""

        def looked() -> list[str]:
            words = []
            for server, why in failed.items():
                found = channels.trouble(server.endpoint, self.fleet.tls)
                words.append(f"{server.label}: {found}" if found else str(why))
            return words

        words = yield from self._aside(looked)
        return ServingError(
            "no server answers: " + "; ".join(words),
            grpc.StatusCode.UNAVAILABLE,
        )

    # -- waiting ---------------------------------------------------------------

    def _short(self) -> float:
        return min(self.fleet.timeout, _SHORT)

    def _gather(self, calls: list[Call]) -> Generator[Wait, Any, list[Call]]:
        """Waits for calls; not long for the last once one is answered."""
        missing, ended = set(calls), []
        until: float | None = None
        while missing:
            left = None if until is None else until - time.monotonic()
            if left is not None and left <= 0:
                break
            call = yield Wait(left)
            if call in missing:
                missing.remove(call)
                ended.append(call)
                if call.ok and until is None:
                    until = time.monotonic() + _PATIENCE
        for call in missing:
            call.future.cancel()
            self.calls.discard(call)
        return ended

    def sleep(self, seconds: float) -> Steps:
        """Waits, whatever ends meanwhile."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            yield Wait(left)

    def _aside(self, work: Callable[[], Any]) -> Steps:
        """Runs what blocks in a thread, and returns or raises as it does."""
        outcome: list[Any] = []
        ended = object()

        def run() -> None:
            try:
                outcome.append((work(), None))
            except Exception as error:
                outcome.append((None, error))
            self._deliver(ended)

        threading.Thread(target=run, daemon=True).start()
        # Not by `outcome`: the news of it would reach whoever waits next.
        while (yield Wait(None)) is not ended:
            pass
        result, error = outcome[0]
        if error is not None:
            raise error
        return result
