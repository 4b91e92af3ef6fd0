"""What a traced classifier depends on: its variables and its constants."""

import functools
import hashlib
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

# What tf.function traces: TensorFlow ships no types.
ConcreteFunction = Any

# Python code, which only the process that built the graph can run.
_PYTHON_OPS = ("PyFunc", "PyFuncStateless", "EagerPyFunc")
_XLA = "_XlaMustCompile"

# Attributes that say how something is called.
_NAMES = ("container", "debug_name", "shared_name")


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
    graph = logits.graph.as_graph_def()
    functions = {part.signature.name: part for part in graph.library.function}

    @functools.cache
    def of_function(name: str) -> str:
        called = functions[name]
        arguments = [one.name for one in called.signature.input_arg]
        returned = [called.ret[one.name] for one in called.signature.output_arg]
        return _wired(arguments, called.node_def, returned, of_function)

    returned = [tensor.name for tensor in logits.outputs]
    digest.update(_wired([], graph.node, returned, of_function).encode())
    return digest.hexdigest()


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
        name, *rest = tensor.lstrip("^").split(":")
        return ":".join([number[name], *rest])

    digest = hashlib.sha256()
    for node in nodes:
        digest.update(_told(node))
        digest.update(",".join(map(source, node.input)).encode())
        for _, value in sorted(node.attr.items()):
            for one in _functions(value):
                digest.update(of_function(one.name).encode())
    digest.update(",".join(map(source, returned)).encode())
    return digest.hexdigest()


def _told(node: Any) -> bytes:
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


def check_servable(count: ConcreteFunction) -> None:
    """Refuses operations that run here and not in TF Serving.

    Raises:
        ValueError: If the classifier calls Python code or asks for XLA.
    """
    graph = count.graph.as_graph_def()
    for node in _nodes(graph):
        if node.op in _PYTHON_OPS:
            raise ValueError(
                "`model` must be made of TensorFlow operations to be served. "
                f"Received: Python code ({node.op}), as of tf.py_function or "
                "tf.numpy_function"
            )
    attributes = [f.attr for f in graph.library.function]
    attributes += [node.attr for node in _nodes(graph)]
    if any(_XLA in attr and attr[_XLA].b for attr in attributes):
        raise ValueError(
            "`model` must not be compiled with XLA to be served: TF Serving "
            "switches it off. Received: a function with jit_compile=True"
        )


def _add(digest: Any, array: Any) -> None:
    digest.update(f"{array.dtype}{list(array.shape)}".encode())
    digest.update(array.tobytes())


def _nodes(graph: Any) -> Iterator[Any]:
    yield from graph.node
    for function in graph.library.function:
        yield from function.node_def
