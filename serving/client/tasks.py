"""Draws to be made: images, their rounds of draws, and requests for them.

A job is one image under one seed. It goes through rounds, each of which asks
for ranges of draws. Ranges are cut into pieces; pieces of one or several jobs
travel as one task, which is one request. Votes that come back are added once.
A task that is sent again is the same task: draws are addressed.
"""

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

# Rows of one request: many short images travel together, a message stays
# small.
_MOST_ROWS = 64
# Images that are begun at a time, so that memory does not grow with a stream.
_MOST_OPEN = 64

Progress = Callable[[int, int | None], None]


class Range(NamedTuple):
    """Draws first .. first+n-1."""

    first: int
    n: int


# Yields the ranges of a round, is sent their votes [C] each, returns a result.
Rounds = Generator[list[Range], list[np.ndarray], Any]


class Job:
    """One image under one seed.

    Args:
        key: What the result is called.
        image: float32 [H, W, C].
        seed: int64 [2].
        start: Returns the rounds of draws that it goes through.

    Attributes:
        result: What the rounds returned, at the end.
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
        """Adds the votes of a piece; returns what is next, None at the end.

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
    """A part of one range of a round; `slot` tells which."""

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
        signature: What is asked.
        inputs: Its arrays.
        draws: In all.
        read: From (server, outputs) to the answer, checked; see `answers`.
        pieces: What it is about; none where it cannot be cut.
        copies: How often it is under way.
        answer: What `read` returned; None before.
    """

    signature: str
    inputs: dict[str, np.ndarray]
    draws: int
    read: Callable[[str, answers.Outputs], Any]
    pieces: tuple[Piece, ...] = ()
    copies: int = 0
    answer: Any = None

    @property
    def rows(self) -> int:
        """Of the request."""
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
    """Takes `draws` from the left, at most `most` a piece, in `rows` pieces."""
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
    """The tasks of a call, made as they are asked for.

    Args:
        model: Which they are for.
        jobs: The images; taken as there is room for them.
        whole: Tasks that are asked as they are, besides.
        progress: Is told (draws so far, of how many) when a task is done.
        total: Of all draws, where it is known.
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
        """Starts, or starts over as if nothing had been answered."""
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
        """Whether every task is answered, and no job asks for more."""
        if not self._open:
            self._fill(1)
        return not (self._open or self._more)

    def waiting(self, enough: float) -> int | None:
        """Draws that nobody makes yet; None for `enough` and maybe more."""
        self._fill(enough)
        if self._more:
            return None
        waiting = sum(piece.n for piece in self._pieces)
        return waiting + sum(task.draws for task in self._returned)

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
        """Takes back tasks that failed."""
        self._returned.extend(tasks)

    def accept(self, task: Task, answer: Any) -> list[Job]:
        """Takes the answer to a task; returns the jobs that it finished."""
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
                # Before images that were not begun: results come early.
                self._pieces.extendleft(reversed(more))
        self._drawn += task.draws
        if self._progress is not None:
            self._progress(self._drawn, self._total)
        return finished

    def _fill(self, draws: float) -> None:
        """Begins images until `draws` wait, or enough are open."""
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
