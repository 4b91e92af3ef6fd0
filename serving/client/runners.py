"""Run operations: in the calling thread, or under asyncio.

An operation yields `Wait`s, and lists of jobs that have finished; it is sent
each call that ends, or None when the wait is over.
"""

import asyncio
import queue
from collections.abc import AsyncGenerator
from collections.abc import Callable
from collections.abc import Generator
from typing import Any

from rs_keras.serving.client.fleet import Fleet
from rs_keras.serving.client.requests import Operation
from rs_keras.serving.client.requests import Wait

# Returns the generator that an operation is.
Make = Callable[[Operation], Generator[Any, Any, Any]]


def run(fleet: Fleet, make: Make) -> Any:
    """Does an operation and returns its result."""
    steps = iterate(fleet, make)
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            return stop.value


def iterate(fleet: Fleet, make: Make) -> Generator[Any, None, Any]:
    """Does an operation; yields what it yields, returns its result."""
    box: queue.SimpleQueue[Any] = queue.SimpleQueue()
    operation = Operation(fleet, box.put)
    steps = make(operation)
    try:
        found = next(steps)
        while True:
            if not isinstance(found, Wait):
                yield found
                found = next(steps)
                continue
            try:
                call = box.get(timeout=found.seconds)
            except queue.Empty:
                call = None
            if call is None or operation.settle(call):
                found = steps.send(call)
    except StopIteration as stop:
        return stop.value
    finally:
        steps.close()
        operation.cancel()


async def run_async(fleet: Fleet, make: Make) -> Any:
    """As `run`, without blocking the event loop."""
    result: list[Any] = []
    async for _ in iterate_async(fleet, make, result):
        pass
    return result[0]


async def iterate_async(
    fleet: Fleet, make: Make, result: list[Any] | None = None
) -> AsyncGenerator[Any, None]:
    """As `iterate`; what it would return is appended to `result`."""
    loop = asyncio.get_running_loop()
    box: asyncio.Queue[Any] = asyncio.Queue()

    def deliver(call: Any) -> None:
        # The loop may have ended while a request was being given up.
        if not loop.is_closed():
            loop.call_soon_threadsafe(box.put_nowait, call)

    operation = Operation(fleet, deliver)
    steps = make(operation)
    try:
        found = next(steps)
        while True:
            if not isinstance(found, Wait):
                yield found
                found = next(steps)
                continue
            try:
                call = await asyncio.wait_for(box.get(), found.seconds)
            except TimeoutError:
                call = None
            if call is None or operation.settle(call):
                found = steps.send(call)
    except StopIteration as stop:
        if result is not None:
            result.append(stop.value)
    finally:
        steps.close()
        operation.cancel()
