"""PredictRequests from arrays, and arrays from what comes back."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow_serving.apis import predict_pb2

from rs_keras.export import signature as signatures
from rs_keras.serving import tensors
from rs_keras.serving.errors import ServingError
from rs_keras.serving.errors import WrongAnswer


class OtherExport(ServingError):
    """An answer by an export that is not the one that was described."""


def request(
    model: str, version: int, signature: str, inputs: Mapping[str, np.ndarray]
) -> Any:
    """Returns a `PredictRequest` for one version of a model.

    Inputs travel as raw bytes, in the types that the signature names.
    """
    message = predict_pb2.PredictRequest()
    message.model_spec.name = model
    message.model_spec.version.value = version
    message.model_spec.signature_name = signature
    fields = signatures.SIGNATURES[signature].inputs
    for key, field in fields.items():
        dtype = tf.as_dtype(field.dtype)
        array = np.ascontiguousarray(inputs[key], dtype.as_numpy_dtype)
        proto = message.inputs[key]
        proto.dtype = dtype.as_datatype_enum
        for length in array.shape:
            proto.tensor_shape.dim.add().size = length
        proto.tensor_content = array.tobytes()
    return message


def outputs(
    response: Any,
    server: str,
    model: str,
    signature: str,
    version: int,
    rows: int,
    num_classes: int,
    export: int | None = None,
) -> dict[str, np.ndarray]:
    """Returns the outputs of a `PredictResponse`, checked; not `export`.

    Types and shapes are checked before anything is decoded: a claimed shape
    could fill the memory.

    Args:
        response: What came.
        server: Its sender, for the error.
        model: The name that was asked.
        signature: What was asked.
        version: Of the model that was asked.
        rows: How many rows were asked about.
        num_classes: Of the model.
        export: Which export was asked, as `ServedModel.identity`; None for
            what tells it by itself.

    Raises:
        OtherExport: If another one has the version's number now.
        WrongAnswer: If it is not an answer to this: another model, version
            or signature, an output that is missing, not asked for, or of
            another type or shape.
    """
    spec = response.model_spec
    asked = (model, signature, version)
    came = (spec.name, spec.signature_name, spec.version.value)
    for what, one, other in zip(
        ("model", "signature", "version"), came, asked, strict=True
    ):
        if one != other:
            raise _odd(
                server, signature, f"{what} {one!r}, not {other!r}, answered"
            )
    wanted = signatures.SIGNATURES[signature].outputs
    for key in sorted({*wanted} ^ {*response.outputs}):
        word = "is missing" if key in wanted else "was not asked for"
        raise _odd(server, signature, f"the output {key!r} {word}")

    def decoded(key: str) -> np.ndarray:
        proto, field = response.outputs[key], wanted[key]
        shape = [rows, *field.row_shape((), num_classes)]
        claimed = [dim.size for dim in proto.tensor_shape.dim]
        dtype = tf.as_dtype(field.dtype)
        if proto.dtype != dtype.as_datatype_enum or claimed != shape:
            raise _odd(
                server,
                signature,
                f"{key!r} is {_type_name(proto.dtype)} {claimed}, not "
                f"{dtype.name} {shape}",
            )
        try:
            return tensors.decode(proto)
        except ValueError as error:
            raise _odd(server, signature, f"{key!r}: {error}") from error

    # Another export may have other classes, too: so this comes first.
    if export is not None and (decoded("export") != export).any():
        raise OtherExport(
            f"{server} serves another export as version {version} than it "
            "described: the number was given anew",
            server=server,
        )
    return {key: decoded(key) for key in wanted if key != "export"}


def _type_name(number: int) -> str:
    try:
        return str(tf.as_dtype(number).name)
    except TypeError:
        return f"type {number}"


def _odd(server: str, signature: str, what: str) -> WrongAnswer:
    return WrongAnswer(
        f"{server} does not answer {signature!r} as an export of rs-keras "
        f"does: {what}",
        server=server,
    )
