"""The procedures of randomized smoothing over a fleet of servers.

A procedure determines the draws of each image and computes the result from
their votes. `run` and `each` distribute the draws over all servers; `ask_one`
lets one server run the procedure with the settings of the export.
"""

from abc import ABC
from abc import abstractmethod
from collections.abc import Iterable
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from rs_keras import bounds
from rs_keras._checks import check_count
from rs_keras._checks import check_feasible
from rs_keras._checks import check_probability
from rs_keras.certification.certificate import Certificate
from rs_keras.certification.certificate import Prediction
from rs_keras.certification.sample_size import sample_sizes
from rs_keras.certification.sequential import decision
from rs_keras.certification.spec import CertifySpec
from rs_keras.certification.spec import DecideSpec
from rs_keras.export import signature
from rs_keras.noise.draws import as_seeds
from rs_keras.noise.keyed_seeds import Seed
from rs_keras.serving.client import answers
from rs_keras.serving.client import discovery
from rs_keras.serving.client.fanout import FanOut
from rs_keras.serving.client.requests import Call
from rs_keras.serving.client.served_model import ServedModel
from rs_keras.serving.client.tasks import Job
from rs_keras.serving.client.tasks import Progress
from rs_keras.serving.client.tasks import Range
from rs_keras.serving.client.tasks import Rounds
from rs_keras.serving.client.tasks import Task
from rs_keras.serving.client.tasks import Tasks
from rs_keras.serving.errors import ServingError

# A name for the result, an image, and its seed or None.
Example = tuple[Any, Any, Any]


class Procedure(ABC):
    """Determines the draws of each image, and the result of their votes.

    Args:
        model: The version of the model.

    Attributes:
        draws: Draws per image; None if they depend on its votes.
    """

    draws: int | None = None

    def __init__(self, model: ServedModel) -> None:
        self.model = model

    def is_one_request(self, call: Call) -> bool:
        """Whether a call with images alone is one request to one server.

        Several servers share the draws, under seeds of the client, so that no
        server alone determines a result. Only servers can make keyed seeds.
        """
        alone = len(call.fleet.servers) == 1
        return alone or self.model.metadata["seed"] == "keyed"

    @abstractmethod
    def rounds(self) -> Rounds:
        """Yields the ranges of draws of one image, round after round."""

    @abstractmethod
    def result(self, jobs: list[Job]) -> Any:
        """Computes the result from the votes of these images, row by row."""

    def run(
        self,
        call: Call,
        images: Any,
        seed: Seed = None,
        chunk: int | None = None,
        progress: Progress | None = None,
    ) -> Any:
        """Runs the procedure on images, with the draws of all servers."""
        images = self.model.images(images)
        # Fresh seeds, drawn once the images are fixed. A call that restarts
        # because a server was left out keeps them: otherwise a server could
        # force restarts until the noise suits it.
        noise = self.model.metadata["noise"]
        seeds = as_seeds(seed, len(images), images, noise=noise)
        jobs = [
            Job(row, image, pair, self.rounds)
            for row, (image, pair) in enumerate(zip(images, seeds, strict=True))
        ]
        total = None if self.draws is None else self.draws * len(jobs)
        tasks = Tasks(self.model, jobs, progress=progress, total=total)
        for _ in FanOut(call, tasks, chunk).run():
            pass
        return self.result(jobs)

    def each(
        self, call: Call, examples: Iterable[Example], chunk: int | None
    ) -> Iterator[tuple[Any, Any]]:
        """Runs the procedure on a stream of images; yields (key, result).

        All results are of one version, as yielded ones cannot be withdrawn.
        """
        tasks = Tasks(self.model, self._jobs(examples))
        with call:
            try:
                for job in FanOut(call, tasks, chunk, restartable=False).run():
                    yield job.key, self.result([job])
            except discovery.VersionUnavailable as error:
                discovery.forget(call, self.model, str(error))
                newer = discovery.served_model(call)
                raise ServingError(
                    f"version {self.model.version} of model "
                    f"{self.model.name!r} was unloaded, or its number given "
                    "to another export, while a stream of images was being "
                    f"certified with it; version {newer.version} is served "
                    "now. What was answered is about the former; start again "
                    "for the latter"
                ) from error

    def _ask_one(self, call: Call, name: str, images: Any, read: Any) -> Any:
        """Lets one server run the procedure, with the server's seed."""
        images = self.model.images(images)
        draws = (self.draws or 0) * len(images)
        task = Task(name, {"images": images}, draws, partial(read, images))
        for _ in FanOut(call, Tasks(self.model, whole=[task])).run():
            pass
        return task.answer

    def _jobs(self, examples: Iterable[Example]) -> Iterator[Job]:
        noise = self.model.metadata["noise"]
        for key, image, seed in examples:
            image = np.asarray(image)
            image = image[None] if image.ndim == 3 else image
            image = self.model.images(image)
            if len(image) != 1:
                raise ValueError(
                    "`examples` must hold one image each. "
                    f"Received: shape={list(image.shape)}"
                )
            if seed is not None and not isinstance(seed, str):
                seed = np.atleast_2d(seed)
            (pair,) = as_seeds(seed, 1, image, noise=noise)
            yield Job(key, image[0], pair, self.rounds)


class Sample(Procedure):
    """The votes of draws first .. first+n-1."""

    def __init__(self, model: ServedModel, n: int, first: int = 0) -> None:
        super().__init__(model)
        self.draws = self.n = check_count("n", n)
        self.first = check_count("first", first, 0)
        model.check_range("n", self.first, self.n)

    def rounds(self) -> Rounds:
        (votes,) = yield [Range(self.first, self.n)]
        return votes

    def result(self, jobs: list[Job]) -> Any:
        return np.stack([job.result for job in jobs])


class Predict(Sample):
    """A label, or abstention, from n draws; None is the export's value."""

    def __init__(
        self, model: ServedModel, n: int | None, alpha: float | None
    ) -> None:
        self.alpha = check_probability(
            "alpha", model.or_default("alpha", alpha)
        )
        super().__init__(model, model.or_default("predict_n", n))
        smallest = bounds.minimum_n(self.alpha, "predict")
        check_feasible("n", self.n, self.alpha, smallest)

    def ask_one(self, call: Call, images: Any) -> Prediction:
        """Has one server run it, where all is as exported."""
        read = partial(answers.predicted, self.model)
        return self._ask_one(call, signature.PREDICT, images, read)

    def result(self, jobs: list[Job]) -> Prediction:
        return answers.prediction(
            self.model,
            self.n,
            self.alpha,
            counts=super().result(jobs),
            seed=_seeds(jobs),
        )


class Certify(Procedure):
    """A label and a radius, from selection and estimation draws."""

    def __init__(self, model: ServedModel, spec: CertifySpec) -> None:
        super().__init__(model)
        self.spec = spec
        if spec.tolerance is None:
            self.draws = spec.n0 + spec.n

    def ask_one(self, call: Call, images: Any) -> Certificate:
        """Has one server run it, where all is as exported."""
        read = partial(answers.certified, self.model, self.spec)
        return self._ask_one(call, signature.CERTIFY, images, read)

    def rounds(self) -> Rounds:
        n0, n = self.spec.n0, self.spec.n
        if self.spec.tolerance is None:
            # Both rounds at once: neither depends on the other.
            selection, counts = yield [Range(0, n0), Range(n0, n)]
            return selection, counts, n
        (selection,) = yield [Range(0, n0)]
        n = int(sample_sizes(selection[None], self.spec, self.model.sigma)[0])
        (counts,) = yield [Range(n0, n)]
        return selection, counts, n

    def result(self, jobs: list[Job]) -> Certificate:
        selection, counts, n = zip(*(job.result for job in jobs), strict=True)
        return answers.certificate(
            self.model,
            self.spec,
            selection_counts=np.stack(selection),
            counts=np.stack(counts),
            n=np.array(n),
            seed=_seeds(jobs),
        )


class Decide(Procedure):
    """Whether a radius is certified, by a group-sequential test."""

    def __init__(self, model: ServedModel, spec: DecideSpec) -> None:
        super().__init__(model)
        self.tables = decision.decision_tables(spec, model.smoothing)
        self.settings = decision.decision_settings(
            spec, model.smoothing, self.tables
        )

    def rounds(self) -> Rounds:
        steps = decision.decision_steps(1, self.tables, self.model.sigma)
        _, first, n = next(steps)
        while True:
            (votes,) = yield [Range(first, n)]
            try:
                _, first, n = steps.send(votes[None])
            except StopIteration as stop:
                return stop.value

    def result(self, jobs: list[Job]) -> decision.Decision:
        fields = {
            name: np.concatenate([job.result[name] for job in jobs])
            for name in jobs[0].result
        }
        settings = self.model.with_model_name(self.settings)
        return decision.Decision(**fields, seed=_seeds(jobs), settings=settings)


def _seeds(jobs: list[Job]) -> np.ndarray:
    return np.stack([job.seed for job in jobs])
