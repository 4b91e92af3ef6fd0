"""What the page may ask, and the lines that answer it."""

import math
from collections.abc import Iterator
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from rs_keras._checks import check_count
from rs_keras._checks import check_not_negative
from rs_keras.certification.certificate import Certificate
from rs_keras.certification.certificate import confidence_of
from rs_keras.certification.certificate import rounded_down
from rs_keras.certification.certifier import Certifier
from rs_keras.certification.spec import CertifySpec
from rs_keras.noise.draws import fresh_seeds
from rs_keras.serving.client import answers
from rs_keras.serving.client.certification_client import CertificationClient
from rs_keras.serving.demo import pixels
from rs_keras.serving.demo.directions import ATTACK_STOPS
from rs_keras.serving.demo.directions import Traveller
from rs_keras.serving.demo.examples import examples_for

# A round arrives in about so many parts: enough for bars to be seen growing.
_PARTS = 40
_LEAST_PART = 25
_MOST = 1_000_000
# Draws that judge an image beside the certified one.
_FEW = 500
# Without a radius, the page shows what is as far away as this one, in sigmas.
_STAND_IN = 0.5


class Questions:
    """Answers the page, with votes that a server counts.

    Args:
        certifier: In this process, for gradients alone.
        client: Of the server that serves its export.
        title: What the page calls the model.

    Attributes:
        most_bytes: Of a question, in JSON.
    """

    def __init__(
        self, certifier: Certifier, client: CertificationClient, title: str
    ) -> None:
        self._client = client
        self._model = client.model
        self._title = title
        shape = self._model.image_shape
        self._sampler = certifier.sampler(shape)
        self._traveller = Traveller(self._sampler)
        # In base64 four characters hold three bytes.
        self.most_bytes = 4 * math.prod(shape) * 4 // 3 + 1_000

    def about(self) -> dict[str, Any]:
        """What the page is told when it opens."""
        names = self._model.metadata["class_names"]
        classes = self._model.num_classes
        return {
            "title": self._title,
            "sigma": self._model.sigma,
            "alpha": self._model.metadata["alpha"],
            "confidence": confidence_of(self._model.metadata["alpha"]),
            "shape": self._model.image_shape,
            "names": names or [str(label) for label in range(classes)],
            "examples": [
                {"name": name, "pixels": pixels.to_text(image)}
                for name, image in examples_for(self._model.image_shape, names)
            ],
        }

    def certify(self, body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Certifies an image: its votes as they come, then what they prove.

        What is told before the end is what the draws so far would prove. It is
        no certificate: whoever stops at the best of many looks errs more often
        than alpha.
        """
        image = self._image(body)
        draws = _checked_n(body.get("n"))
        spec = self._client.model.certify_spec(n=draws)
        n0, n = spec.n0, spec.n
        # The noise must not be known before the image is.
        seed = fresh_seeds(1)
        yield {"stage": "begin", "n0": n0, "n": n}
        for done, selection in self._draw(image, seed, 0, n0):
            yield {
                "stage": "selection",
                "drawn": done,
                "counts": selection[0].tolist(),
            }
        for done, counts in self._draw(image, seed, n0, n):
            found = self._verdict(selection, counts, done, seed, spec)
            noisy = self._noisy(image[0], seed[0], n0 + done - 1)
            yield {"stage": "estimation", "noisy": noisy, **_told(found)}
        yield {
            "stage": "certificate",
            **_told(found),
            "sentence": found.sentence(),
            "statement": found.statement(),
            # As text: JavaScript rounds whole numbers above 2**53.
            "seed": [str(word) for word in seed[0]],
        }

    def explore(self, body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Goes away from an image, and asks for a vote at every stop.

        The certified radius, 0 for none, sets how far.
        """
        image = self._image(body)[0]
        label = check_count("label", body.get("label"), 0)
        if label >= self._model.num_classes:
            raise ValueError(
                f"`label` must be < {self._model.num_classes}. "
                f"Received: label={label}"
            )
        radius = check_not_negative("radius", body.get("radius"))
        scale = radius or _STAND_IN * self._model.sigma
        yield {
            "stage": "begin",
            "n": _FEW,
            "scale": scale,
            "reach": scale * ATTACK_STOPS[-1],
            "stops": len(ATTACK_STOPS),
        }
        for points in self._traveller.points(image, label, scale):
            images = np.stack([point.image for point in points])
            found = self._client.predict(images, n=_FEW, chunk=_FEW)
            for row, point in enumerate(points):
                yield {
                    "stage": "point",
                    "kind": point.kind,
                    "ray": point.ray,
                    "distance": point.distance,
                    # Of images exactly as far as the radius nothing is said.
                    "inside": point.distance < radius,
                    "pixels": pixels.to_text(point.image),
                    "counts": found.counts[row].tolist(),
                    "label": int(found.label[row]),
                }
        yield {"stage": "end"}

    def _image(self, body: Mapping[str, Any]) -> np.ndarray:
        shape = self._model.image_shape
        image = pixels.from_text(body.get("pixels"), shape)
        return self._model.images(image[None])

    def _noisy(self, image: np.ndarray, seed: np.ndarray, draw: int) -> str:
        """One of the copies that voted, to be looked at."""
        first = tf.constant(draw, tf.int64)
        return pixels.to_text(
            self._sampler.noisy(tf.constant(image), seed, first, 1)[0].numpy()
        )

    def _draw(
        self, image: np.ndarray, seed: np.ndarray, first: int, n: int
    ) -> Iterator[tuple[int, np.ndarray]]:
        """Asks for draws first .. first+n-1 in parts, and adds them up."""
        part = max(_LEAST_PART, -(-n // _PARTS))
        counts = np.zeros([1, self._model.num_classes], np.int64)
        for done in range(0, n, part):
            take = min(part, n - done)
            counts = counts + self._client.sample(
                image, take, seed, first + done, chunk=take
            )
            yield done + take, counts

    def _verdict(
        self,
        selection: np.ndarray,
        counts: np.ndarray,
        n: int,
        seed: np.ndarray,
        spec: CertifySpec,
    ) -> Certificate:
        return answers.certificate(
            self._model,
            spec,
            counts=counts,
            selection_counts=selection,
            n=np.array([n]),
            seed=seed,
        )


def _checked_n(n: Any) -> int:
    if check_count("n", n) > _MOST:
        raise ValueError(f"`n` must be <= {_MOST}. Received: n={n}")
    return int(n)


def _told(found: Certificate) -> dict[str, Any]:
    """What the page shows of a certificate of one image."""
    return {
        "drawn": int(found.n[0]),
        "counts": found.counts[0].tolist(),
        "chosen": int(found.selection_counts[0].argmax()),
        "label": int(found.label[0]),
        "radius": float(found.radius[0]),
        "radius_text": rounded_down(found.radius[0]),
        "p_lower": float(found.p_lower[0]),
        "p_lower_text": rounded_down(found.p_lower[0], 4),
    }
