"""The served model: one version of one model, with its metadata."""

import functools
import json
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rs_keras._checks import check_choice
from rs_keras._checks import check_images
from rs_keras.bounds.names import VOTE_BOUNDS
from rs_keras.certification.sampling import noise_distance
from rs_keras.certification.spec import CertifySpec
from rs_keras.certification.spec import DecideSpec
from rs_keras.certification.spec import SmoothingSpec
from rs_keras.export import metadata as metadata_lib
from rs_keras.noise.draws import POSITION_BITS
from rs_keras.serving.client import metadata_check
from rs_keras.serving.errors import WrongAnswer


@dataclass(frozen=True)
class ServedModel:
    """One version of a model, identical on all servers that serve it.

    Attributes:
        name: Of the model.
        version: Of the model.
        metadata: What `describe` answers: sigma, n0, n, alpha, the image's
            shape, class names, ...

    Example:

    >>> from rs_keras.serving.client.served_model import ServedModel
    >>> facts = {"fingerprint": "abc", "image": {"shape": [28, 28, 1]},
    ...          "num_classes": 10, "sigma": 0.5, "max_n": 1_000_000,
    ...          "noise": "float", "dtype": "float32", "alpha": 0.001,
    ...          "bound": "clopper_pearson", "n0": 100, "n": 10_000,
    ...          "runner_up": True}
    >>> model = ServedModel("mnist", 1, facts)
    >>> model.input_shape, model.image_shape, model.num_classes, model.sigma
    ((None, 28, 28, 1), (28, 28, 1), 10, 0.5)
    >>> model.fingerprint, model.max_n, model.or_default("n", None)
    ('abc', 1000000, 10000)
    >>> model.identity == ServedModel("digits", 2, facts).identity
    True
    >>> model.settings(n=1_000)["n"], model.smoothing.distance
    (1000, 0.0)
    >>> model.certify_spec(n=1_000).n0, model.decide_spec([0.5, 0.25]).radii
    (100, (0.25, 0.5))
    >>> model.with_model_name({"n": 1_000})
    {'n': 1000, 'model': 'mnist', 'version': 1}
    >>> model.images([[[[0.5]] * 28] * 28]).dtype
    dtype('float32')
    >>> model.check_range("first", first=0, n=1_000)
    >>> newer = ServedModel("mnist", 2, {**facts, "sigma": 0.25})
    >>> model.same_as(newer), model.differences(newer)
    (False, 'sigma: 0.5 and 0.25')
    """

    name: str
    version: int
    metadata: Mapping[str, Any]

    @functools.cached_property
    def identity(self) -> int:
        """The number with which each response identifies the export."""
        return metadata_lib.identity(self.metadata)

    @property
    def fingerprint(self) -> str | None:
        """A hash of the weights, as in certification logs."""
        return self.metadata["fingerprint"]

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """(H, W, C)."""
        height, width, channels = self.metadata["image"]["shape"]
        return height, width, channels

    @property
    def input_shape(self) -> tuple[int | None, ...]:
        """(None, H, W, C), as in Keras models."""
        return (None, *self.image_shape)

    @property
    def num_classes(self) -> int:
        """Number of classes."""
        return int(self.metadata["num_classes"])

    @property
    def sigma(self) -> float:
        """Standard deviation of the noise, in pixel units."""
        return float(self.metadata["sigma"])

    @property
    def max_n(self) -> int:
        """Maximum number of draws per row of one request."""
        return int(self.metadata["max_n"])

    def same_as(self, other: "ServedModel") -> bool:
        """Whether both give the same certificates, whatever the version."""
        return not self.differences(other)

    def differences(self, other: "ServedModel") -> str:
        """Describes the differing metadata; empty if there are none."""
        mine, theirs = self.metadata, other.metadata
        return "; ".join(
            f"{key}: {mine.get(key)} and {theirs.get(key)}"
            for key in sorted({*mine, *theirs})
            if key not in metadata_lib.NOT_COMPARED
            and _text(mine, key) != _text(theirs, key)
        )

    def images(self, images: Any) -> np.ndarray:
        """Returns images as this model takes them, or says what is wrong."""
        return check_images(images, self.image_shape)

    @functools.cached_property
    def smoothing(self) -> SmoothingSpec:
        """The noise, and the type that the model computes in."""
        noise, dtype = self.metadata["noise"], self.metadata["dtype"]
        # Recomputed, because the server's number is not trusted.
        distance = noise_distance(noise, self.sigma, self.image_shape)
        return SmoothingSpec(self.sigma, noise, dtype, distance)

    def certify_spec(self, **arguments: Any) -> CertifySpec:
        """Returns the arguments of `certify`; None is as exported.

        Raises:
            ValueError: If an argument is out of its range.
        """
        for name in ("n0", "n", "alpha", "bound", "runner_up"):
            arguments[name] = self.or_default(name, arguments.get(name))
        # The other bounds need soft predictions; servers count votes.
        check_choice("bound", arguments["bound"], VOTE_BOUNDS)
        spec = CertifySpec(**arguments)
        spec.check(self.smoothing)
        self.check_range("n", spec.n0, spec.n)
        return spec

    def decide_spec(
        self, radius: float | Sequence[float], **arguments: Any
    ) -> DecideSpec:
        """Returns the arguments of `decide`; None is as exported.

        Raises:
            ValueError: If an argument is out of its range.
        """
        for name in ("alpha", "runner_up", "n0"):
            arguments[name] = self.or_default(name, arguments.get(name))
        spec = DecideSpec(radius, **arguments)
        spec.check(self.smoothing)
        self.check_range("n_max", 0, spec.n_max)
        return spec

    def settings(self, **arguments: Any) -> dict[str, Any]:
        """Returns what `certify` rests on, as `Certifier.settings` does.

        The arguments and errors are those of `certify_spec`.
        """
        return self.certify_spec(**arguments).settings(self.smoothing)

    def with_model_name(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the settings with the name and version of the model."""
        return {**settings, "model": self.name, "version": self.version}

    def or_default(self, name: str, given: Any) -> Any:
        """Returns the given value, by default that of the export."""
        return self.metadata[name] if given is None else given

    def check_range(self, name: str, first: int, n: int) -> None:
        """Raises for draw numbers beyond those that a seed addresses."""
        size = int(np.prod(self.image_shape))
        most = 2**POSITION_BITS // size - self.max_n
        if first + n > most:
            raise ValueError(
                f"`{name}` must leave every draw below number {most} for this "
                f"model. Received: draws {first} .. {first + n - 1}"
            )


def _text(metadata: Mapping[str, Any], key: str) -> str:
    """A field as `identity` hashes it; 1, 1.0 and True differ."""
    return metadata_lib.to_json(
        {k: metadata[k] for k in [key] if k in metadata}
    )


def read(name: str, version: int, text: bytes, server: str) -> ServedModel:
    """Reads the response to `describe`.

    Raises:
        WrongAnswer: If it is not what this library exports. It names the
            server, and the field, its rule and its value.

    Example:

    >>> from rs_keras.serving.client import served_model
    >>> from rs_keras.serving.errors import WrongAnswer
    >>> text = b'{"format": 3, "sigma": 200.0}'
    >>> try:
    ...     served_model.read("mnist", 1, text, server="a:8500")
    ... except WrongAnswer as error:
    ...     print(str(error)[:63])
    a:8500 does not describe an export of rs-keras: `sigma` must be
    """
    try:
        metadata = json.loads(text)
        # `identity` encodes this text; a lone surrogate cannot be encoded.
        metadata_lib.to_json(metadata).encode()
    except (ValueError, RecursionError):
        metadata = None
    if (
        not isinstance(metadata, dict)
        or metadata.get("format") != metadata_lib.FORMAT
    ):
        raise WrongAnswer(
            f"{server} serves a model {name!r} of another format than "
            f"{metadata_lib.FORMAT}; client and export must be of the same "
            f"release of rs-keras. Received: {text[:80]!r}",
            server=server,
        )
    try:
        metadata_check.check(metadata)
    except ValueError as error:
        raise WrongAnswer(
            f"{server} does not describe an export of rs-keras: {error}",
            server=server,
        ) from error
    return ServedModel(name, version, metadata)
