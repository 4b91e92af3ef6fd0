"""LeNet, the network of the papers' MNIST experiments."""

from collections.abc import Sequence

import keras

from rs_keras.models import parts


def lenet(
    input_shape: Sequence[int] = (28, 28, 1),
    num_classes: int = 10,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
) -> keras.Model:
    """Two convolutions and two dense layers: 431,080 parameters for MNIST.

    conv 20 5x5, ReLU, max-pool 2, conv 50 5x5, ReLU, max-pool 2, dense 500,
    ReLU, dense `num_classes`. Kernels and biases start from PyTorch's default,
    U(-1, 1) / sqrt(fan_in).

    Each ReLU follows its max-pool here. Both are monotone, so values and
    gradients are the same to the bit, and it has a quarter of the numbers to
    go through.

    Args:
        input_shape: (height, width, channels); height and width >= 16.
        num_classes: >= 2.
        mean: Of each channel, subtracted in the first layer. None, the
            references' choice for MNIST: the images are taken as they are.
        std: Of each channel, > 0; given together with `mean`.

    Returns:
        A Functional model from images [B, H, W, C] in [0, 1] to logits
        [B, num_classes].

    Raises:
        ValueError: If a shape, number of classes, mean or standard deviation
            is invalid.

    Example:

    >>> from rs_keras import datasets, models
    >>> model = models.lenet()
    >>> model.count_params()
    431080
    >>> data = datasets.load("fashion_mini", batch_size=100)
    >>> images, labels = next(iter(data))
    >>> model(images).shape.as_list()
    [100, 10]

    References:
    - [LeCun et al., 1998](https://doi.org/10.1109/5.726791)
    - [Jeong et al., 2021](https://arxiv.org/abs/2111.09277), whose code sets
      these layers
    """
    shape = parts.check_shape(input_shape, num_classes, smallest=16)
    images, x = parts.image_input(shape, mean, std)
    for number, filters in enumerate((20, 50), 1):
        x = keras.layers.Conv2D(
            filters,
            5,
            kernel_initializer=parts.torch_kernel(),
            bias_initializer=parts.torch_bias(25 * x.shape[-1]),
            name=f"conv{number}",
        )(x)
        x = keras.layers.MaxPooling2D(2, name=f"pool{number}")(x)
        x = keras.layers.ReLU(name=f"relu{number}")(x)
    x = keras.layers.Flatten(name="flatten")(x)
    x = keras.layers.Dense(
        500,
        activation="relu",
        kernel_initializer=parts.torch_kernel(),
        bias_initializer=parts.torch_bias(x.shape[-1]),
        name="dense",
    )(x)
    return keras.Model(images, parts.logits(x, num_classes), name="lenet")
