"""What a traced classifier depends on: its variables and its constants."""

import hashlib
from typing import Any

import tensorflow as tf

from rs_keras.classifiers.graphs import PYTHON_OPS
from rs_keras.classifiers.graphs import ConcreteFunction as ConcreteFunction
from rs_keras.classifiers.graphs import operations
from rs_keras.classifiers.graphs import structure

_XLA = "_XlaMustCompile"


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
    """Whether a traced function reads more than variables: tables, say."""
    resources = [t for t in count.captured_inputs if t.dtype == tf.resource]
    return len(resources) > len(count.graph.variables)


def classifier_hash(logits: ConcreteFunction) -> str:
    """Returns a SHA-256 of a traced classifier: weights, and what it does.

    Two exports of the same classifier have the same, whatever its layers are
    called. (Another release of TensorFlow or Keras may trace it otherwise; what
    lookup tables hold is not seen.)
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
    """Refuses operations that run here and not in TF Serving.

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
    if any(_XLA in attr and attr[_XLA].b for attr in attributes):
        raise ValueError(
            "`model` must not be compiled with XLA to be served: TF Serving "
            "switches it off. Received: a function with jit_compile=True"
        )


def _add(digest: Any, array: Any) -> None:
    digest.update(f"{array.dtype}{list(array.shape)}".encode())
    digest.update(array.tobytes())
