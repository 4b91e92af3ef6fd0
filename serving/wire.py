"""PredictRequests from arrays, and arrays from what comes back."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow_serving.apis import predict_pb2

from rs_keras.export import signature as signatures
from rs_keras.serving import tensors
from rs_keras.serving.failures import ServingError


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
    signature: str,
    version: int,
    rows: int,
    num_classes: int,
    export: int | None = None,
) -> dict[str, np.ndarray]:
    """Returns the outputs of a `PredictResponse`, checked; not `export`.

    Args:
        response: What came.
        server: Its sender, for the error.
        signature: What was asked.
        version: Of the model that was asked.
        rows: How many rows were asked about.
        num_classes: Of the model.
        export: Which export was asked, as `ServedModel.identity`; None for
            what tells it by itself.

    Raises:
        OtherExport: If another one has the version's number now.
        ServingError: If it is not an answer to this: another version, an
            output that is not there, or of another type or shape.
    """
    came = response.model_spec.version.value
    if came != version:
        raise _odd(
            server, signature, f"version {came}, not {version}, answered"
        )

    def decoded(key: str) -> np.ndarray:
        if key not in response.outputs:
            raise _odd(server, signature, f"the output {key!r} is missing")
        try:
            return tensors.decode(response.outputs[key])
        except ValueError as error:
            raise _odd(server, signature, f"{key!r}: {error}") from error

    # Another export may have other classes, too: so this comes first.
    if export is not None and (decoded("export") != export).any():
        raise OtherExport(
            f"{server} serves another export as version {version} than it "
            "described: the number was given anew",
            server=server,
        )
    found = {}
    for key, field in signatures.SIGNATURES[signature].outputs.items():
        if key == "export":
            continue
        array = decoded(key)
        dtype = tf.as_dtype(field.dtype).as_numpy_dtype
        shape = (rows, *field.row_shape((), num_classes))
        if array.dtype != dtype or array.shape != shape:
            raise _odd(
                server,
                signature,
                f"{key!r} is {array.dtype} {list(array.shape)}, not "
                f"{np.dtype(dtype)} {list(shape)}",
            )
        found[key] = array
    return found


def _odd(server: str, signature: str, what: str) -> ServingError:
    return ServingError(
        f"{server} does not answer {signature!r} as an export of rs-keras "
        f"does: {what}",
        server=server,
    )
