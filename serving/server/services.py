"""The gRPC services PredictionService and ModelService of TF Serving."""

import functools
import logging
import threading
import time
from collections.abc import Callable
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import grpc
from grpc import ServicerContext as Context
from tensorflow_serving.apis import get_model_metadata_pb2
from tensorflow_serving.apis import get_model_status_pb2
from tensorflow_serving.apis import model_management_pb2
from tensorflow_serving.apis import model_service_pb2_grpc
from tensorflow_serving.apis import prediction_service_pb2_grpc

from rs_keras.serving.event_log import event
from rs_keras.serving.server import metrics as names
from rs_keras.serving.server import predict
from rs_keras.serving.server.grpc_errors import StatusError
from rs_keras.serving.server.grpc_errors import invalid
from rs_keras.serving.server.manager import ModelManager
from rs_keras.serving.server.metrics import Metrics

_SIGNATURES = "signature_def"
# For a request without a deadline gRPC reports about 10**15 seconds left.
_NO_DEADLINE = 10**9

# From a service, a request and its context to the response.
Method = Callable[[Any, Any, Context], Any]


def _answered(method: Method) -> Method:
    """Makes an RPC of a method: what it raises becomes the RPC's status."""
    api = method.__name__

    @functools.wraps(method)
    def rpc(service: "_Service", request: Any, context: Context) -> Any:
        start = time.monotonic()
        response, failure = None, None
        try:
            response = method(service, request, context)
        except StatusError as error:
            failure = error
        except Exception as error:
            # Every request gets a status, and no failure ends the server.
            event(logging.ERROR, "request_crashed", api=api, error=repr(error))
            failure = StatusError("INTERNAL", repr(error))
        status = failure.code.name if failure else "OK"
        service.record(api, request, status, time.monotonic() - start)
        if failure is not None:
            context.abort(failure.code, failure.details)
        return response

    return rpc


def _refused(api: str) -> Method:
    """Makes an RPC that answers UNIMPLEMENTED."""

    def rpc(service: Any, request: Any, context: Context) -> None:
        context.abort(
            grpc.StatusCode.UNIMPLEMENTED,
            f"{api} is not offered by the embedded server; use Predict, or "
            "tensorflow_model_server",
        )

    return rpc


class _Service:
    def __init__(self, manager: ModelManager, metrics: Metrics) -> None:
        self._manager = manager
        self._metrics = metrics

    def record(
        self, api: str, request: Any, status: str, seconds: float
    ) -> None:
        """Logs a request that was answered; Predict is measured, too."""
        spec = getattr(request, "model_spec", None)
        model = "" if spec is None else spec.name
        if api == "Predict":
            # Names that clients invent would fill the memory.
            label = model if self._manager.states(model) else ""
            self._metrics.count(names.REQUEST_COUNT, label, status)
            if status == "OK":
                self._metrics.observe(
                    names.REQUEST_LATENCY, seconds, label, api, "GRPC"
                )
        fields = {"api": api, "model": model, "status": status}
        event(logging.DEBUG, "request", **fields, seconds=round(seconds, 6))


class PredictionService(
    _Service, prediction_service_pb2_grpc.PredictionServiceServicer
):
    """Predict and GetModelMetadata.

    Classify, Regress and MultiInference take `tf.Example`s, which no certifier
    does; they answer UNIMPLEMENTED.

    Args:
        manager: Holds the models.
        metrics: Where requests are counted.
        max_concurrency: Predict requests at a time; one more is turned away
            with RESOURCE_EXHAUSTED.
    """

    Classify = _refused("Classify")
    Regress = _refused("Regress")
    MultiInference = _refused("MultiInference")

    def __init__(
        self, manager: ModelManager, metrics: Metrics, max_concurrency: int
    ) -> None:
        super().__init__(manager, metrics)
        self._slots = threading.BoundedSemaphore(max_concurrency)

    @_answered
    def Predict(self, request: Any, context: Context) -> Any:
        """Runs one signature: admits, decodes, runs, encodes."""
        with self._admitted():
            spec = _spec_of(request)
            with self._manager.use(spec) as (version, model):
                call = predict.read_request(model, request)
                timeout = _timeout(context)
                start = time.monotonic()
                arrays = model.run(call.feeds, call.fetches, timeout)
                seconds = time.monotonic() - start
                self._metrics.observe(
                    names.RUNTIME_LATENCY, seconds, spec.name, "Predict", "TF1"
                )
                return predict.write_response(spec.name, version, call, arrays)

    @_answered
    def GetModelMetadata(self, request: Any, context: Context) -> Any:
        """Returns the signatures of a model."""
        spec = _spec_of(request)
        if not request.metadata_field:
            raise invalid(
                "GetModelMetadataRequest must specify at least one "
                "metadata_field"
            )
        for field in request.metadata_field:
            if field != _SIGNATURES:
                raise invalid(f"Metadata field {field} is not supported")
        response = get_model_metadata_pb2.GetModelMetadataResponse()
        signatures = get_model_metadata_pb2.SignatureDefMap()
        with self._manager.use(spec) as (version, model):
            for name, signature in model.signatures.items():
                signatures.signature_def[name].CopyFrom(signature)
        response.model_spec.name = spec.name
        response.model_spec.version.value = version
        response.metadata[_SIGNATURES].Pack(signatures)
        return response

    @contextmanager
    def _admitted(self) -> Iterator[None]:
        """Takes one of the slots, or refuses the request."""
        if not self._slots.acquire(blocking=False):
            raise StatusError(
                "RESOURCE_EXHAUSTED", "Server Threadpool Exhausted"
            )
        try:
            yield
        finally:
            self._slots.release()


class ModelService(_Service, model_service_pb2_grpc.ModelServiceServicer):
    """GetModelStatus and HandleReloadConfigRequest.

    Args:
        manager: Holds the models.
        metrics: Its counters can be asked for when a config is reloaded.
    """

    @_answered
    def GetModelStatus(self, request: Any, context: Context) -> Any:
        """Returns the states of a model's versions, the latest first."""
        # A version label in the request is ignored, as TF Serving does.
        spec = _spec_of(request)
        versions = self._manager.states(spec.name)
        missing = f"Could not find any versions of model {spec.name}"
        if spec.WhichOneof("version_choice") == "version":
            number = spec.version.value
            versions = [v for v in versions if v.number == number]
            missing = f"Could not find version {number} of model {spec.name}"
        if not versions:
            raise StatusError("NOT_FOUND", missing)
        response = get_model_status_pb2.GetModelStatusResponse()
        for version in versions:
            entry = response.model_version_status.add(
                version=version.number, state=version.state
            )
            entry.status.SetInParent()
            if version.error is not None:
                entry.status.error_code = version.error.code.value[0]
                entry.status.error_message = version.error.message
        return response

    @_answered
    def HandleReloadConfigRequest(self, request: Any, context: Context) -> Any:
        """Takes over a list of models; answers when the new ones serve."""
        if request.config.WhichOneof("config") != "model_config_list":
            raise invalid(
                "ServerModelConfig type not supported by "
                "HandleReloadConfigRequest. Only ModelConfigList is currently "
                "supported"
            )
        total = self._metrics.total
        before = {name: total(name) for name in request.metric_names}
        self._manager.apply(request.config.model_config_list)
        response = model_management_pb2.ReloadConfigResponse()
        response.status.SetInParent()
        for name, count in sorted(before.items()):
            increase = total(name) - count
            response.metric.add(name=name, int64_value_increase=increase)
        return response


def _spec_of(request: Any) -> Any:
    if not request.HasField("model_spec"):
        raise invalid("Missing ModelSpec")
    return request.model_spec


def _timeout(context: Context) -> float | None:
    """Returns the seconds that a request has left, or None for no deadline."""
    seconds = context.time_remaining()
    if seconds is not None and seconds <= 0:
        raise StatusError("DEADLINE_EXCEEDED", "Deadline Exceeded")
    if not context.is_active():
        # The client left while its request waited for a thread.
        raise StatusError("CANCELLED", "Cancelled")
    return None if seconds is None or seconds > _NO_DEADLINE else seconds
