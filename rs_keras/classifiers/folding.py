"""Folded networks: batch normalisation merged into the layer before it.

In inference mode batch normalisation is a scale and an offset a channel, so a
convolution can take it over. What is left, a convolution, a bias and a ReLU,
TensorFlow runs as one operation.
"""

import collections
from collections.abc import Callable
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from rs_keras import _compat
from rs_keras.classifiers.outputs import does_as

# In float16 a kernel times a scale may exceed the largest number.
_DTYPES = ("bfloat16", "float32", "float64")


def folded(model: keras.Model) -> Callable[[tf.Tensor], tf.Tensor]:
    """Returns a Keras model as a function from images to logits, in inference.

    Formula, for a convolution with kernel k and bias b, and the normalisation
    with scale gamma, offset beta and moving statistics after it:

        inv = gamma / sqrt(variance + epsilon)
        conv(x, k * inv) + beta + (b - mean) * inv

    Convolutions (plain and depthwise) whose only use is a batch normalisation
    are folded, in nested models as well; all other layers are called as they
    are. The weights are read now: in the function that is traced, so that the
    model may be trained on, but outside its loops.

    Args:
        model: A Keras model; one that is neither Functional nor Sequential is
            called as it is.

    Example:

    >>> import numpy as np
    >>> import tensorflow as tf
    >>> from rs_keras import models
    >>> from rs_keras.classifiers.folding import folded
    >>> model, images = models.cifar_resnet(8), tf.ones([2, 32, 32, 3])
    >>> bool(np.allclose(folded(model)(images), model(images), atol=1e-4))
    True

    References:
    - [Jacob et al., 2018](https://arxiv.org/abs/1712.05877), section 3.2
    """
    if not _compat.has_graph(model):
        return lambda images: model(images, training=False)
    return _Shell(model, _plan_of(model))


class _Shell(keras.layers.Layer):
    """Calls a model's graph of layers, some of them replaced.

    A layer of the model's type policy, so that Keras casts as it does for the
    model.

    Args:
        model: Functional or Sequential.
        plan: What is called instead of a layer, by its identity.
    """

    def __init__(self, model: keras.Model, plan: dict[int, Callable]) -> None:
        super().__init__(
            name="folded", dtype=model.dtype_policy, autocast=model.autocast
        )
        self.built = True
        _compat.cast_inputs_as(self, model)

        def run(layer: Any, *args: Any, **kwargs: Any) -> Any:
            is_model = isinstance(layer, keras.Model)
            masked = is_model and kwargs.get("mask") is not None
            if id(layer) not in plan or masked:
                return layer(*args, **kwargs)
            return plan[id(layer)](args[0] if args else kwargs["inputs"])

        # In a function: Keras would track the model as a part of this layer.
        self._run = lambda images: _compat.run_graph(
            model, images, run, training=False
        )

    def call(self, images: tf.Tensor) -> tf.Tensor:
        return self._run(images)


@dataclass(frozen=True)
class _Affine:
    """A convolution or a product, a bias and an activation.

    Attributes:
        layer: Whose operation it is.
        kernel: In the type that the layer computes in.
        bias: One a channel; None for none.
    """

    layer: keras.Layer
    kernel: tf.Tensor
    bias: tf.Tensor | None

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        layer = self.layer
        x = tf.cast(x, self.kernel.dtype)
        if isinstance(layer, keras.layers.Dense):
            y = keras.ops.matmul(x, self.kernel)
        elif isinstance(layer, keras.layers.DepthwiseConv2D):
            y = keras.ops.depthwise_conv(
                x,
                self.kernel,
                strides=layer.strides,
                padding=layer.padding,
                data_format=layer.data_format,
                dilation_rate=layer.dilation_rate,
            )
        else:
            y = layer.convolution_op(x, self.kernel)
        if self.bias is not None:
            # Not an addition, which is not fused with what is before it.
            y = tf.nn.bias_add(y, self.bias)
        return layer.activation(y) if layer.activation else y


# Plain Python, also while a graph is traced.
@tf.autograph.experimental.do_not_convert
def _plan_of(model: keras.Model) -> dict[int, Callable]:
    """Returns what is called instead of a layer, by the layer's identity."""
    plan: dict[int, Callable] = {}
    calls = list(_calls_of(model, set()))
    uses = collections.Counter(id(layer) for layer, _ in calls)
    for layer, followers in calls:
        if _compat.has_graph(layer):
            plan[id(layer)] = _Shell(layer, plan)
        elif _is_affine(layer):
            norm = followers[0] if len(followers) == 1 else None
            # Another use of either would get what is meant for this one.
            once = uses[id(layer)] == uses[id(norm)] == 1
            if once and _is_norm(norm) and _fit(layer, norm):
                plan[id(layer)] = _identity
                plan[id(norm)] = _Affine(layer, *_folded(layer, norm))
            else:
                plan[id(layer)] = _Affine(layer, *_plain(layer))
    return plan


def _calls_of(
    model: keras.Model, seen: set[int]
) -> Iterator[tuple[Any, list[Any]]]:
    """Yields the calls in the graph of a model and of the models in it."""
    seen.add(id(model))
    for layer, followers in _compat.calls_of(model):
        yield layer, followers
        if _compat.has_graph(layer) and id(layer) not in seen:
            yield from _calls_of(layer, seen)


def _identity(x: tf.Tensor) -> tf.Tensor:
    return x


def _is_affine(layer: Any) -> bool:
    """Whether a layer is one whose operation is known here."""
    kinds = (
        keras.layers.Conv2D,
        keras.layers.DepthwiseConv2D,
        keras.layers.Dense,
    )
    if not any(does_as(layer, kind) for kind in kinds):
        return False
    if getattr(layer, "lora_enabled", False) or not layer.built:
        return False
    return (
        _computes_plainly(layer)
        and getattr(layer, "data_format", "channels_last") == "channels_last"
        and getattr(layer, "groups", 1) == 1
    )


def _is_norm(layer: Any) -> bool:
    return (
        does_as(layer, keras.layers.BatchNormalization)
        and _computes_plainly(layer)
        and layer.axis in (-1, 3)
    )


def _fit(layer: keras.Layer, norm: keras.Layer) -> bool:
    """Whether a normalisation can be merged into the layer before it."""
    return (
        not isinstance(layer, keras.layers.Dense)
        and layer.activation in (None, keras.activations.linear)
        and layer.compute_dtype == norm.compute_dtype
    )


def _computes_plainly(layer: keras.Layer) -> bool:
    return (
        layer.quantization_mode is None
        and layer.compute_dtype in _DTYPES
        and layer.autocast
    )


def _plain(layer: keras.Layer) -> tuple[tf.Tensor, tf.Tensor | None]:
    """A layer's kernel and bias, in the type that it computes in."""
    kernel = tf.cast(layer.kernel.value, layer.compute_dtype)
    if layer.bias is None:
        return kernel, None
    return kernel, tf.cast(layer.bias.value, layer.compute_dtype)


def _folded(
    layer: keras.Layer, norm: keras.Layer
) -> tuple[tf.Tensor, tf.Tensor]:
    """Kernel and bias with a normalisation in them.

    Computed in the type of the weights, and rounded once.
    """
    kernel = tf.convert_to_tensor(layer.kernel.value)
    mean = tf.convert_to_tensor(norm.moving_mean.value)
    inv = tf.math.rsqrt(norm.moving_variance.value + norm.epsilon)
    if norm.scale:
        inv *= norm.gamma.value
    if layer.bias is not None:
        mean -= tf.convert_to_tensor(layer.bias.value)
    bias = -mean * inv
    if norm.center:
        bias += norm.beta.value
    # The last axes of the kernel: filters, or channels and their multiplier.
    scale = inv
    if isinstance(layer, keras.layers.DepthwiseConv2D):
        scale = tf.reshape(inv, kernel.shape[-2:])
    dtype = layer.compute_dtype
    return tf.cast(kernel * scale, dtype), tf.cast(bias, dtype)
