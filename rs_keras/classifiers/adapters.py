"""Adapters: any classifier as a function from images to logits."""

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from rs_keras._checks import check_sigma
from rs_keras.classifiers.graphs import ConcreteFunction

Logits = Callable[[tf.Tensor], tf.Tensor]


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


def networks_of(model: Any) -> Iterator[keras.Model]:
    """Yields the Keras models that a classifier is made of, if it is of any."""
    network = network_of(model)
    parts = getattr(network, "parts", None)
    if isinstance(network, keras.Model):
        yield network
    elif isinstance(parts, tuple):
        for part in parts:
            yield from networks_of(part)


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
    sigma = check_sigma(sigma)
    trained = getattr(model, "sigma", None) if is_trainer else None
    if isinstance(trained, float | int) and sigma != trained:
        raise ValueError(
            "`sigma` must be the trainer's where `model` is a trainer: leave "
            "it out, or certify `trainer.model` at another. Received: "
            f"sigma={sigma}, trainer's sigma={trained}"
        )
    return sigma


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
    if shape is not None and shape.rank is None:
        raise ValueError(
            "`model` must tell the shape of its logits. Received: a tensor of "
            "unknown rank (tf.numpy_function and tf.py_function lose the "
            "shape: set it with logits.set_shape([None, num_classes]))"
        )
    if shape is None or shape.rank != 2 or not output.dtype.is_floating:
        raise ValueError(
            "`model` must return one floating-point matrix, [batch, classes]. "
            f"Received: {output}"
        )
    columns = shape[1] or num_classes
    if columns is None:
        raise ValueError(
            "`num_classes` must be given for a model whose output does not "
            "tell how many classes there are. Received: num_classes=None"
        )
    if num_classes is not None and columns != num_classes:
        raise ValueError(
            "`num_classes` must be the number of the model's outputs. "
            f"Received: num_classes={num_classes}, outputs={columns}"
        )
    if columns < 2:
        raise ValueError(
            "`model` must tell at least two classes apart (one logit a class). "
            f"Received: outputs={columns}"
        )
    return int(columns)
