"""What each image is put through, and what is made of its votes."""

from collections.abc import Callable
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
from rs_keras.certification.spec import CertifySpec
from rs_keras.certification.spec import DecideSpec
from rs_keras.serving.client import answers
from rs_keras.serving.client.draw_ranges import Job
from rs_keras.serving.client.draw_ranges import Range
from rs_keras.serving.client.draw_ranges import Steps
from rs_keras.serving.client.served_model import ServedModel


class Plan(NamedTuple):
    """What each image is put through, and its draws if they are known."""

    steps: Callable[[], Steps]
    draws: int | None


def one_range(first: int, n: int) -> Steps:
    (counts,) = yield [Range(first, n)]
    return counts


def certify_plan(model: ServedModel, spec: CertifySpec) -> Plan:
    """Returns the two rounds of a certificate."""
    if spec.tolerance is not None:
        return Plan(lambda: _planned_round(spec, model.sigma), None)
    return Plan(lambda: _two_rounds(spec.n0, spec.n), spec.n0 + spec.n)


def _two_rounds(n0: int, n: int) -> Steps:
    """Selection and estimation: neither waits for the other."""
    selection, counts = yield [Range(0, n0), Range(n0, n)]
    return selection, counts, n


def _planned_round(spec: CertifySpec, sigma: float) -> Steps:
    """Selection, which says how many draws the estimation takes."""
    (selection,) = yield [Range(0, spec.n0)]
    (n,) = planned(selection[None], spec, sigma)
    (counts,) = yield [Range(spec.n0, int(n))]
    return selection, counts, int(n)


def decide_plan(model: ServedModel, spec: DecideSpec) -> Plan:
    """Returns the steps of a decision, each after the votes of the last."""
    tables = decision_tables(spec, model.smoothing)
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
        spec: What the certificates are to rest on.
    """

    def __init__(self, model: ServedModel, spec: CertifySpec) -> None:
        self.model = model
        self.spec = spec
        self.plan = certify_plan(model, spec)

    def answer(self, job: Job) -> Certificate:
        """The certificate of one image."""
        return certificate(self.model, self.spec, [job])


class DecideStream:
    """What `decide_each` asks of a stream, and how it answers.

    Args:
        model: The version that it is about.
        spec: What the decisions are to rest on.
    """

    def __init__(self, model: ServedModel, spec: DecideSpec) -> None:
        self.model = model
        self.spec = spec
        self.plan = decide_plan(model, spec)

    def answer(self, job: Job) -> Decision:
        """The decision about one image."""
        return decision(self.model, self.spec, [job])


def certificate(
    model: ServedModel, spec: CertifySpec, jobs: list[Job]
) -> Certificate:
    selection, counts, n = (
        np.stack(values)
        for values in zip(*(job.result for job in jobs), strict=True)
    )
    return certificate_of(
        model,
        spec,
        **answers.certificate(model, spec, selection, counts, n),
        counts=counts,
        selection_counts=selection,
        n=n,
        seed=np.stack([job.seed for job in jobs]),
    )


def decision_settings_of(
    model: ServedModel, spec: DecideSpec
) -> dict[str, Any]:
    """Returns what decisions rest on, as `Certifier.decision_settings`."""
    tables = decision_tables(spec, model.smoothing)
    return decision_settings(spec, model.smoothing, tables)


def decision(model: ServedModel, spec: DecideSpec, jobs: list[Job]) -> Decision:
    found = {
        name: np.concatenate([job.result[name] for job in jobs])
        for name in jobs[0].result
    }
    return Decision(
        **found,
        seed=np.stack([job.seed for job in jobs]),
        settings=_named(model, decision_settings_of(model, spec)),
    )


def certificate_of(
    model: ServedModel, spec: CertifySpec, **arrays: np.ndarray
) -> Certificate:
    settings = spec.settings(model.smoothing)
    return Certificate(**arrays, settings=_named(model, settings))


def _named(model: ServedModel, settings: dict[str, Any]) -> dict[str, Any]:
    return {**settings, "model": model.name, "version": model.version}
