"""Audits: randomly chosen requests are repeated on other servers.

Draws are addressed, so all servers must count the same votes, except for draws
whose two best logits are so close that another processor's rounding swaps
them. A server whose answer two other servers contradict is outvoted.
"""

import itertools
import logging
import random
from collections.abc import Sequence

import numpy as np

from rs_keras.serving.client.answers import Outputs
from rs_keras.serving.client.fleet import Server
from rs_keras.serving.client.tasks import Task
from rs_keras.serving.errors import ServingError
from rs_keras.serving.errors import WrongAnswer
from rs_keras.serving.event_log import event

# Votes of a row that rounding may move between classes: a constant plus a share
# of the draws. A vote moves where the two best logits are closer than their
# rounding. With LeNet at sigma 1 their difference lies below t for a share of
# 0.6 t of the draws (t small), and two kernels' logits differ by 7e-7 in
# float32 (root mean square; no vote of 80,000 moved) and 1.4e-2 in bfloat16
# (0.13 % moved, 0.25 % of the worst image's). The rest is for deeper networks.
_TIES = 2
_TIES_SHARE = 5e-4
_TIES_SHARE_SHORT = 2e-2
_LONG = ("float32", "float64")
# Audits that wait before no other work is given out, so that memory is
# bounded where the one server that can make them is slow.
_MOST_WAITING = 32

# The operating system's, so that no server can know what is audited.
_ENTROPY = random.SystemRandom()


class Repeat(Task):
    """A task that another server repeats.

    Args:
        task: The task.
        server: The server that answered it.
        outputs: Its outputs, checked.

    Attributes:
        answers: All outputs, by server.
        target: The server that repeats it next.
    """

    def __init__(self, task: Task, server: Server, outputs: Outputs) -> None:
        super().__init__(
            task.signature, task.inputs, task.draws, task.read, task.pieces
        )
        self.answers = {server: outputs}
        self.target: Server | None = None


def allowance(n: int, dtype: str) -> int:
    """Returns by how many of n votes the counts of two processors may differ.

    Args:
        n: Draws.
        dtype: Which the model computes in.

    Example:

    >>> from rs_keras.serving.client.audit import allowance
    >>> allowance(10_000, "float32"), allowance(10_000, "bfloat16")
    (7, 202)
    """
    share = _TIES_SHARE if dtype in _LONG else _TIES_SHARE_SHORT
    return _TIES + int(share * n)


class Audits:
    """The audits of one call.

    Args:
        share: Of the answers, in [0, 1].
        dtype: Which the model computes in.
    """

    def __init__(self, share: float, dtype: str) -> None:
        self._share = share
        self._dtype = dtype
        self._open: list[Repeat] = []

    @property
    def finished(self) -> bool:
        """Whether all audits are complete."""
        return not self._open

    @property
    def full(self) -> bool:
        """Whether so many audits wait that they take precedence."""
        return sum(not one.copies for one in self._open) >= _MOST_WAITING

    def choose(self, task: Task, server: Server, outputs: Outputs) -> None:
        """Audits an answer with probability `share`, unpredictably."""
        if self._share and _ENTROPY.random() < self._share:
            self._open.append(Repeat(task, server, outputs))

    def route(self, able: Sequence[Server]) -> None:
        """Reassigns audits whose server is not among the able ones.

        Raises:
            ServingError: If answers differ and no other server is left.
        """
        for repeat in list(self._open):
            if repeat.copies or repeat.target in able:
                continue
            left = [server for server in able if server not in repeat.answers]
            if left:
                repeat.target = _ENTROPY.choice(left)
                continue
            self._open.remove(repeat)
            if len(repeat.answers) > 1:
                raise ServingError(
                    f"servers disagree {_counted(repeat)}. That is more than "
                    "rounding explains, and no other server is there that "
                    "could say which of them is wrong"
                )
            event(
                logging.WARNING,
                "audit_dropped",
                server=next(iter(repeat.answers)).label,
                why="no other server can make these draws now",
            )

    def take(self, server: Server) -> Repeat | None:
        """Returns an audit assigned to this server, or None."""
        for repeat in self._open:
            if repeat.target is server and not repeat.copies:
                return repeat
        return None

    def answered(
        self, repeat: Repeat, server: Server, outputs: Outputs
    ) -> dict[Server, WrongAnswer]:
        """Records an answer; returns the outvoted servers with the errors."""
        repeat.answers[server] = outputs
        repeat.target = None
        agreed = self._agreeing(repeat)
        if not agreed:
            disagreement = f"servers disagree {_counted(repeat)}"
            event(logging.ERROR, "audit_failed", what=disagreement)
            return {}
        self._open.remove(repeat)
        pair = " and ".join(other.label for other in agreed)
        return {
            other: WrongAnswer(
                f"{other.label} contradicts {pair}, which agree, "
                f"{_counted(repeat)}",
                server=other.label,
            )
            for other in repeat.answers
            if any(self._differ(repeat, other, one) for one in agreed)
        }

    def _agreeing(self, repeat: Repeat) -> tuple[Server, ...]:
        """The two servers that agree best; empty if no two agree."""
        pairs = [
            pair
            for pair in itertools.combinations(repeat.answers, 2)
            if not self._differ(repeat, *pair)
        ]
        return min(
            pairs,
            key=lambda pair: _votes_apart(repeat, *pair).sum(),
            default=(),
        )

    def _differ(self, repeat: Repeat, one: Server, other: Server) -> bool:
        """Whether two answers differ by more than rounding explains."""
        mine, theirs = repeat.answers[one], repeat.answers[other]
        if "seed" in mine and (mine["seed"] != theirs["seed"]).any():
            return True
        most = [allowance(n, self._dtype) for n in mine["n"].tolist()]
        return bool((_votes_apart(repeat, one, other) > most).any())


def _counted(repeat: Repeat) -> str:
    """The counts of each server in the row where they differ most."""
    first, *others = repeat.answers
    apart = [_votes_apart(repeat, first, other) for other in others]
    row = int(np.argmax(np.max(apart, 0)))
    sentences = []
    for server, outputs in repeat.answers.items():
        counts = np.array2string(outputs["counts"][row], threshold=20)
        # The client chose the seed of `sample`; otherwise the server did.
        seeds = (outputs if "seed" in outputs else repeat.inputs)["seed"]
        seed = seeds[row].tolist()
        sentences.append(f"{server.label} counted {counts} under seed {seed}")
    draws = repeat.answers[first]["n"][row]
    return f"about the same {draws} draws: {'; '.join(sentences)}"


def _votes_apart(repeat: Repeat, one: Server, other: Server) -> np.ndarray:
    """Minimum number of draws per row whose votes differ: int64 [B]."""
    change = _votes(repeat.answers[one]) - _votes(repeat.answers[other])
    return np.maximum(
        np.maximum(change, 0).sum(-1), np.maximum(-change, 0).sum(-1)
    )


def _votes(outputs: Outputs) -> np.ndarray:
    """All counts: int64 [B, C], or [B, 2 C] with the selection draws."""
    names = [key for key in ("selection_counts", "counts") if key in outputs]
    return np.concatenate([outputs[name] for name in names], -1)
