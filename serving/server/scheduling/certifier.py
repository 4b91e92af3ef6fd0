"""Requests to an export of a certifier, answered in slices.

The draws of a request are addressed by (seed, number), so any split of them
has the same votes. Here the seed comes first (from the export's internal
signature `prepare`), then the votes from slices of `sample`, and the label or
certificate last, by the code of the certifier. The answer is that of the
signature itself.
"""

import dataclasses
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any
from typing import NamedTuple

import numpy as np

from rs_keras.certification.certificate import ABSTAIN
from rs_keras.certification.sequential import decision
from rs_keras.certification.spec import SmoothingSpec
from rs_keras.certification.votes_to_results import decide_label
from rs_keras.certification.votes_to_results import vote_certificate
from rs_keras.export import metadata
from rs_keras.export import signature
from rs_keras.export.settings import Settings
from rs_keras.noise.draws import addressed_draws

Arrays = dict[str, np.ndarray]

_IMAGES = "images"
# The share of its draws that `decide` is expected to need.
_DECIDED_AFTER = 0.1


class Engine(NamedTuple):
    """Runs the parts of one request.

    Attributes:
        ask: From a signature, its inputs and the outputs wanted to these.
        votes: From a request to `sample`, without rows that draw nothing, to
            its votes.
    """

    ask: Callable[[str, Arrays, list[str]], list[np.ndarray]]
    votes: Callable[[Arrays], np.ndarray]


class CertifierExport:
    """What a server knows of an export, to answer its requests in slices.

    Args:
        facts: The metadata of the export.

    Attributes:
        facts: The metadata.
        settings: Of the export.
    """

    def __init__(self, facts: dict[str, Any]) -> None:
        self.facts = facts
        names = [field.name for field in dataclasses.fields(Settings)]
        self.settings = Settings(**{name: self.facts[name] for name in names})
        self._identity = metadata.identity(self.facts)
        self._addressed = addressed_draws(self.image_shape)
        self._smoothing = SmoothingSpec(
            self.facts["sigma"],
            self.facts["noise"],
            distance=self.facts["total_variation"],
        )
        self._procedures = {
            signature.DEFAULT: self._predict,
            signature.PREDICT: self._predict,
            signature.PREDICT_BYTES: self._predict,
            signature.CERTIFY: self._certify,
            signature.CERTIFY_BYTES: self._certify,
            signature.CERTIFY_WITH: self._certify,
            signature.DECIDE: self._decide,
            signature.SAMPLE: self._sample,
        }

    @property
    def image_shape(self) -> tuple[int, ...]:
        """(H, W, C)."""
        return tuple(self.facts["image"]["shape"])

    @property
    def num_classes(self) -> int:
        """Classes of the counts."""
        return int(self.facts["num_classes"])

    def draws(self, name: str, inputs: Arrays) -> np.ndarray | None:
        """Returns the most draws of each row; None for other signatures."""
        settings = self.settings
        rows = len(next(iter(inputs.values())))
        fixed = {
            self._predict: settings.predict_n,
            self._certify: settings.n0 + settings.n,
            self._decide: settings.decide_n,
        }
        if name not in self._procedures:
            return None
        if name == signature.CERTIFY_WITH:
            return self._clipped(inputs["n0"]) + self._clipped(inputs["n"])
        if name == signature.SAMPLE:
            return self._clipped(inputs["n"])
        return np.full(rows, fixed[self._procedures[name]], np.int64)

    def expected_draws(self, name: str, draws: np.ndarray) -> int:
        """Returns how many of these draws are probably made, all together."""
        decides = self._procedures[name] == self._decide
        return int(draws.sum() * (_DECIDED_AFTER if decides else 1))

    def answer(self, name: str, inputs: Arrays, engine: Engine) -> Arrays:
        """Answers a request, whose rows are equally many, in slices."""
        wanted = ["accepted", "seed"]
        if _IMAGES in inputs:
            images = {_IMAGES: inputs[_IMAGES]}
            prepared = engine.ask(signature.PREPARE, images, wanted)
        else:
            wanted.append(_IMAGES)
            prepared = engine.ask(signature.PREPARE_BYTES, inputs, wanted)
        inputs = {**dict(zip(wanted, prepared, strict=True)), **inputs}
        outputs = self._procedures[name](inputs, engine)
        outputs.setdefault("seed", inputs["seed"])
        rows = len(inputs["seed"])
        return {**outputs, "export": np.full(rows, self._identity, np.int64)}

    def _sample(self, inputs: Arrays, engine: Engine) -> Arrays:
        n = self._clipped(inputs["n"])
        first = inputs["first"]
        addressed = (first >= 0) & (first <= self._addressed - n)
        n = np.where(inputs["accepted"] & addressed, n, 0)
        return {"counts": self._votes(inputs, first, n, engine), "n": n}

    def _predict(self, inputs: Arrays, engine: Engine) -> Arrays:
        settings = self.settings
        n = np.where(inputs["accepted"], np.int64(settings.predict_n), 0)
        counts = self._votes(inputs, np.zeros_like(n), n, engine)
        label, p_value = decide_label(
            counts, settings.alpha, n, self._smoothing.distance
        )
        return {
            "label": label.numpy(),
            "counts": counts,
            "p_value": p_value.numpy(),
            "n": n,
        }

    def _certify(self, inputs: Arrays, engine: Engine) -> Arrays:
        settings = self.settings
        rows = len(inputs["seed"])
        n0 = inputs.get("n0", np.full(rows, settings.n0))
        n = inputs.get("n", np.full(rows, settings.n))
        alpha = inputs.get("alpha", np.full(rows, settings.alpha))
        valid = inputs["accepted"] & (alpha > 0) & (alpha < 1)
        valid &= (n0 > 0) & (n > 0)
        n0, n = (np.where(valid, self._clipped(k), 0) for k in (n0, n))
        # Of rows without draws: the bounds refuse an array that has any other.
        alpha = np.where(valid, alpha, settings.alpha)
        selection = self._votes(inputs, np.zeros_like(n0), n0, engine)
        counts = self._votes(inputs, n0, n, engine)
        label, radius, p_lower = vote_certificate(
            selection,
            counts,
            settings.certify_spec,
            self._smoothing,
            n=n,
            alpha=alpha,
        )
        return {
            "label": label.numpy(),
            "radius": radius.numpy(),
            "p_lower": p_lower.numpy(),
            "counts": counts,
            "selection_counts": selection,
            "n": n,
        }

    def _decide(self, inputs: Arrays, engine: Engine) -> Arrays:
        spec = self.settings.decide_spec
        tables = decision.decision_tables(spec, self._smoothing)
        radius = inputs["radius"]
        accepted = inputs["accepted"] & (radius >= 0)
        accepted &= radius <= spec.max_radius(self._smoothing)
        rows = len(radius)
        outputs = {
            "certified": np.zeros(rows, bool),
            "label": np.full(rows, ABSTAIN, np.int64),
            "counts": np.zeros([rows, self.num_classes], np.int64),
            "n": np.zeros(rows, np.int64),
        }
        steps = {
            row: decision.decision_steps(
                1,
                dataclasses.replace(tables, radii=radius[row : row + 1].copy()),
                self._smoothing.sigma,
            )
            for row in np.flatnonzero(accepted).tolist()
        }
        asked = {row: next(one)[1:] for row, one in steps.items()}
        while asked:
            at = np.array(list(asked))
            first, n = np.array(list(asked.values()), np.int64).T
            part = {name: inputs[name][at] for name in (_IMAGES, "seed")}
            votes = self._votes(part, first, n, engine)
            for row, counts in zip(at.tolist(), votes, strict=True):
                try:
                    asked[row] = steps[row].send(counts[None])[1:]
                except StopIteration as stop:
                    del asked[row]
                    for name, values in outputs.items():
                        values[row] = stop.value[name][0]
        return outputs

    def _votes(
        self, inputs: Arrays, first: np.ndarray, n: np.ndarray, engine: Engine
    ) -> np.ndarray:
        """Votes of draws first .. first+n-1: int64 [B, classes]."""
        counts = np.zeros([len(n), self.num_classes], np.int64)
        at = np.flatnonzero(n > 0)
        if len(at):
            counts[at] = engine.votes(
                {
                    _IMAGES: inputs[_IMAGES][at],
                    "seed": inputs["seed"][at],
                    "first": first[at],
                    "n": n[at],
                }
            )
        return counts

    def _clipped(self, n: np.ndarray) -> np.ndarray:
        """As the graph: nothing is drawn beyond `max_n`."""
        return np.clip(n, 0, self.settings.max_n)


def slices(
    request: Arrays, size: Callable[[], int]
) -> Iterator[tuple[np.ndarray, Arrays]]:
    """Cuts a request to `sample` into shorter ones.

    Args:
        request: images, seed, first and n > 0 of each row.
        size: Tells how many draws the next one may have, at least 1.

    Yields:
        Which rows it is about, and the request.

    Example:

    >>> import numpy as np
    >>> from rs_keras.serving.server.scheduling.certifier import slices
    >>> request = {"images": np.zeros([2, 1, 1, 1]), "seed": np.zeros([2, 2]),
    ...            "first": np.array([0, 5]), "n": np.array([3, 4])}
    >>> for rows, part in slices(request, lambda: 4):
    ...     print(rows, part["first"], part["n"])
    [0 1] [0 5] [3 1]
    [1] [6] [3]
    """
    first, left = request["first"].copy(), request["n"].copy()
    row = 0
    while row < len(left):
        # Whole rows as long as there is room, then a part of one.
        room, take = size(), np.zeros_like(left)
        while row < len(left) and room:
            take[row] = min(room, left[row])
            room -= take[row]
            left[row] -= take[row]
            if left[row]:
                break
            row += 1
        rows = np.flatnonzero(take)
        yield (
            rows,
            {
                _IMAGES: request[_IMAGES][rows],
                "seed": request["seed"][rows],
                "first": first[rows],
                "n": take[rows],
            },
        )
        first += take
