"""TF Serving's methods on the models of a server, for gRPC and REST alike."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tensorflow_serving.apis import get_model_metadata_pb2
from tensorflow_serving.apis import get_model_status_pb2
from tensorflow_serving.apis import model_management_pb2

from rs_keras.serving.event_log import event
from rs_keras.serving.server import metrics as names
from rs_keras.serving.server import predict
from rs_keras.serving.server.grpc_errors import StatusError
from rs_keras.serving.server.grpc_errors import invalid
from rs_keras.serving.server.manager import ModelManager
from rs_keras.serving.server.metrics import Metrics
from rs_keras.serving.server.scheduling.limits import check_rows
from rs_keras.serving.server.scheduling.limits import check_size
from rs_keras.serving.server.scheduling.scheduler import Scheduler
from rs_keras.serving.server.scheduling.turns import Caller

_SIGNATURES = "signature_def"

# From a request and its caller to the response.
Method = Callable[[Any, Caller], Any]


@dataclass(eq=False)
class Handlers:
    """The methods; each raises a `StatusError` where it fails.

    Args:
        manager: Holds the models.
        metrics: Where requests are counted.
        scheduler: Admits and runs them.
        allow_reload: Whether a client may change what is served.
    """

    manager: ModelManager
    metrics: Metrics
    scheduler: Scheduler
    allow_reload: bool = False

    def answer(
        self,
        api: str,
        request: Any,
        caller: Caller,
        entrypoint: str = "GRPC",
    ) -> Any:
        """Answers a request; logs and measures it.

        Args:
            api: The method, as TF Serving names it.
            request: Its message.
            caller: Who asks.
            entrypoint: "GRPC" or "REST".

        Raises:
            StatusError: With the status of the request.
        """
        start = time.monotonic()
        failure = None
        method: Method = getattr(self, api)
        try:
            response = method(request, caller)
        except StatusError as error:
            failure = error
        except Exception as error:
            # Every request gets a status, and no failure ends the server.
            event(logging.ERROR, "request_crashed", api=api, error=repr(error))
            failure = StatusError("INTERNAL", repr(error))
        spec = getattr(request, "model_spec", None)
        model = "" if spec is None else spec.name
        status = failure.code.name if failure else "OK"
        seconds = time.monotonic() - start
        if api == "Predict":
            # Names that clients invent would fill the memory.
            label = model if self.manager.states(model) else ""
            self.metrics.count(names.REQUEST_COUNT, label, status)
            if failure is None:
                self.metrics.observe(
                    names.REQUEST_LATENCY, seconds, label, api, entrypoint
                )
        fields = {"api": api, "model": model, "status": status}
        event(logging.DEBUG, "request", **fields, seconds=round(seconds, 6))
        if failure is not None:
            raise failure
        return response

    def Predict(self, request: Any, caller: Caller) -> Any:
        """Runs one signature: checks the limits, decodes, runs, encodes."""
        spec = _spec_of(request)
        limits = self.scheduler.limits
        with self.manager.use(spec) as (version, worker):

            def limit(inputs: list[tuple[str, Any]]) -> None:
                check_size(limits, inputs)
                if worker.export is not None:
                    check_rows(limits, inputs)

            call = predict.read_request(worker.model, request, limit)
            start = time.monotonic()
            outputs = self.scheduler.run(worker, call, caller)
            self.metrics.observe(
                names.RUNTIME_LATENCY,
                time.monotonic() - start,
                spec.name,
                "Predict",
                "TF1",
            )
            return predict.write_response(spec.name, version, call, outputs)

    def GetModelMetadata(self, request: Any, caller: Caller) -> Any:
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
        with self.manager.use(spec) as (version, worker):
            for name, signature in worker.model.signatures.items():
                signatures.signature_def[name].CopyFrom(signature)
        response.model_spec.name = spec.name
        response.model_spec.version.value = version
        response.metadata[_SIGNATURES].Pack(signatures)
        return response

    def GetModelStatus(self, request: Any, caller: Caller) -> Any:
        """Returns the states of a model's versions, the latest first."""
        # A version label in the request is ignored, as TF Serving does.
        spec = _spec_of(request)
        versions = self.manager.states(spec.name)
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

    def HandleReloadConfigRequest(self, request: Any, caller: Caller) -> Any:
        """Takes over a list of models; answers when the new ones serve."""
        if not self.allow_reload:
            raise StatusError(
                "PERMISSION_DENIED",
                "HandleReloadConfigRequest is off on this server, as anyone "
                "who reaches its port could change what it serves; "
                "--allow-reload turns it on",
            )
        if request.config.WhichOneof("config") != "model_config_list":
            raise invalid(
                "ServerModelConfig type not supported by "
                "HandleReloadConfigRequest. Only ModelConfigList is currently "
                "supported"
            )
        total = self.metrics.total
        before = {name: total(name) for name in request.metric_names}
        self.manager.apply(request.config.model_config_list)
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
