"""What can be asked of a fleet, as operations that any driver can run."""

import time
from collections.abc import Callable
from collections.abc import Generator
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any

import numpy as np

from rs_keras import bounds
from rs_keras._checks import check_count
from rs_keras._checks import check_feasible
from rs_keras._checks import check_not_negative
from rs_keras._checks import check_probability
from rs_keras.certification.certificate import Prediction
from rs_keras.certification.spec import CertifySpec
from rs_keras.export import signature
from rs_keras.noise.draws import as_seeds
from rs_keras.noise.keyed_seeds import Seed
from rs_keras.serving.client import answers
from rs_keras.serving.client.draw_ranges import Job
from rs_keras.serving.client.draw_ranges import Sampling
from rs_keras.serving.client.draw_ranges import Single
from rs_keras.serving.client.draw_ranges import Task
from rs_keras.serving.client.fanout import FanOut
from rs_keras.serving.client.plans import Plan
from rs_keras.serving.client.plans import certificate
from rs_keras.serving.client.plans import certificate_of
from rs_keras.serving.client.plans import certify_plan
from rs_keras.serving.client.plans import decide_plan
from rs_keras.serving.client.plans import decision
from rs_keras.serving.client.plans import one_range
from rs_keras.serving.client.requests import Operation
from rs_keras.serving.client.served_model import ServedModel
from rs_keras.serving.errors import ServingError

# Between two looks whether a server is there.
_FIRST_PAUSE = 0.05
_LONGEST_PAUSE = 1.0

Progress = Callable[[int, int | None], None]
Asking = Generator[Any, Any, Any]
# A name for the result, an image, and its seed or None.
Example = tuple[Any, Any, Any]


def check_chunk(chunk: int | None) -> int | None:
    """Returns a number of draws a request, checked; None adapts it."""
    return None if chunk is None else check_count("chunk", chunk)


def model(operation: Operation) -> Asking:
    """Asks which model is served."""
    return (yield from operation.connected())


def wait_ready(operation: Operation, timeout: float = 60.0) -> Asking:
    """Asks again and again which model is served, until one is."""
    ends = time.monotonic() + check_not_negative("timeout", timeout)
    pause = _FIRST_PAUSE
    while True:
        try:
            return (yield from operation.connected(attempts=1))
        except ServingError:
            if time.monotonic() + pause > ends:
                raise
        yield from operation.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE)


def sample(
    operation: Operation,
    images: Any,
    n: int = 1_000,
    seed: Seed = 7,
    first: int = 0,
    chunk: int | None = None,
    progress: Progress | None = None,
) -> Asking:
    """Asks for the votes of draws first .. first+n-1: int64 [B, C]."""
    n = check_count("n", n)
    first = check_count("first", first, 0)

    def plan(model: ServedModel) -> Plan:
        model.check_range("n", first, n)
        return Plan(lambda: one_range(first, n), n)

    _, jobs = yield from _sampled(
        operation, images, plan, seed=seed, chunk=chunk, progress=progress
    )
    return np.stack([job.result for job in jobs])


def predict(
    operation: Operation,
    images: Any,
    n: int | None = None,
    alpha: float | None = None,
    seed: Seed = None,
    chunk: int | None = None,
    progress: Progress | None = None,
) -> Asking:
    """Asks for labels: a `Prediction`."""
    plain = n is None and alpha is None and seed is None and chunk is None
    if plain and (yield from _is_one_request(operation)):
        _, found = yield from _single(operation, images, signature.PREDICT)
        return Prediction(
            found["label"], found["p_value"], found["counts"], found["seed"]
        )

    def numbers(model: ServedModel) -> tuple[int, float]:
        error = check_probability("alpha", model.baked("alpha", alpha))
        draws = check_count("n", model.baked("predict_n", n))
        smallest = bounds.minimum_n(error, "predict")
        check_feasible("n", draws, error, smallest)
        model.check_range("n", 0, draws)
        return draws, error

    def plan(model: ServedModel) -> Plan:
        draws, _ = numbers(model)
        return Plan(lambda: one_range(0, draws), draws)

    served, jobs = yield from _sampled(
        operation, images, plan, seed=seed, chunk=chunk, progress=progress
    )
    counts = np.stack([job.result for job in jobs])
    seeds = np.stack([job.seed for job in jobs])
    found = answers.prediction(served, counts, *numbers(served))
    return Prediction(**found, counts=counts, seed=seeds)


def certify(
    operation: Operation,
    images: Any,
    seed: Seed = None,
    chunk: int | None = None,
    progress: Progress | None = None,
    **arguments: Any,
) -> Asking:
    """Asks for certificates: a `Certificate`.

    The other arguments are those of `ServedModel.certify_spec`.
    """
    plain = _are_as_exported(arguments) and seed is None and chunk is None
    if plain and (yield from _is_one_request(operation)):
        served, found = yield from _single(operation, images, signature.CERTIFY)
        return certificate_of(served, served.certify_spec(), **found)

    served, jobs = yield from _sampled(
        operation,
        images,
        lambda model: certify_plan(model, model.certify_spec(**arguments)),
        seed=seed,
        chunk=chunk,
        progress=progress,
    )
    return certificate(served, served.certify_spec(**arguments), jobs)


def decide(
    operation: Operation,
    images: Any,
    radius: float | Sequence[float],
    seed: Seed = None,
    chunk: int | None = None,
    progress: Progress | None = None,
    **arguments: Any,
) -> Asking:
    """Asks whether images keep their label within a radius: a `Decision`.

    The other arguments are those of `ServedModel.decide_spec`.
    """
    served, jobs = yield from _sampled(
        operation,
        images,
        lambda model: decide_plan(
            model, model.decide_spec(radius, **arguments)
        ),
        seed=seed,
        chunk=chunk,
        progress=progress,
    )
    return decision(served, served.decide_spec(radius, **arguments), jobs)


def stream(
    operation: Operation,
    examples: Iterable[Example],
    pinned: ServedModel,
    plan: Plan,
    chunk: int | None,
) -> Asking:
    """Puts images through a plan as they come; yields jobs as they finish.

    A stream is about one version: what was given out cannot be taken back.
    """

    def jobs() -> Iterator[Job]:
        for key, image, seed in examples:
            image = np.asarray(image)
            image = pinned.images(image[None] if image.ndim == 3 else image)
            if len(image) != 1:
                raise ValueError(
                    "`examples` must hold one image each. "
                    f"Received: shape={list(image.shape)}"
                )
            if seed is not None and not isinstance(seed, str):
                seed = np.atleast_2d(seed)
            mode = pinned.metadata["noise"]
            pair = as_seeds(seed, 1, image, noise=mode)
            yield Job(key, image[0], pair[0], plan.steps())

    def make(model: ServedModel) -> Sampling:
        if model is not pinned:
            raise ServingError(
                f"version {pinned.version} of model {pinned.name!r} was "
                "unloaded, or its number given to another export, while a "
                "stream of images was being certified with it; "
                f"version {model.version} is served now. What was "
                "answered is about the former; start again for the latter"
            )
        return Sampling(jobs(), model.num_classes, model.max_n)

    # What was yielded cannot be taken back, so nothing is made again.
    chunk = check_chunk(chunk)
    return (yield from FanOut(operation, make, chunk, again=False).run())


def _is_one_request(operation: Operation) -> Asking:
    """Whether images alone are one request to one server.

    With several servers the draws are shared out, under seeds of the client's,
    so that no single one decides. Keyed seeds only servers can make.
    """
    model = yield from operation.connected()
    alone = len(operation.fleet.servers) == 1
    return alone or model.metadata["seed"] == "keyed"


def _are_as_exported(arguments: dict[str, Any]) -> bool:
    """Whether all of `certify` are left to the export."""
    defaults = {"bound": CertifySpec.bound, "beta": CertifySpec.beta}
    return all(value == defaults.get(name) for name, value in arguments.items())


_CHECKS = {
    signature.CERTIFY: answers.certified,
    signature.PREDICT: answers.predicted,
}


def _single(operation: Operation, images: Any, name: str) -> Asking:
    """Asks in one request, with the numbers of the export."""

    made: list[tuple[ServedModel, Single]] = []

    def make(model: ServedModel) -> Single:
        checked = model.images(images)
        facts = model.metadata
        n = facts["n0"] + facts["n"]
        if name == signature.PREDICT:
            n = facts["predict_n"]
        rows = len(checked)
        task = Task(name, {"images": checked}, rows, rows * n)
        work = Single(task, _CHECKS[name](model, checked))
        made[:] = [(model, work)]
        return work

    yield from FanOut(operation, make).run()
    model, work = made[0]
    return model, work.answer


def _sampled(
    operation: Operation,
    images: Any,
    plan: Callable[[ServedModel], Plan],
    seed: Seed,
    chunk: int | None,
    progress: Progress | None,
) -> Asking:
    """Asks for draws; returns the model that they are of, and the jobs."""
    chunk = check_chunk(chunk)
    made: list[tuple[ServedModel, list[Job]]] = []

    def make(model: ServedModel) -> Sampling:
        # Fresh noise, drawn when the images are fixed; and again if the model
        # has changed, but not because a server was left out: it could cause
        # that until it likes the noise.
        checked = model.images(images)
        if made and made[0][0] is model:
            seeds = np.stack([job.seed for job in made[0][1]])
        else:
            mode = model.metadata["noise"]
            seeds = as_seeds(seed, len(checked), checked, noise=mode)
        steps, draws = plan(model)
        jobs = [
            Job(row, image, pair, steps())
            for row, (image, pair) in enumerate(
                zip(checked, seeds, strict=True)
            )
        ]
        made[:] = [(model, jobs)]
        total = None if draws is None else draws * len(jobs)
        return Sampling(jobs, model.num_classes, model.max_n, progress, total)

    yield from FanOut(operation, make, chunk).run()
    return made[0]
