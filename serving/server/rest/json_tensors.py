"""JSON to PredictRequests, and PredictResponses to JSON, as TF Serving does.

A request holds its tensors in rows (`instances`, one element for each row) or
in columns (`inputs`, one tensor for each name), and so does its response.
Bytes are `{"b64": "..."}`.
"""

import base64
import binascii
import json
from collections.abc import Callable
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from rs_keras.serving import tensors
from rs_keras.serving.server.grpc_errors import invalid

_B64 = "b64"
# Strings that are outputs under such a name are bytes.
_BYTES = "_bytes"
# The kinds of NumPy's numbers that JSON values of a type may have.
_KINDS = {"f": "fiu", "i": "iu", "u": "iu", "b": "b"}
# Of a value in an error.
_LONGEST = 200

# From the name of a signature to the TensorInfos of its inputs.
InputsOf = Callable[[str], Mapping[str, Any]]


def fill_request(body: bytes, inputs_of: InputsOf, request: Any) -> bool:
    """Reads the body of a `:predict`.

    Args:
        body: JSON.
        inputs_of: Finds the inputs of a signature.
        request: The `PredictRequest` to fill.

    Returns:
        Whether the tensors came in rows.

    Raises:
        StatusError: INVALID_ARGUMENT that says what is wrong.
    """
    document = _parsed(body)
    name = document.get("signature_name", "")
    if not isinstance(name, str):
        raise invalid("'signature_name' key must be a string value.")
    request.model_spec.signature_name = name
    infos = inputs_of(name)
    if not infos:
        raise invalid(
            f"Failed to get input map for signature: {name or 'DEFAULT'}"
        )
    in_rows, in_columns = "instances" in document, "inputs" in document
    if in_rows and in_columns:
        raise invalid(
            "Not formatted correctly expecting only one of 'inputs' or "
            "'instances' keys to exist"
        )
    if in_rows:
        columns = _columns_of(document["instances"], infos)
    elif in_columns:
        columns = _columns(document["inputs"], infos)
    else:
        raise invalid("Missing 'inputs' or 'instances' key")
    for key, column in columns.items():
        array = _array(column, tf.as_dtype(infos[key].dtype))
        tensors.encode(array, request.inputs[key])
    return in_rows


def response_body(response: Any, in_rows: bool) -> bytes:
    """Writes the body of a response to `:predict`.

    Args:
        response: The `PredictResponse`.
        in_rows: Whether the request came in rows.

    Raises:
        StatusError: INVALID_ARGUMENT if the outputs are not rows.
    """
    columns = {
        name: _values(name, tensors.decode(proto))
        for name, proto in sorted(response.outputs.items())
    }
    if not in_rows:
        (only, *others) = columns.values()
        return _written({"outputs": columns if others else only})
    rows = 0
    for name, column in columns.items():
        if not isinstance(column, list):
            raise invalid(f"Tensor name: {name} has no shape information")
        if rows not in (0, len(column)):
            raise invalid(
                f"Tensor name: {name} has inconsistent batch size: "
                f"{len(column)} expecting: {rows}"
            )
        rows = len(column)
    if len(columns) == 1:
        return _written({"predictions": next(iter(columns.values()))})
    parts = zip(*columns.values(), strict=True)
    predictions = [dict(zip(columns, row, strict=True)) for row in parts]
    return _written({"predictions": predictions})


def error_body(message: str) -> bytes:
    """Writes the body of an error.

    Example:

    >>> from rs_keras.serving.server.rest.json_tensors import error_body
    >>> error_body("Missing model name in request.")
    b'{"error": "Missing model name in request."}'
    """
    return json.dumps({"error": message}).encode()


def _parsed(body: bytes) -> dict[str, Any]:
    if not body:
        raise invalid("JSON Parse error: The document is empty")
    try:
        document = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise invalid(f"JSON Parse error: {error}") from error
    if not isinstance(document, dict):
        raise invalid(f"JSON Value: {_shown(document)} Is not object")
    return document


def _columns_of(rows: Any, infos: Mapping[str, Any]) -> dict[str, Any]:
    """Turns `instances` into columns."""
    if not isinstance(rows, list):
        raise invalid("Expecting 'instances' to be an list/array")
    if not rows:
        raise invalid("No values in 'instances' array")
    objects = [isinstance(row, dict) and not _is_bytes(row) for row in rows]
    if not objects[0] and len(infos) > 1:
        raise invalid(
            "instances is a plain list, but expecting list of objects as "
            "multiple input tensors required as per tensorinfo_map"
        )
    if len(set(objects)) > 1:
        first = "object but got list" if objects[0] else "value/list but got"
        at = objects.index(not objects[0])
        raise invalid(f"Expecting {first} at item {at} of input list")
    if not objects[0]:
        return {next(iter(infos)): rows}
    for at, row in enumerate(rows):
        if row.keys() != infos.keys():
            raise invalid(
                f"Failed to process element: {at} of 'instances' list. JSON "
                f"object: {_shown(row)} keys must be equal to: "
                f"{','.join(sorted(infos))}"
            )
    return {name: [row[name] for row in rows] for name in infos}


def _columns(value: Any, infos: Mapping[str, Any]) -> dict[str, Any]:
    """Reads `inputs`."""
    if isinstance(value, dict) and not _is_bytes(value):
        for name in sorted(infos):
            if name not in value:
                raise invalid(
                    f"Missing named input: {name} in 'inputs' object."
                )
        return {name: value[name] for name in infos}
    if len(infos) > 1:
        raise invalid(
            "inputs is a plain value/list, but expecting an object as multiple "
            "input tensors required as per tensorinfo_map"
        )
    return {next(iter(infos)): value}


def _array(value: Any, dtype: tf.DType) -> np.ndarray:
    if dtype == tf.string:
        return _strings(value)
    kind = np.dtype(dtype.as_numpy_dtype).kind
    try:
        array = np.array(value)
    except ValueError as error:
        raise invalid(
            "Encountered list at unexpected size: the lists of a tensor must "
            "have equal lengths"
        ) from error
    if not array.size:
        array = array.astype(dtype.as_numpy_dtype)
    elif array.dtype.kind not in _KINDS.get(kind, ""):
        raise _type_error(value, dtype)
    with np.errstate(over="ignore"):
        cast = array.astype(dtype.as_numpy_dtype)
    lost = (
        ~np.isfinite(cast) & np.isfinite(array)
        if kind == "f"
        else (cast != array)
    )
    if lost.any():
        raise invalid(
            f"Cannot convert JSON value: {array[lost].flat[0]} to "
            f"{dtype.name} without loss of precision."
        )
    return cast


def _strings(value: Any) -> np.ndarray:
    shape, level = [], value
    while isinstance(level, list):
        shape.append(len(level))
        if not level:
            break
        level = level[0]
    leaves: list[bytes] = []
    _collect(value, shape, leaves)
    array = np.empty(len(leaves), object)
    array[:] = leaves
    return array.reshape(shape)


def _collect(value: Any, shape: list[int], leaves: list[bytes]) -> None:
    """Adds the strings of a nested list of this shape to `leaves`."""
    if isinstance(value, list) != bool(shape):
        raise invalid(f"JSON Value: {_shown(value)} found at incorrect level")
    if not isinstance(value, list):
        leaves.append(_string(value))
        return
    if len(value) != shape[0]:
        raise invalid(
            f"Encountered list at unexpected size: {len(value)} expected "
            f"size: {shape[0]}"
        )
    for part in value:
        _collect(part, shape[1:], leaves)


def _string(value: Any) -> bytes:
    if isinstance(value, str):
        return value.encode("utf-8", "surrogatepass")
    if not _is_bytes(value):
        raise _type_error(value, tf.string)
    try:
        return base64.b64decode(value[_B64], validate=True)
    except (binascii.Error, ValueError) as error:
        raise invalid("Unable to base64 decode") from error


def _is_bytes(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and value.keys() == {_B64}
        and isinstance(value[_B64], str)
    )


def _type_error(value: Any, dtype: tf.DType) -> Exception:
    return invalid(
        f"JSON Value: {_shown(value)} is not of expected type: {dtype.name}"
    )


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def _values(name: str, array: np.ndarray) -> Any:
    """A tensor as lists of what JSON has."""
    if array.dtype == object:
        write = _base64 if name.endswith(_BYTES) else _text
        flat = np.empty(array.size, object)
        flat[:] = [write(value) for value in array.reshape(-1).tolist()]
        return flat.reshape(array.shape).tolist()
    if str(array.dtype) in ("float32", "float16", "bfloat16"):
        # The shortest digits that are this number, not those of a double.
        array = array.astype(np.float32).astype(str).astype(np.float64)
    return array.tolist()


def _text(value: bytes) -> str:
    return value.decode("utf-8", "replace")


def _base64(value: bytes) -> dict[str, str]:
    return {_B64: base64.b64encode(value).decode()}


def _written(value: Any) -> bytes:
    try:
        return json.dumps(value).encode()
    except TypeError as error:
        raise invalid(f"Failed to write JSON value: {error}") from error
