"""The window of a server: who may send, and how its limit adapts."""

import time

import pytest

from rs_keras.serving.client.load.window import Window


class Caller:
    def __init__(self):
        self.woken = 0

    def wake(self):
        self.woken += 1


def send(window, caller):
    assert window.admits(caller.wake)
    window.use(caller.wake)


def end(window, begun=None, **outcome):
    window.ended(time.monotonic() if begun is None else begun, **outcome)


def filled(limit):
    """A window that has grown to a limit, all of it in use."""
    window, caller = Window(), Caller()
    while window.limit < limit:
        while window.running < int(window.limit):
            send(window, caller)
        end(window, answered=True)
    while window.running < limit:
        send(window, caller)
    return window


def test_the_limit_doubles_per_round_trip_until_the_first_refusal():
    window, caller, limits = Window(), Caller(), []
    for _ in range(4):
        limits.append(int(window.limit))
        while window.running < int(window.limit):
            send(window, caller)
        for _ in range(limits[-1]):
            end(window, answered=True)
            if window.running < int(window.limit) - 1:
                send(window, caller)
                send(window, caller)
        while window.running:
            end(window)
    # 2, then at least doubled; a request that is refilled counts once.
    assert limits[0] == 2
    assert all(b >= 1.5 * a for a, b in zip(limits, limits[1:], strict=False))


def test_a_burst_of_refusals_halves_the_limit_once():
    window = filled(16)
    begun = time.monotonic()
    for _ in range(10):
        end(window, begun, refused=True)
    assert window.limit == 8


def test_after_a_refusal_the_limit_grows_by_one_per_round_trip():
    window, caller = filled(16), Caller()
    end(window, refused=True)
    while window.running:
        end(window)
    for _ in range(3):
        before = window.limit
        for _ in range(int(before)):
            while window.running < int(window.limit):
                send(window, caller)
            end(window, answered=True)
        assert before + 0.8 < window.limit < before + 1.1


def test_what_does_not_fill_the_window_does_not_widen_it():
    window, caller = Window(), Caller()
    for _ in range(100):
        send(window, caller)
        end(window, answered=True)
    assert window.limit == 2


def test_there_is_always_room_for_one():
    window, caller = Window(), Caller()
    for _ in range(10):
        send(window, caller)
        end(window, refused=True)
    assert window.limit == 1
    send(window, caller)


def test_the_longest_wait_is_served_first():
    window, callers = filled(2), [Caller() for _ in range(3)]
    assert not any(window.admits(one.wake) for one in callers)
    for number, one in enumerate(callers):
        end(window)
        assert [other.woken for other in callers] == [
            int(place <= number) for place in range(3)
        ]
        send(window, one)


def test_nobody_overtakes_those_in_line():
    window, first, second = filled(2), Caller(), Caller()
    assert not window.admits(first.wake)
    end(window)
    # The free place is kept for the first.
    assert not window.admits(second.wake)
    send(window, first)


def test_who_leaves_the_line_makes_room_for_the_next():
    window, first, second = filled(2), Caller(), Caller()
    assert not window.admits(first.wake)
    assert not window.admits(second.wake)
    end(window)
    window.leave(first.wake)
    assert second.woken == 1
    send(window, second)


def test_a_place_that_is_not_used_goes_to_the_next():
    """A stream that nobody reads does not notice that it was woken."""
    window, idle, other = filled(2), Caller(), Caller()
    assert not window.admits(idle.wake)
    end(window)
    assert idle.woken == 1
    time.sleep(0.3)
    send(window, other)


def test_after_a_lost_connection_it_starts_with_few():
    window = filled(16)
    window.restart()
    assert window.limit == 2


@pytest.mark.parametrize("outcome", ["answered", "refused"])
def test_each_request_frees_its_place(outcome):
    window, caller = Window(), Caller()
    for _ in range(50):
        send(window, caller)
        end(window, **{outcome: True})
    assert window.running == 0
