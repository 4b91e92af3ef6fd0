"""What each image is put through, and what is made of its votes."""

from collections.abc import Callable
from collections.abc import Sequence
from dataclasses import asdict
from dataclasses import dataclass
from typing import Any
from typing import NamedTuple

import numpy as np

from rs_keras.certification.certificate import Certificate
from rs_keras.certification.sample_size import planned
from rs_keras.certification.sequential.boundaries import Tables
from rs_keras.certification.sequential.decision import Decision
from rs_keras.certification.sequential.decision import decision_settings
from rs_keras.certification.sequential.decision import decision_steps
from rs_keras.certification.sequential.decision import decision_tables
from rs_keras.serving.client import answers
from rs_keras.serving.client.draw_ranges import Job
from rs_keras.serving.client.draw_ranges import Range
from rs_keras.serving.client.draw_ranges import Steps
from rs_keras.serving.client.served_model import ServedModel


@dataclass(frozen=True)
class Rounds:
    """What a certificate is asked to rest on; None is as exported."""

    n0: int | None = None
    n: int | None = None
    alpha: float | None = None
    bound: str = "clopper_pearson"
    beta: float = 1.0
    runner_up: bool | None = None
    tolerance: float | None = None
    max_radius: float | None = None

    def settings(self, model: ServedModel) -> dict[str, Any]:
        """Returns the numbers for a model, checked."""
        return model.settings(**asdict(self))


@dataclass(frozen=True)
class Looks:
    """What a decision is asked to rest on; None is as exported."""

    radius: float | Sequence[float]
    alpha: float | None = None
    n_max: int = 100_000
    runner_up: bool | None = None
    n0: int | None = None

    def tables(self, model: ServedModel) -> Tables:
        """Returns what decisions are looked up in, for a model; checked."""
        tables = decision_tables(
            self.radius,
            model.sigma,
            model.baked("alpha", self.alpha),
            self.n_max,
            model.baked("runner_up", self.runner_up),
            model.baked("n0", self.n0),
            model.distance,
        )
        model.check_range("n_max", 0, self.n_max)
        return tables

    def settings(self, model: ServedModel) -> dict[str, Any]:
        """Returns what decisions rest on, as `Certifier` tells it."""
        return decision_settings(
            model.metadata,
            self.tables(model),
            model.baked("alpha", self.alpha),
            self.n_max,
            model.baked("runner_up", self.runner_up),
        )


class Plan(NamedTuple):
    """What each image is put through, and its draws if they are known."""

    steps: Callable[[], Steps]
    draws: int | None


def one_range(first: int, n: int) -> Steps:
    (counts,) = yield [Range(first, n)]
    return counts


def rounds_plan(model: ServedModel, settings: dict[str, Any]) -> Plan:
    n0, n = settings["n0"], settings["n"]
    if "tolerance" in settings:
        return Plan(lambda: _planned_round(model.sigma, settings), None)
    return Plan(lambda: _two_rounds(n0, n), n0 + n)


def _two_rounds(n0: int, n: int) -> Steps:
    """Selection and estimation: neither waits for the other."""
    selection, counts = yield [Range(0, n0), Range(n0, n)]
    return selection, counts, n


def _planned_round(sigma: float, settings: dict[str, Any]) -> Steps:
    """Selection, which says how many draws the estimation takes."""
    n0 = settings["n0"]
    (selection,) = yield [Range(0, n0)]
    (n,) = planned(
        selection[None],
        settings["n"],
        settings["alpha"],
        sigma,
        settings["bound"],
        settings["runner_up"],
        settings["tolerance"],
        settings.get("max_radius"),
    )
    (counts,) = yield [Range(n0, int(n))]
    return selection, counts, int(n)


def looks_plan(model: ServedModel, looks: Looks) -> Plan:
    tables = looks.tables(model)
    return Plan(lambda: _deciding(tables, model.sigma), None)


def _deciding(tables: Tables, sigma: float) -> Steps:
    """Looks at the votes after each step, until they decide."""
    steps = decision_steps(1, tables, sigma)
    _, first, n = next(steps)
    while True:
        (counts,) = yield [Range(first, n)]
        try:
            _, first, n = steps.send(counts[None])
        except StopIteration as stop:
            return stop.value


class CertifyStream:
    """What `certify_each` asks of a stream, and how it answers.

    Args:
        model: The version that it is about.
        rounds: What the certificates are to rest on.
    """

    def __init__(self, model: ServedModel, rounds: Rounds) -> None:
        self.model = model
        self.settings = rounds.settings(model)
        self.plan = rounds_plan(model, self.settings)

    def answer(self, job: Job) -> Certificate:
        """The certificate of one image."""
        return certificate(self.model, self.settings, [job])


class DecideStream:
    """What `decide_each` asks of a stream, and how it answers.

    Args:
        model: The version that it is about.
        looks: What the decisions are to rest on.
    """

    def __init__(self, model: ServedModel, looks: Looks) -> None:
        self.model = model
        self.looks = looks
        self.plan = looks_plan(model, looks)

    def answer(self, job: Job) -> Decision:
        """The decision about one image."""
        return decision(self.model, self.looks, [job])


def certificate(
    model: ServedModel, settings: dict[str, Any], jobs: list[Job]
) -> Certificate:
    selection, counts, n = (
        np.stack(values)
        for values in zip(*(job.result for job in jobs), strict=True)
    )
    return certificate_of(
        model,
        settings,
        **answers.certificate(model, settings, selection, counts, n),
        counts=counts,
        selection_counts=selection,
        n=n,
        seed=np.stack([job.seed for job in jobs]),
    )


def decision(model: ServedModel, looks: Looks, jobs: list[Job]) -> Decision:
    found = {
        name: np.concatenate([job.result[name] for job in jobs])
        for name in jobs[0].result
    }
    return Decision(
        **found,
        seed=np.stack([job.seed for job in jobs]),
        settings=_named(model, looks.settings(model)),
    )


def certificate_of(
    model: ServedModel, settings: dict[str, Any], **arrays: np.ndarray
) -> Certificate:
    return Certificate(**arrays, settings=_named(model, settings))


def _named(model: ServedModel, settings: dict[str, Any]) -> dict[str, Any]:
    return {**settings, "model": model.name, "version": model.version}
