"""The residual networks of the papers' CIFAR and ImageNet experiments."""

from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import keras

from rs_keras._checks import check_choice
from rs_keras.datasets.registry import REGISTRY
from rs_keras.models import parts

_CIFAR10 = REGISTRY["cifar10"]
_IMAGENET = REGISTRY["imagenet2012"]

# Where a block changes height, width and channels.
SHORTCUTS = ("conv", "pad")


def cifar_resnet(
    depth: int = 110,
    input_shape: Sequence[int] = (32, 32, 3),
    num_classes: int = 10,
    mean: Sequence[float] | None = _CIFAR10.mean,
    std: Sequence[float] | None = _CIFAR10.std,
    shortcuts: str = "conv",
) -> keras.Model:
    """The ResNet for CIFAR: three stages of 16, 32 and 64 channels.

    Shortcuts between stages are a strided 1x1 convolution with batch
    normalisation, as in the references' code. Convolutions start from
    Normal(0, 2 / fan_out), the last layer from PyTorch's default.

    Args:
        depth: 6 n + 2 layers, with n blocks a stage: 20 (272,474 parameters),
            32, 44, 56, 110 (1,730,714), ...
        input_shape: (height, width, channels); height and width >= 8.
        num_classes: >= 2.
        mean: Of each channel, subtracted in the first layer; CIFAR-10's.
            None for neither.
        std: Of each channel, > 0; CIFAR-10's. None for neither.
        shortcuts: Between stages: "conv", or "pad" (every second row and
            column, and channels of zeros on both sides: option A of He et
            al., without parameters).

    Returns:
        A Functional model from images [B, H, W, C] in [0, 1] to logits
        [B, num_classes].

    Raises:
        ValueError: If the depth is another one, or a shape, number of classes,
            mean, standard deviation or kind of shortcut is invalid.

    Example:

    >>> from rs_keras import models
    >>> models.cifar_resnet(depth=20).output_shape
    (None, 10)
    >>> model = models.cifar_resnet(depth=20, shortcuts="pad")
    >>> model.count_params() - 1376  # without moving statistics
    269722

    References:
    - [He et al., 2016](https://arxiv.org/abs/1512.03385), section 4.2
    - [Cohen et al., 2019](https://arxiv.org/abs/1902.02918), whose code sets
      these layers
    """
    whole = isinstance(depth, int) and not isinstance(depth, bool)
    if not whole or depth < 8 or depth % 6 != 2:
        raise ValueError(
            "`depth` must be 6 n + 2 with n >= 1: 8, 14, 20, "
            f"..., 110, ... Received: depth={depth!r}"
        )
    shape = parts.check_shape(input_shape, num_classes, smallest=8)
    images, x = parts.image_input(shape, mean, std)
    x = _unit(x, 16, 3, "stem")
    check_choice("shortcuts", shortcuts, SHORTCUTS)
    counts = [(depth - 2) // 6] * 3
    x = _stages(x, _basic, (16, 32, 64), counts, shortcuts=shortcuts)
    return _head(images, x, num_classes, f"cifar_resnet{depth}")


def resnet18(
    input_shape: Sequence[int] = (32, 32, 3),
    num_classes: int = 10,
    mean: Sequence[float] | None = _CIFAR10.mean,
    std: Sequence[float] | None = _CIFAR10.std,
) -> keras.Model:
    """ResNet-18 for CIFAR: a 3x3 stem, no pooling; 11,173,962 parameters.

    Four stages of two blocks with 64, 128, 256 and 512 channels. All layers
    start from PyTorch's default. The released code of data-dependent smoothing
    puts ImageNet's 7x7 stem and pooling on 32x32 images and ends in a softmax;
    this one keeps the resolution and ends in logits.

    Args:
        input_shape: (height, width, channels); height and width >= 8.
        num_classes: >= 2.
        mean: As in `cifar_resnet`.
        std: As in `cifar_resnet`.

    Returns:
        A Functional model from images [B, H, W, C] in [0, 1] to logits
        [B, num_classes].

    Raises:
        ValueError: As in `cifar_resnet`.

    Example:

    >>> from rs_keras import models
    >>> models.resnet18().count_params() - 9600  # without moving statistics
    11173962

    References:
    - [He et al., 2016](https://arxiv.org/abs/1512.03385)
    - [kuangliu/pytorch-cifar](https://github.com/kuangliu/pytorch-cifar), the
      usual form of it for CIFAR
    """
    shape = parts.check_shape(input_shape, num_classes, smallest=8)
    images, x = parts.image_input(shape, mean, std)
    x = _unit(x, 64, 3, "stem", kaiming=False)
    x = _stages(x, _basic, (64, 128, 256, 512), [2] * 4, kaiming=False)
    return _head(images, x, num_classes, "resnet18")


def resnet50(
    input_shape: Sequence[int] = (224, 224, 3),
    num_classes: int = 1000,
    mean: Sequence[float] | None = _IMAGENET.mean,
    std: Sequence[float] | None = _IMAGENET.std,
) -> keras.Model:
    """ResNet-50 as torchvision has it: 25,557,032 parameters for ImageNet.

    A block strides in its 3x3 convolution (He et al.: in the first 1x1).
    Convolutions start from Normal(0, 2 / fan_out), the last layer from
    PyTorch's default.

    Args:
        input_shape: (height, width, channels); height and width >= 32.
        num_classes: >= 2.
        mean: As in `cifar_resnet`; ImageNet's.
        std: As in `cifar_resnet`; ImageNet's.

    Returns:
        A Functional model from images [B, H, W, C] in [0, 1] to logits
        [B, num_classes].

    Raises:
        ValueError: As in `cifar_resnet`.

    Example:

    >>> from rs_keras import models
    >>> models.resnet50((64, 64, 3), num_classes=10).output_shape
    (None, 10)

    References:
    - [He et al., 2016](https://arxiv.org/abs/1512.03385)
    """
    shape = parts.check_shape(input_shape, num_classes, smallest=32)
    images, x = parts.image_input(shape, mean, std)
    x = _unit(x, 64, 7, "stem", strides=2)
    # After a ReLU, zeros never win: they pad as PyTorch's minus infinity does.
    x = keras.layers.ZeroPadding2D(1, name="stem_pool_pad")(x)
    x = keras.layers.MaxPooling2D(3, 2, name="stem_pool")(x)
    x = _stages(x, _bottleneck, (64, 128, 256, 512), [3, 4, 6, 3])
    return _head(images, x, num_classes, "resnet50")


def _stages(
    x: Any,
    block: Callable[..., Any],
    filters: Sequence[int],
    counts: Sequence[int],
    kaiming: bool = True,
    shortcuts: str = "conv",
) -> Any:
    """Blocks; every stage but the first halves height and width."""
    for stage, (width, count) in enumerate(
        zip(filters, counts, strict=True), 1
    ):
        for number in range(1, count + 1):
            name = f"stage{stage}_block{number}"
            strides = 2 if number == 1 and stage > 1 else 1
            y = block(x, width, name, strides=strides, kaiming=kaiming)
            how: dict[str, Any] = {"strides": strides, "kaiming": kaiming}
            x = _join(x, y, name, shortcuts=shortcuts, **how)
    return x


def _basic(
    x: Any, filters: int, name: str, *, strides: int, kaiming: bool
) -> Any:
    """Two 3x3 convolutions."""
    y = _unit(x, filters, 3, name, "1", strides=strides, kaiming=kaiming)
    return _conv_norm(y, filters, 3, name, "2", kaiming=kaiming)


def _bottleneck(
    x: Any, filters: int, name: str, *, strides: int, kaiming: bool
) -> Any:
    """1x1 down, 3x3, 1x1 up to four times the channels."""
    y = _unit(x, filters, 1, name, "1", kaiming=kaiming)
    y = _unit(y, filters, 3, name, "2", strides=strides, kaiming=kaiming)
    return _conv_norm(y, 4 * filters, 1, name, "3", kaiming=kaiming)


def _join(
    x: Any,
    y: Any,
    name: str,
    *,
    strides: int,
    kaiming: bool,
    shortcuts: str,
) -> Any:
    """relu(y + shortcut(x)); the shortcut is x itself where shapes allow."""
    short = f"{name}_short"
    changes = strides > 1 or x.shape[-1] != y.shape[-1]
    if changes and shortcuts == "pad":
        x = _padded(x, y.shape[-1], short, strides)
    elif changes:
        x = _conv_norm(
            x, y.shape[-1], 1, short, strides=strides, kaiming=kaiming
        )
    y = keras.layers.Add(name=f"{name}_add")([y, x])
    return keras.layers.ReLU(name=f"{name}_relu")(y)


def _padded(x: Any, filters: int, name: str, strides: int) -> Any:
    """Every second row and column, with as many zero channels on each side."""
    # A mean of one pixel is that pixel.
    x = keras.layers.AveragePooling2D(1, strides, name=f"{name}_stride")(x)
    side = (filters - x.shape[-1]) // 2
    # Called "channels_first", [B, H, W, C] has W and C where a layer pads.
    return keras.layers.ZeroPadding2D(
        ((0, 0), (side, side)),
        data_format="channels_first",
        name=f"{name}_pad",
    )(x)


def _unit(
    x: Any, filters: int, size: int, name: str, number: str = "", **how: Any
) -> Any:
    """A convolution, its batch normalisation and a ReLU."""
    x = _conv_norm(x, filters, size, name, number, **how)
    return keras.layers.ReLU(name=f"{name}_relu{number}")(x)


def _conv_norm(
    x: Any, filters: int, size: int, name: str, number: str = "", **how: Any
) -> Any:
    """A convolution and its batch normalisation, with PyTorch's constants.

    The moving variance is fed the biased batch variance, as always in Keras;
    PyTorch feeds it the unbiased one.
    """
    x = parts.conv(x, filters, size, name=f"{name}_conv{number}", **how)
    return keras.layers.BatchNormalization(
        momentum=0.9, epsilon=1e-5, name=f"{name}_norm{number}"
    )(x)


def _head(images: Any, x: Any, num_classes: int, name: str) -> keras.Model:
    x = keras.layers.GlobalAveragePooling2D(name="pool")(x)
    return keras.Model(images, parts.logits(x, num_classes), name=name)
