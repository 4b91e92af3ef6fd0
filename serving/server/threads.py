"""Threads that come with the work and go with it."""

import logging
import threading
from collections import deque
from collections.abc import Callable
from concurrent import futures
from typing import Any

from rs_keras.serving.event_log import LOGGER


class ThreadPool(futures.Executor):
    """An executor whose idle threads end.

    `ThreadPoolExecutor` keeps as many threads as were ever busy at once, and
    the interpreter waits for them at exit. A server keeps a thread for every
    request that is still arriving, so slow clients would leave theirs behind.

    Args:
        max_threads: More work than this waits.
        idle_seconds: How long a thread waits for work before it ends.

    Example:

    >>> from rs_keras.serving.server.threads import ThreadPool
    >>> pool = ThreadPool(max_threads=2)
    >>> pool.submit(pow, 2, 10).result()
    1024
    >>> pool.shutdown()
    """

    def __init__(self, max_threads: int, idle_seconds: float = 10.0) -> None:
        self._max_threads = max_threads
        self._idle_seconds = idle_seconds
        self._changed = threading.Condition()
        self._tasks: deque[tuple[futures.Future[Any], Callable[[], Any]]] = (
            deque()
        )
        self._threads: set[threading.Thread] = set()
        self._idle = 0
        self._closed = False

    def submit(
        self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any
    ) -> futures.Future[Any]:
        """Runs `fn(*args, **kwargs)` in a thread; see `Executor.submit`."""
        future: futures.Future[Any] = futures.Future()
        with self._changed:
            if self._closed:
                raise RuntimeError("The pool is shut down.")
            self._tasks.append((future, lambda: fn(*args, **kwargs)))
            if self._idle >= len(self._tasks):
                self._changed.notify()
            elif len(self._threads) < self._max_threads:
                thread = threading.Thread(
                    target=self._work, name="request", daemon=True
                )
                self._threads.add(thread)
                thread.start()
        return future

    def shutdown(
        self, wait: bool = True, *, cancel_futures: bool = False
    ) -> None:
        """Takes no more work; see `Executor.shutdown`."""
        with self._changed:
            self._closed = True
            if cancel_futures:
                while self._tasks:
                    self._tasks.popleft()[0].cancel()
            self._changed.notify_all()
            threads = list(self._threads)
        if wait:
            for thread in threads:
                thread.join()

    def _work(self) -> None:
        while (task := self._next()) is not None:
            future, call = task
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(call())
                except BaseException as error:
                    future.set_exception(error)
            # Else the last request would stay in memory until the next one.
            del task, future, call

    def _next(self) -> tuple[futures.Future[Any], Callable[[], Any]] | None:
        with self._changed:
            while not self._tasks:
                self._idle += 1
                woken = not self._closed and self._changed.wait(
                    self._idle_seconds
                )
                self._idle -= 1
                if not woken and not self._tasks:
                    self._threads.discard(threading.current_thread())
                    return None
            return self._tasks.popleft()


class Repeater:
    """Calls something again and again, with a pause, until it is closed.

    Args:
        call: Its exceptions are logged; it is called again all the same.
        seconds: The pause.
        name: Of the thread.
    """

    def __init__(
        self, call: Callable[[], None], seconds: float, name: str
    ) -> None:
        self._call = call
        self._seconds = seconds
        self._closed = threading.Event()
        self._thread = threading.Thread(
            target=self._run, name=name, daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Stops; returns when the last call has."""
        self._closed.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._closed.wait(self._seconds):
            try:
                self._call()
            except Exception:
                LOGGER.log(
                    logging.ERROR, "%s failed", self._thread.name, exc_info=True
                )
