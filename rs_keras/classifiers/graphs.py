"""Traced functions: the operations they run, and a hash of their structure."""

import functools
import hashlib
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

# What tf.function traces: TensorFlow ships no types.
ConcreteFunction = Any

# Python code, which only the process that built the graph can run.
PYTHON_OPS = ("PyFunc", "PyFuncStateless", "EagerPyFunc")

# Attributes that only hold names.
_NAMES = ("container", "debug_name", "shared_name", "token")


def operations(traced: ConcreteFunction) -> Iterator[Any]:
    """Yields the nodes of a traced function, and of all functions it calls.

    The bodies of conditionals and loops are such functions.

    Args:
        traced: A concrete function.

    Yields:
        Each `NodeDef` once.

    Example:

    >>> import tensorflow as tf
    >>> from rs_keras.classifiers.graphs import operations
    >>> inner = tf.function(lambda x: tf.nn.relu(x))
    >>> outer = tf.function(lambda x: inner(x))
    >>> traced = outer.get_concrete_function(tf.TensorSpec([2]))
    >>> "Relu" in [node.op for node in operations(traced)]
    True
    """
    graph = traced.graph.as_graph_def()
    functions = {part.signature.name: part for part in graph.library.function}
    waiting = [graph.node]
    while waiting:
        for node in waiting.pop():
            yield node
            for value in node.attr.values():
                for called in _functions(value):
                    # Removed: each body is walked once.
                    function = functions.pop(called.name, None)
                    if function is not None:
                        waiting.append(function.node_def)


def structure(traced: ConcreteFunction) -> str:
    """Returns a hash of a traced function's operations and their wiring.

    Of its constants, too, but not of its variables nor of any name: the same
    code, traced again, has the same hash.

    Args:
        traced: A concrete function.

    Returns:
        64 hexadecimal digits.

    Example:

    >>> import tensorflow as tf
    >>> from rs_keras.classifiers.graphs import structure
    >>> def traced(factor):
    ...     return tf.function(lambda x: factor * x).get_concrete_function(
    ...         tf.TensorSpec([2]))
    >>> structure(traced(2.0)) == structure(traced(2.0))
    True
    >>> structure(traced(2.0)) == structure(traced(3.0))
    False
    """
    graph = traced.graph.as_graph_def()
    functions = {part.signature.name: part for part in graph.library.function}

    @functools.cache
    def of_function(name: str) -> str:
        called = functions[name]
        arguments = [arg.name for arg in called.signature.input_arg]
        returned = [called.ret[arg.name] for arg in called.signature.output_arg]
        return _wired(arguments, called.node_def, returned, of_function)

    returned = [tensor.name for tensor in traced.outputs]
    return _wired([], graph.node, returned, of_function)


def is_same(first: ConcreteFunction, second: ConcreteFunction) -> bool:
    """Whether two traced functions do the same with the same variables.

    Args:
        first: A concrete function.
        second: Another one.

    Example:

    >>> import tensorflow as tf
    >>> from rs_keras.classifiers.graphs import is_same
    >>> weight = tf.Variable(2.0)
    >>> def traced(function):
    ...     return tf.function(function).get_concrete_function(
    ...         tf.TensorSpec([2]))
    >>> one, other = traced(lambda x: weight * x), traced(lambda x: 2.0 * x)
    >>> is_same(one, traced(lambda x: weight * x)), is_same(one, other)
    (True, False)
    """
    inputs, others = first.captured_inputs, second.captured_inputs
    return (
        len(inputs) == len(others)
        and all(map(_is_same_tensor, inputs, others))
        and structure(first) == structure(second)
    )


def _is_same_tensor(first: tf.Tensor, second: tf.Tensor) -> bool:
    if first is second or first.dtype != second.dtype:
        return first is second
    if first.dtype in (tf.resource, tf.variant):
        return False
    return np.array_equal(first.numpy(), second.numpy())


def _wired(
    arguments: Sequence[str],
    nodes: Sequence[Any],
    returned: Sequence[str],
    of_function: Callable[[str], str],
) -> str:
    """Returns a hash of operations and of what each takes, by number."""
    names = [*arguments, *(node.name for node in nodes)]
    number = {name: str(place) for place, name in enumerate(names)}

    def source(tensor: str) -> str:
        name, *output = tensor.lstrip("^").split(":")
        return ":".join([number[name], *output])

    digest = hashlib.sha256()
    for node in nodes:
        digest.update(_encode(node))
        digest.update(",".join(map(source, node.input)).encode())
        for _, value in sorted(node.attr.items()):
            for called in _functions(value):
                digest.update(of_function(called.name).encode())
    digest.update(",".join(map(source, returned)).encode())
    return digest.hexdigest()


def _encode(node: Any) -> bytes:
    """Returns an operation with its attributes, constants among them."""
    return node.op.encode() + b"".join(
        key.encode() + value.SerializeToString(deterministic=True)
        for key, value in sorted(node.attr.items())
        if not (key.startswith("_") or key in _NAMES or _functions(value))
    )


def _functions(value: Any) -> list[Any]:
    """Returns the functions that an attribute names."""
    if value.WhichOneof("value") == "func":
        return [value.func]
    return list(value.list.func)
