"""PredictionService and ModelService, as tensorflow_model_server answers."""

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

import grpc
import numpy as np
from tensorflow_serving.apis import get_model_metadata_pb2
from tensorflow_serving.apis import get_model_status_pb2
from tensorflow_serving.apis import model_management_pb2
from tensorflow_serving.apis import model_service_pb2_grpc
from tensorflow_serving.apis import prediction_service_pb2_grpc

from rs_keras.serving.event_log import event
from rs_keras.serving.server import metrics as names
from rs_keras.serving.server import predict
from rs_keras.serving.server.manager import ModelManager
from rs_keras.serving.server.metrics import Metrics
from rs_keras.serving.server.runtime import SessionModel
from rs_keras.serving.server.status import StatusError
from rs_keras.serving.server.status import invalid

_SIGNATURES = "signature_def"
# gRPC tells a request without a deadline that it has some 10**15 seconds left.
_NO_DEADLINE = 10**9


class PredictionService(prediction_service_pb2_grpc.PredictionServiceServicer):
    """Predict and GetModelMetadata.

    Classify, Regress and MultiInference take `tf.Example`s, which no certifier
    does; they answer UNIMPLEMENTED.

    Args:
        manager: Holds the models.
        metrics: Where requests are counted.
        max_concurrency: Predict requests at a time; one more is turned away
            with RESOURCE_EXHAUSTED.
    """

    def __init__(
        self, manager: ModelManager, metrics: Metrics, max_concurrency: int
    ) -> None:
        self._manager = manager
        self._metrics = metrics
        self._slots = threading.BoundedSemaphore(max_concurrency)

    def Predict(self, request: Any, context: grpc.ServicerContext) -> Any:
        """Runs one signature."""
        name = request.model_spec.name
        # Names of the clients' invention would fill the memory.
        label = name if self._manager.known(name) else ""

        def record(status: str, seconds: float) -> None:
            self._metrics.count(names.REQUEST_COUNT, label, status)
            if status == "OK":
                self._metrics.observe(
                    names.REQUEST_LATENCY, seconds, label, "Predict", "GRPC"
                )

        return _answer(
            context,
            "Predict",
            name,
            lambda: self._predict(request, context),
            record,
        )

    def GetModelMetadata(
        self, request: Any, context: grpc.ServicerContext
    ) -> Any:
        """Tells the signatures of a model."""
        return _answer(
            context,
            "GetModelMetadata",
            request.model_spec.name,
            lambda: self._metadata(request),
        )

    def Classify(self, request: Any, context: grpc.ServicerContext) -> Any:
        """Not offered."""
        _refuse(context, "Classify")

    def Regress(self, request: Any, context: grpc.ServicerContext) -> Any:
        """Not offered."""
        _refuse(context, "Regress")

    def MultiInference(
        self, request: Any, context: grpc.ServicerContext
    ) -> Any:
        """Not offered."""
        _refuse(context, "MultiInference")

    def _predict(self, request: Any, context: grpc.ServicerContext) -> Any:
        if not self._slots.acquire(blocking=False):
            raise StatusError(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                "Server Threadpool Exhausted",
            )
        try:
            return self._predict_in_slot(request, context)
        finally:
            self._slots.release()

    def _predict_in_slot(
        self, request: Any, context: grpc.ServicerContext
    ) -> Any:
        _require_spec(request)
        spec = request.model_spec
        with self._manager.use(spec) as (number, model):
            planned = predict.plan(model, request)
            outputs = self._run(model, planned, spec.name, context)
            return predict.respond(spec.name, number, planned, outputs)

    def _run(
        self,
        model: SessionModel,
        planned: predict.Plan,
        name: str,
        context: grpc.ServicerContext,
    ) -> list[np.ndarray]:
        timeout = context.time_remaining()
        if timeout is None or timeout > _NO_DEADLINE:
            timeout = None
        elif timeout <= 0:
            raise StatusError(
                grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded"
            )
        if not context.is_active():
            # The client left while its request waited for a thread.
            raise StatusError(grpc.StatusCode.CANCELLED, "Cancelled")
        start = time.monotonic()
        outputs = model.run(planned.feeds, planned.fetches, timeout)
        self._metrics.observe(
            names.RUNTIME_LATENCY,
            time.monotonic() - start,
            name,
            "Predict",
            "TF1",
        )
        return outputs

    def _metadata(self, request: Any) -> Any:
        _require_spec(request)
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
        with self._manager.use(request.model_spec) as (number, model):
            for name, signature in model.signatures.items():
                signatures.signature_def[name].CopyFrom(signature)
            response.model_spec.name = request.model_spec.name
            response.model_spec.version.value = number
        response.metadata[_SIGNATURES].Pack(signatures)
        return response


class ModelService(model_service_pb2_grpc.ModelServiceServicer):
    """GetModelStatus and HandleReloadConfigRequest.

    Args:
        manager: Holds the models.
        metrics: Its counters can be asked for when a config is reloaded.
    """

    def __init__(self, manager: ModelManager, metrics: Metrics) -> None:
        self._manager = manager
        self._metrics = metrics

    def GetModelStatus(
        self, request: Any, context: grpc.ServicerContext
    ) -> Any:
        """Tells the state of a model's versions, the latest first."""
        return _answer(
            context,
            "GetModelStatus",
            request.model_spec.name,
            lambda: self._status(request),
        )

    def HandleReloadConfigRequest(
        self, request: Any, context: grpc.ServicerContext
    ) -> Any:
        """Takes over a list of models; answers when the new ones serve."""
        return _answer(
            context,
            "HandleReloadConfigRequest",
            "",
            lambda: self._reload(request),
        )

    def _status(self, request: Any) -> Any:
        _require_spec(request)
        # A version label in the request is ignored, as TF Serving does.
        spec = request.model_spec
        versions = self._manager.states(spec.name)
        if spec.WhichOneof("version_choice") == "version":
            number = spec.version.value
            versions = [
                version for version in versions if version.number == number
            ]
            missing = f"Could not find version {number} of model {spec.name}"
        else:
            missing = f"Could not find any versions of model {spec.name}"
        if not versions:
            raise StatusError(grpc.StatusCode.NOT_FOUND, missing)
        response = get_model_status_pb2.GetModelStatusResponse()
        for version in versions:
            entry = response.model_version_status.add()
            entry.version = version.number
            entry.state = version.state
            entry.status.SetInParent()
            if version.error is not None:
                entry.status.error_code = version.error.code.value[0]
                entry.status.error_message = version.error.message
        return response

    def _reload(self, request: Any) -> Any:
        if request.config.WhichOneof("config") != "model_config_list":
            raise invalid(
                "ServerModelConfig type not supported by "
                "HandleReloadConfigRequest. Only ModelConfigList is currently "
                "supported"
            )
        metric_names = sorted(set(request.metric_names))
        before = [self._metrics.total(name) for name in metric_names]
        self._manager.apply(request.config.model_config_list)
        response = model_management_pb2.ReloadConfigResponse()
        response.status.SetInParent()
        for name, count in zip(metric_names, before, strict=True):
            response.metric.add(
                name=name,
                int64_value_increase=self._metrics.total(name) - count,
            )
        return response


def _require_spec(request: Any) -> None:
    if not request.HasField("model_spec"):
        raise invalid("Missing ModelSpec")


def _answer(
    context: grpc.ServicerContext,
    api: str,
    model: str,
    call: Callable[[], Any],
    record: Callable[[str, float], None] | None = None,
) -> Any:
    """Answers with what `call` returns, or ends with the status it raises."""
    start = time.monotonic()
    response, failure = None, None
    try:
        response = call()
    except StatusError as error:
        failure = error
    except Exception as error:
        # Every request gets a status, and no failure ends the server.
        event(logging.ERROR, "request_crashed", api=api, error=repr(error))
        failure = StatusError(grpc.StatusCode.INTERNAL, repr(error))
    seconds = time.monotonic() - start
    status = failure.code.name if failure else "OK"
    if record is not None:
        record(status, seconds)
    event(
        logging.DEBUG,
        "request",
        api=api,
        model=model,
        status=status,
        seconds=round(seconds, 6),
    )
    if failure is not None:
        context.abort(failure.code, failure.details)
    return response


def _refuse(context: grpc.ServicerContext, api: str) -> None:
    context.abort(
        grpc.StatusCode.UNIMPLEMENTED,
        f"{api} is not offered by the embedded server; use Predict, or "
        "tensorflow_model_server",
    )
