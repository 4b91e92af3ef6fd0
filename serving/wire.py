"""Conversion of arrays to PredictRequests, and of responses to arrays."""

from collections.abc import Mapping
from typing import Any
from typing import NamedTuple

import numpy as np
import tensorflow as tf
from tensorflow_serving.apis import predict_pb2

from rs_keras.export.signature import SIGNATURES
from rs_keras.serving import tensors
from rs_keras.serving.errors import OtherExport
from rs_keras.serving.errors import WrongAnswer


class RequestSpec(NamedTuple):
    """The model, version and signature of a request."""

    model: str
    version: int
    signature: str


def request(spec: RequestSpec, inputs: Mapping[str, np.ndarray]) -> Any:
    """Returns a `PredictRequest`.

    Inputs travel as raw bytes, in the types that the signature names.
    """
    message = predict_pb2.PredictRequest()
    message.model_spec.name = spec.model
    message.model_spec.version.value = spec.version
    message.model_spec.signature_name = spec.signature
    for key, field in SIGNATURES[spec.signature].inputs.items():
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
    spec: RequestSpec,
    server: str,
    rows: int,
    num_classes: int = 0,
    export: int | None = None,
) -> dict[str, np.ndarray]:
    """Returns the outputs of a `PredictResponse`, checked; not `export`.

    Types and shapes are checked before anything is decoded: a claimed shape
    could fill the memory.

    Args:
        response: The response.
        spec: The model, version and signature of the request.
        server: The sender, for the error.
        rows: Number of rows of the request.
        num_classes: Of the model.
        export: The expected `ServedModel.identity`; None to skip the check.

    Raises:
        OtherExport: If another export has the version number now.
        WrongAnswer: If it is not an answer to this: another model, version
            or signature, an output that is missing, not asked for, or of
            another type or shape.
    """

    def wrong(what: str) -> WrongAnswer:
        return WrongAnswer(
            f"{server} does not answer {spec.signature!r} as an export of "
            f"rs-keras does: {what}",
            server=server,
        )

    model_spec = response.model_spec
    answered = RequestSpec(
        model_spec.name, model_spec.version.value, model_spec.signature_name
    )
    for field, value in spec._asdict().items():
        if (other := getattr(answered, field)) != value:
            raise wrong(f"{field} {other!r}, not {value!r}, answered")
    wanted = SIGNATURES[spec.signature].outputs
    for key in sorted({*wanted} ^ {*response.outputs}):
        word = "is missing" if key in wanted else "was not asked for"
        raise wrong(f"the output {key!r} {word}")

    def decoded(key: str) -> np.ndarray:
        proto, field = response.outputs[key], wanted[key]
        shape = [rows, *field.row_shape((), num_classes)]
        claimed = [dim.size for dim in proto.tensor_shape.dim]
        dtype = tf.as_dtype(field.dtype)
        if proto.dtype != dtype.as_datatype_enum or claimed != shape:
            raise wrong(
                f"{key!r} is {_type_name(proto.dtype)} {claimed}, not "
                f"{dtype.name} {shape}"
            )
        try:
            return tensors.decode(proto)
        except ValueError as error:
            raise wrong(f"{key!r}: {error}") from error

    # Another export may have other classes, too: so this comes first.
    if export is not None and (decoded("export") != export).any():
        raise OtherExport(
            f"{server} serves another export as version {spec.version} than "
            "it described: the number was given anew",
            server=server,
        )
    return {key: decoded(key) for key in wanted if key != "export"}


def _type_name(number: int) -> str:
    try:
        return str(tf.as_dtype(number).name)
    except TypeError:
        return f"type {number}"
