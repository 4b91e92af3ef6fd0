"""Any classifier as a function from images to logits."""

import contextlib
import hashlib
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from rs_keras import _compat
from rs_keras._checks import check_choice
from rs_keras._checks import check_positive
from rs_keras.certification.sampling import Logits
from rs_keras.classifiers.graphs import ConcreteFunction


def as_logits(model: Any) -> Logits:
    """Returns `model` as a function of tensors, in inference mode.

    Args:
        model: A Keras model, a loaded SavedModel, or a callable made of
            TensorFlow operations; from images [m, H, W, C] to logits
            [m, num_classes].

    Raises:
        ValueError: If `model` cannot be called.
    """
    if isinstance(model, keras.Model):
        return lambda images: model(images, training=False)
    if callable(model):
        return lambda images: _only_output(model(images))
    if getattr(model, "signatures", None):
        signature = model.signatures.get("serving_default")
        if signature is not None:
            return lambda images: _only_output(signature(images))
    raise ValueError(
        "`model` must be a Keras model, a SavedModel with a "
        "`serving_default` signature, or a function from images to logits. "
        f"Received: {type(model).__name__}"
    )


def _only_output(outputs: Any) -> tf.Tensor:
    """Unpacks what SavedModel signatures return: a dict of one tensor."""
    if isinstance(outputs, dict):
        if len(outputs) != 1:
            raise ValueError(
                "`model` must return one tensor, the logits. "
                f"Received: outputs {sorted(outputs)}"
            )
        (outputs,) = outputs.values()
    return outputs


def image_shape(model: Any) -> tuple[int | None, ...] | None:
    """Returns the (H, W, C) that a model takes, None for what may vary.

    Args:
        model: A Keras model, a trainer, or a loaded SavedModel with the
            signature `serving_default`.

    Returns:
        None for a model that does not tell, or has other inputs than one
        batch of images.
    """
    model = network_of(model)
    shape = getattr(model, "input_shape", None)
    signatures = getattr(model, "signatures", None) or {}
    if shape is None and "serving_default" in signatures:
        signature = signatures["serving_default"]
        specs = list(signature.structured_input_signature[1].values())
        if len(specs) == 1 and specs[0].shape.rank is not None:
            shape = tuple(specs[0].shape)
    if not isinstance(shape, tuple) or len(shape) != 4:
        return None
    batch, *sizes, channels = shape
    # A Sequential model without an Input tells what its first call had.
    return (*(None if batch else size for size in sizes), channels)


def network_of(model: Any) -> Any:
    """Returns the network that a trainer trains; any other model as it is.

    A trainer is a thin shell around its network. Another model with a `model`
    inside may do more than that: it is a classifier of its own.
    """
    return model.model if hasattr(model, "losses_of") else model


def sigma_for(model: Any, sigma: float | None, default: float = 0.5) -> float:
    """Returns the sigma to smooth a model with.

    Args:
        model: As in `as_logits`, or a trainer, which knows its noise.
        sigma: > 0; None for the trainer's, or `default` for any other model.
        default: See `sigma`.

    Raises:
        ValueError: If `sigma` is not > 0, or not the trainer's. (A trainer
            with a sigma for each example has no single one to differ from.)

    Example:

    >>> import keras
    >>> from rs_keras.classifiers.adapters import sigma_for
    >>> from rs_keras.trainers import Gaussian
    >>> model = keras.Sequential([keras.Input([4, 4, 1]),
    ...                           keras.layers.Flatten(),
    ...                           keras.layers.Dense(2)])
    >>> sigma_for(model, None), sigma_for(Gaussian(model, sigma=0.25), None)
    (0.5, 0.25)
    """
    is_trainer = hasattr(model, "losses_of")
    if sigma is None:
        return getattr(model, "sigma0", default) if is_trainer else default
    sigma = check_positive("sigma", sigma)
    trained = getattr(model, "sigma", None) if is_trainer else None
    if isinstance(trained, float | int) and sigma != trained:
        raise ValueError(
            "`sigma` must be the trainer's where `model` is a trainer: leave "
            "it out, or certify `trainer.model` at another. Received: "
            f"sigma={sigma}, trainer's sigma={trained}"
        )
    return sigma


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
        model: As in `as_logits`. Functions and SavedModels do not tell, and
            are taken to compute in float32, the type of the images.

    Returns:
        Such as "float32"; "bfloat16" for a model of the policy
        "mixed_bfloat16", whose logits are float32 all the same; "int8" for one
        that is quantised.

    Example:

    >>> import keras
    >>> from rs_keras.classifiers.adapters import compute_dtype
    >>> layers = [keras.Input([4, 4, 1]), keras.layers.Flatten(),
    ...           keras.layers.Dense(4, dtype="mixed_bfloat16"),
    ...           keras.layers.Dense(2, dtype="float32")]
    >>> compute_dtype(keras.Sequential(layers))
    'bfloat16'
    """

    def width(name: str) -> tuple[int, str]:
        return DTYPES.index(name) if name in DTYPES else -1, name

    return min(_compute_dtypes(model), key=width, default="float32")


def _compute_dtypes(model: Any) -> Iterator[str]:
    network = network_of(model)
    if not isinstance(network, keras.Model):
        for part in getattr(network, "parts", ()):
            yield from _compute_dtypes(part)
        return
    for layer in _compat.flat_layers(network):
        # A Functional model hands on what it is given; others cast it first.
        if isinstance(layer, keras.Model) and not _compat.casts_inputs(layer):
            continue
        if isinstance(layer, keras.layers.InputLayer):
            continue
        if layer.quantization_mode is not None:
            yield layer.quantization_mode
        elif "float" in layer.compute_dtype:
            yield layer.compute_dtype


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
    >>> from rs_keras.classifiers.adapters import compute_dtype
    >>> from rs_keras.classifiers.adapters import computing_in
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
        copy.set_weights(network.get_weights())
    except (ValueError, TypeError, NotImplementedError) as error:
        raise ValueError(
            "`dtype` needs a Sequential or Functional model, whose layers can "
            f"be cloned. Received: {type(network).__name__}, which failed: "
            f"{error}"
        ) from error
    found = compute_dtype(copy)
    if found != dtype:
        raise ValueError(
            f"`dtype` must be one that all layers can be told to compute in: "
            f"some of {type(network).__name__} {network.name!r} compute in "
            f"{found} by themselves. Received: dtype={dtype!r}"
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


def traced_classifier(
    logits: Logits, image_shape: Sequence[int]
) -> ConcreteFunction:
    """Returns a classifier as a traced function of float32 [m, H, W, C].

    Raises:
        ValueError: If it is not made of TensorFlow operations, or cannot take
            images of this shape.
    """
    spec = tf.TensorSpec([None, *image_shape], tf.float32)
    try:
        return tf.function(logits).get_concrete_function(spec)
    except (
        AttributeError,
        TypeError,
        ValueError,
        NotImplementedError,
    ) as error:
        raise ValueError(
            "`model` must turn images of shape "
            f"{list(image_shape)} into logits with TensorFlow operations. "
            f"It failed: {error}"
        ) from error


def count_classes(traced: ConcreteFunction, num_classes: int | None) -> int:
    """Returns the number of columns of a traced classifier's logits, checked.

    Raises:
        ValueError: If the output is no matrix with a row an image, has fewer
            than two columns, or another number than `num_classes`.
    """
    output = traced.structured_outputs
    shape = getattr(output, "shape", None)
    if shape is None or shape.rank != 2 or not output.dtype.is_floating:
        raise ValueError(
            "`model` must return one floating-point matrix, [batch, classes]. "
            f"Received: {output}"
        )
    found = shape[1] or num_classes
    if found is None:
        raise ValueError(
            "`num_classes` must be given for a model whose output does not "
            "tell how many classes there are. Received: num_classes=None"
        )
    if num_classes is not None and found != num_classes:
        raise ValueError(
            "`num_classes` must be the number of the model's outputs. "
            f"Received: num_classes={num_classes}, outputs={found}"
        )
    if found < 2:
        raise ValueError(
            "`model` must tell at least two classes apart (one logit a class). "
            f"Received: outputs={found}"
        )
    return int(found)


def fingerprint(model: Any) -> str | None:
    """Returns a hash of a model's weights: which classifier it is.

    Of a Keras model also of the plain numbers in its layers, such as those of
    a normalisation; not of its other variables: the states of random seeds and
    metrics are others at each load. What else its layers do is not seen.

    Args:
        model: A Keras model, a loaded SavedModel or any callable; or one that
            is served elsewhere and tells its `fingerprint`.

    Returns:
        32 hexadecimal digits, or None where no weights can be found.
    """
    told = getattr(model, "fingerprint", None)
    if isinstance(told, str):
        return told
    variables = _weights(model)
    if not variables:
        return None
    digest = hashlib.blake2b(digest_size=16)
    for variable in variables:
        array = np.ascontiguousarray(variable.numpy())
        digest.update(f"{array.dtype}{array.shape}".encode())
        digest.update(array.tobytes())
    for number in _plain_numbers(model):
        digest.update(number.encode())
    return digest.hexdigest()


def _weights(model: Any) -> list[Any]:
    if isinstance(model, keras.Layer):
        return model.weights
    parts = getattr(model, "parts", None)
    if isinstance(parts, tuple):
        return [weight for part in parts for weight in _weights(part)]
    return list(getattr(model, "variables", None) or ())


def _plain_numbers(model: Any) -> Iterator[str]:
    """What is no weight in a Keras model's layers: fractions, but not sizes.

    Sizes show in the weights' shapes, zeros are what is not set, and releases
    of Keras differ in names and flags.
    """
    network = network_of(model)
    if not isinstance(network, keras.Model):
        parts = getattr(network, "parts", None)
        for part in parts if isinstance(parts, tuple) else ():
            yield from _plain_numbers(part)
        return
    scaling = keras.layers.Rescaling, keras.layers.Normalization
    for place, layer in enumerate(_compat.flat_layers(network)):
        if isinstance(layer, keras.Model):
            continue
        kinds = (float, int) if isinstance(layer, scaling) else (float,)
        for key, value in _config_of(layer):
            found = np.ravel(value).tolist() if _is_numbers(value) else []
            if any(isinstance(one, kinds) and one for one in found):
                yield f"{place} {key} {[float(one) for one in found]}"


def _config_of(layer: keras.Layer) -> list[tuple[str, Any]]:
    # Others' code, which may fail in any way: a model need not be one that can
    # be saved.
    with contextlib.suppress(Exception):
        return sorted(layer.get_config().items(), key=lambda one: str(one[0]))
    return []


def _is_numbers(value: Any) -> bool:
    with contextlib.suppress(ValueError, TypeError, NotImplementedError):
        return np.asarray(value).dtype.kind in "if"
    return False
