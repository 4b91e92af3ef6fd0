"""The books of a fan-out: which draws are asked for, which have come in.

A job is one image under one seed. It asks for ranges of draws; each range is
cut into pieces, pieces of one or several jobs travel as one task, and what
comes back is added up once. A task that is sent again is the same task.
"""

from collections import deque
from collections.abc import Callable
from collections.abc import Generator
from collections.abc import Iterable
from collections.abc import Iterator
from typing import Any
from typing import NamedTuple

import numpy as np

from rs_keras.export import signature
from rs_keras.serving.client import answers

# Rows of one request: many short images travel together, a message stays
# small.
_MOST_ROWS = 64
# Images that are begun at a time, so that memory does not grow with a stream.
_MOST_OPEN = 64


class Range(NamedTuple):
    """Draws first .. first+n-1."""

    first: int
    n: int


# Asks for ranges, is sent their counts, and returns what it made of them.
Steps = Generator[list[Range], list[np.ndarray], Any]


class Job:
    """One image, one seed, and what is to be found out.

    Args:
        key: What the result is called.
        image: float32 [H, W, C].
        seed: int64 [2].
        steps: Asks for ranges of draws.
    """

    def __init__(
        self, key: Any, image: np.ndarray, seed: np.ndarray, steps: Steps
    ) -> None:
        self.key = key
        self.image = image
        self.seed = seed
        self.result: Any = None
        self._steps = steps
        self._counts: list[np.ndarray] = []
        self._missing = 0

    def begin(self, num_classes: int) -> list["Piece"]:
        """Returns the first draws that are wanted."""
        self._num_classes = num_classes
        return self._pieces(next(self._steps))

    def add(self, piece: "Piece", counts: np.ndarray) -> list["Piece"] | None:
        """Adds what a piece found; returns the next, None at the end.

        An empty list means that draws asked for earlier are still missing.
        """
        self._counts[piece.slot] += counts
        self._missing -= piece.n
        if self._missing:
            return []
        try:
            return self._pieces(self._steps.send(self._counts))
        except StopIteration as stop:
            self.result = stop.value
            return None

    def _pieces(self, ranges: list[Range]) -> list["Piece"]:
        self._counts = [np.zeros(self._num_classes, np.int64) for _ in ranges]
        self._missing = sum(one.n for one in ranges)
        return [
            Piece(self, slot, one.first, one.n)
            for slot, one in enumerate(ranges)
        ]


class Piece(NamedTuple):
    """A part of a range of a job."""

    job: Job
    slot: int
    first: int
    n: int

    def cut(self, n: int) -> tuple["Piece", "Piece"]:
        """Returns the first `n` draws, and the rest."""
        return (
            self._replace(n=n),
            self._replace(first=self.first + n, n=self.n - n),
        )


class Task:
    """One request.

    Args:
        signature_name: What is asked.
        inputs: Its arrays.
        rows: Of the request.
        draws: In all.
        pieces: What it is about; none where it cannot be cut.
    """

    def __init__(
        self,
        signature_name: str,
        inputs: dict[str, np.ndarray],
        rows: int,
        draws: int,
        pieces: tuple[Piece, ...] = (),
    ) -> None:
        self.signature = signature_name
        self.inputs = inputs
        self.rows = rows
        self.draws = draws
        self.pieces = pieces
        self.copies = 0
        self.done = False

    @classmethod
    def sample(cls, pieces: Iterable[Piece]) -> "Task":
        """Returns the request for some pieces."""
        pieces = tuple(pieces)
        inputs = {
            "images": np.stack([piece.job.image for piece in pieces]),
            "seed": np.stack([piece.job.seed for piece in pieces]),
            "first": np.array([piece.first for piece in pieces]),
            "n": np.array([piece.n for piece in pieces]),
        }
        draws = int(inputs["n"].sum())
        return cls(signature.SAMPLE, inputs, len(pieces), draws, pieces)

    def halves(self) -> list["Task"]:
        """Returns two requests for the same draws; itself if it is one."""
        if self.draws < 2 or not self.pieces:
            return [self]
        left: list[Piece] = []
        right = deque(self.pieces)
        room = self.draws // 2
        while room:
            piece = right.popleft()
            if piece.n > room:
                piece, rest = piece.cut(room)
                right.appendleft(rest)
            left.append(piece)
            room -= piece.n
        return [Task.sample(left), Task.sample(right)]


class Single:
    """Work that is one request, answered as a whole.

    Args:
        task: The request.
        check: Of its outputs.

    Attributes:
        answer: The outputs, once they are there.
    """

    def __init__(self, task: Task, check: answers.Check) -> None:
        self._waiting: list[Task] = [task]
        self._check = check
        self.answer: answers.Outputs | None = None

    @property
    def finished(self) -> bool:
        """Whether there is an answer."""
        return self.answer is not None

    def take(self, limit: int) -> Task | None:
        """Returns the request, unless it was taken."""
        return self._waiting.pop() if self._waiting else None

    def put_back(self, tasks: list[Task]) -> None:
        """Takes back a request that failed."""
        self._waiting.extend(tasks)

    def waiting(self, enough: float) -> int | None:
        """Draws that wait; None where that is not known."""
        return None

    def check(
        self, task: Task, outputs: answers.Outputs, server: str
    ) -> answers.Outputs:
        """Returns outputs that may be used; see `answers`."""
        return self._check(outputs, server)

    def accept(self, task: Task, outputs: answers.Outputs) -> list[Job]:
        """Takes the answer, checked."""
        self.answer = outputs
        return []


class Sampling:
    """Work that is draws for jobs, in tasks of any size.

    Args:
        jobs: The images; taken as there is room for them.
        num_classes: Of the model.
        max_n: The most draws a row of one request.
        progress: Is told (draws so far, of how many) when a task is done.
        total: Of all draws, where it is known.
    """

    def __init__(
        self,
        jobs: Iterable[Job],
        num_classes: int,
        max_n: int,
        progress: Callable[[int, int | None], None] | None = None,
        total: int | None = None,
    ) -> None:
        self._jobs: Iterator[Job] = iter(jobs)
        self._num_classes = num_classes
        self._max_n = max_n
        self._progress = progress
        self._total = total
        self._more = True
        self._open = 0
        self._done = 0
        self._pieces: deque[Piece] = deque()
        self._returned: deque[Task] = deque()

    @property
    def finished(self) -> bool:
        """Whether every job has its result."""
        if not self._open:
            self._fill(1)
        return not (self._open or self._more)

    def waiting(self, enough: float) -> int | None:
        """Draws that nobody makes yet; None for `enough` and maybe more."""
        self._fill(enough)
        if self._more:
            return None
        return sum(piece.n for piece in self._pieces) + sum(
            task.draws for task in self._returned
        )

    def take(self, limit: int) -> Task | None:
        """Returns a task of at most `limit` draws, or None."""
        if self._returned:
            return self._again(limit)
        self._fill(limit)
        pieces: list[Piece] = []
        room = limit
        while room and self._pieces and len(pieces) < _MOST_ROWS:
            piece = self._pieces.popleft()
            most = min(room, self._max_n)
            if piece.n > most:
                piece, rest = piece.cut(most)
                self._pieces.appendleft(rest)
            pieces.append(piece)
            room -= piece.n
        return Task.sample(pieces) if pieces else None

    def _again(self, limit: int) -> Task:
        task = self._returned.popleft()
        while task.draws > limit and task.draws > 1:
            task, other = task.halves()
            self._returned.appendleft(other)
        return task

    def put_back(self, tasks: list[Task]) -> None:
        """Takes back tasks that failed."""
        self._returned.extend(tasks)

    def check(
        self, task: Task, outputs: answers.Outputs, server: str
    ) -> answers.Outputs:
        """Returns outputs that may be counted; see `answers`."""
        asked = [piece.n for piece in task.pieces]
        answers.check_draws(server, outputs, asked)
        answers.check_votes(server, outputs, asked)
        return outputs

    def accept(self, task: Task, outputs: answers.Outputs) -> list[Job]:
        """Books what a task found, checked; returns the jobs it finished."""
        finished = []
        for piece, counts in zip(task.pieces, outputs["counts"], strict=True):
            more = piece.job.add(piece, counts)
            if more is None:
                self._open -= 1
                finished.append(piece.job)
            else:
                # Before images that were not begun: results come early.
                self._pieces.extendleft(reversed(more))
        self._done += task.draws
        if self._progress is not None:
            self._progress(self._done, self._total)
        return finished

    def _fill(self, draws: float) -> None:
        """Begins images until `draws` wait, or enough are open."""
        waiting = sum(piece.n for piece in self._pieces)
        while self._more and waiting < draws and self._open < _MOST_OPEN:
            try:
                job = next(self._jobs)
            except StopIteration:
                self._more = False
                return
            self._open += 1
            pieces = job.begin(self._num_classes)
            self._pieces.extend(pieces)
            waiting += sum(piece.n for piece in pieces)


Work = Single | Sampling
