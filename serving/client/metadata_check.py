"""Validation of the metadata with which a server describes its export."""

import dataclasses
import math
import reprlib
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
from typing import Any
from typing import NamedTuple

from rs_keras.bounds.names import VOTE_BOUNDS
from rs_keras.certification.sampling import NOISE_MODES
from rs_keras.classifiers.precision import DTYPES
from rs_keras.datasets.photographs import FITS
from rs_keras.export.settings import SEEDS
from rs_keras.export.settings import Settings
from rs_keras.noise.draws import POSITION_BITS

# Pixels lie in [0, 1]; more noise than this leaves nothing of an image.
_LARGEST_SIGMA = 64
# float32 numbers per image: 1 GB; a protocol buffer is limited to 2 GB.
_LARGEST_IMAGE = 2**28
# No seed addresses more draws.
_LARGEST_COUNT = 2**POSITION_BITS


class _Rule(NamedTuple):
    """What a field must be, in words and as a function."""

    words: str
    holds: Callable[[Any], bool]


def _is_number(value: Any) -> bool:
    # JSON's integers have any length, so that `float` may fail.
    return isinstance(value, float) and math.isfinite(value)


def _is_whole(value: Any, least: int, most: int) -> bool:
    return type(value) is int and least <= value <= most


def _whole(least: int) -> _Rule:
    return _Rule(
        f"a whole number in [{least}, {_LARGEST_COUNT}]",
        lambda value: _is_whole(value, least, _LARGEST_COUNT),
    )


def _one_of(choices: Iterable[str]) -> _Rule:
    known = list(choices)
    return _Rule(f"one of {', '.join(known)}", lambda value: value in known)


def _has_shape(image: Any) -> bool:
    shape = image.get("shape") if isinstance(image, dict) else None
    return (
        isinstance(shape, list)
        and len(shape) == 3
        and all(_is_whole(size, 1, _LARGEST_IMAGE) for size in shape)
        and math.prod(shape) <= _LARGEST_IMAGE
    )


def _are_names(value: Any) -> bool:
    listed = isinstance(value, list)
    return listed and all(isinstance(name, str) for name in value)


_COUNT = _whole(1)
_FLAG = _Rule("true or false", lambda value: isinstance(value, bool))
_HASH = _Rule(
    "a string or null", lambda value: value is None or isinstance(value, str)
)
_NOT_NEGATIVE = _Rule(
    "a finite float >= 0", lambda value: _is_number(value) and value >= 0
)
_RULES = {
    "sigma": _Rule(
        f"a float in (0, {_LARGEST_SIGMA}]",
        lambda value: _is_number(value) and 0 < value <= _LARGEST_SIGMA,
    ),
    "noise": _one_of(NOISE_MODES),
    "total_variation": _NOT_NEGATIVE,
    "dtype": _one_of(DTYPES),
    "bound": _one_of(VOTE_BOUNDS),
    "num_classes": _whole(2),
    "image": _Rule(
        "an object whose `shape` is three whole numbers >= 1 with a product "
        f"<= {_LARGEST_IMAGE}",
        _has_shape,
    ),
    "max_radius": _NOT_NEGATIVE,
    "decide_max_radius": _NOT_NEGATIVE,
    "fingerprint": _HASH,
    "classifier_sha256": _HASH,
    "n0": _COUNT,
    "n": _COUNT,
    "predict_n": _COUNT,
    "max_n": _COUNT,
    "decide_n": _COUNT,
    "alpha": _Rule(
        "a float in (0, 1)", lambda value: _is_number(value) and 0 < value < 1
    ),
    "runner_up": _FLAG,
    "image_bytes": _FLAG,
    "seed": _one_of(SEEDS),
    "class_names": _Rule(
        "a list of strings or null",
        lambda value: value is None or _are_names(value),
    ),
}


def check(metadata: Mapping[str, Any]) -> None:
    """Raises unless the metadata can be those of an export.

    The rules are those of the exporter. For numbers that follow from others
    (`total_variation`, radii) only the type is checked, because the client
    does not use them.

    Args:
        metadata: As decoded from JSON.

    Raises:
        ValueError: That names the field, its rule and its value.

    Example:

    >>> from rs_keras.serving.client import metadata_check
    >>> metadata_check.check({"sigma": -1.0})
    Traceback (most recent call last):
    ...
    ValueError: `sigma` must be a float in (0, 64]. Received: sigma=-1.0
    """
    for name, rule in _RULES.items():
        if name not in metadata:
            raise ValueError(
                f"`{name}` must be {rule.words}. Received: no {name}"
            )
        if not rule.holds(metadata[name]):
            value = reprlib.repr(metadata[name])
            raise ValueError(
                f"`{name}` must be {rule.words}. Received: {name}={value}"
            )
    _check_resize(metadata)
    fields = dataclasses.fields(Settings)
    defaults = Settings(
        **{field.name: metadata[field.name] for field in fields}
    )
    defaults.check_image_shape(metadata["image"]["shape"])
    defaults.check_classes(metadata["num_classes"])


def _check_resize(metadata: Mapping[str, Any]) -> None:
    """Raises unless photographs, if any, are resized to the model's images."""
    if "resize" not in metadata:
        return
    told = [metadata["resize"], metadata.get("fit")]
    if told[0] != metadata["image"]["shape"][:2] or told[1] not in FITS:
        raise ValueError(
            "`resize` must be the height and width of `image`, and `fit` one "
            f"of {', '.join(FITS)}. Received: {reprlib.repr(told)}"
        )
