"""Jobs, pieces and tasks: the draws of images, cut into requests.

A job is one image under one seed. It needs one or more rounds of draws; a round
is a list of ranges. Ranges are cut into pieces, and pieces of one or several
jobs form a task, which is one request. Votes are added once. Because draws are
addressed, a retried task consists of the same draws.
"""

import math
from collections import deque
from collections.abc import Callable
from collections.abc import Generator
from collections.abc import Iterable
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any
from typing import NamedTuple

import numpy as np

from rs_keras.export import signature
from rs_keras.serving.client import answers
from rs_keras.serving.client.served_model import ServedModel

# Rows of one request: images with few draws share a request, and messages
# stay small.
_MOST_ROWS = 64
# Maximum number of unfinished images, which bounds memory for long streams.
_MOST_OPEN = 64

Progress = Callable[[int, int | None], None]


class Range(NamedTuple):
    """Draws first .. first+n-1."""

    first: int
    n: int


# Yields the ranges of each round, receives the votes [C] of each range, and
# returns the result.
Rounds = Generator[list[Range], list[np.ndarray], Any]


class Job:
    """One image under one seed.

    Args:
        key: Identifies the result.
        image: float32 [H, W, C].
        seed: int64 [2].
        start: Returns the generator of rounds.

    Attributes:
        result: The return value of the rounds, once finished.
    """

    def __init__(
        self,
        key: Any,
        image: np.ndarray,
        seed: np.ndarray,
        start: Callable[[], Rounds],
    ) -> None:
        self.key = key
        self.image = image
        self.seed = seed
        self.result: Any = None
        self._start = start

    def begin(self, num_classes: int) -> list["Piece"]:
        """Returns the draws of the first round."""
        self._num_classes = num_classes
        self._rounds = self._start()
        return self._pieces(next(self._rounds))

    def add(self, piece: "Piece", votes: np.ndarray) -> list["Piece"] | None:
        """Adds the votes of a piece; returns the next pieces, None at the end.

        An empty list means that draws of this round are still missing.
        """
        self._votes[piece.slot] += votes
        self._missing -= piece.n
        if self._missing:
            return []
        try:
            return self._pieces(self._rounds.send(self._votes))
        except StopIteration as stop:
            self.result = stop.value
            return None

    def _pieces(self, ranges: list[Range]) -> list["Piece"]:
        self._votes = [np.zeros(self._num_classes, np.int64) for _ in ranges]
        self._missing = sum(one.n for one in ranges)
        return [Piece(self, slot, *one) for slot, one in enumerate(ranges)]


class Piece(NamedTuple):
    """A part of range number `slot` of a round."""

    job: Job
    slot: int
    first: int
    n: int

    def cut(self, n: int) -> tuple["Piece", "Piece"]:
        """Returns the first `n` draws, and the rest."""
        rest = self._replace(first=self.first + n, n=self.n - n)
        return self._replace(n=n), rest


@dataclass(eq=False)
class Task:
    """One request.

    Attributes:
        signature: Name of the signature.
        inputs: Arrays by the names of its inputs.
        draws: Number of draws of all rows.
        read: From (server, outputs) to the checked answer; see `answers`.
        pieces: The pieces; empty if the task cannot be cut.
        copies: Number of running requests for it.
        overdue_at: Time after which another server repeats it.
        answer: The result of `read`; None before.
    """

    signature: str
    inputs: dict[str, np.ndarray]
    draws: int
    read: Callable[[str, answers.Outputs], Any]
    pieces: tuple[Piece, ...] = ()
    copies: int = 0
    overdue_at: float = math.inf
    answer: Any = None

    @property
    def rows(self) -> int:
        """Number of rows of the request."""
        return len(self.inputs["images"])

    def halves(self) -> list["Task"]:
        """Returns two tasks for the same draws; itself if it cannot be cut."""
        if self.draws < 2 or not self.pieces:
            return [self]
        pieces = deque(self.pieces)
        left = _taken(pieces, self.draws // 2, self.draws, len(pieces))
        return [sample_task(left), sample_task(pieces)]


def sample_task(pieces: Iterable[Piece]) -> Task:
    """Returns the request for some pieces: one row each."""
    pieces = tuple(pieces)
    inputs = {
        "images": np.stack([piece.job.image for piece in pieces]),
        "seed": np.stack([piece.job.seed for piece in pieces]),
        "first": np.array([piece.first for piece in pieces]),
        "n": np.array([piece.n for piece in pieces]),
    }
    read = partial(answers.sampled, inputs["n"].tolist())
    draws = int(inputs["n"].sum())
    return Task(signature.SAMPLE, inputs, draws, read, pieces)


def _taken(
    pieces: deque[Piece], draws: int, most: int, rows: int
) -> list[Piece]:
    """Removes pieces from the left: `draws` in all, `most` per piece."""
    taken: list[Piece] = []
    while draws and pieces and len(taken) < rows:
        piece = pieces.popleft()
        n = min(draws, most)
        if piece.n > n:
            piece, rest = piece.cut(n)
            pieces.appendleft(rest)
        taken.append(piece)
        draws -= piece.n
    return taken


class Tasks:
    """The tasks of a call, created on demand.

    Args:
        model: The model that draws.
        jobs: The images, consumed as needed.
        whole: Tasks that are not made of pieces.
        progress: Called with (draws so far, `total`) after each task.
        total: Number of all draws, if known.
    """

    def __init__(
        self,
        model: ServedModel,
        jobs: Iterable[Job] = (),
        whole: Sequence[Task] = (),
        progress: Progress | None = None,
        total: int | None = None,
    ) -> None:
        self.model = model
        self._all_jobs = jobs
        self._whole = whole
        self._progress = progress
        self._total = total

    def begin(self) -> None:
        """Starts, or restarts without any answers."""
        for task in self._whole:
            task.copies, task.answer = 0, None
        self._jobs = iter(self._all_jobs)
        self._more = True
        self._open = len(self._whole)
        self._drawn = 0
        self._pieces: deque[Piece] = deque()
        self._returned = deque(self._whole)

    @property
    def finished(self) -> bool:
        """Whether every task is answered and every job finished."""
        if not self._open:
            self._fill(1)
        return not (self._open or self._more)

    def waiting(self, enough: float) -> int | None:
        """Number of unassigned draws; None if there are at least `enough`."""
        self._fill(enough)
        if self._more:
            return None
        waiting = sum(piece.n for piece in self._pieces)
        return waiting + sum(task.draws for task in self._returned)

    def any_left(self) -> bool:
        """Whether `take` returns a task."""
        self._fill(1)
        return bool(self._returned or self._pieces)

    def take(self, limit: int) -> Task | None:
        """Returns a task of at most `limit` draws, or None."""
        if self._returned:
            task = self._returned.popleft()
            while task.draws > limit and len(halves := task.halves()) == 2:
                task, other = halves
                self._returned.appendleft(other)
            return task
        self._fill(limit)
        max_n = self.model.max_n
        pieces = _taken(self._pieces, limit, max_n, _MOST_ROWS)
        return sample_task(pieces) if pieces else None

    def put_back(self, tasks: list[Task]) -> None:
        """Returns failed tasks to the queue."""
        self._returned.extend(tasks)

    def accept(self, task: Task, answer: Any) -> list[Job]:
        """Records the answer to a task; returns the jobs that it finished."""
        task.answer = answer
        if not task.pieces:
            self._open -= 1
            return []
        finished = []
        for piece, votes in zip(task.pieces, answer, strict=True):
            more = piece.job.add(piece, votes)
            if more is None:
                self._open -= 1
                finished.append(piece.job)
            else:
                # Before images that have not started, for early results.
                self._pieces.extendleft(reversed(more))
        self._drawn += task.draws
        if self._progress is not None:
            self._progress(self._drawn, self._total)
        return finished

    def _fill(self, draws: float) -> None:
        """Starts images until `draws` are queued or too many are unfinished."""
        waiting = sum(piece.n for piece in self._pieces)
        while self._more and waiting < draws and self._open < _MOST_OPEN:
            job = next(self._jobs, None)
            if job is None:
                self._more = False
                return
            self._open += 1
            pieces = job.begin(self.model.num_classes)
            self._pieces.extend(pieces)
            waiting += sum(piece.n for piece in pieces)
