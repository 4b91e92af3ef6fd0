"""The floating-point type that a model computes in, and copies in another."""

from typing import Any

import keras

from rs_keras import _compat
from rs_keras._checks import check_choice
from rs_keras.classifiers.adapters import network_of
from rs_keras.classifiers.adapters import networks_of

# All that Keras has, from narrow to wide; those of the same width in an order,
# so that there is one.
DTYPES = (
    *("awq", "gptq", "int4", "int8", "float8"),
    *("bfloat16", "float16", "float32", "float64"),
)

_POLICIES = {
    "float32": "float32",
    "bfloat16": "mixed_bfloat16",
    "float16": "mixed_float16",
}


def compute_dtype(model: Any) -> str:
    """Returns the type that a model computes in: that of its narrowest layer.

    Args:
        model: As in `adapters.as_logits`. Functions and SavedModels do not
            tell, and are taken to compute in float32, the type of the images.

    Returns:
        Such as "float32"; "bfloat16" for a model of the policy
        "mixed_bfloat16", whose logits are float32 all the same; "int8" for one
        that is quantised.

    Example:

    >>> import keras
    >>> from rs_keras.classifiers.precision import compute_dtype
    >>> layers = [keras.Input([4, 4, 1]), keras.layers.Flatten(),
    ...           keras.layers.Dense(4, dtype="mixed_bfloat16"),
    ...           keras.layers.Dense(2, dtype="float32")]
    >>> compute_dtype(keras.Sequential(layers))
    'bfloat16'
    """

    dtypes = [
        layer.quantization_mode or layer.compute_dtype
        for network in networks_of(model)
        for layer in _compat.flat_layers(network)
        # A Functional model hands on what it is given; others cast it first.
        if not isinstance(layer, keras.Model) or _compat.casts_inputs(layer)
        if not isinstance(layer, keras.layers.InputLayer)
        if layer.quantization_mode or "float" in layer.compute_dtype
    ]

    def width(name: str) -> tuple[int, str]:
        return DTYPES.index(name) if name in DTYPES else -1, name

    return min(dtypes, key=width, default="float32")


def computing_in(model: Any, dtype: str) -> Any:
    """Returns a model that computes in `dtype`, with the weights of another.

    Args:
        model: A Sequential or Functional model, or a trainer of one. Any other
            if it computes in `dtype` already.
        dtype: "float32", "bfloat16" or "float16".

    Returns:
        The model itself if `dtype` is its `compute_dtype`; otherwise a copy,
        which training the model on does not reach. In a narrower type all
        layers of the copy compute in it, the last one, too.

    Raises:
        ValueError: For another type, or a model that cannot be copied so.

    Example:

    >>> from rs_keras import models
    >>> from rs_keras.classifiers.precision import compute_dtype
    >>> from rs_keras.classifiers.precision import computing_in
    >>> short = computing_in(models.lenet(), "bfloat16")
    >>> compute_dtype(short), compute_dtype(computing_in(short, "float32"))
    ('bfloat16', 'float32')
    """
    if dtype == compute_dtype(model):
        return model
    policy = _POLICIES[check_choice("dtype", dtype, _POLICIES)]
    network = network_of(model)
    if not isinstance(network, keras.Model):
        raise ValueError(
            "`dtype` needs a Keras model, whose layers can be told to compute "
            f"in it. Received: model of type {type(model).__name__}"
        )

    if isinstance(network, keras.Sequential) and not network.built:
        raise ValueError(
            "`model` must have its weights before `dtype` can copy them: call "
            "it on images, or give it a keras.Input. Received: "
            f"{type(network).__name__} {network.name!r}, which is not built"
        )

    def recast(layer: keras.Layer) -> keras.Layer:
        if isinstance(layer, keras.layers.InputLayer):
            return layer.__class__.from_config(layer.get_config())
        config = _with_policy(layer.get_config(), policy)
        return layer.__class__.from_config(config)

    try:
        copy = keras.models.clone_model(
            network, clone_function=recast, recursive=True
        )
        for layer in _compat.flat_layers(copy):
            if isinstance(layer, keras.Model):
                layer.dtype_policy = policy
        _compat.copy_weights(copy, network)
    except (ValueError, TypeError, NotImplementedError) as error:
        raise ValueError(
            "`dtype` needs a Sequential or Functional model, whose layers can "
            f"be cloned. Received: {type(network).__name__}, which failed: "
            f"{error}"
        ) from error
    narrowest = compute_dtype(copy)
    if narrowest != dtype:
        raise ValueError(
            "`dtype` must be a type that every layer can compute in. Some "
            f"layers of {type(network).__name__} {network.name!r} always "
            f"compute in {narrowest}. Received: dtype={dtype!r}"
        )
    return copy


def _with_policy(config: dict[str, Any], policy: str) -> dict[str, Any]:
    """Returns a layer's configuration, and of layers in it, in a policy."""
    changed = dict(config)
    for key, value in config.items():
        if key == "dtype":
            changed[key] = policy
        elif isinstance(value, dict):
            is_input = value.get("class_name") == "InputLayer"
            changed[key] = value if is_input else _with_policy(value, policy)
    return changed
