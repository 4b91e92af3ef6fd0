"""Draws cut into requests: each made once, whatever is cut or sent again."""

import numpy as np
import pytest
from kits.fake_servers import CLASSES
from kits.fake_servers import METADATA

from rs_keras.serving.client.served_model import ServedModel
from rs_keras.serving.client.tasks import Job
from rs_keras.serving.client.tasks import Range
from rs_keras.serving.client.tasks import Tasks

MODEL = ServedModel("m", 1, {**METADATA, "max_n": 50})


def rounds():
    """Two ranges at once, then one more."""
    first, second = yield [Range(0, 70), Range(70, 30)]
    (third,) = yield [Range(100, 5)]
    return first.sum(), second.sum(), third.sum()


def jobs(count):
    image, seed = np.zeros([4, 4, 1], np.float32), np.zeros(2, np.int64)
    return [Job(key, image, seed, rounds) for key in range(count)]


def votes(task):
    """All draws of a task vote for the first class."""
    counts = np.zeros([task.rows, CLASSES], np.int64)
    counts[:, 0] = task.inputs["n"]
    return counts


def drawn(tasks):
    return sorted(
        (piece.job.key, draw)
        for task in tasks
        for piece in task.pieces
        for draw in range(piece.first, piece.first + piece.n)
    )


@pytest.mark.parametrize("limit", [1, 7, 64, 1_000])
def test_every_draw_is_asked_for_once(limit):
    tasks, taken = Tasks(MODEL, jobs(3)), []
    tasks.begin()
    while not tasks.finished:
        task = tasks.take(limit)
        assert task.draws <= limit
        assert task.inputs["n"].max() <= MODEL.max_n
        taken.append(task)
        tasks.accept(task, votes(task))
    assert drawn(taken) == [(key, n) for key in range(3) for n in range(105)]


def test_halves_are_the_same_draws():
    tasks = Tasks(MODEL, jobs(2))
    tasks.begin()
    task = tasks.take(99)
    halves = task.halves()
    assert [half.draws for half in halves] == [49, 50]
    assert drawn(halves) == drawn([task])
    single = Tasks(MODEL, jobs(1))
    single.begin()
    one = single.take(1)
    assert one.halves() == [one]


def test_starting_over_forgets_what_was_answered():
    given = jobs(2)
    tasks = Tasks(MODEL, given)
    tasks.begin()
    begun = tasks.take(40)
    tasks.accept(begun, votes(begun))
    tasks.begin()
    while not tasks.finished:
        task = tasks.take(40)
        tasks.accept(task, votes(task))
    assert [job.result for job in given] == [(70, 30, 5)] * 2
