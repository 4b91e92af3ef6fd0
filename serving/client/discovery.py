"""Discovery: finds the available version of a model, and its servers."""

import logging
import time

import grpc
import numpy as np
from tensorflow_serving.apis import get_model_status_pb2

from rs_keras._checks import check_not_negative
from rs_keras.export import signature
from rs_keras.serving import wire
from rs_keras.serving.client import channels
from rs_keras.serving.client.fleet import Fleet
from rs_keras.serving.client.fleet import Server
from rs_keras.serving.client.requests import Call
from rs_keras.serving.client.requests import Request
from rs_keras.serving.client.requests import pause_after
from rs_keras.serving.client.served_model import ServedModel
from rs_keras.serving.client.served_model import read
from rs_keras.serving.errors import Kind
from rs_keras.serving.errors import ServingError
from rs_keras.serving.errors import WrongAnswer
from rs_keras.serving.event_log import event

# Timeout of requests that even a busy server answers at once.
_SHORT = 10.0
# Seconds to wait for the other servers once one has answered.
_PATIENCE = 3.0
_LONGEST_PAUSE = 2.0
# Servers whose connections are examined for an error: some seconds each.
_MOST_EXAMINED = 3
# Seconds between two attempts of `wait_ready`.
_FIRST_WAIT = 0.05
_LONGEST_WAIT = 1.0

_States = get_model_status_pb2.ModelVersionStatus.State
# The reasons for leaving servers out; a `WrongAnswer` for broken servers.
_Failed = dict[Server, str | ServingError]


class VersionUnavailable(Exception):
    """No server has the version any more; the text is a server's message."""


def forget(call: Call, model: ServedModel, replaced: str) -> None:
    """Forgets a version that no server has any more."""
    event(
        logging.WARNING, "version_gone", model=model.name, version=model.version
    )
    call.cancel()
    call.fleet.forget(model)
    if replaced and call.fleet.version is not None:
        raise ServingError(
            f"version {model.version} is not what it was when this call "
            f"began: {replaced}"
        )


def served_model(call: Call, attempts: int | None = None) -> ServedModel:
    """Returns the available model; queries the servers if it is unknown.

    Args:
        call: Sends the requests.
        attempts: Maximum number of queries; None for the number of retries
            plus one.

    Raises:
        ValueError: If the client was closed.
        ServingError: If no server answers, or they differ.
    """
    fleet = call.fleet
    if fleet.closed:
        raise ValueError("The client was closed.")
    model = fleet.model
    if model is None:
        if attempts is None:
            return _discover_together(call)
        return _discover(call, attempts)
    if fleet.may_have_grown:
        try:
            fleet.resolve()
        except ServingError as error:
            # A headless service without a ready pod does not resolve.
            event(logging.WARNING, "name_unknown", why=str(error))
    return model


def wait_ready(call: Call, timeout: float) -> ServedModel:
    """Queries the servers until one of them serves the model."""
    ends = time.monotonic() + check_not_negative("timeout", timeout)
    pause = _FIRST_WAIT
    while True:
        try:
            return served_model(call, attempts=1)
        except ServingError:
            if time.monotonic() + pause > ends:
                raise
        call.next(pause)
        pause = min(2 * pause, _LONGEST_WAIT)


def describe(call: Call, server: Server, version: int) -> Request:
    """Requests the description of a version from a server."""
    message = wire.request(
        wire.RequestSpec(call.fleet.model_name, version, signature.DESCRIBE),
        {"query": np.zeros(1, np.int64)},
    )
    return call.send(server, server.predict, message, _short(call.fleet))


def read_description(call: Call, request: Request, version: int) -> ServedModel:
    """Reads the description that a server sent.

    Raises:
        ServingError: If the server refused the request.
        WrongAnswer: If it describes no export of rs-keras.
    """
    if not request.ok:
        raise request.refusal("`describe`")
    name, label = call.fleet.model_name, request.server.label
    spec = wire.RequestSpec(name, version, signature.DESCRIBE)
    outputs = wire.outputs(request.response, spec, label, rows=1)
    return read(name, version, outputs["metadata_json"][0], label)


def log_excluded(
    server: Server, why: str | ServingError, **facts: object
) -> None:
    """Logs that a server is left out, as an error if it is broken."""
    broken = isinstance(why, WrongAnswer)
    event(
        logging.ERROR if broken else logging.WARNING,
        "server_broken" if broken else "server_left_out",
        server=server.label,
        **facts,
        why=str(why),
    )


def _short(fleet: Fleet) -> float:
    return min(fleet.timeout, _SHORT)


def _discover_together(call: Call) -> ServedModel:
    """Queries the servers once for all calls that need to now."""
    while True:
        found, leads = call.fleet.join_discovery()
        if leads:
            with call.fleet.leading(found):
                model = _discover(call, call.fleet.retries + 1)
                found.set_result(model)
                return model
        found.add_done_callback(lambda _: call.wake())
        while not found.done():
            call.next(_LONGEST_PAUSE)
        # The call that led was stopped: another one leads.
        if not found.cancelled():
            return found.result()


def _discover(call: Call, attempts: int) -> ServedModel:
    fleet = call.fleet
    fleet.resolve()
    failed: _Failed = {}
    for attempt in range(attempts):
        if attempt:
            call.next(pause_after(attempt, _LONGEST_PAUSE))
        failed = {}
        available = _available(call, failed)
        if not available:
            continue
        version = _newest(fleet.version, available)
        holders = [who for who in available if version in available[who]]
        model = _described(call, version, holders, failed)
        if model is None:
            continue
        for server in fleet.servers:
            if not server.ready:
                why = failed.get(server, f"it serves {available.get(server)}")
                log_excluded(server, why, version=version)
        return model
    reasons = [
        _reason(fleet, server, why, place < _MOST_EXAMINED)
        for place, (server, why) in enumerate(failed.items())
    ]
    raise ServingError(
        f"no server answers: {'; '.join(reasons)}",
        grpc.StatusCode.UNAVAILABLE,
    )


def _reason(
    fleet: Fleet, server: Server, why: str | ServingError, examine: bool
) -> str:
    """Says why a server does not answer, in more detail than gRPC."""
    trouble = None
    if examine:
        trouble = channels.trouble(server.endpoint, fleet.client_tls)
    reason = f"{server.label}: {trouble}" if trouble else str(why)
    return reason + channels.proxy_note(server.endpoint)


def _available(call: Call, failed: _Failed) -> dict[Server, list[int]]:
    """Returns the available versions by server; adds errors to `failed`."""
    fleet = call.fleet
    message = get_model_status_pb2.GetModelStatusRequest()
    message.model_spec.name = fleet.model_name
    requests = []
    for server in fleet.servers:
        failed[server] = f"{server.label}: no answer within {_PATIENCE:g} s"
        requests.append(
            call.send(server, server.status, message, _short(fleet))
        )
    available = {}
    for request in call.gather(requests, _PATIENCE):
        server = request.server
        if not request.ok:
            if request.kind is Kind.FINAL:
                raise request.refusal(f"asking for model {fleet.model_name!r}")
            failed[server] = request.failure
            continue
        states = request.response.model_version_status
        versions = [
            one.version for one in states if one.state == _States.AVAILABLE
        ]
        if versions:
            available[server] = sorted(versions)
            del failed[server]
            continue
        listed = ", ".join(
            f"version {one.version} is {_States.Name(one.state)}"
            for one in states
        )
        failed[server] = f"{server.label}: {listed}"
    return available


def _newest(wanted: int | None, available: dict[Server, list[int]]) -> int:
    """The requested version, by default the newest that most servers have."""
    held = [version for versions in available.values() for version in versions]
    if wanted is None:
        return max(held, key=lambda version: (held.count(version), version))
    if wanted in held:
        return wanted
    listed = "; ".join(
        f"{server.label} serves {versions}"
        for server, versions in available.items()
    )
    raise ServingError(
        "`version` must be one that is served. Received: "
        f"version={wanted}; {listed}",
        grpc.StatusCode.NOT_FOUND,
    )


def _described(
    call: Call, version: int, servers: list[Server], failed: _Failed
) -> ServedModel | None:
    """Returns the model that most servers describe; None if none answers.

    The errors of servers are added to `failed`.
    """
    described: dict[Server, ServedModel] = {}
    sent = [describe(call, server, version) for server in servers]
    for request in call.gather(sent, _PATIENCE):
        if not request.ok and request.kind is not Kind.FINAL:
            failed[request.server] = request.failure
            continue
        try:
            model = read_description(call, request, version)
        except ServingError as error:
            failed[request.server] = error
        else:
            described[request.server] = model
    if described:
        model, agreed = _majority(described, failed)
        call.fleet.pin(model, agreed)
        return model
    for reason in failed.values():
        if isinstance(reason, ServingError):
            raise reason
    return None


def _majority(
    described: dict[Server, ServedModel], failed: _Failed
) -> tuple[ServedModel, list[Server]]:
    """Returns the model that most servers describe, and those servers.

    The others are added to `failed`.

    Raises:
        ServingError: If equally many servers describe another model.
    """
    groups: dict[int, list[Server]] = {}
    for server, model in described.items():
        groups.setdefault(model.identity, []).append(server)
    most, *others = sorted(groups.values(), key=len, reverse=True)
    first = most[0]
    model = described[first]
    for group in others:
        differing = model.differences(described[group[0]])
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
