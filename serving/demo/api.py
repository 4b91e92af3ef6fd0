"""The requests of the demonstration page, answered with lines of JSON."""

import base64
import math
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from rs_keras import datasets
from rs_keras._checks import check_count
from rs_keras._checks import check_not_negative
from rs_keras.certification.certificate import Certificate
from rs_keras.certification.certificate import confidence_of
from rs_keras.certification.certificate import rounded_down
from rs_keras.certification.certifier import Certifier
from rs_keras.certification.spec import CertifySpec
from rs_keras.certification.votes_to_results import vote_certificate
from rs_keras.noise.draws import fresh_seeds
from rs_keras.serving.client.certification_client import CertificationClient
from rs_keras.serving.demo.perturbations import ATTACK_DISTANCES
from rs_keras.serving.demo.perturbations import PerturbationSearch
from rs_keras.serving.demo.perturbations import distance_of

# A round arrives in about so many parts: enough for bars to be seen growing.
_PARTS = 40
_SMALLEST_PART = 25
_MAX_N = 1_000_000
# Draws that judge an image beside the certified one.
_EXPLORE_N = 500
# Without a radius, the page shows what is as far away as this one, in sigmas.
_STAND_IN = 0.5
# The data set whose images the page offers to models of its size.
_EXAMPLES = "fashion_mini"


class DemoAPI:
    """Answers the page, with votes that a server counts.

    Args:
        certifier: In this process, for gradients alone.
        client: Of the server that serves its export.
        title: What the page calls the model.

    Attributes:
        max_bytes: The longest request, in JSON.
    """

    def __init__(
        self, certifier: Certifier, client: CertificationClient, title: str
    ) -> None:
        self._client = client
        self._model = client.model
        self._title = title
        self._sampler = certifier.sampler(self._model.image_shape)
        self._search = PerturbationSearch(self._sampler)
        # In base64 four characters hold three bytes.
        self.max_bytes = 4 * math.prod(self._model.image_shape) * 4 // 3 + 1_000

    def about(self) -> dict[str, Any]:
        """Returns the data that the page shows when it opens."""
        model, alpha = self._model, self._model.metadata["alpha"]
        names = model.metadata["class_names"]
        return {
            "title": self._title,
            "sigma": model.sigma,
            "alpha": alpha,
            "confidence": confidence_of(alpha),
            "shape": model.image_shape,
            "names": names
            or [str(label) for label in range(model.num_classes)],
            "examples": [
                {"name": name, "pixels": to_base64(image)}
                for name, image in examples_for(model.image_shape, names)
            ],
        }

    def certify(self, body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Certifies an image: its votes as they come, then the certificate.

        The lines before the last say what the draws so far would prove. They
        are no certificate: stopping at the best of many would err more often
        than alpha.
        """
        image = self._image(body)
        draws = check_count("n", body.get("n"))
        if draws > _MAX_N:
            raise ValueError(f"`n` must be <= {_MAX_N}. Received: n={draws}")
        spec = self._model.certify_spec(n=draws)
        n0, n = spec.n0, spec.n
        # The noise must not be known before the image is.
        seed = fresh_seeds(1)
        yield {"stage": "begin", "n0": n0, "n": n}
        for drawn, selection in self._votes(image, seed, 0, n0):
            votes = selection[0].tolist()
            yield {"stage": "selection", "drawn": drawn, "counts": votes}
        for drawn, counts in self._votes(image, seed, n0, n):
            certificate = self._certificate(
                selection, counts, drawn, seed, spec
            )
            # The last noisy copy that voted, to be shown.
            last = tf.constant(n0 + drawn - 1, tf.int64)
            noisy = self._sampler.noisy(tf.constant(image[0]), seed[0], last, 1)
            yield {
                "stage": "estimation",
                "noisy": to_base64(noisy[0].numpy()),
                **_fields(certificate),
            }
        yield {
            "stage": "certificate",
            **_fields(certificate),
            "sentence": certificate.sentence(),
            "statement": certificate.statement(),
            # As text: JavaScript rounds whole numbers above 2**53.
            "seed": [str(word) for word in seed[0]],
        }

    def explore(self, body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Perturbs an image, and has the perturbed images voted on.

        The certified radius, 0 for none, is the unit of their distances.
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
            "n": _EXPLORE_N,
            "scale": scale,
            "reach": scale * ATTACK_DISTANCES[-1],
            "stops": len(ATTACK_DISTANCES),
        }
        for kind, ray, images in self._search.search(image, label, scale):
            prediction = self._client.predict(
                np.stack(images), n=_EXPLORE_N, chunk=_EXPLORE_N
            )
            for row, perturbed in enumerate(images):
                distance = distance_of(perturbed, image)
                yield {
                    "stage": "point",
                    "kind": kind,
                    "ray": ray,
                    "distance": distance,
                    # The certificate does not cover images at the radius.
                    "inside": distance < radius,
                    "pixels": to_base64(perturbed),
                    "counts": prediction.counts[row].tolist(),
                    "label": int(prediction.label[row]),
                }
        yield {"stage": "end"}

    def _image(self, body: Mapping[str, Any]) -> np.ndarray:
        image = from_base64(body.get("pixels"), self._model.image_shape)
        return self._model.images(image[None])

    def _votes(
        self, image: np.ndarray, seed: np.ndarray, first: int, n: int
    ) -> Iterator[tuple[int, np.ndarray]]:
        """Yields how many of draws first .. first+n-1 voted, and how."""
        part = max(_SMALLEST_PART, -(-n // _PARTS))
        counts = np.zeros([1, self._model.num_classes], np.int64)
        for drawn in range(0, n, part):
            more = min(part, n - drawn)
            counts = counts + self._client.sample(
                image, more, seed, first + drawn, chunk=more
            )
            yield drawn + more, counts

    def _certificate(
        self,
        selection: np.ndarray,
        counts: np.ndarray,
        n: int,
        seed: np.ndarray,
        spec: CertifySpec,
    ) -> Certificate:
        smoothing = self._model.smoothing
        label, radius, p_lower = vote_certificate(
            selection, counts, spec, smoothing, n
        )
        return Certificate(
            label=label.numpy(),
            radius=radius.numpy(),
            p_lower=p_lower.numpy(),
            counts=counts,
            selection_counts=selection,
            n=np.array([n]),
            seed=seed,
            settings=spec.settings(smoothing),
        )


def _fields(certificate: Certificate) -> dict[str, Any]:
    """Returns what the page shows of a certificate of one image."""
    radius, p_lower = certificate.radius[0], certificate.p_lower[0]
    known = np.isfinite(p_lower)
    return {
        "drawn": int(certificate.n[0]),
        "counts": certificate.counts[0].tolist(),
        "chosen": int(certificate.selection_counts[0].argmax()),
        "label": int(certificate.label[0]),
        "radius": float(radius),
        "radius_text": rounded_down(radius),
        # The joint bound has none, and JSON has no NaN.
        "p_lower": float(p_lower) if known else None,
        "p_lower_text": rounded_down(p_lower, 4) if known else "none",
    }


def examples_for(
    shape: Sequence[int], names: Sequence[str] | None
) -> list[tuple[str, np.ndarray]]:
    """Returns (class name, image) for the first image of each bundled class.

    None for models of another size, or of digits: those the page draws itself.

    Args:
        shape: (H, W, C) of the model.
        names: Of its classes; None where they are not known.

    Example:

    >>> from rs_keras.serving.demo.api import examples_for
    >>> [name for name, _ in examples_for((28, 28, 1), None)][:2]
    ['T-shirt/top', 'Trouser']
    """
    info = datasets.info(_EXAMPLES)
    classes = info.class_names or ()
    if tuple(shape) != info.image_shape or tuple(names or classes) != classes:
        return []
    images, labels = datasets.arrays(_EXAMPLES)
    return [
        (name, images[np.argmax(labels == label)])
        for label, name in enumerate(classes)
    ]


def to_base64(image: np.ndarray) -> str:
    """Writes an image as the page reads it: float32, row by row, in base64.

    Example:

    >>> import numpy as np
    >>> from rs_keras.serving.demo.api import from_base64, to_base64
    >>> text = to_base64(np.ones([1, 1, 1]))
    >>> text, from_base64(text, (1, 1, 1)).tolist()
    ('AACAPw==', [[[1.0]]])
    """
    return base64.b64encode(image.astype("<f4").tobytes()).decode()


def from_base64(text: Any, shape: Sequence[int]) -> np.ndarray:
    """Reads an image that the page has written: float32 of `shape`.

    Raises:
        ValueError: If `text` is not such a text, or the image has another size.
    """
    try:
        raw = base64.b64decode(text, validate=True)
    except (TypeError, ValueError) as error:
        raise ValueError("`pixels` must be text in base64.") from error
    size = 4 * math.prod(shape)
    if len(raw) != size:
        raise ValueError(
            f"`pixels` must be {size} bytes: float32, shape {list(shape)}. "
            f"Received: {len(raw)} bytes"
        )
    return np.frombuffer(raw, "<f4").reshape(shape)
