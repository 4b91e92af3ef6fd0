"""What a Keras model ends in: logits, probabilities, one output or several."""

from typing import Any

import keras
from keras import ops

from rs_keras import _compat

_PROBABILITIES = ("softmax", "sigmoid")


@keras.saving.register_keras_serializable("rs_keras")
class WithoutActivation(keras.layers.Layer):
    """A dense layer's product and bias, without its activation.

    Args:
        layer: The `Dense`, whose weights it shares.

    Example:

    >>> import keras
    >>> from rs_keras.classifiers.outputs import WithoutActivation
    >>> dense = keras.layers.Dense(2, "softmax", kernel_initializer="ones")
    >>> WithoutActivation(dense)(keras.ops.ones([1, 3])).numpy().tolist()
    [[3.0, 3.0]]
    """

    def __init__(self, layer: keras.layers.Dense, **kwargs: Any) -> None:
        kwargs.setdefault("dtype", layer.dtype_policy)
        super().__init__(**kwargs)
        self.layer = layer

    def build(self, input_shape: Any) -> None:
        """Makes the weights of a layer that has none yet."""
        if not self.layer.built:
            self.layer.build(input_shape)

    def call(self, inputs: Any) -> Any:
        """Returns inputs @ kernel + bias."""
        logits = ops.matmul(inputs, self.layer.kernel)
        return logits if self.layer.bias is None else logits + self.layer.bias

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments of `__init__`, ready for JSON."""
        layer = keras.saving.serialize_keras_object(self.layer)
        return {**super().get_config(), "layer": layer}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "WithoutActivation":
        """Returns the layer that `get_config` described."""
        layer = keras.saving.deserialize_keras_object(config.pop("layer"))
        return cls(layer, **config)


@keras.saving.register_keras_serializable("rs_keras")
class TwoLogits(keras.layers.Layer):
    """Logits (0, z) of two classes: softmax gives class 1 sigmoid(z).

    Example:

    >>> import keras
    >>> from rs_keras.classifiers.outputs import TwoLogits
    >>> TwoLogits()(keras.ops.ones([1, 1])).numpy().tolist()
    [[0.0, 1.0]]
    """

    def call(self, inputs: Any) -> Any:
        """Returns [B, 2] for [B, 1]."""
        return ops.concatenate([ops.zeros_like(inputs), inputs], axis=-1)


def with_logits(model: Any, num_classes: int | None = None) -> Any:
    """Returns a Keras model that ends in one logit a class.

    Trainers and certifiers call it on every model that they are given. What a
    Sequential or Functional model ends in is told by its last layer:

    - a softmax (or sigmoids) over the classes is left out; the largest logit
      is the largest probability, and where probabilities round to a tie, logits
      tell;
    - one sigmoid, the probability p of class 1, becomes the logits (0, z) with
      p = sigmoid(z);
    - one output without activation is the logit of class 1, if `num_classes`
      is 2;
    - a dict or a list of one output is that output.

    Args:
        model: A Keras model; anything else is returned as it is.
        num_classes: See above.

    Returns:
        `model`, where it gives logits already or does not tell (a subclassed
        model); otherwise another model with the same layers and weights, so
        that training one of them trains both.

    Raises:
        ValueError: If it has several inputs or outputs, or one output of which
            nothing says that it stands for two classes.

    Example:

    >>> import keras
    >>> import numpy as np
    >>> from rs_keras.classifiers import with_logits
    >>> model = keras.Sequential([
    ...     keras.Input([4, 4, 1]), keras.layers.Flatten(),
    ...     keras.layers.Dense(3, activation="softmax")])
    >>> images = np.ones([1, 4, 4, 1], np.float32)
    >>> logits = with_logits(model)(images)
    >>> bool(np.allclose(keras.ops.softmax(logits), model(images)))
    True
    """
    if _compat.functional_of(model) is None:
        return model
    _check_single(
        "inputs", "batch of images", _names(model, "input"), model.inputs
    )
    _check_single(
        "outputs", "matrix of logits", _names(model, "output"), model.outputs
    )
    [tensor] = model.outputs
    logits = _before_activation(tensor)
    if len(logits.shape) == 2 and logits.shape[-1] == 1:
        if logits is tensor and num_classes != 2:
            raise ValueError(
                "`num_classes=2` must be given for a model with one output "
                "without a sigmoid (it is taken for the logit of class 1): to "
                "`Certifier`, or for training "
                "`rs_keras.classifiers.with_logits(model, num_classes=2)`. "
                f"Received: model {model.name!r} with one output, "
                f"num_classes={num_classes}"
            )
        logits = TwoLogits(name="two_logits")(logits)
    plain = not any(
        isinstance(_structure(model, kind), dict | list | tuple)
        for kind in ("input", "output")
    )
    if logits is tensor and plain:
        return model
    return keras.Model(model.inputs[0], logits, name=model.name)


def _structure(model: keras.Model, kind: str) -> Any:
    """Returns the input or output as it is nested: a tensor, a dict, ..."""
    # A Sequential model inside another one gives the other's.
    if isinstance(model, keras.Sequential):
        return getattr(model, f"{kind}s")[0]
    return getattr(model, kind)


def _names(model: keras.Model, kind: str) -> list[str]:
    """Returns the names of inputs or outputs, the keys of a dict first."""
    structure = _structure(model, kind)
    if isinstance(structure, dict):
        return sorted(map(str, structure))
    return list(getattr(model, f"{kind}_names", None) or [])


def _check_single(
    kind: str, wanted: str, names: list[str], tensors: list[Any]
) -> None:
    if len(tensors) != 1:
        told = (
            names if len(names) == len(tensors) else [t.name for t in tensors]
        )
        raise ValueError(
            f"`model` must have one of its {kind} only, a {wanted}: make a "
            "keras.Model of the one that counts. "
            f"Received: {len(tensors)} {kind}, {', '.join(told)}"
        )


def _before_activation(tensor: Any) -> Any:
    """Returns what a softmax or sigmoid at the end is made of."""
    layer, inputs = _compat.producer_of(tensor)
    if isinstance(layer, keras.Model):
        if not _compat.has_graph(layer) or len(inputs) != 1:
            return tensor
        [inner] = layer.outputs
        logits = _before_activation(inner)
        if logits is inner:
            return tensor
        return keras.Model(layer.inputs, logits, name=layer.name)(inputs[0])
    # A softmax under a mask has a second input, or an argument of its own.
    if not ends_in_probabilities(layer) or _compat.is_called_with_more(tensor):
        return tensor
    if isinstance(layer, keras.layers.Dense):
        name = f"{layer.name}_logits"
        return WithoutActivation(layer, name=name)(inputs[0])
    # In the type of the layer that is left out: often float32 for its sake.
    return keras.layers.Activation(
        "linear", dtype=layer.dtype_policy, name=f"{layer.name}_logits"
    )(inputs[0])


def last_activations(model: Any) -> list[Any]:
    """Returns what decides how a model is read: its output and activations.

    Args:
        model: A Keras model.

    Example:

    >>> import keras
    >>> from rs_keras.classifiers.outputs import last_activations
    >>> model = keras.Sequential([
    ...     keras.Input([4]), keras.layers.Dense(2, activation="softmax")])
    >>> last_activations(model)[1] is keras.activations.softmax
    True
    """
    found: list[Any] = []
    while isinstance(model, keras.Model):
        outputs = getattr(model, "outputs", None) or [None]
        found.append(outputs[0])
        if outputs[0] is None:
            break
        model, _ = _compat.producer_of(outputs[0])
    return [*found, getattr(model, "activation", None)]


def for_training(model: Any) -> Any:
    """Returns `with_logits(model)`, or says why a model cannot be trained.

    Args:
        model: A Keras model.

    Raises:
        ValueError: Also for a Sequential model that ends in a softmax and has
            no outputs yet.

    Example:

    >>> import keras
    >>> from rs_keras.classifiers.outputs import for_training
    >>> model = keras.Sequential([
    ...     keras.Input([4]), keras.layers.Dense(2, activation="softmax")])
    >>> for_training(model).layers[-1].name.endswith("_logits")
    True
    """
    layers = getattr(model, "layers", None)
    if layers and not getattr(model, "inputs", None):
        sequential = isinstance(model, keras.Sequential)
        if sequential and ends_in_probabilities(layers[-1]):
            raise ValueError(
                "`model` must begin with a keras.Input where it ends in a "
                "softmax or sigmoid, which is left out in training. Received: "
                f"Sequential model {model.name!r} without inputs"
            )
    return with_logits(model)


def ends_in_probabilities(layer: Any) -> bool:
    """Whether a layer is a softmax or sigmoid that can be left out.

    Args:
        layer: Dense, Activation or Softmax; of others False.

    Example:

    >>> import keras
    >>> from rs_keras.classifiers.outputs import ends_in_probabilities
    >>> ends_in_probabilities(keras.layers.Dense(3, activation="softmax"))
    True
    >>> ends_in_probabilities(keras.layers.Dense(3))
    False
    """
    if does_as(layer, keras.layers.Softmax):
        return layer.axis in (-1, 1)
    if does_as(layer, keras.layers.Dense):
        # A softmax of one number is 1, whatever the number.
        constant = (
            layer.units == 1 and layer.activation is keras.activations.softmax
        )
        # A quantised product is not one of plain matrices.
        plain = not layer.quantization_mode
        return plain and not constant and _is_probability(layer.activation)
    if does_as(layer, keras.layers.Activation):
        return _is_probability(layer.activation)
    return False


def does_as(layer: Any, kind: type[keras.Layer]) -> bool:
    """Whether calling a layer runs the code of a class of Keras.

    Args:
        layer: Any layer.
        kind: One of `keras.layers`.

    Example:

    >>> import keras
    >>> from rs_keras.classifiers.outputs import does_as
    >>> layer = keras.layers.Dense(3)
    >>> does_as(layer, keras.layers.Dense)
    True
    >>> layer.call = lambda inputs: 2 * inputs
    >>> does_as(layer, keras.layers.Dense)
    False
    """
    code = ("__call__", "call", "convolution_op", "kernel")
    if not isinstance(layer, kind) or any(
        getattr(type(layer), name, None) is not getattr(kind, name, None)
        for name in code
    ):
        return False
    # A kernel is an attribute of many layers. Trainers give convolutions
    # another gradient, and say that they compute the same.
    own = [vars(layer).get(name) for name in ("call", "convolution_op")]
    return all(
        method is None or getattr(method, "computes_the_same", False)
        for method in own
    )


def _is_probability(activation: Any) -> bool:
    known = [getattr(keras.activations, name) for name in _PROBABILITIES]
    return activation in known
