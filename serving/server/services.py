"""The gRPC services PredictionService and ModelService of TF Serving.

Messages arrive as bytes, in a stream of one: so a request that does not arrive
can be ended, and one that does not parse is refused in one line of the log.
"""

import logging
import time
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

import grpc
from google.protobuf.message import DecodeError
from grpc import ServicerContext as Context
from grpc_health.v1 import health_pb2
from tensorflow_serving.apis import get_model_metadata_pb2
from tensorflow_serving.apis import get_model_status_pb2
from tensorflow_serving.apis import model_management_pb2
from tensorflow_serving.apis import predict_pb2

from rs_keras.serving.event_log import event
from rs_keras.serving.server.grpc_errors import StatusError
from rs_keras.serving.server.handlers import Handlers
from rs_keras.serving.server.scheduling.turns import Caller
from rs_keras.serving.server.streams import Streams
from rs_keras.serving.server.streams import client_of

# For a request without a deadline gRPC reports about 10**15 seconds left.
_NO_DEADLINE = 10**9

_PREDICTION = {
    "Predict": predict_pb2.PredictRequest,
    "GetModelMetadata": get_model_metadata_pb2.GetModelMetadataRequest,
}
_MODEL = {
    "GetModelStatus": get_model_status_pb2.GetModelStatusRequest,
    "HandleReloadConfigRequest": model_management_pb2.ReloadConfigRequest,
}
# These take `tf.Example`s, which no certifier does.
_REFUSED = ("Classify", "Regress", "MultiInference")

Respond = Callable[[Any, Context], Any]


def generic_handlers(
    handlers: Handlers, streams: Streams, health: Any
) -> list[grpc.GenericRpcHandler]:
    """Returns the services, for `grpc.Server.add_generic_rpc_handlers`.

    Args:
        handlers: Answer the requests.
        streams: Watch them arrive.
        health: The `HealthServicer`, of which Check is offered.
    """

    def rpc(message: Any, respond: Respond) -> grpc.RpcMethodHandler:
        return grpc.stream_unary_rpc_method_handler(
            _behavior(message, respond, streams),
            response_serializer=lambda response: response.SerializeToString(),
        )

    def answered(api: str) -> Respond:
        def respond(request: Any, context: Context) -> Any:
            caller = _caller(context, handlers.scheduler.limits.max_seconds)
            return handlers.answer(api, request, caller)

        return respond

    services = {
        "tensorflow.serving.PredictionService": {
            **{k: rpc(v, answered(k)) for k, v in _PREDICTION.items()},
            **{k: rpc(None, _refusal(k)) for k in _REFUSED},
        },
        "tensorflow.serving.ModelService": {
            k: rpc(v, answered(k)) for k, v in _MODEL.items()
        },
        "grpc.health.v1.Health": {
            "Check": rpc(health_pb2.HealthCheckRequest, health.Check)
        },
    }
    return [
        grpc.method_handlers_generic_handler(name, methods)
        for name, methods in services.items()
    ]


def _behavior(
    message: Any, respond: Respond, streams: Streams
) -> Callable[[Iterator[bytes], Context], Any]:
    """Makes a gRPC behavior: a StatusError becomes the status of the RPC."""

    def behavior(messages: Iterator[bytes], context: Context) -> Any:
        try:
            with streams.one(client_of(context.peer())):
                content = streams.receive(messages, context)
                if message is None:
                    return respond(None, context)
                return respond(_parsed(message, content), context)
        except StatusError as error:
            context.abort(error.code, error.details)

    return behavior


def _parsed(message: Any, content: bytes) -> Any:
    try:
        return message.FromString(content)
    except DecodeError as error:
        kind = message.DESCRIPTOR.name
        event(logging.WARNING, "request_unreadable", message=kind)
        raise StatusError(
            "INTERNAL", f"The request is no {kind}: {error}"
        ) from error


def _refusal(api: str) -> Respond:
    def respond(request: Any, context: Context) -> Any:
        raise StatusError(
            "UNIMPLEMENTED",
            f"{api} is not offered by the embedded server; use Predict, or "
            "tensorflow_model_server",
        )

    return respond


def _caller(context: Context, longest: float) -> Caller:
    """Returns the caller of a request, which has at most `longest` seconds."""
    seconds = context.time_remaining()
    if seconds is not None and seconds <= 0:
        raise StatusError("DEADLINE_EXCEEDED", "Deadline Exceeded")
    if not context.is_active():
        # The client left while its request waited for a thread.
        raise StatusError("CANCELLED", "Cancelled")
    if seconds is None or seconds > _NO_DEADLINE:
        seconds = longest
    deadline = time.monotonic() + min(seconds, longest)
    return Caller(client_of(context.peer()), deadline, context.is_active)
