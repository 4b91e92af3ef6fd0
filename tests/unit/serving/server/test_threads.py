"""The pool whose idle threads end, and the repeater."""

import threading
import time
from concurrent import futures

import pytest

from rs_keras.serving.server.threads import Repeater
from rs_keras.serving.server.threads import ThreadPool


def test_results_and_errors():
    pool = ThreadPool(2)
    assert [f.result() for f in [pool.submit(abs, -i) for i in range(50)]] == [
        *range(50)
    ]
    with pytest.raises(ZeroDivisionError):
        pool.submit(divmod, 1, 0).result()
    pool.shutdown()
    with pytest.raises(RuntimeError, match="shut down"):
        pool.submit(abs, 1)


def test_threads_are_bounded_and_end():
    pool = ThreadPool(3, idle_seconds=0.05)
    before = threading.active_count()
    gate = threading.Event()
    waiting = [pool.submit(gate.wait, 10) for _ in range(9)]
    time.sleep(0.05)
    assert threading.active_count() - before == 3
    assert sum(future.running() for future in waiting) == 3
    gate.set()
    assert all(future.result() for future in waiting)
    deadline = time.monotonic() + 5
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert threading.active_count() == before
    # Work that comes later finds a thread again.
    assert pool.submit(abs, -1).result(5) == 1
    pool.shutdown()


def test_an_idle_thread_is_used_again():
    pool = ThreadPool(5)
    names = set()
    for _ in range(20):
        names.add(pool.submit(threading.get_ident).result())
        time.sleep(0.002)
    assert len(names) <= 2
    pool.shutdown()


def test_shutdown_can_drop_what_waits():
    pool = ThreadPool(1)
    gate = threading.Event()
    first = pool.submit(gate.wait, 10)
    second = pool.submit(abs, 1)
    time.sleep(0.02)
    pool.shutdown(wait=False, cancel_futures=True)
    gate.set()
    assert first.result()
    with pytest.raises(futures.CancelledError):
        second.result()


def test_no_task_is_lost_under_load():
    pool = ThreadPool(8, idle_seconds=0.001)
    counts = []

    def submit():
        for i in range(200):
            counts.append(pool.submit(abs, i))

    threads = [threading.Thread(target=submit) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    done, waiting = futures.wait(counts, timeout=10)
    assert len(done) == 800 and not waiting
    pool.shutdown()


def test_repeater_goes_on_after_an_error(caplog):
    calls = []

    def fail():
        calls.append(1)
        raise ValueError("once more")

    repeater = Repeater(fail, 0.01, "name of it")
    deadline = time.monotonic() + 5
    while len(calls) < 3 and time.monotonic() < deadline:
        time.sleep(0.01)
    repeater.close()
    count = len(calls)
    assert count >= 3
    assert "name of it failed" in caplog.text
    time.sleep(0.05)
    assert len(calls) == count
