"""Answers a PredictRequest on a loaded model, as TF Serving's predict_util.

The checks run in its order: signature, input names, tensors, output filter,
then the run.
"""

from typing import Any
from typing import NamedTuple

import grpc
import numpy as np
from tensorflow_serving.apis import predict_pb2

from rs_keras.export.signature import DEFAULT
from rs_keras.serving import tensors
from rs_keras.serving.server.runtime import SessionModel
from rs_keras.serving.server.status import StatusError
from rs_keras.serving.server.status import invalid


class Plan(NamedTuple):
    """What one request asks the session for."""

    signature_name: str
    feeds: dict[str, np.ndarray]
    aliases: list[str]
    fetches: list[str]


def plan(model: SessionModel, request: Any) -> Plan:
    """Checks a request against the model's signature.

    Args:
        model: The version that will answer.
        request: The `PredictRequest`.

    Returns:
        The arrays to feed and the tensors to fetch.

    Raises:
        StatusError: FAILED_PRECONDITION for an unknown signature, else
            INVALID_ARGUMENT.
    """
    name = request.model_spec.signature_name or DEFAULT
    if name not in model.signatures:
        raise StatusError(
            grpc.StatusCode.FAILED_PRECONDITION,
            f'Serving signature key "{name}" not found.',
        )
    signature = model.signatures[name]
    _check_input_size(signature, request)
    feeds = _feeds(signature, request)
    aliases = _aliases(signature, request)
    fetches = [signature.outputs[alias].name for alias in aliases]
    return Plan(name, feeds, aliases, fetches)


def respond(
    name: str, version: int, planned: Plan, outputs: list[np.ndarray]
) -> Any:
    """Packs the outputs of a run into a `PredictResponse`.

    Args:
        name: The model's name, as requested.
        version: The version that answered.
        planned: What was run.
        outputs: One array for each of `planned.aliases`.

    Returns:
        The `PredictResponse`.

    Raises:
        StatusError: UNIMPLEMENTED for an output type that cannot be sent.
    """
    response = predict_pb2.PredictResponse()
    response.model_spec.name = name
    response.model_spec.signature_name = planned.signature_name
    response.model_spec.version.value = version
    for alias, output in zip(planned.aliases, outputs, strict=True):
        try:
            tensors.encode(output, response.outputs[alias])
        except (TypeError, ValueError) as error:
            raise StatusError(
                grpc.StatusCode.UNIMPLEMENTED, f"output {alias}: {error}"
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


def _feeds(signature: Any, request: Any) -> dict[str, np.ndarray]:
    feeds = {}
    for alias in sorted(signature.inputs):
        feed = signature.inputs[alias].name
        if alias in request.inputs:
            proto = request.inputs[alias]
        elif alias in signature.defaults:
            proto = signature.defaults[alias]
        else:
            raise invalid(
                f"Signature input alias: {alias}(feed name: {feed}) not found "
                "in request and no default value provided. Inputs expected to "
                f"be in the request {_set(request.inputs)}, or default input "
                f"alias set: {','.join(sorted(signature.defaults))}"
            )
        try:
            feeds[feed] = tensors.decode(proto)
        except (ValueError, OverflowError, MemoryError) as error:
            raise invalid(f"tensor parsing error: {alias}") from error
    return feeds


def _aliases(signature: Any, request: Any) -> list[str]:
    seen: list[str] = []
    for alias in request.output_filter:
        if alias not in signature.outputs:
            raise invalid(
                f"output tensor alias not found in signature: {alias} Outputs "
                f"expected to be in the set {_set(signature.outputs)}."
            )
        if alias in seen:
            raise invalid(f"duplicate output tensor alias: {alias}")
        seen.append(alias)
    return seen or sorted(signature.outputs)


def _set(names: Any) -> str:
    return "{" + ",".join(sorted(names)) + "}"
