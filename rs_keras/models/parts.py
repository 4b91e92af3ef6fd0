"""The parts that the networks are made of, as the references set them.

Initial values are PyTorch's, because the published numbers start from them:
its default draws kernels and biases from U(-b, b), b = 1 / sqrt(fan_in).
Padding is PyTorch's too: the same number of zeros on every side, where Keras'
"same" pads a strided convolution on one side only.
"""

import math
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from rs_keras._checks import check_count


def check_shape(
    input_shape: Sequence[int], num_classes: int, smallest: int
) -> tuple[int, int, int]:
    """Returns (H, W, C), or says what is wrong with it or `num_classes`."""
    shape = tuple(input_shape)
    whole = all(isinstance(n, int | np.integer) and n > 0 for n in shape)
    if len(shape) != 3 or not whole or min(shape[:2]) < smallest:
        raise ValueError(
            "`input_shape` must be (height, width, channels) with height and "
            f"width >= {smallest}. Received: input_shape={input_shape}"
        )
    check_count("num_classes", num_classes, minimum=2)
    height, width, channels = (int(n) for n in shape)
    return height, width, channels


def image_input(
    shape: tuple[int, int, int],
    mean: Sequence[float] | None,
    std: Sequence[float] | None,
) -> tuple[Any, Any]:
    """Returns the input and what the first convolution sees.

    Formula:

        normalised = (images - mean) / std

    With `mean` and `std` None the images pass as they are, without a layer.

    Raises:
        ValueError: If only one of the two is given, if they have not one
            finite value per channel, or if a `std` is not > 0.
    """
    images = keras.Input(shape, name="images")
    if mean is None and std is None:
        return images, images
    if mean is None or std is None:
        raise ValueError(
            "`mean` and `std` must be given together, or both be None. "
            f"Received: mean={mean}, std={std}"
        )
    centre, scale = np.asarray(mean, float), np.asarray(std, float)
    right = centre.shape == scale.shape == (shape[-1],)
    if not (right and np.isfinite(centre).all() and np.isfinite(scale).all()):
        raise ValueError(
            "`mean` and `std` must hold one finite number per channel "
            f"({shape[-1]}). Received: mean={mean}, std={std}"
        )
    if not (scale > 0).all():
        raise ValueError(f"`std` must be > 0. Received: std={std}")
    layer = keras.layers.Rescaling(
        scale=(1 / scale).tolist(),
        offset=(-centre / scale).tolist(),
        dtype=_full_precision(),
        name="normalization",
    )
    return images, layer(images)


def conv(
    x: Any,
    filters: int,
    size: int,
    name: str,
    strides: int = 1,
    kaiming: bool = True,
) -> Any:
    """A convolution without bias, padded by size // 2 zeros on every side.

    Args:
        x: The input.
        filters: Number of output channels.
        size: Side of the square kernel; odd.
        name: Of the layer.
        strides: In both directions.
        kaiming: Kernels from Normal(0, 2 / (size**2 * filters)), He's
            initialisation by fan-out; else from PyTorch's default.
    """
    # Made once: each initializer takes a number of the global seed.
    if kaiming:
        kernel = keras.initializers.VarianceScaling(
            2.0, "fan_out", "untruncated_normal"
        )
    else:
        kernel = torch_kernel()
    padding = "same" if strides == 1 else "valid"
    if strides > 1 and size > 1:
        x = keras.layers.ZeroPadding2D(size // 2, name=f"{name}_pad")(x)
    return keras.layers.Conv2D(
        filters,
        size,
        strides,
        padding,
        use_bias=False,
        kernel_initializer=kernel,
        name=name,
    )(x)


def logits(x: Any, num_classes: int) -> Any:
    """The last layer, in full precision whatever the others compute in."""
    return keras.layers.Dense(
        num_classes,
        kernel_initializer=torch_kernel(),
        bias_initializer=torch_bias(x.shape[-1]),
        dtype=_full_precision(),
        name="logits",
    )(x)


def torch_kernel() -> keras.initializers.Initializer:
    """PyTorch's default for kernels: U(-b, b) with b = 1 / sqrt(fan_in)."""
    # Var[U(-b, b)] = b**2 / 3 = (1 / 3) / fan_in.
    return keras.initializers.VarianceScaling(1 / 3, "fan_in", "uniform")


def torch_bias(fan_in: int) -> keras.initializers.Initializer:
    """PyTorch's default for biases: U(-b, b) with b = 1 / sqrt(fan_in)."""
    bound = 1 / math.sqrt(fan_in)
    return keras.initializers.RandomUniform(-bound, bound)


def _full_precision() -> str:
    """float32 also under mixed precision; float64 where that was chosen."""
    return str(keras.config.dtype_policy().variable_dtype)
