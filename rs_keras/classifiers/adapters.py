"""Adapters: any classifier as a function from images to logits."""

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
from operator import is_
from typing import Any

import keras
import tensorflow as tf

from rs_keras._checks import check_sigma
from rs_keras.classifiers.folding import folded
from rs_keras.classifiers.graphs import ConcreteFunction
from rs_keras.classifiers.outputs import last_activations
from rs_keras.classifiers.outputs import with_logits

Logits = Callable[[tf.Tensor], tf.Tensor]


def as_logits(model: Any, num_classes: int | None = None) -> Logits:
    """Returns `model` as a function of tensors, in inference mode.

    Args:
        model: A Keras model, a loaded SavedModel, or a callable made of
            TensorFlow operations; from images [m, H, W, C] to logits
            [m, num_classes]. Of a Keras model's last layer see `with_logits`.
        num_classes: 2 for a model with one output, the logit of class 1.

    Raises:
        ValueError: If `model` cannot be called, or has several outputs.
    """
    if isinstance(model, keras.Model):
        return _KerasLogits(model, num_classes)
    if callable(model):
        return lambda images: _only_output(model(images), num_classes)
    if getattr(model, "signatures", None):
        signature = model.signatures.get("serving_default")
        if signature is not None:
            return lambda images: _only_output(signature(images), num_classes)
    raise ValueError(
        "`model` must be a Keras model, a SavedModel with a "
        "`serving_default` signature, or a function from images to logits. "
        f"Received: {type(model).__name__}"
    )


def prepared(logits: Logits) -> Logits:
    """Returns a classifier whose weights are made ready now, for a loop.

    What depends on the weights alone is then computed once, before the loop,
    and not in each of its passes.

    Args:
        logits: As `as_logits` returns it, or any function of images.

    Example:

    >>> import tensorflow as tf
    >>> from rs_keras import models
    >>> from rs_keras.classifiers.adapters import as_logits, prepared
    >>> prepared(as_logits(models.lenet()))(tf.zeros([2, 28, 28, 1])).shape
    TensorShape([2, 10])
    """
    prepare = getattr(logits, "prepared", None)
    return logits if prepare is None else prepare()


class _KerasLogits:
    """A Keras model's logits, whatever its last layer is by now."""

    def __init__(self, model: keras.Model, num_classes: int | None) -> None:
        self.model = model
        self.num_classes = num_classes
        self._seen: list[Any] = []
        self._made = model
        # Several outputs are told of now.
        self._network()

    def __call__(self, images: tf.Tensor) -> tf.Tensor:
        if isinstance(self.model, keras.Sequential) and not self.model.built:
            # It has no outputs before its first call.
            self.model.build([None, *images.shape[1:]])
        return self.prepared()(tf.convert_to_tensor(images))

    def prepared(self) -> Logits:
        """Returns the function, with the folded weights computed now."""
        network = folded(self._network())
        return lambda images: _only_output(network(images), self.num_classes)

    @tf.autograph.experimental.do_not_convert
    def _network(self) -> keras.Model:
        # A model that is made for its logits is made once, but for edits.
        now = last_activations(self.model)
        same = len(now) == len(self._seen) and all(map(is_, now, self._seen))
        if not same:
            self._made = with_logits(self.model, self.num_classes)
            self._seen = now
        return self._made


def _only_output(outputs: Any, num_classes: int | None) -> tf.Tensor:
    """Returns one tensor of logits, of a dict or list with one, too."""
    if isinstance(outputs, dict | list | tuple):
        if len(outputs) != 1:
            told = (
                sorted(outputs) if isinstance(outputs, dict) else len(outputs)
            )
            raise ValueError(
                "`model` must return one tensor, the logits. "
                f"Received: outputs {told}"
            )
        values = outputs.values() if isinstance(outputs, dict) else outputs
        (outputs,) = values
    shape: Any = getattr(outputs, "shape", ())
    if num_classes == 2 and len(shape) == 2 and shape[-1] == 1:
        return tf.concat([tf.zeros_like(outputs), outputs], -1)
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
    shape = input_shape(network_of(model))
    if not isinstance(shape, tuple) or len(shape) != 4:
        return None
    batch, *sizes, channels = shape
    # A Sequential model without an Input tells what its first call had.
    return (*(None if batch else size for size in sizes), channels)


def input_shape(model: Any) -> Any:
    """Returns the shape of a model's input with its batch, as the model has it.

    None for a model that does not tell; a list for a model with other inputs
    than one batch.
    """
    shape = getattr(model, "input_shape", None)
    if isinstance(shape, dict | list) and len(shape) == 1:
        [shape] = shape.values() if isinstance(shape, dict) else shape
    signatures = getattr(model, "signatures", None) or {}
    if shape is None and "serving_default" in signatures:
        signature = signatures["serving_default"]
        specs = list(signature.structured_input_signature[1].values())
        if len(specs) == 1 and specs[0].shape.rank is not None:
            shape = tuple(specs[0].shape)
    return shape


def class_count(model: Any) -> int | None:
    """Returns how many classes a classifier tells apart, > 1.

    Args:
        model: A Keras model, a trainer, or a classifier with `num_classes`.

    Returns:
        None for a model that does not tell, as one with a single output.

    Example:

    >>> from rs_keras import models
    >>> from rs_keras.classifiers.adapters import class_count
    >>> class_count(models.lenet()), class_count(lambda images: images)
    (10, None)
    """
    network = network_of(model)
    count = getattr(network, "num_classes", None)
    if count is None:
        shape = getattr(network, "output_shape", None)
        count = shape[-1] if isinstance(shape, tuple) and shape else None
    return count if isinstance(count, int) and count > 1 else None


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
        RuntimeError,
    ) as error:
        # AutoGraph puts a trace of the user's code before the error itself,
        # and NumPy's names get advice that would not help here.
        told = str(error).strip().rpartition("\n\n")[2].lstrip()
        told = told.partition("\n")[0]
        raise ValueError(
            "`model` must turn images of shape "
            f"{list(image_shape)} into logits with TensorFlow operations; a "
            "function of NumPy arrays or of another framework goes through "
            "`rs_keras.classifiers.from_numpy(function, num_classes)`. "
            f"It failed: {told or type(error).__name__}"
        ) from error


def count_classes(traced: ConcreteFunction, num_classes: int | None) -> int:
    """Returns the number of columns of a traced classifier's logits, checked.

    Raises:
        ValueError: If the output is not a matrix with one row per image, has
            fewer than two columns, or another number than `num_classes`.
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
            "`model` must tell at least two classes apart (one logit a class; "
            "with num_classes=2, one logit is that of class 1). "
            f"Received: outputs={columns}"
        )
    return int(columns)
