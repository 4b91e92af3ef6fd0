"""Which requests another server may repeat."""

import numpy as np
import pytest

from rs_keras.serving.client.load.hedging import Hedging
from rs_keras.serving.client.tasks import Task


class Fields:
    """An object with some attributes, which is a key of its own."""

    def __init__(self, **values):
        vars(self).update(values)


def server(answered_at=0.0, running=0):
    return Fields(answered_at=answered_at, window=Fields(running=running))


def request(task, on, begun=10.0):
    return Fields(server=on, task=task, begun=begun, has_ended=False)


def task(pieces):
    inputs = {"images": np.zeros([1, 4, 4, 1])}
    one = Task("sample", inputs, 100, lambda *_: None, pieces)
    one.overdue_at = 11.0
    return one


SAME_DRAWS = {
    # The client made the seed; the image makes it; the server makes it.
    "seed of the client": (("a piece",), False, True),
    "keyed": ((), True, True),
    "seed of the server": ((), False, False),
}


@pytest.mark.parametrize(
    ("pieces", "keyed", "repeated"), SAME_DRAWS.values(), ids=SAME_DRAWS.keys()
)
def test_only_the_same_draws_are_asked_for_twice(pieces, keyed, repeated):
    late = task(pieces)
    call = Fields(under_way={request(late, server())})
    hedging = Hedging(call, keyed)
    found = hedging.overdue(server(), now=12.0)
    assert (found is late) == repeated
    assert (hedging.times() == [11.0]) == repeated


def test_what_is_not_late_is_not_repeated():
    one, other = task(("a piece",)), server()
    running = request(one, server())
    hedging = Hedging(Fields(under_way={running}), False)
    assert hedging.overdue(other, now=10.5) is None
    assert hedging.overdue(running.server, now=12.0) is None
    running.has_ended = True  # and the call has not looked yet
    assert hedging.overdue(other, now=12.0) is None
    running.has_ended = False
    one.answer = "votes"
    assert hedging.overdue(other, now=12.0) is None


def test_a_server_that_may_be_frozen_too_is_not_asked():
    late = task(("a piece",))
    call = Fields(under_way={request(late, server())})
    hedging = Hedging(call, False)
    assert hedging.overdue(server(answered_at=9.0, running=1), 12.0) is None
    assert hedging.overdue(server(answered_at=10.5, running=1), 12.0) is late
    assert hedging.overdue(server(answered_at=9.0, running=0), 12.0) is late
