"""Reads PredictRequests and writes PredictResponses, as TF Serving does.

The checks run in the order of its predict_util: signature, input names,
tensors, output filter.
"""

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
from typing import Any
from typing import NamedTuple

import numpy as np
from tensorflow_serving.apis import predict_pb2

from rs_keras.export.signature import DEFAULT
from rs_keras.serving import tensors
from rs_keras.serving.server.grpc_errors import StatusError
from rs_keras.serving.server.grpc_errors import invalid
from rs_keras.serving.server.runtime import SessionModel


class SessionCall(NamedTuple):
    """What one request runs in a session.

    Attributes:
        signature_name: The signature that was asked for.
        inputs: Arrays by name.
        outputs: The names of the outputs that were asked for.
    """

    signature_name: str
    inputs: dict[str, np.ndarray]
    outputs: list[str]


def read_request(
    model: SessionModel,
    request: Any,
    limit: Callable[[list[tuple[str, Any]]], None] | None = None,
) -> SessionCall:
    """Checks a request against the model's signature and decodes its tensors.

    Args:
        model: The version that will answer.
        request: The `PredictRequest`.
        limit: Refuses names and tensors that are too large to be decoded.

    Raises:
        StatusError: FAILED_PRECONDITION for an unknown signature, else
            INVALID_ARGUMENT.
    """
    name = request.model_spec.signature_name or DEFAULT
    if name not in model.signatures:
        raise StatusError(
            "FAILED_PRECONDITION", f'Serving signature key "{name}" not found.'
        )
    signature = model.signatures[name]
    _check_input_size(signature, request)
    if limit is not None:
        limit(sorted(request.inputs.items()))
    inputs = {
        alias: _decoded_input(signature, alias, request)
        for alias in sorted(signature.inputs)
    }
    _check_output_filter(signature, request)
    outputs = list(request.output_filter) or sorted(signature.outputs)
    return SessionCall(name, inputs, outputs)


def write_response(
    model_name: str,
    version: int,
    call: SessionCall,
    outputs: Mapping[str, np.ndarray],
) -> Any:
    """Packs the outputs of a run into a `PredictResponse`.

    Args:
        model_name: As requested.
        version: The version that answered.
        call: What was run.
        outputs: By name; those of `call.outputs` are sent.

    Raises:
        StatusError: UNIMPLEMENTED for an output type that cannot be sent.
    """
    response = predict_pb2.PredictResponse()
    response.model_spec.name = model_name
    response.model_spec.signature_name = call.signature_name
    response.model_spec.version.value = version
    for alias in call.outputs:
        try:
            tensors.encode(outputs[alias], response.outputs[alias])
        except (TypeError, ValueError) as error:
            raise StatusError(
                "UNIMPLEMENTED", f"output {alias}: {error}"
            ) from error
    return response


def _check_input_size(signature: Any, request: Any) -> None:
    sent, wanted = set(request.inputs), set(signature.inputs)
    if len(sent) == len(wanted):
        return
    if len(sent) < len(wanted) and signature.defaults:
        return
    raise invalid(
        f"input size does not match signature: {len(sent)}!={len(wanted)} "
        f"len({_set(sent)}) != len({_set(wanted)}). "
        f"Sent extra: {_set(sent - wanted)}. "
        f"Missing but required: {_set(wanted - sent)}."
    )


def _decoded_input(signature: Any, alias: str, request: Any) -> np.ndarray:
    if alias in request.inputs:
        proto = request.inputs[alias]
    elif alias in signature.defaults:
        proto = signature.defaults[alias]
    else:
        feed = signature.inputs[alias].name
        raise invalid(
            f"Signature input alias: {alias}(feed name: {feed}) not found "
            "in request and no default value provided. Inputs expected to "
            f"be in the request {_set(request.inputs)}, or default input "
            f"alias set: {','.join(sorted(signature.defaults))}"
        )
    try:
        return tensors.decode(proto)
    except (ValueError, OverflowError, MemoryError) as error:
        raise invalid(f"tensor parsing error: {alias}") from error


def _check_output_filter(signature: Any, request: Any) -> None:
    seen: set[str] = set()
    for alias in request.output_filter:
        if alias not in signature.outputs:
            raise invalid(
                f"output tensor alias not found in signature: {alias} Outputs "
                f"expected to be in the set {_set(signature.outputs)}."
            )
        if alias in seen:
            raise invalid(f"duplicate output tensor alias: {alias}")
        seen.add(alias)


def _set(names: Iterable[str]) -> str:
    return "{" + ",".join(sorted(names)) + "}"
