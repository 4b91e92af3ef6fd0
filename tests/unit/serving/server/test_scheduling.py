"""Turns, costs, limits and slices, without a server."""

import threading
import time

import numpy as np
import pytest
import tensorflow as tf
from tensorflow_serving.apis import predict_pb2

from rs_keras.serving import Limits
from rs_keras.serving.server.grpc_errors import StatusError
from rs_keras.serving.server.scheduling import limits as limits_lib
from rs_keras.serving.server.scheduling.certifier import slices
from rs_keras.serving.server.scheduling.costs import SLICE_SECONDS
from rs_keras.serving.server.scheduling.costs import Backlog
from rs_keras.serving.server.scheduling.costs import DrawCost
from rs_keras.serving.server.scheduling.turns import Caller
from rs_keras.serving.server.scheduling.turns import Turns


def caller(client="a", seconds=30.0, active=lambda: True):
    return Caller(client, time.monotonic() + seconds, active)


def waiting(turns, client, done):
    """A thread that waits for a turn and notes when it has it."""

    def run():
        with turns.turn(caller(client)):
            done.append(client)

    thread = threading.Thread(target=run)
    before = turns.waiting
    thread.start()
    while turns.waiting == before:
        time.sleep(0.001)
    return thread


def test_turns_go_around_the_clients():
    turns, done = Turns(1), []
    with turns.turn(caller()):
        threads = [waiting(turns, name, done) for name in "aaabbc"]
    for thread in threads:
        thread.join(10)
    assert done == ["a", "b", "c", "a", "b", "a"]


def test_a_caller_that_leaves_gives_its_place_away():
    turns, done = Turns(1), []
    with turns.turn(caller()):
        with pytest.raises(StatusError, match="DEADLINE_EXCEEDED: Timed out"):
            with turns.turn(caller(seconds=0.02)):
                raise AssertionError("it had no turn")
        with pytest.raises(StatusError, match="CANCELLED"):
            with turns.turn(caller(active=lambda: False)):
                raise AssertionError("it had no turn")
        thread = waiting(turns, "b", done)
    thread.join(10)
    assert done == ["b"]
    with turns.turn(caller()):
        pass


def test_a_reserve_holds_one_turn_back():
    turns, done = Turns(2), []
    with turns.reserve(), turns.reserve():
        with turns.turn(caller()):
            thread = waiting(turns, "b", done)
            time.sleep(0.02)
            assert not done
    thread.join(10)
    assert done == ["b"]
    with turns.reserve(), turns.turn(caller()):
        other = waiting(turns, "c", done)
    other.join(10)
    # One turn is never held back.
    alone = Turns(1)
    with alone.reserve(), alone.turn(caller()):
        pass


def test_slices_grow_to_their_time():
    cost, sizes = DrawCost(pass_size=400), []
    for _ in range(12):
        draws = cost.slice_draws()
        sizes.append(draws)
        cost.measured(draws, 0.001 + draws * 2e-5)
    assert sizes[0] == 16
    assert all(b <= 4 * a for a, b in zip(sizes, sizes[1:], strict=False))
    # Whole passes, of about the time wanted.
    assert sizes[-1] % 400 == 0
    assert 0.7 * SLICE_SECONDS < sizes[-1] * 2e-5 < 1.1 * SLICE_SECONDS
    # The end of a request is short, and mostly overhead.
    before = cost.seconds(1_000)
    cost.measured(10, 0.001)
    assert cost.seconds(1_000) == before


def test_slices_shrink_when_draws_become_dear():
    cost = DrawCost(pass_size=1)
    for _ in range(60):
        cost.measured(cost.slice_draws(), cost.slice_draws() * 1e-4)
    for _ in range(60):
        cost.measured(cost.slice_draws(), cost.slice_draws() * 1e-2)
    assert cost.slice_draws() == pytest.approx(100 * SLICE_SECONDS, abs=1)


def test_slices_of_a_large_network_are_whole_passes():
    cost = DrawCost(pass_size=16)
    for _ in range(9):
        cost.measured(cost.slice_draws(), cost.slice_draws() * 0.05)
    assert cost.slice_draws() == 16


def test_the_first_run_of_a_graph_is_no_measure():
    cost = DrawCost(pass_size=1)
    cost.measured(16, 5.0)
    assert cost.seconds(10**6) == 0


def test_work_is_admitted_by_its_cost():
    backlog = Backlog(most_seconds=10, most_bytes=100)
    with backlog.admitted(1_000, 1_000):
        # Alone, it may be of any size.
        assert backlog.fullness == 1
    with backlog.admitted(6, 10):
        assert backlog.fullness == 0.6
        with pytest.raises(StatusError, match="RESOURCE_EXHAUSTED.*6 s of w"):
            with backlog.admitted(5, 10):
                raise AssertionError("it was admitted")
        with pytest.raises(StatusError, match="RESOURCE_EXHAUSTED"):
            with backlog.admitted(0, 91):
                raise AssertionError("it was admitted")
        with backlog.admitted(0, 10):
            # What takes no time is not kept out by what does.
            pass
        with backlog.admitted(4, 90):
            assert backlog.fullness == 1
    assert backlog.fullness == 0


@pytest.mark.parametrize("size", [1, 7, 100, 10**6])
def test_slices_are_all_draws_once(size):
    n = np.array([30, 1, 250, 7, 7])
    first = np.array([0, 5, 100, 0, 2**40])
    request = {
        "images": np.arange(5.0).reshape(5, 1, 1, 1),
        "seed": np.arange(10).reshape(5, 2),
        "first": first,
        "n": n,
    }
    drawn = [[] for _ in n]
    for rows, part in slices(request, lambda: size):
        assert 0 < part["n"].sum() <= size
        np.testing.assert_array_equal(part["images"][:, 0, 0, 0], rows)
        np.testing.assert_array_equal(part["seed"][:, 0], 2 * rows)
        for row, start, count in zip(
            rows, part["first"], part["n"], strict=True
        ):
            drawn[row] += range(start, start + count)
    for row, start in enumerate(first):
        assert drawn[row] == list(range(start, start + n[row]))


def inputs(**tensors):
    request = predict_pb2.PredictRequest()
    for name, value in tensors.items():
        request.inputs[name].CopyFrom(value)
    return sorted(request.inputs.items())


def strings(shape, *values):
    proto = tf.make_tensor_proto(list(values) or [b""], tf.string)
    del proto.tensor_shape.dim[:]
    for size in shape:
        proto.tensor_shape.dim.add().size = size
    return proto


TOO_LARGE = {
    "a number for all pixels": tf.make_tensor_proto(
        0.5, shape=[170_000, 28, 28, 1]
    ),
    "no number at all": tf.make_tensor_proto(0.0, shape=[10**6, 10**6]),
    "empty strings": strings([10**8]),
    "a string for all": strings([10**4], b"x" * 10**5),
}


@pytest.mark.parametrize("proto", TOO_LARGE.values(), ids=TOO_LARGE.keys())
def test_claims_are_refused_before_they_are_decoded(proto):
    assert proto.ByteSize() < 2 * 10**5
    with pytest.raises(StatusError, match="INVALID_ARGUMENT.*max_request_byt"):
        limits_lib.check_size(Limits(), inputs(images=proto))


def test_sizes_add_up():
    half = tf.make_tensor_proto(0.5, shape=[15])
    limits = Limits(max_request_bytes=100)
    assert limits_lib.check_size(limits, inputs(a=half)) == 60
    with pytest.raises(StatusError, match="b of shape \\[15\\], 120 bytes"):
        limits_lib.check_size(limits, inputs(a=half, b=half))


def test_limits_of_rows_draws_and_cost():
    limits = Limits(max_rows=3, max_draws=10, max_seconds=2)
    limits_lib.check_rows(limits, inputs(k=tf.make_tensor_proto([1, 2, 3])))
    limits_lib.check_draws(limits, 10)
    limits_lib.check_cost(limits, 2)
    with pytest.raises(StatusError, match="at most 3 rows .*k of 4 rows"):
        limits_lib.check_rows(
            limits, inputs(k=tf.make_tensor_proto([1, 2, 3, 4]))
        )
    with pytest.raises(StatusError, match="at most 10 draws .*: 11"):
        limits_lib.check_draws(limits, 11)
    with pytest.raises(StatusError, match="at most 2 s .*about 60 s"):
        limits_lib.check_cost(limits, 60)
    assert limits_lib.described(limits)["max_draws"] == 10


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"max_rows": 0}, "`max_rows` must be"),
        ({"max_draws": 0}, "`max_draws` must be"),
        ({"max_streams": -1}, "`max_streams` must be"),
        ({"max_seconds": 0}, "`max_seconds` must be a finite number > 0"),
        ({"receive_seconds": float("nan")}, "`receive_seconds` must be"),
    ],
)
def test_limits_out_of_range(arguments, message):
    with pytest.raises(ValueError, match=message):
        Limits(**arguments)
