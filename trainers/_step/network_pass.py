"""The network's pass in a training step, with fused batch normalisation.

Keras' layer computes a mean, a variance, a scaled and a shifted copy one after
the other, in float32 also where the network computes in bfloat16, and so do
their gradients. TensorFlow has one kernel for the whole of it, and one for the
gradient, which read 16-bit inputs as they are and compute in float32 inside.
"""

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from rs_keras import _compat
from rs_keras.classifiers.folding import folded
from rs_keras.trainers._step.input_gradients import only_cpus
from rs_keras.trainers._step.input_gradients import quick_gradients

# What the kernels of CPUs take.
_TYPES = ("float32", "bfloat16")


def network_pass(
    model: keras.Model, images: tf.Tensor, training: bool
) -> tf.Tensor:
    """Returns a model's logits, computed as quickly as gradients need them.

    On machines without an accelerator, batch normalisations of Functional and
    Sequential models are fused in training mode, and in inference mode folded
    into convolutions (`rs_keras.classifiers.folding`); everything else, and
    every other model, computes as it does by itself. The model is not changed.

    Logits, gradients and moving statistics are Keras', up to rounding:

        y = gamma * (x - mean) / sqrt(variance + epsilon) + beta
        moving = momentum * moving + (1 - momentum) * batch

    with the biased variance in both.

    Args:
        model: From images to logits.
        images: [m, H, W, C].
        training: Whether batch normalisation uses, and records, the
            statistics of these images.

    Example:

    >>> import numpy as np
    >>> import tensorflow as tf
    >>> from rs_keras import models
    >>> from rs_keras.trainers._step.network_pass import network_pass
    >>> model, images = models.cifar_resnet(8), tf.random.normal([4, 32, 32, 3])
    >>> fused = network_pass(model, images, training=True)
    >>> np.testing.assert_allclose(fused, model(images, training=True),
    ...                            rtol=1e-3, atol=1e-4)
    """
    with quick_gradients():
        normalized = _fusible(model) if only_cpus() else []
        if not normalized:
            return model(images, training=training)
        if not training:
            return folded(model)(images)

        def run(layer: Any, *args: Any, **kwargs: Any) -> Any:
            if layer in normalized and _is_plain(*args, **kwargs):
                return _normalized(layer, tf.cast(args[0], layer.compute_dtype))
            return layer(*args, **kwargs)

        return _compat.run_graph(model, images, run, training)


def _fusible(model: keras.Model) -> list[keras.layers.BatchNormalization]:
    """Returns the batch normalisations that one kernel can compute."""
    if not _compat.is_chain_of_layers(model) or any(
        layer.activity_regularizer for layer in model.layers
    ):
        return []
    return [layer for layer in model.layers if _is_fusible(layer)]


def _is_fusible(layer: keras.Layer) -> bool:
    return (
        # A subclass may normalise otherwise.
        type(layer) is keras.layers.BatchNormalization
        and "call" not in vars(layer)
        and layer.built
        and layer.trainable
        and layer.axis in (-1, 3)
        # Keras 3.12 has no renorm.
        and not (getattr(layer, "renorm", False) or layer.synchronized)
        and layer.compute_dtype in _TYPES
        and layer.variable_dtype == "float32"
    )


def _is_plain(*args: Any, **kwargs: Any) -> bool:
    """Whether a layer is called with images alone, none of them masked."""
    return (
        len(args) == 1
        and not set(kwargs) - {"training", "mask"}
        and kwargs.get("mask") is None
        and len(args[0].shape) == 4
        and not _compat.has_mask(args[0])
    )


def _normalized(
    layer: keras.layers.BatchNormalization, x: tf.Tensor
) -> tf.Tensor:
    """Normalises [B, H, W, C] by its own statistics, and records them."""
    channels = layer.moving_mean.shape
    gamma = layer.gamma.value if layer.scale else tf.ones(channels)
    beta = layer.beta.value if layer.center else tf.zeros(channels)
    y, mean, variance = _fused(x, gamma, beta, layer.epsilon)
    # The kernel divides by n - 1; Keras records the variance by n.
    n = tf.cast(tf.reduce_prod(tf.shape(x)[:3]), tf.float32)
    variance *= (n - 1) / n
    old, new = layer.momentum, 1 - layer.momentum
    for moving, batch in (
        (layer.moving_mean, mean),
        (layer.moving_variance, variance),
    ):
        moving.assign(moving.value * old + batch * new)
    return y


def _fused(
    x: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor, epsilon: float
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Returns the normalised images, and their mean and unbiased variance.

    Gradients flow through the images alone; moving statistics have none.
    """

    @tf.custom_gradient
    def normalize(
        x: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor
    ) -> tuple[tuple[tf.Tensor, ...], Callable]:
        y, mean, variance, *kept = tf.raw_ops.FusedBatchNormV3(
            x=x,
            scale=gamma,
            offset=beta,
            # Of inference.
            mean=tf.zeros([0]),
            variance=tf.zeros([0]),
            epsilon=epsilon,
            is_training=True,
        )

        def gradients(upstream: tf.Tensor, *_: Any) -> Any:
            return _gradients(x, gamma, upstream, kept, epsilon)

        return (y, mean, variance), gradients

    y, mean, variance = normalize(x, gamma, beta)
    return y, tf.stop_gradient(mean), tf.stop_gradient(variance)


def _gradients(
    x: tf.Tensor,
    gamma: tf.Tensor,
    upstream: tf.Tensor,
    kept: list[tf.Tensor],
    epsilon: float,
) -> Any:
    """Returns the gradients with regard to x, gamma and beta.

    TensorFlow has no gradient of its kernel's gradient; a penalty on gradients
    gets that of the formula.
    """

    @tf.custom_gradient
    def first(
        x: tf.Tensor, gamma: tf.Tensor, upstream: tf.Tensor
    ) -> tuple[tuple[tf.Tensor, ...], Callable]:
        gradients = tf.raw_ops.FusedBatchNormGradV3(
            y_backprop=upstream,
            x=x,
            scale=gamma,
            reserve_space_1=kept[0],
            reserve_space_2=kept[1],
            reserve_space_3=kept[2],
            epsilon=epsilon,
            is_training=True,
        )[:3]

        def second(*upstreams: tf.Tensor) -> Any:
            inputs = [x, gamma, upstream]
            with tf.GradientTape() as tape:
                tape.watch(inputs)
                again = _by_formula(x, gamma, upstream, epsilon)
            return tape.gradient(again, inputs, list(upstreams))

        return tuple(gradients), second

    return first(x, gamma, upstream)


def _by_formula(
    x: tf.Tensor, gamma: tf.Tensor, upstream: tf.Tensor, epsilon: float
) -> tuple[tf.Tensor, ...]:
    """Returns what `_gradients` does, one operation after the other.

    With s = 1 / sqrt(variance + epsilon), z = (x - mean) * s and means over
    all images and pixels:

        dx     = gamma * s * (dy - mean(dy) - z * mean(dy * z))
        dgamma = sum(dy * z)
        dbeta  = sum(dy)
    """
    axes = [0, 1, 2]
    wide, dy = tf.cast(x, tf.float32), tf.cast(upstream, tf.float32)
    mean, variance = tf.nn.moments(wide, axes)
    s = tf.math.rsqrt(variance + epsilon)
    z = (wide - mean) * s
    along = tf.reduce_mean(dy * z, axes)
    dx = gamma * s * (dy - tf.reduce_mean(dy, axes) - z * along)
    dgamma, dbeta = tf.reduce_sum(dy * z, axes), tf.reduce_sum(dy, axes)
    return tf.cast(dx, x.dtype), dgamma, dbeta
