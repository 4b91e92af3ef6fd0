"""The shape of the images that a model takes."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from rs_keras.classifiers.adapters import network_of


def image_shape_of(
    model: Any, given: Sequence[int] | None = None
) -> tuple[int, int, int]:
    """Returns (H, W, C), from the model where it tells.

    Args:
        model: A Keras model, a loaded SavedModel or a function.
        given: What the caller says; needed where the model does not.

    Raises:
        ValueError: If it is not known, not three positive numbers, or another
            than the model's.
    """
    told = _told_by(model)
    if given is None:
        if told is None:
            raise ValueError(
                "`image_shape` must be given for a model that does not tell "
                "the height, width and channels of its images. "
                "Received: image_shape=None"
            )
        return told
    shape = tuple(given) if isinstance(given, Sequence) else ()
    numbers = [
        size
        for size in shape
        if isinstance(size, int | np.integer) and size > 0
    ]
    if len(shape) != 3 or len(numbers) != 3:
        raise ValueError(
            "`image_shape` must be three whole numbers > 0: height, width, "
            f"channels. Received: image_shape={given!r}"
        )
    if told is not None and told != shape:
        raise ValueError(
            f"`image_shape` must be the model's, {told}. "
            f"Received: image_shape={given!r}"
        )
    return int(shape[0]), int(shape[1]), int(shape[2])


def _told_by(model: Any) -> tuple[int, int, int] | None:
    for candidate in (model, network_of(model)):
        shape = getattr(candidate, "input_shape", None)
        if shape is None:
            shape = _in_signature(candidate)
        if shape is not None and len(shape) == 4 and all(shape[1:]):
            return int(shape[1]), int(shape[2]), int(shape[3])
    return None


def _in_signature(model: Any) -> tuple[Any, ...] | None:
    signatures = getattr(model, "signatures", None)
    if not signatures or "serving_default" not in signatures:
        return None
    _, inputs = signatures["serving_default"].structured_input_signature
    if len(inputs) != 1:
        return None
    (spec,) = inputs.values()
    return None if spec.shape.rank is None else tuple(spec.shape)
