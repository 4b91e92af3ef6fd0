"""Preprocessing inside the classifier, behind the noise."""

from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from rs_keras.classifiers.adapters import image_shape


def with_preprocessing(
    model: keras.Model,
    preprocessing: Callable[[Any], Any] | None = None,
    value_range: Sequence[float] = (0.0, 1.0),
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    input_shape: Sequence[int] | None = None,
) -> keras.Model:
    """Puts a model's preprocessing in front of it, as part of the classifier.

    Noise is added to pixels in [0, 1], and radii are in those units; what a
    model wants its pixels to be comes after:

        x = low + (high - low) * images       # value_range = (low, high)
        x = (x - mean) / std
        logits = model(preprocessing(x))

    Args:
        model: A Keras model that takes one batch of images.
        preprocessing: A function of Keras operations, such as
            `keras.applications.resnet.preprocess_input`, or a layer, such as
            the image converter of a KerasHub preset; both want `value_range`
            (0, 255). None for none.
        value_range: Of the pixels that follow: (0, 255) for a model that takes
            bytes, (-1, 1) for one that takes those.
        mean: Of each channel, in units of `value_range`.
        std: Of each channel, > 0, likewise.
        input_shape: (height, width, channels) of the images; None for what the
            model takes.

    Returns:
        A Functional model from images [B, H, W, C] in [0, 1].

    Raises:
        ValueError: If an argument is none of these, or the model does not tell
            the shape of its images and `input_shape` does not either.

    Example:

    >>> import keras
    >>> import numpy as np
    >>> from rs_keras.classifiers import with_preprocessing
    >>> network = keras.applications.MobileNetV3Small(
    ...     input_shape=(32, 32, 3), weights=None, classes=10)
    >>> classifier = with_preprocessing(network, value_range=(0, 255))
    >>> images = np.random.default_rng(1).uniform(size=[2, 32, 32, 3])
    >>> bool(np.allclose(classifier(images), network(255 * images)))
    True
    """
    shape = tuple(input_shape or image_shape(model) or ())
    if len(shape) != 3 or not all(shape):
        raise ValueError(
            "`input_shape` must be (height, width, channels) for a model that "
            f"does not tell them. Received: input_shape={input_shape}, the "
            f"model's is {image_shape(model)}"
        )
    low, high = _range(value_range)
    images = keras.Input(shape, name="images")
    x = images
    if (low, high) != (0.0, 1.0):
        x = keras.layers.Rescaling(high - low, low, name="value_range")(x)
    if mean is not None or std is not None:
        centre = _channels("mean", mean, int(shape[-1] or 0), 0.0)
        scale = _channels("std", std, int(shape[-1] or 0), 1.0)
        if not (scale > 0).all():
            raise ValueError(f"`std` must be > 0. Received: std={std}")
        x = keras.layers.Rescaling(
            (1 / scale).tolist(), (-centre / scale).tolist(), name="mean_std"
        )(x)
    if preprocessing is not None:
        x = preprocessing(x)
    return keras.Model(images, model(x), name=model.name)


def _range(value_range: Sequence[float]) -> tuple[float, float]:
    numbers = np.ravel(np.asarray(value_range, np.float64))
    if numbers.shape != (2,) or not -np.inf < numbers[0] < numbers[1] < np.inf:
        raise ValueError(
            "`value_range` must be two finite numbers, the smaller one first. "
            f"Received: value_range={value_range}"
        )
    return float(numbers[0]), float(numbers[1])


def _channels(
    name: str, values: Sequence[float] | None, channels: int, default: float
) -> np.ndarray:
    if values is None:
        return np.full(channels, default)
    array = np.asarray(values, np.float64)
    if array.shape != (channels,) or not np.isfinite(array).all():
        raise ValueError(
            f"`{name}` must hold one finite number a channel ({channels}). "
            f"Received: {name}={values}"
        )
    return array
