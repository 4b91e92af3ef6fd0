"""The classifier of an export: image shape, variables, hash, forbidden ops."""

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from rs_keras._compat import must_be_compiled_by_xla
from rs_keras.classifiers.adapters import input_shape
from rs_keras.classifiers.adapters import network_of
from rs_keras.classifiers.graphs import PYTHON_OPS
from rs_keras.classifiers.graphs import ConcreteFunction
from rs_keras.classifiers.graphs import operations
from rs_keras.classifiers.graphs import structure


def image_shape_of(
    model: Any, given: Sequence[int] | None = None
) -> tuple[int, int, int]:
    """Returns (H, W, C), by default that of the model.

    Args:
        model: A Keras model, a loaded SavedModel or a function.
        given: The user's shape; required if the model has none.

    Raises:
        ValueError: If the shape is unknown, not three positive numbers, or
            differs from that of the model.
    """
    own_shape = _input_shape(model) or _input_shape(network_of(model))
    if given is None:
        if own_shape is None:
            raise ValueError(
                "`image_shape` must be given for a model that does not tell "
                "the height, width and channels of its images. "
                "Received: image_shape=None"
            )
        return own_shape
    shape = _three_sizes(given)
    if own_shape not in (None, shape):
        raise ValueError(
            f"`image_shape` must be the model's, {own_shape}. "
            f"Received: image_shape={given!r}"
        )
    return shape


def _three_sizes(given: Any) -> tuple[int, int, int]:
    sizes = tuple(given) if isinstance(given, Sequence) else ()
    whole = [isinstance(s, int | np.integer) and s > 0 for s in sizes]
    if len(sizes) != 3 or not all(whole):
        raise ValueError(
            "`image_shape` must be three whole numbers > 0: height, width, "
            f"channels. Received: image_shape={given!r}"
        )
    return int(sizes[0]), int(sizes[1]), int(sizes[2])


def _input_shape(model: Any) -> tuple[int, int, int] | None:
    shape = input_shape(model)
    if shape is None or len(shape) != 4 or not all(shape[1:]):
        return None
    return int(shape[1]), int(shape[2]), int(shape[3])


def variables_of(count: ConcreteFunction) -> list[tf.Variable]:
    """Returns the variables that a traced function reads, as TensorFlow's own.

    A Keras model, once tracked, is restored by a server into copies that its
    graph does not read: "Could not find variable ...". So an export tracks
    these instead, and never the model. In the order of the function's
    captures, which is the same for the same code.
    """
    order = {id(t): i for i, t in enumerate(count.captured_inputs)}
    return sorted(
        count.graph.variables,
        key=lambda variable: order.get(id(variable.handle), len(order)),
    )


def has_other_resources(count: ConcreteFunction) -> bool:
    """Whether a traced function reads resources other than variables."""
    resources = [t for t in count.captured_inputs if t.dtype == tf.resource]
    return len(resources) > len(count.graph.variables)


def classifier_hash(logits: ConcreteFunction) -> str:
    """Returns a SHA-256 of a traced classifier: weights and operations.

    Two exports of the same classifier have the same hash, whatever the names
    of its layers. (Another release of TensorFlow or Keras may trace it
    differently. The contents of lookup tables are not included.)
    """
    digest = hashlib.sha256()
    for variable in variables_of(logits):
        _add(digest, variable.numpy())
    for tensor in logits.captured_inputs:
        if tensor.dtype != tf.resource:
            _add(digest, tensor.numpy())
    digest.update(structure(logits).encode())
    return digest.hexdigest()


def check_servable(count: ConcreteFunction) -> None:
    """Raises for operations that TF Serving cannot run.

    Raises:
        ValueError: If the classifier calls Python code or asks for XLA.
    """
    nodes = list(operations(count))
    for node in nodes:
        if node.op in PYTHON_OPS:
            raise ValueError(
                "`model` must be made of TensorFlow operations to be served. "
                f"Received: Python code ({node.op}), as of tf.py_function or "
                "tf.numpy_function"
            )
    library = count.graph.as_graph_def().library
    attributes = [f.attr for f in library.function]
    attributes += [node.attr for node in nodes]
    if any(map(must_be_compiled_by_xla, attributes)):
        raise ValueError(
            "`model` must not be compiled with XLA to be served: TF Serving "
            "switches it off. Received: a function with jit_compile=True"
        )


def _add(digest: Any, array: Any) -> None:
    digest.update(f"{array.dtype}{list(array.shape)}".encode())
    digest.update(array.tobytes())
