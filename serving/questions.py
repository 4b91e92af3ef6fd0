"""What can be asked of a fleet, as operations that any driver can run."""

import time
from collections.abc import Callable
from collections.abc import Generator
from collections.abc import Iterable
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from rs_keras import bounds
from rs_keras.certificate import Certificate
from rs_keras.certificate import Prediction
from rs_keras.checks import check_count
from rs_keras.checks import check_feasible
from rs_keras.checks import check_not_negative
from rs_keras.checks import check_positive
from rs_keras.checks import check_probability
from rs_keras.export import signature
from rs_keras.noise import Seed
from rs_keras.noise import as_seeds
from rs_keras.serving.failures import ServingError
from rs_keras.serving.fanout import FanOut
from rs_keras.serving.operation import Operation
from rs_keras.serving.served import ServedModel
from rs_keras.serving.work import Job
from rs_keras.serving.work import Range
from rs_keras.serving.work import Sampling
from rs_keras.serving.work import Single
from rs_keras.serving.work import Steps
from rs_keras.serving.work import Task
from rs_keras.verdicts import decide_label
from rs_keras.verdicts import vote_certificate

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


@dataclass(frozen=True)
class Rounds:
    """What a certificate is asked to rest on; None is as exported."""

    n0: int | None = None
    n: int | None = None
    alpha: float | None = None
    bound: str = "clopper_pearson"
    beta: float = 1.0
    runner_up: bool | None = None

    def __post_init__(self) -> None:
        check_positive("beta", self.beta)

    def settings(self, model: ServedModel) -> dict[str, Any]:
        """Returns the numbers for a model, checked."""
        return model.settings(
            self.n0, self.n, self.alpha, self.bound, self.runner_up
        )


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
    _, jobs = yield from _sampled(
        operation,
        images,
        seed,
        lambda model: _one_range(model, first, n),
        chunk,
        progress,
        lambda model: n,
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
    if n is None and alpha is None and seed is None and chunk is None:
        _, found = yield from _single(operation, images, signature.PREDICT)
        return Prediction(
            found["label"], found["p_value"], found["counts"], found["seed"]
        )

    def numbers(model: ServedModel) -> tuple[int, float]:
        baked = model.metadata
        draws = check_count("n", baked["predict_n"] if n is None else n)
        error = baked["alpha"] if alpha is None else alpha
        error = check_probability("alpha", error)
        smallest = bounds.minimum_n(error, "predict")
        check_feasible("n", draws, error, smallest)
        return draws, error

    served, jobs = yield from _sampled(
        operation,
        images,
        seed,
        lambda model: _one_range(model, 0, numbers(model)[0]),
        chunk,
        progress,
        lambda model: numbers(model)[0],
    )
    counts = np.stack([job.result for job in jobs])
    label, p_value = decide_label(counts, numbers(served)[1])
    seeds = np.stack([job.seed for job in jobs])
    return Prediction(label.numpy(), p_value.numpy(), counts, seeds)


def certify(
    operation: Operation,
    images: Any,
    n0: int | None = None,
    n: int | None = None,
    alpha: float | None = None,
    bound: str = "clopper_pearson",
    beta: float = 1.0,
    runner_up: bool | None = None,
    seed: Seed = None,
    chunk: int | None = None,
    progress: Progress | None = None,
) -> Asking:
    """Asks for certificates: a `Certificate`."""
    rounds = Rounds(n0, n, alpha, bound, beta, runner_up)
    if rounds == Rounds() and seed is None and chunk is None:
        served, found = yield from _single(operation, images, signature.CERTIFY)
        _require_all(found["n"], served.metadata["n"])
        return _certificate_of(served, served.settings(), **found)

    def draws(model: ServedModel) -> int:
        settings = rounds.settings(model)
        return int(settings["n0"] + settings["n"])

    served, jobs = yield from _sampled(
        operation,
        images,
        seed,
        lambda model: _two_rounds(rounds.settings(model)),
        chunk,
        progress,
        draws,
    )
    return _certificate(served, rounds.settings(served), jobs)


def certify_each(
    operation: Operation,
    examples: Iterable[Example],
    rounds: Rounds,
    chunk: int | None,
    pinned: ServedModel,
) -> Asking:
    """Asks for certificates; yields jobs as they finish.

    A stream is about one version: what was given out cannot be taken back.
    """
    settings = rounds.settings(pinned)

    def jobs() -> Iterator[Job]:
        for key, image, seed in examples:
            image = np.asarray(image)
            image = pinned.images(image[None] if image.ndim == 3 else image)
            if len(image) != 1:
                raise ValueError(
                    "`examples` must hold one image each. "
                    f"Received: shape={list(image.shape)}"
                )
            pair = as_seeds(None if seed is None else np.atleast_2d(seed), 1)
            yield Job(key, image[0], pair[0], _two_rounds(settings))

    def make(model: ServedModel) -> Sampling:
        if model is not pinned:
            raise ServingError(
                f"version {pinned.version} of model {pinned.name!r} was "
                "unloaded while a stream of images was being certified with "
                f"it; version {model.version} is served now. What was "
                "answered is about the former; start again for the latter"
            )
        return Sampling(jobs(), model.num_classes, model.max_n)

    return (yield from FanOut(operation, make, check_chunk(chunk)).run())


def certificate_of_job(
    model: ServedModel, rounds: Rounds, job: Job
) -> Certificate:
    """The certificate of one image of a stream."""
    return _certificate(model, rounds.settings(model), [job])


# -- how draws are asked for ---------------------------------------------------


def _one_range(model: ServedModel, first: int, n: int) -> Steps:
    model.check_range("n", first, n)
    (counts,) = yield [Range(first, n)]
    return counts


def _two_rounds(settings: dict[str, Any]) -> Steps:
    """Selection and estimation: neither waits for the other."""
    n0, n = settings["n0"], settings["n"]
    selection, counts = yield [Range(0, n0), Range(n0, n)]
    return selection, counts, n


def _single(operation: Operation, images: Any, name: str) -> Asking:
    """Asks in one request, with the numbers of the export."""

    made: list[tuple[ServedModel, Single]] = []

    def make(model: ServedModel) -> Single:
        checked = model.images(images)
        work = Single(Task(name, {"images": checked}, len(checked)))
        made[:] = [(model, work)]
        return work

    yield from FanOut(operation, make).run()
    model, work = made[0]
    return model, work.answer


def _sampled(
    operation: Operation,
    images: Any,
    seed: Seed,
    steps: Callable[[ServedModel], Steps],
    chunk: int | None,
    progress: Progress | None,
    draws: Callable[[ServedModel], int],
) -> Asking:
    """Asks for draws; returns the model that they are of, and the jobs."""
    chunk = check_chunk(chunk)
    made: list[tuple[ServedModel, list[Job]]] = []

    def make(model: ServedModel) -> Sampling:
        # Fresh noise, drawn when the images are fixed; and again if the model
        # has changed.
        checked = model.images(images)
        total = draws(model) * len(checked)
        seeds = as_seeds(seed, len(checked))
        jobs = [
            Job(row, image, pair, steps(model))
            for row, (image, pair) in enumerate(
                zip(checked, seeds, strict=True)
            )
        ]
        made[:] = [(model, jobs)]
        return Sampling(jobs, model.num_classes, model.max_n, progress, total)

    yield from FanOut(operation, make, chunk).run()
    return made[0]


# -- what is made of the answers -----------------------------------------------


def _certificate(
    model: ServedModel, settings: dict[str, Any], jobs: list[Job]
) -> Certificate:
    selection, counts, n = (
        np.stack(values)
        for values in zip(*(job.result for job in jobs), strict=True)
    )
    label, radius, p_lower = vote_certificate(
        selection,
        counts,
        n,
        settings["alpha"],
        model.sigma,
        settings["runner_up"],
    )
    return _certificate_of(
        model,
        settings,
        label=label.numpy(),
        radius=radius.numpy(),
        p_lower=p_lower.numpy(),
        counts=counts,
        selection_counts=selection,
        n=n,
        seed=np.stack([job.seed for job in jobs]),
    )


def _certificate_of(
    model: ServedModel, settings: dict[str, Any], **arrays: np.ndarray
) -> Certificate:
    served = {"model": model.name, "version": model.version}
    return Certificate(**arrays, settings={**settings, **served})


def _require_all(n: np.ndarray, wanted: int) -> None:
    if not (n == wanted).all():
        raise ServingError(
            f"the server was to make {wanted} draws an image and says that it "
            f"made {n.tolist()}: these are not the certificates asked for"
        )
