"""Audits: some answers are asked for again, of servers chosen at random.

Draws are addressed, so whoever makes them must count the same votes, up to the
draws whose two best logits are so close that another processor's rounding
swaps them. An answer that two other servers contradict is odd.
"""

import logging
import random
from collections.abc import Callable
from collections.abc import Sequence

import numpy as np

from rs_keras.serving.client.answers import Outputs
from rs_keras.serving.client.draw_ranges import Task
from rs_keras.serving.client.fleet import Server
from rs_keras.serving.errors import ServingError
from rs_keras.serving.event_log import event

# Votes of a row that rounding may move from class to class: some, and a share
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
    """A task that is asked for again, of servers that did not answer it.

    Args:
        task: What was asked.
        server: Who answered.
        outputs: What, checked.

    Attributes:
        answers: All that came, by server.
        target: Who is asked next.
    """

    def __init__(self, task: Task, server: Server, outputs: Outputs) -> None:
        super().__init__(
            task.signature, task.inputs, task.rows, task.draws, task.pieces
        )
        self.answers = {server: outputs}
        self.target: Server | None = None


def allowance(n: int, dtype: str) -> int:
    """Returns how many of n votes two processors may count differently.

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
    """Which answers are being audited, and by whom.

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
        """Whether no audit is missing."""
        return not self._open

    @property
    def full(self) -> bool:
        """Whether so many wait that they come first."""
        return sum(not one.copies for one in self._open) >= _MOST_WAITING

    def choose(self, task: Task, server: Server, outputs: Outputs) -> None:
        """Takes an answer up, or not: nobody can tell beforehand."""
        if self._share and _ENTROPY.random() < self._share:
            self._open.append(Repeat(task, server, outputs))

    def route(
        self, servers: Sequence[Server], able: Callable[[Server], bool]
    ) -> None:
        """Chooses anew who is asked where the one chosen is not able.

        Raises:
            ServingError: If answers differ and nobody is left to ask.
        """
        for repeat in list(self._open):
            target = repeat.target
            if repeat.copies or (target is not None and able(target)):
                continue
            left = [
                server
                for server in servers
                if able(server) and server not in repeat.answers
            ]
            if left:
                repeat.target = _ENTROPY.choice(left)
                continue
            self._open.remove(repeat)
            if len(repeat.answers) > 1:
                raise self._undecided(repeat)
            event(
                logging.WARNING,
                "audit_dropped",
                server=next(iter(repeat.answers)).label,
                why="no other server can make these draws now",
            )

    def take(self, server: Server) -> Repeat | None:
        """Returns an audit that this server is to make, or None."""
        for repeat in self._open:
            if repeat.target is server and not repeat.copies:
                return repeat
        return None

    def answered(
        self, repeat: Repeat, server: Server, outputs: Outputs
    ) -> list[tuple[Server, str]]:
        """Takes an answer; returns the servers that are odd, and why."""
        repeat.answers[server] = outputs
        repeat.target = None
        agreed = self._agreeing(repeat)
        if agreed is None:
            event(logging.ERROR, "audit_failed", what=self._words(repeat))
            return []
        self._open.remove(repeat)
        return [
            (other, self._words(repeat, other, agreed))
            for other in repeat.answers
            if any(self._differ(repeat, other, one) for one in agreed)
        ]

    def _agreeing(self, repeat: Repeat) -> tuple[Server, Server] | None:
        """The two servers that agree best, if any two do."""
        servers = list(repeat.answers)
        pairs = [
            (_votes_apart(repeat, one, other).sum(), (one, other))
            for at, one in enumerate(servers)
            for other in servers[:at]
            if not self._differ(repeat, one, other)
        ]
        return min(pairs, key=lambda pair: pair[0])[1] if pairs else None

    def _differ(self, repeat: Repeat, one: Server, other: Server) -> bool:
        """Whether two answers differ by more than rounding explains."""
        mine, theirs = repeat.answers[one], repeat.answers[other]
        if "seed" in mine and (mine["seed"] != theirs["seed"]).any():
            return True
        most = [allowance(n, self._dtype) for n in mine["n"].tolist()]
        return bool((_votes_apart(repeat, one, other) > most).any())

    def _words(
        self,
        repeat: Repeat,
        odd: Server | None = None,
        agreed: tuple[Server, ...] = (),
    ) -> str:
        first, *others = repeat.answers
        apart = [_votes_apart(repeat, first, other) for other in others]
        row = int(np.argmax(np.max(apart, 0)))
        told = "; ".join(
            f"{server.label} counted "
            f"{np.array2string(outputs['counts'][row], threshold=20)} under "
            f"seed {_seed(repeat, outputs, row)}"
            for server, outputs in repeat.answers.items()
        )
        same = f"about the same {repeat.answers[first]['n'][row]} draws: {told}"
        if odd is None:
            return f"servers disagree {same}"
        pair = " and ".join(server.label for server in agreed)
        return f"{odd.label} contradicts {pair}, which agree, {same}"

    def _undecided(self, repeat: Repeat) -> ServingError:
        return ServingError(
            f"{self._words(repeat)}. That is more than rounding explains, and "
            "no other server is there that could say which of them is wrong"
        )


def _seed(repeat: Repeat, outputs: Outputs, row: int) -> list[int]:
    found = outputs.get("seed", repeat.inputs.get("seed"))
    return [] if found is None else found[row].tolist()


def _votes_apart(repeat: Repeat, one: Server, other: Server) -> np.ndarray:
    """How many draws of each row must have voted differently, at least."""
    mine, theirs = (_all_votes(repeat.answers[who]) for who in (one, other))
    more = np.maximum(mine - theirs, 0).sum(-1)
    fewer = np.maximum(theirs - mine, 0).sum(-1)
    return np.maximum(more, fewer)


def _all_votes(outputs: Outputs) -> np.ndarray:
    names = [key for key in ("selection_counts", "counts") if key in outputs]
    return np.concatenate([outputs[name] for name in names], -1)
