"""Convolutions with a fast gradient with regard to images, for CPUs.

An attack differentiates a convolution with regard to images of one to four
channels. TensorFlow's CPU kernel computes that as another convolution, with so
few output channels that it leaves most of each vector register empty. Here
whole blocks of pixels are its channels.
"""

import contextlib
import threading
from collections.abc import Callable
from collections.abc import Iterator
from types import MethodType
from typing import Any

import keras
import tensorflow as tf

from rs_keras import _compat

# Side of a block by the image's channels: the fastest of 1 to 4, for kernels of
# 3 x 3 and larger. For smaller kernels, and from five channels on, TensorFlow's
# kernel is faster.
_BLOCKS = {1: 4, 2: 2, 3: 2, 4: 2}
_SMALLEST = 3

# Whether the current thread is within `quick_gradients`.
_passes = threading.local()


def prepare(model: keras.Model) -> None:
    """Enables fast image gradients of a model within `quick_gradients`.

    Everywhere else, and in other threads, they are Keras' own. The model is
    not changed: saved, copied or exported, it is made of Keras' layers. Where
    there is an accelerator this does nothing.

    Args:
        model: Any model. It may have been prepared before.
    """
    if not only_cpus():
        return
    for layer in _compat.flat_layers(model):
        # A method that the user replaced stays as it is.
        if type(layer) is keras.layers.Conv2D and "convolution_op" not in vars(
            layer
        ):
            # Keras documents this method for overriding. As an attribute of
            # the instance it takes precedence over the class's method, and
            # Keras does not track it.
            vars(layer)["convolution_op"] = MethodType(_convolution_op, layer)


@contextlib.contextmanager
def quick_gradients() -> Iterator[None]:
    """Uses fast image gradients of prepared models within a `with` block.

    Values are the model's own, to the bit; gradients with regard to images,
    up to rounding.

    It is for `keras.layers.Conv2D` (no subclass) of stride 1, whose kernel is
    3 x 3 or larger and whose input has one to four channels.

    Example:

    >>> import numpy as np
    >>> import tensorflow as tf
    >>> from rs_keras import models
    >>> from rs_keras.trainers._step import input_gradients
    >>> model, images = models.lenet(), tf.random.normal([2, 28, 28, 1])
    >>> input_gradients.prepare(model)
    >>> with tf.GradientTape(persistent=True) as tape:
    ...     tape.watch(images)
    ...     usual = model(images)
    ...     with input_gradients.quick_gradients():
    ...         quick = model(images)
    >>> bool((usual == quick).numpy().all())
    True
    >>> gradients = [tape.gradient(out, images) for out in (usual, quick)]
    >>> np.testing.assert_allclose(*gradients, atol=1e-6)
    """
    before = _is_quick()
    _passes.quick = True
    try:
        yield
    finally:
        _passes.quick = before


def _is_quick() -> bool:
    return getattr(_passes, "quick", False)


def only_cpus() -> bool:
    """Returns whether this machine has no accelerator."""
    kinds = {device.device_type for device in tf.config.list_logical_devices()}
    return kinds == {"CPU"}


def _convolution_op(
    layer: keras.layers.Conv2D, inputs: tf.Tensor, kernel: Any
) -> tf.Tensor:
    """Stands in for `keras.layers.Conv2D.convolution_op`."""
    if _is_quick() and _is_plain(layer):
        return _convolved(inputs, kernel, layer.padding.upper())
    return type(layer).convolution_op(layer, inputs, kernel)


# So that folded networks may take it for the layer's own.
_convolution_op.computes_the_same = True  # type: ignore[attr-defined]


def _is_plain(layer: keras.layers.Conv2D) -> bool:
    return (
        layer.kernel.shape[2] in _BLOCKS
        and min(layer.kernel_size) >= _SMALLEST
        and layer.padding in ("valid", "same")
        and layer.data_format == "channels_last"
        and layer.groups == 1
        and (*layer.strides, *layer.dilation_rate) == (1, 1, 1, 1)
    )


def _convolved(inputs: tf.Tensor, kernel: Any, padding: str) -> tf.Tensor:
    """The convolution of `keras.layers.Conv2D` with stride 1."""

    @tf.custom_gradient
    def convolve(
        images: tf.Tensor, weights: tf.Tensor
    ) -> tuple[tf.Tensor, Callable]:
        def gradients(upstream: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            # An unused gradient is not computed in a graph.
            for_weights = tf.raw_ops.Conv2DBackpropFilter(
                input=images,
                filter_sizes=tf.shape(weights),
                out_backprop=upstream,
                strides=[1, 1, 1, 1],
                padding=padding,
            )
            return _for_images(images, weights, upstream, padding), for_weights

        return tf.nn.conv2d(images, weights, 1, padding), gradients

    return convolve(inputs, tf.convert_to_tensor(kernel))


def _for_images(
    images: tf.Tensor, kernel: tf.Tensor, upstream: tf.Tensor, padding: str
) -> tf.Tensor:
    """Returns the gradient with regard to the images, block by block.

    It is the convolution of `upstream`, zeros around it, with the kernel
    turned by 180 degrees. Here each output position of a strided convolution
    holds one block of pixels as its channels, and its kernels are the turned
    one, moved to each pixel of the block.
    """
    block = _BLOCKS[kernel.shape[2]]
    turned = tf.transpose(kernel[::-1, ::-1], [0, 1, 3, 2])
    moved = [
        tf.pad(turned, [[i, block - 1 - i], [j, block - 1 - j], [0, 0], [0, 0]])
        for i in range(block)
        for j in range(block)
    ]
    sides = [
        known or size
        for known, size in zip(
            images.shape[1:3], tf.unstack(tf.shape(images)[1:3]), strict=True
        )
    ]
    around = [
        _zeros_around(side, size, block, padding)
        for side, size in zip(sides, kernel.shape[:2], strict=True)
    ]
    padded = tf.pad(upstream, [[0, 0], *around, [0, 0]])
    blocks = tf.nn.conv2d(padded, tf.concat(moved, -1), block, "VALID")
    # [B, blocks, blocks, block**2 * C] to pixels; the last blocks reach beyond.
    pixels = tf.nn.depth_to_space(blocks, block)
    gradient = pixels[:, : sides[0], : sides[1]]
    # What carries it through a loop needs all that was known of the images.
    return tf.ensure_shape(gradient, images.shape)


def _zeros_around(
    side: Any, kernel: int, block: int, padding: str
) -> list[Any]:
    """Returns how many zeros stand before and after, for whole blocks."""
    # How far a "same" convolution reaches out of the image, and the size of
    # what it makes.
    before, upstream = kernel - 1, side - kernel + 1
    if padding == "SAME":
        before, upstream = kernel // 2, side
    blocks = -(-side // block)
    return [before, blocks * block + kernel - 1 - before - upstream]
