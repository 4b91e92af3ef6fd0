"""Requests through the wire: TF Serving's answers, wrong ones first.

Codes, messages and the order of checks are those of tensorflow/serving; the
stubs are those of tensorflow-serving-api, and no client of ours takes part.
"""

import re
import threading
import time
import urllib.request

import grpc
import numpy as np
import pytest
import tensorflow as tf
from grpc_health.v1 import health_pb2
from grpc_health.v1 import health_pb2_grpc
from kits.tf_serving import REST_PORT
from kits.tf_serving import Wire
from kits.tf_serving import connect
from kits.tf_serving import copy_version
from kits.tf_serving import fails
from kits.tf_serving import metadata_request
from kits.tf_serving import metrics_of
from kits.tf_serving import model
from kits.tf_serving import predict_request
from kits.tf_serving import reload_request
from kits.tf_serving import set_spec
from kits.tf_serving import status_request
from kits.tf_serving import two_versions
from tensorflow_serving.apis import classification_pb2
from tensorflow_serving.apis import get_model_metadata_pb2
from tensorflow_serving.apis import get_model_status_pb2
from tensorflow_serving.apis import inference_pb2
from tensorflow_serving.apis import model_management_pb2
from tensorflow_serving.apis import predict_pb2
from tensorflow_serving.apis import regression_pb2

from rs_keras.serving import EmbeddedServer

NINE_MEBIBYTES = 9 * 2**18
X = np.float32([1.0, 2.0])
A = np.float32([1.0])
B = np.array([b"b"])
A_LONG_LOOP = np.int64([10**12])


@pytest.fixture(scope="module")
def base_path(tmp_path_factory):
    return two_versions(tmp_path_factory.mktemp("models") / "m")


@pytest.fixture(scope="module")
def server(base_path):
    with EmbeddedServer(
        base_path,
        model_name="m",
        port=0,
        versions="all",
        labels={"stable": 1},
        max_concurrency=4,
        rest_port=REST_PORT,
        allow_reload=True,
    ) as server:
        yield server


@pytest.fixture(scope="module")
def wire(server):
    with grpc.insecure_channel(
        server.address, [("grpc.max_receive_message_length", -1)]
    ) as channel:
        yield Wire(channel)


def content(dtype, shape, content):
    proto = tf.make_tensor_proto(np.zeros(shape, np.float32))
    proto.ClearField("float_val")
    proto.dtype = dtype
    proto.tensor_content = content
    return proto


def predict(**kwargs):
    return "Predict", predict_request(**kwargs)


def without_spec(kind):
    return kind()


def with_label(request, label):
    set_spec(request, request.model_spec.name, label=label)
    return request


def only_custom():
    request = model_management_pb2.ReloadConfigRequest()
    request.config.custom_model_config.SetInParent()
    return request


PAIR = {"signature": "pair", "a": A, "b": B}
M = model("m", "/somewhere")
BAD_REQUESTS = {
    # Predict: the model
    "no spec": (
        "Predict",
        predict_pb2.PredictRequest(),
        "INVALID_ARGUMENT",
        "Missing ModelSpec",
    ),
    "no name": (
        *predict(model="", x=X),
        "INVALID_ARGUMENT",
        "ModelSpec has no name specified.",
    ),
    "unknown model": (
        *predict(model="absent", x=X),
        "NOT_FOUND",
        "Servable not found for request: Latest(absent)",
    ),
    "unknown version": (
        *predict(version=7, x=X),
        "NOT_FOUND",
        "Servable not found for request: Specific(m, 7)",
    ),
    "negative version": (
        *predict(version=-1, x=X),
        "NOT_FOUND",
        "Servable not found for request: Specific(m, -1)",
    ),
    "unknown label": (
        *predict(label="canary", x=X),
        "INVALID_ARGUMENT",
        "Unrecognized servable version label: canary",
    ),
    "unknown label of an unknown model": (
        *predict(model="absent", label="canary", x=X),
        "INVALID_ARGUMENT",
        "Unrecognized servable version label: canary",
    ),
    # Predict: the signature and its inputs
    "unknown signature": (
        *predict(signature="nope", x=X),
        "FAILED_PRECONDITION",
        'Serving signature key "nope" not found.',
    ),
    "signature before inputs": (
        *predict(signature="nope"),
        "FAILED_PRECONDITION",
        'Serving signature key "nope" not found.',
    ),
    "no input": (
        *predict(),
        "INVALID_ARGUMENT",
        "input size does not match signature: 0!=1 len({}) != len({x}). "
        "Sent extra: {}. Missing but required: {x}.",
    ),
    "missing input": (
        *predict(signature="pair", a=A),
        "INVALID_ARGUMENT",
        "input size does not match signature: 1!=2 len({a}) != len({a,b}). "
        "Sent extra: {}. Missing but required: {b}.",
    ),
    "extra inputs": (
        *predict(x=X, unknown_key2=X, unknown_key1=X),
        "INVALID_ARGUMENT",
        "input size does not match signature: 3!=1 "
        "len({unknown_key1,unknown_key2,x}) != len({x}). "
        "Sent extra: {unknown_key1,unknown_key2}. Missing but required: {}.",
    ),
    "wrong input name": (
        *predict(img=X),
        "INVALID_ARGUMENT",
        "Signature input alias: x(feed name: serving_default_x:0) not found "
        "in request and no default value provided. Inputs expected to be in "
        "the request {img}, or default input alias set: ",
    ),
    # Predict: the tensors
    "content too short": (
        *predict(x=content(1, [2], b"1234")),
        "INVALID_ARGUMENT",
        "tensor parsing error: x",
    ),
    "no dtype": (
        *predict(x=content(0, [1], b"1234")),
        "INVALID_ARGUMENT",
        "tensor parsing error: x",
    ),
    "parsing before the output filter": (
        *predict(x=content(0, [1], b"1234"), output_filter=["nope"]),
        "INVALID_ARGUMENT",
        "tensor parsing error: x",
    ),
    "wrong dtype": (
        *predict(x=np.float64([1.0])),
        "INVALID_ARGUMENT",
        "Expects arg[0] to be float but double is provided",
    ),
    "wrong dtypes": (
        *predict(signature="pair", a=np.int64([1]), b=np.int64([1])),
        "INVALID_ARGUMENT",
        "Expects arg[0] to be float but int64 is provided",
    ),
    "wrong dtype of the second": (
        *predict(signature="pair", a=A, b=np.int32([1])),
        "INVALID_ARGUMENT",
        "Expects arg[1] to be string but int32 is provided",
    ),
    # Predict: the outputs
    "unknown output": (
        *predict(output_filter=["foo"], **PAIR),
        "INVALID_ARGUMENT",
        "output tensor alias not found in signature: foo Outputs expected to "
        "be in the set {again,joined,same}.",
    ),
    "output twice": (
        *predict(output_filter=["same", "same"], **PAIR),
        "INVALID_ARGUMENT",
        "duplicate output tensor alias: same",
    ),
    "output filter before dtype": (
        *predict(x=np.float64([1.0]), output_filter=["y", "y"]),
        "INVALID_ARGUMENT",
        "duplicate output tensor alias: y",
    ),
    "the initializer": (
        *predict(signature="__saved_model_init_op"),
        "OUT_OF_RANGE",
        "Node 'NoOp' (type: 'NoOp', num of outputs: 0) does not have output 0",
    ),
    # GetModelMetadata
    "metadata: no spec": (
        "GetModelMetadata",
        get_model_metadata_pb2.GetModelMetadataRequest(),
        "INVALID_ARGUMENT",
        "Missing ModelSpec",
    ),
    "metadata: no name": (
        "GetModelMetadata",
        metadata_request("signature_def", model=""),
        "INVALID_ARGUMENT",
        "ModelSpec has no name specified.",
    ),
    "metadata: no field": (
        "GetModelMetadata",
        metadata_request(model="absent"),
        "INVALID_ARGUMENT",
        "GetModelMetadataRequest must specify at least one metadata_field",
    ),
    "metadata: other field": (
        "GetModelMetadata",
        metadata_request("signature_def", "foo", model="absent"),
        "INVALID_ARGUMENT",
        "Metadata field foo is not supported",
    ),
    "metadata: unknown model": (
        "GetModelMetadata",
        metadata_request("signature_def", model="absent"),
        "NOT_FOUND",
        "Servable not found for request: Latest(absent)",
    ),
    # GetModelStatus
    "status: no spec": (
        "GetModelStatus",
        get_model_status_pb2.GetModelStatusRequest(),
        "INVALID_ARGUMENT",
        "Missing ModelSpec",
    ),
    "status: empty name": (
        "GetModelStatus",
        status_request(""),
        "NOT_FOUND",
        "Could not find any versions of model ",
    ),
    "status: unknown model": (
        "GetModelStatus",
        status_request("absent"),
        "NOT_FOUND",
        "Could not find any versions of model absent",
    ),
    "status: unknown version": (
        "GetModelStatus",
        status_request(version=7),
        "NOT_FOUND",
        "Could not find version 7 of model m",
    ),
    # HandleReloadConfigRequest
    "reload: nothing": (
        "HandleReloadConfigRequest",
        model_management_pb2.ReloadConfigRequest(),
        "INVALID_ARGUMENT",
        "ServerModelConfig type not supported by HandleReloadConfigRequest. "
        "Only ModelConfigList is currently supported",
    ),
    "reload: custom config": (
        "HandleReloadConfigRequest",
        only_custom(),
        "INVALID_ARGUMENT",
        "ServerModelConfig type not supported by HandleReloadConfigRequest. "
        "Only ModelConfigList is currently supported",
    ),
    "reload: model twice": (
        "HandleReloadConfigRequest",
        reload_request(M, M),
        "INVALID_ARGUMENT",
        "Illegal to list model m multiple times in config list",
    ),
    "reload: relative path": (
        "HandleReloadConfigRequest",
        reload_request(model("m", "models/m")),
        "INVALID_ARGUMENT",
        "Expected model m to have an absolute path or URI; got "
        "base_path()=models/m",
    ),
    "reload: no platform": (
        "HandleReloadConfigRequest",
        reload_request(model("new", "/somewhere", "")),
        "INVALID_ARGUMENT",
        "Illegal setting neither ModelServerConfig::model_type (deprecated) "
        "nor ModelServerConfig::model_platform, model name is new",
    ),
    "reload: other platform": (
        "HandleReloadConfigRequest",
        reload_request(model("new", "/somewhere", "torch")),
        "INVALID_ARGUMENT",
        "Model new requests unsupported platform torch",
    ),
    "reload: platform changed": (
        "HandleReloadConfigRequest",
        reload_request(model("m", "/somewhere", "torch")),
        "INVALID_ARGUMENT",
        "Illegal to change a model's platform. For model m platform was "
        "tensorflow and new platform requested is torch",
    ),
    "reload: label of a version that does not serve": (
        "HandleReloadConfigRequest",
        reload_request(model("new", "/somewhere", labels={"stable": 2})),
        "FAILED_PRECONDITION",
        "Request to assign label to version 2 of model new, which is not "
        "currently available for inference",
    ),
    # What is not offered
    "classify": (
        "Classify",
        classification_pb2.ClassificationRequest(),
        "UNIMPLEMENTED",
        "Classify is not offered by the embedded server; use Predict, or "
        "tensorflow_model_server",
    ),
    "regress": (
        "Regress",
        regression_pb2.RegressionRequest(),
        "UNIMPLEMENTED",
        "Regress is not offered by the embedded server; use Predict, or "
        "tensorflow_model_server",
    ),
    "multi-inference": (
        "MultiInference",
        inference_pb2.MultiInferenceRequest(),
        "UNIMPLEMENTED",
        "MultiInference is not offered by the embedded server; use Predict, "
        "or tensorflow_model_server",
    ),
}


@pytest.mark.parametrize(
    "method, request_, code, message",
    BAD_REQUESTS.values(),
    ids=BAD_REQUESTS.keys(),
)
def test_bad_requests_get_tf_servings_status(
    wire, method, request_, code, message
):
    with fails(code, message):
        wire.call(method, request_)


def test_reload_errors_leave_the_models_alone(wire):
    assert wire.states() == [(3, "AVAILABLE"), (1, "AVAILABLE")]


def test_wrong_shape_is_what_the_graph_says(wire):
    with fails("INVALID_ARGUMENT") as caught:
        wire.predict(signature="shaped", image=np.zeros([1, 3, 2], "f"))
    message = caught[0].details()
    assert message.startswith(
        "Shape of tensor _arg_shaped_image_0_0 [1,3,2] is not compatible with "
        "expected shape [?,2,2].\n\t [[{{"
    )
    # The signature says [None]; no op minds a matrix, so it is answered.
    response = wire.predict(x=np.float32([[1.0, 2.0]]))
    assert response.outputs["y"].float_val == [2.5, 3.0]


def test_long_messages_are_cut_at_1024_bytes(wire):
    name = "é" * 2000
    with fails("NOT_FOUND") as caught:
        wire.predict(model=name)
    message = caught[0].details()
    assert message.endswith("é...TRUNCATED")
    # 39 bytes before the name leave 985: 492 letters of two bytes each.
    start = "Servable not found for request: Latest("
    assert message == start + "é" * 492 + "...TRUNCATED"


def test_errors_of_operations_keep_code_and_cut(wire):
    with fails("INVALID_ARGUMENT") as caught:
        wire.predict(signature="refuse", message=np.array([b"x" * 3000]))
    message = caught[0].details()
    assert message.startswith("assertion failed: [xxx")
    assert len(message) == 1024 + len("...TRUNCATED")


def test_predict_whole_response(wire):
    response = wire.predict(x=X)
    expected = predict_pb2.PredictResponse()
    expected.model_spec.name = "m"
    expected.model_spec.signature_name = "serving_default"
    expected.model_spec.version.value = 3
    # x / 2 + 2, by hand.
    expected.outputs["y"].dtype = 1
    expected.outputs["y"].tensor_shape.dim.add().size = 2
    expected.outputs["y"].float_val.extend([2.5, 3.0])
    assert response == expected


@pytest.mark.parametrize(
    "arguments, version",
    [({}, 3), ({"version": 1}, 1), ({"label": "stable"}, 1)],
    ids=["latest", "number", "label"],
)
def test_predict_names_the_version_never_the_label(wire, arguments, version):
    model_spec = wire.predict(x=X, **arguments).model_spec
    assert model_spec.WhichOneof("version_choice") == "version"
    assert model_spec.version.value == version


def test_predict_other_signature(wire):
    response = wire.predict(signature="line", x=X)
    assert response.model_spec.signature_name == "line"
    assert response.outputs["y"].float_val == [2.5, 3.0]


def test_output_filter(wire):
    response = wire.predict(output_filter=["joined", "again"], **PAIR)
    assert set(response.outputs) == {"joined", "again"}
    assert response.outputs["joined"].string_val == [b"1.000000b"]
    assert response.outputs["again"].float_val == [1.0]
    assert set(wire.predict(**PAIR).outputs) == {"joined", "again", "same"}


def test_outputs_use_the_repeated_field_of_their_type(wire):
    outputs = wire.predict(signature="types", x=np.float32(3.0)).outputs
    # bfloat16 3.0 is 0x4040, half 3.0 is 0x4200.
    assert outputs["bfloat16"].half_val == [0x4040]
    assert outputs["float16"].half_val == [0x4200]
    assert outputs["float64"].double_val == [3.0]
    assert outputs["int8"].int_val == [3]
    assert outputs["uint64"].uint64_val == [3]
    assert outputs["bool"].bool_val == [True]
    assert outputs["complex64"].scomplex_val == [3.0, -3.0]
    assert outputs["text"].string_val == [b"\xff\x00 ends in zero\x00"]
    assert [d.size for d in outputs["empty"].tensor_shape.dim] == [0, 3]
    assert not any(output.tensor_content for output in outputs.values())


@pytest.mark.parametrize(
    "proto",
    [
        content(1, [2], np.float32([4.0, 4.0]).tobytes()),
        tf.make_tensor_proto(np.float32([4.0, 4.0])),
        tf.make_tensor_proto(4.0, tf.float32, [2]),
    ],
    ids=["content", "made by TensorFlow", "last value repeated"],
)
def test_inputs_in_either_encoding(wire, proto):
    assert wire.predict(x=proto).outputs["y"].float_val == [4.0, 4.0]


def test_a_request_of_no_rows_gets_no_rows(wire):
    response = wire.predict(x=np.zeros([0], np.float32))
    assert not response.outputs["y"].float_val
    assert [d.size for d in response.outputs["y"].tensor_shape.dim] == [0]


def test_messages_above_4_mb_both_ways(wire):
    x = np.arange(NINE_MEBIBYTES, dtype=np.float32)
    y = wire.predict(x=x).outputs["y"].float_val
    np.testing.assert_array_equal(np.float32(y), x / 2 + 2)


def test_the_server_describes_its_signatures(wire):
    response = wire.call("GetModelMetadata", metadata_request("signature_def"))
    assert response.model_spec.name == "m"
    assert response.model_spec.version.value == 3
    assert not response.model_spec.signature_name
    assert set(response.metadata) == {"signature_def"}
    packed = response.metadata["signature_def"]
    assert packed.type_url == (
        "type.googleapis.com/tensorflow.serving.SignatureDefMap"
    )
    signatures = get_model_metadata_pb2.SignatureDefMap()
    assert packed.Unpack(signatures)
    assert {"serving_default", "pair", "__saved_model_init_op"} <= set(
        signatures.signature_def
    )
    pair = signatures.signature_def["pair"]
    assert set(pair.inputs) == {"a", "b"}
    assert pair.inputs["a"].dtype == 1


def test_the_server_tells_the_state_of_its_versions(wire):
    assert wire.states() == [(3, "AVAILABLE"), (1, "AVAILABLE")]
    one = wire.call("GetModelStatus", status_request(version=1))
    assert [entry.version for entry in one.model_version_status] == [1]
    status = one.model_version_status[0].status
    assert (status.error_code, status.error_message) == (0, "")
    # A label is ignored, even one that does not exist.
    labelled = wire.call("GetModelStatus", status_request(label="nope"))
    assert [entry.version for entry in labelled.model_version_status] == [3, 1]


@pytest.mark.parametrize("service", ["", "ModelService", "PredictionService"])
def test_the_server_answers_health_checks(wire, service):
    stub = health_pb2_grpc.HealthStub(wire.channel)
    request = health_pb2.HealthCheckRequest(service=service)
    response = stub.Check(request, timeout=10)
    assert response.status == health_pb2.HealthCheckResponse.SERVING


def test_health_of_an_unknown_service(wire):
    stub = health_pb2_grpc.HealthStub(wire.channel)
    with fails("NOT_FOUND"):
        stub.Check(health_pb2.HealthCheckRequest(service="x"), timeout=10)


def test_method_that_does_not_exist(wire):
    call = wire.channel.unary_unary("/tensorflow.serving.SessionService/Run")
    with fails("UNIMPLEMENTED"):
        call(b"", timeout=10)


def test_readiness_trick_of_the_harness(wire):
    # TF Serving's own tests wait until such a request says "Servable".
    with fails("NOT_FOUND") as caught:
        wire.predict(model="intentionally_missing_model")
    assert "Servable" in caught[0].details()


def test_deadline_stops_the_loop(server, wire):
    start = time.monotonic()
    with fails("DEADLINE_EXCEEDED"):
        wire.predict(signature="spin", n=A_LONG_LOOP, timeout=0.5)
    assert time.monotonic() - start < 5
    # All four slots are free again: the loop has not gone on.
    deadline = time.monotonic() + 5
    while request_count(server, "DEADLINE_EXCEEDED") < 1:
        assert time.monotonic() < deadline, "the loop goes on"
        time.sleep(0.05)


def test_too_many_at_once(server, wire):
    # 8 loops for 4 slots: four are turned away at once, four run into their
    # deadline.
    start = time.monotonic()
    calls = [
        wire.prediction.Predict.future(
            predict_request(signature="spin", n=A_LONG_LOOP), timeout=2
        )
        for _ in range(8)
    ]
    codes = []
    while len(codes) < 4 and time.monotonic() - start < 1.9:
        codes = [call.code() for call in calls if call.done()]
        time.sleep(0.01)
    assert codes == [grpc.StatusCode.RESOURCE_EXHAUSTED] * 4
    # States are told all the same.
    assert wire.states()[0] == (3, "AVAILABLE")
    messages = {call.details() for call in calls if call.done()}
    assert messages == {"Server Threadpool Exhausted"}
    rest = [call.code() for call in calls]
    assert rest.count(grpc.StatusCode.DEADLINE_EXCEEDED) == 4


def test_concurrent_requests_keep_their_answers(wire):
    answers = {}

    def ask(value):
        deadline = time.monotonic() + 60
        got = answers.setdefault(value, [])
        while len(got) < 20 and time.monotonic() < deadline:
            try:
                got.append(wire.line(value))
            except grpc.RpcError as error:
                # On a busy machine that may be for as long as others ask.
                assert error.details() == "Server Threadpool Exhausted"
                time.sleep(0.01)

    threads = [threading.Thread(target=ask, args=[float(i)]) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(answers) == [0.0, 1.0, 2.0, 3.0]
    for value, got in answers.items():
        assert set(got) == {value / 2 + 2}


def request_count(server, status):
    found = re.search(
        r":tensorflow:serving:request_count"
        rf'\{{model_name="m",status="{status}"\}} (\d+)',
        metrics_of(server),
    )
    return int(found.group(1)) if found else 0


def test_the_server_counts_and_times_requests(server, wire):
    before = request_count(server, "OK")
    wire.predict(x=X)
    assert request_count(server, "OK") == before + 1
    text = metrics_of(server)
    assert "# TYPE :tensorflow:serving:request_latency histogram" in text
    labels = 'model_name="m",API="Predict",entrypoint="GRPC"'
    # 33 limits from 10 us by powers of 1.8, then the rest.
    buckets = re.findall(
        rf":request_latency_bucket\{{{labels},le=\"(.*)\"\}} (\d+)", text
    )
    assert [limit for limit, _ in buckets][:3] == ["10", "18", "32.4"]
    assert len(buckets) == 34 and buckets[-1][0] == "+Inf"
    counts = [int(count) for _, count in buckets]
    assert counts == sorted(counts) and counts[-1] == before + 1
    assert f":request_latency_count{{{labels}}} {before + 1}" in text


def test_metrics_do_not_grow_with_invented_names(server, wire):
    for name in ("made", "up"):
        with fails("NOT_FOUND"):
            wire.predict(model=name)
    text = metrics_of(server)
    assert 'model_name="made"' not in text
    assert 'model_name="",status="NOT_FOUND"' in text


def test_prometheus_reads_themetrics_of(server):
    parser = pytest.importorskip("prometheus_client.parser")
    families = {
        family.name: family
        for family in parser.text_string_to_metric_families(metrics_of(server))
    }
    assert families[":tensorflow:serving:request_latency"].type == "histogram"


@pytest.mark.skipif(REST_PORT is None, reason="waitress is not installed")
def test_no_other_path_has_metrics(server):
    with pytest.raises(urllib.error.HTTPError, match="404"):
        urllib.request.urlopen(f"http://{server.rest_address}/", timeout=10)


def test_second_server_on_the_port(server, base_path, tmp_path):
    port = int(server.address.rpartition(":")[2])
    copy_version(base_path / "1", tmp_path, 1)
    with pytest.raises(OSError, match=f"Cannot listen on 127.0.0.1:{port}"):
        EmbeddedServer(tmp_path, port=port).start()


def test_many_channels(server):
    for _ in range(3):
        with connect(server) as wire:
            assert wire.line(2.0) == 3.0
