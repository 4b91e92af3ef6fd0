"""Networks by name, and the papers' network for each data set."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import keras

from rs_keras._checks import check_choice
from rs_keras.datasets.registry import info
from rs_keras.models.lenet import lenet
from rs_keras.models.resnet import cifar_resnet
from rs_keras.models.resnet import resnet18
from rs_keras.models.resnet import resnet50

# The names of the references' command line; `cifar_resnet` takes any depth.
NETWORKS: dict[str, Callable[..., keras.Model]] = {
    "lenet": lenet,
    "cifar_resnet": cifar_resnet,
    "cifar_resnet20": partial(cifar_resnet, 20),
    "cifar_resnet110": partial(cifar_resnet, 110),
    "resnet18": resnet18,
    "resnet50": resnet50,
}


def names() -> list[str]:
    """The names that `get` knows.

    Example:

    >>> from rs_keras import models
    >>> models.names()[:3]
    ['lenet', 'cifar_resnet', 'cifar_resnet20']
    """
    return list(NETWORKS)


def get(name: str, **kwargs: Any) -> keras.Model:
    """Builds a network by name.

    Args:
        name: One of `names()`.
        **kwargs: Arguments of the function of that name, such as
            `num_classes`.

    Returns:
        A new model; `keras.utils.set_random_seed` fixes its initial weights.

    Raises:
        ValueError: For an unknown name (the nearest is named).

    Example:

    >>> from rs_keras import models
    >>> models.get("lenet", num_classes=3).output_shape
    (None, 3)
    """
    return NETWORKS[check_choice("name", name, NETWORKS)](**kwargs)


def for_dataset(
    name: str, data_dir: str | Path | None = None, **kwargs: Any
) -> keras.Model:
    """Builds the network that the papers train on a data set.

    LeNet for MNIST and its likes, ResNet-110 for CIFAR and SVHN, ResNet-50 for
    ImageNet. For `npz:` and `image_folder:` data, by size: LeNet up to 28x28
    with one channel, ResNet-110 up to 64x64, ResNet-50 above. Input shape,
    number of classes and normalisation are the data set's.

    Args:
        name: As in `datasets.load`.
        data_dir: As in `datasets.load`.
        **kwargs: Override arguments of the network, such as `depth`.

    Returns:
        A new model.

    Raises:
        ValueError: For an unknown data set.
        OSError: If `npz:` or `image_folder:` data cannot be read.

    Example:

    >>> from rs_keras import models
    >>> models.for_dataset("fashion_mini").name
    'lenet'
    """
    dataset = info(name, data_dir)
    height, width, channels = dataset.image_shape
    if channels == 1 and max(height, width) <= 28:
        network = "lenet"
    else:
        small = max(height, width) <= 64
        network = "cifar_resnet" if small else "resnet50"
    defaults = {
        "input_shape": dataset.image_shape,
        "num_classes": dataset.num_classes,
        "mean": dataset.mean,
        "std": dataset.std,
    }
    return get(network, **(defaults | kwargs))
