"""TF Serving's REST API as a WSGI application.

- `POST /v1/models/M[/versions/V|/labels/L]:predict`
- `GET /v1/models/M[/versions/V]`, the states of its versions
- `GET /v1/models/M[/versions/V|/labels/L]/metadata`, its signatures
- `GET /monitoring/prometheus/metrics`

The methods are those behind gRPC, on the same models.
"""

import json
import re
import time
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
from typing import Any

from google.protobuf.json_format import MessageToDict
from grpc import StatusCode
from tensorflow_serving.apis import get_model_metadata_pb2
from tensorflow_serving.apis import get_model_status_pb2
from tensorflow_serving.apis import predict_pb2

from rs_keras.export.signature import DEFAULT
from rs_keras.serving.server.grpc_errors import StatusError
from rs_keras.serving.server.grpc_errors import invalid
from rs_keras.serving.server.handlers import Handlers
from rs_keras.serving.server.metrics import PATH
from rs_keras.serving.server.rest import json_tensors
from rs_keras.serving.server.scheduling.turns import Caller
from rs_keras.serving.server.streams import Streams
from rs_keras.serving.server.versions import State

_JSON = "application/json"
# Of Prometheus' text format.
_TEXT = "text/plain; version=0.0.4"

_VERSION = r"(?:/versions/(?P<version>\d+)|/labels/(?P<label>[^/:]+))?"
_PREDICT = re.compile(
    rf"/v1/models/(?P<name>[^/:]+){_VERSION}"
    r":(?P<method>classify|regress|predict)",
    re.IGNORECASE | re.ASCII,
)
_STATUS = re.compile(
    rf"/v1/models(?:/(?P<name>[^/:]+))?{_VERSION}(?P<metadata>/metadata)?",
    re.IGNORECASE | re.ASCII,
)

# As model_servers/http_server.cc; all others are 500.
_HTTP = {
    StatusCode.CANCELLED: "499 Client Closed Request",
    StatusCode.INVALID_ARGUMENT: "400 Bad Request",
    StatusCode.FAILED_PRECONDITION: "400 Bad Request",
    StatusCode.OUT_OF_RANGE: "400 Bad Request",
    StatusCode.UNAUTHENTICATED: "401 Unauthorized",
    StatusCode.PERMISSION_DENIED: "403 Forbidden",
    StatusCode.NOT_FOUND: "404 Not Found",
    StatusCode.ALREADY_EXISTS: "409 Conflict",
    StatusCode.ABORTED: "409 Conflict",
    StatusCode.RESOURCE_EXHAUSTED: "429 Too Many Requests",
    StatusCode.UNIMPLEMENTED: "501 Not Implemented",
    StatusCode.UNAVAILABLE: "503 Service Unavailable",
    StatusCode.DEADLINE_EXCEEDED: "504 Gateway Timeout",
}

Environ = Mapping[str, Any]


class RESTApp:
    """The WSGI application.

    Args:
        handlers: The methods of the server.
        streams: Counts the requests of each client.
    """

    def __init__(self, handlers: Handlers, streams: Streams) -> None:
        self._handlers = handlers
        self._streams = streams

    def __call__(
        self, environ: Environ, start_response: Callable[..., Any]
    ) -> Iterable[bytes]:
        status, kind = "200 OK", _JSON
        if environ["PATH_INFO"] == PATH and environ["REQUEST_METHOD"] == "GET":
            kind, body = _TEXT, self._handlers.metrics.text().encode()
        else:
            try:
                body = self._answer(environ)
            except StatusError as error:
                status = _HTTP.get(error.code, "500 Internal Server Error")
                body = json_tensors.error_body(error.details)
        headers = [("Content-Type", kind), ("Content-Length", str(len(body)))]
        start_response(status, headers)
        return [body]

    def _answer(self, environ: Environ) -> bytes:
        path = environ["PATH_INFO"]
        # WSGI has the bytes of a path as Latin-1.
        path = path.encode("latin-1").decode("utf-8", "replace")
        method = environ["REQUEST_METHOD"]
        if not path.lower().startswith("/v1/"):
            raise StatusError(
                "NOT_FOUND", f"Not here; models are at /v1/, metrics at {PATH}"
            )
        client = f"rest:{environ['REMOTE_ADDR']}"
        with self._streams.one(client):
            caller = self._caller(environ, client)
            if method == "POST" and (found := _PREDICT.fullmatch(path)):
                return self._predict(found, _body(environ), caller)
            if method == "GET" and (found := _STATUS.fullmatch(path)):
                if found["name"] is None:
                    raise invalid("Missing model name in request.")
                if found["metadata"]:
                    return self._metadata(found, caller)
                return self._status(found, caller)
        raise invalid(f"Malformed request: {method} {path}")

    def _caller(self, environ: Environ, client: str) -> Caller:
        seconds = self._handlers.scheduler.limits.max_seconds
        gone = environ.get("waitress.client_disconnected", lambda: False)
        deadline = time.monotonic() + seconds
        return Caller(client, deadline, lambda: not gone())

    def _predict(self, found: Any, body: bytes, caller: Caller) -> bytes:
        if found["method"].lower() != "predict":
            raise StatusError(
                "UNIMPLEMENTED",
                f"{found['method']} is not offered by the embedded server; "
                "use predict, or tensorflow_model_server",
            )
        request = predict_pb2.PredictRequest()
        _set_spec(request.model_spec, found)

        def inputs_of(name: str) -> Mapping[str, Any]:
            spec = request.model_spec
            with self._handlers.manager.use(spec) as (_, worker):
                signatures = worker.model.signatures
            name = name or DEFAULT
            if name not in signatures:
                raise invalid(
                    f'Serving signature name: "{name}" not found in signature '
                    "def"
                )
            return signatures[name].inputs

        in_rows = json_tensors.fill_request(body, inputs_of, request)
        response = self._handlers.answer("Predict", request, caller, "REST")
        return json_tensors.response_body(response, in_rows)

    def _status(self, found: Any, caller: Caller) -> bytes:
        request = get_model_status_pb2.GetModelStatusRequest()
        _set_spec(request.model_spec, found)
        response = self._handlers.answer(
            "GetModelStatus", request, caller, "REST"
        )
        versions = [
            {
                "version": str(entry.version),
                "state": State.Name(entry.state),
                "status": {
                    "error_code": _name_of(entry.status.error_code),
                    "error_message": entry.status.error_message,
                },
            }
            for entry in response.model_version_status
        ]
        return _indented({"model_version_status": versions})

    def _metadata(self, found: Any, caller: Caller) -> bytes:
        request = get_model_metadata_pb2.GetModelMetadataRequest(
            metadata_field=["signature_def"]
        )
        _set_spec(request.model_spec, found)
        response = self._handlers.answer(
            "GetModelMetadata", request, caller, "REST"
        )
        signatures = get_model_metadata_pb2.SignatureDefMap()
        response.metadata["signature_def"].Unpack(signatures)
        described = MessageToDict(
            signatures,
            preserving_proto_field_name=True,
            always_print_fields_with_no_presence=True,
        )
        spec = {
            "name": response.model_spec.name,
            "signature_name": "",
            "version": str(response.model_spec.version.value),
        }
        return _indented(
            {"model_spec": spec, "metadata": {"signature_def": described}}
        )


def _set_spec(spec: Any, found: Any) -> None:
    spec.name = found["name"]
    if found["version"] is not None:
        try:
            spec.version.value = int(found["version"])
        except ValueError as error:
            raise invalid(
                f"Failed to convert version: {found['version']} to numeric."
            ) from error
    if found["label"] is not None:
        spec.version_label = found["label"]


def _body(environ: Environ) -> bytes:
    size = int(environ.get("CONTENT_LENGTH") or 0)
    return bytes(environ["wsgi.input"].read(size))


def _name_of(number: int) -> str:
    names = {code.value[0]: code.name for code in StatusCode}
    return names.get(number, "UNKNOWN")


def _indented(value: Any) -> bytes:
    return json.dumps(value, indent=1).encode() + b"\n"
