"""Waiting for requests, and being stopped while one waits."""

import threading
import time
from concurrent.futures import CancelledError
from types import SimpleNamespace

import grpc
import pytest

from rs_keras.serving.client.requests import Call
from rs_keras.serving.errors import Kind


class Future:
    """What gRPC gives for a request, ended by the test."""

    def __init__(self):
        self.cancelled = False

    def add_done_callback(self, callback):
        self._callback = callback

    def end(self, code=grpc.StatusCode.OK, details=""):
        self.code, self.details = lambda: code, lambda: details
        self._callback(self)

    def result(self):
        return "answer"

    def cancel(self):
        self.cancelled = True


class Method:
    """A stub's method; `closed` as of a channel that was closed."""

    def __init__(self, closed=False):
        self.closed = closed
        self.futures = []

    def future(self, message, timeout, metadata):
        if self.closed:
            raise ValueError("Cannot invoke RPC on closed channel!")
        self.futures.append(Future())
        return self.futures[-1]


@pytest.fixture
def call():
    with Call(SimpleNamespace(metadata=lambda: None)) as call:
        yield call


def send(call, method, closed=False):
    server = SimpleNamespace(label="a:1", closed=closed)
    return call.send(server, method, "question", timeout=1.0)


def test_requests_are_told_as_they_end(call):
    method = Method()
    first, second = send(call, method), send(call, method)
    assert call.next(0.01) is None
    method.futures[1].end()
    assert call.next() is second
    assert second.ok and second.response == "answer"
    method.futures[0].end(grpc.StatusCode.UNAVAILABLE, "away")
    assert call.next() is first
    assert first.kind is Kind.AWAY
    assert first.failure.startswith("a:1: UNAVAILABLE: away")
    assert not call.under_way


def test_a_closed_connection_is_a_request_that_failed(call):
    request = send(call, Method(closed=True), closed=True)
    assert call.next() is request
    assert request.kind is Kind.AWAY
    with pytest.raises(ValueError, match="closed channel"):
        send(call, Method(closed=True), closed=False)


def test_the_last_is_not_waited_for_long(call):
    method = Method()
    requests = [send(call, method) for _ in range(3)]
    method.futures[0].end()
    begun = time.monotonic()
    assert call.gather(requests, patience=0.05) == requests[:1]
    assert time.monotonic() - begun < 5
    assert [one.cancelled for one in method.futures] == [False, True, True]
    assert not call.under_way


def test_requests_that_were_given_up_are_not_told(call):
    method = Method()
    send(call, method)
    call.cancel()
    method.futures[0].end(grpc.StatusCode.CANCELLED)
    assert call.next(0.01) is None


def test_a_call_is_stopped_from_another_thread(call):
    method = Method()
    send(call, method)
    timer = threading.Timer(0.05, call.stop)
    timer.start()
    with pytest.raises(CancelledError):
        call.next()
    assert method.futures[0].cancelled
    timer.join()
