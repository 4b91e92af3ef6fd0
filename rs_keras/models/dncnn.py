"""DnCNN, the denoiser of denoised smoothing."""

from collections.abc import Sequence

import keras

from rs_keras._checks import check_count
from rs_keras.models import parts


def dncnn(
    input_shape: Sequence[int] = (32, 32, 3),
    depth: int = 17,
    filters: int = 64,
) -> keras.Model:
    """A convolutional network that predicts the noise and subtracts it.

    Formula:

        images - conv(unit(... unit(relu(conv(images)))))

    with `depth` - 2 units of a convolution, batch normalisation and a ReLU; all
    convolutions are 3x3 and keep height and width. With 17 layers of 64
    filters it is the one of the papers; on a CPU, 5 of 32 do for MNIST.

    Args:
        input_shape: (height, width, channels).
        depth: Number of convolutions, >= 3.
        filters: Of each but the last, >= 1.

    Returns:
        A Functional model from noisy images to images of the same shape, not
        clipped.

    Raises:
        ValueError: For a shape, a depth or a number of filters that is none.

    Example:

    >>> from rs_keras import models
    >>> models.dncnn((28, 28, 1), depth=5, filters=32).output_shape
    (None, 28, 28, 1)

    References:
    - [Zhang et al., 2017](https://arxiv.org/abs/1608.03981)
    - [Salman et al., 2020](https://arxiv.org/abs/2003.01908)
    """
    shape = parts.check_shape(input_shape, num_classes=2, smallest=3)
    depth = check_count("depth", depth, 3)
    filters = check_count("filters", filters)
    images, x = parts.image_input(shape, None, None)
    x = keras.layers.Conv2D(
        filters, 3, padding="same", activation="relu", name="conv1"
    )(x)
    for number in range(2, depth):
        x = parts.conv(x, filters, 3, name=f"conv{number}")
        x = keras.layers.BatchNormalization(
            momentum=0.9, epsilon=1e-5, name=f"norm{number}"
        )(x)
        x = keras.layers.ReLU(name=f"relu{number}")(x)
    noise = parts.conv(x, shape[-1], 3, name=f"conv{depth}", kaiming=False)
    clean = keras.layers.Subtract(name="clean")([images, noise])
    return keras.Model(images, clean, name="dncnn")
