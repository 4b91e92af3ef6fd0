"""The REST API through the wire: TF Serving's paths, bodies and errors."""

import base64
import json
import socket
import threading
import time
import urllib.error
import urllib.request

import numpy as np
import pytest
from kits.tf_serving import connect
from kits.tf_serving import metrics_of
from kits.tf_serving import two_versions

from rs_keras.serving import EmbeddedServer
from rs_keras.serving import Limits

pytest.importorskip("waitress")


@pytest.fixture(scope="module")
def base_path(tmp_path_factory):
    return two_versions(tmp_path_factory.mktemp("models") / "m")


@pytest.fixture(scope="module")
def server(base_path):
    with EmbeddedServer(
        base_path,
        model_name="m",
        port=0,
        rest_port=0,
        versions="all",
        labels={"stable": 1},
        limits=Limits(max_seconds=5, max_request_bytes=10_000),
    ) as server:
        yield server


def ask(server, path, body=None, method=None):
    """The HTTP status and the JSON of a response."""
    if body is not None and not isinstance(body, bytes):
        body = json.dumps(body).encode()
    request = urllib.request.Request(
        f"http://{server.rest_address}{path}", body, method=method
    )
    try:
        with urllib.request.urlopen(request, timeout=30) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def predict(server, body, where="/v1/models/m"):
    return ask(server, f"{where}:predict", body)


def b64(content):
    return {"b64": base64.b64encode(content).decode()}


def test_rows(server):
    # x / 2 + 2, by hand.
    assert predict(server, {"instances": [1.0, 2.0, 4]}) == (
        200,
        {"predictions": [2.5, 3.0, 4.0]},
    )


def test_columns(server):
    assert predict(server, {"inputs": [1.0, 2.0]}) == (
        200,
        {"outputs": [2.5, 3.0]},
    )
    assert predict(server, {"inputs": {"x": [1.0]}}) == (
        200,
        {"outputs": [2.5]},
    )


ROWS = [{"a": 1, "b": "x"}, {"a": 2.5, "b": b64(b"y")}]


def test_rows_of_several_inputs_and_outputs(server):
    found = predict(server, {"signature_name": "pair", "instances": ROWS})
    assert found == (
        200,
        {
            "predictions": [
                {"again": 1.0, "joined": "1.000000x", "same": 1.0},
                {"again": 2.5, "joined": "2.500000y", "same": 2.5},
            ]
        },
    )


def test_columns_of_several_inputs_and_outputs(server):
    inputs = {"a": [1, 2.5], "b": ["x", b64(b"y")]}
    assert predict(server, {"signature_name": "pair", "inputs": inputs}) == (
        200,
        {
            "outputs": {
                "again": [1.0, 2.5],
                "joined": ["1.000000x", "2.500000y"],
                "same": [1.0, 2.5],
            }
        },
    )


def test_floats_are_the_shortest_that_round_trip(server):
    (found,) = predict(server, {"instances": [-3.6]})[1]["predictions"]
    # 2 - 1.8 in float32: as a double it would be 0.20000004768371582.
    assert np.float32(found) == np.float32(-3.6) / 2 + np.float32(2.0)
    assert len(repr(found)) < 12


def test_numbers_that_are_not_finite(server):
    body = b'{"instances": [NaN, Infinity, -Infinity]}'
    request = urllib.request.Request(
        f"http://{server.rest_address}/v1/models/m:predict", body
    )
    with urllib.request.urlopen(request, timeout=30) as response:
        assert response.read() == b'{"predictions": [NaN, Infinity, -Infinity]}'


@pytest.mark.parametrize(
    "where", ["/v1/models/m/versions/1", "/v1/models/m/labels/stable"]
)
def test_versions_and_labels(server, where):
    assert predict(server, {"instances": [2]}, where)[0] == 200
    code, found = ask(server, f"{where}/metadata")
    assert (code, found["model_spec"]["version"]) == (200, "1")


AVAILABLE = {
    "state": "AVAILABLE",
    "status": {"error_code": "OK", "error_message": ""},
}


def test_status(server):
    three, one = ({"version": v, **AVAILABLE} for v in ("3", "1"))
    assert ask(server, "/v1/models/m") == (
        200,
        {"model_version_status": [three, one]},
    )
    assert ask(server, "/v1/models/m/versions/1") == (
        200,
        {"model_version_status": [one]},
    )


def test_metadata(server):
    code, found = ask(server, "/v1/models/m/metadata")
    assert code == 200
    assert found["model_spec"] == {
        "name": "m",
        "signature_name": "",
        "version": "3",
    }
    signatures = found["metadata"]["signature_def"]["signature_def"]
    assert signatures["pair"]["inputs"]["b"] == {
        "dtype": "DT_STRING",
        "name": "pair_b:0",
        "tensor_shape": {
            "dim": [{"size": "-1", "name": ""}],
            "unknown_rank": False,
        },
    }
    assert signatures["pair"]["method_name"] == "tensorflow/serving/predict"


PAIR = {"signature_name": "pair"}
BAD = {
    "nothing": (b"", "JSON Parse error: The document is empty"),
    "no JSON": (b"{]", "JSON Parse error: "),
    "deep": (b"[" * 10**5, "JSON Parse error: "),
    "a list": (b"[1]", "JSON Value: [1] Is not object"),
    "no inputs": ({}, "Missing 'inputs' or 'instances' key"),
    "both": ({"inputs": [1], "instances": [1]}, "expecting only one of"),
    "signature name": (
        {"signature_name": 1, "inputs": [1]},
        "'signature_name' key must be a string value.",
    ),
    "signature": (
        {"signature_name": "nope", "inputs": [1]},
        'Serving signature name: "nope" not found in signature def',
    ),
    "instances": ({"instances": 1}, "Expecting 'instances' to be an list"),
    "no instances": ({"instances": []}, "No values in 'instances' array"),
    "plain rows": ({**PAIR, "instances": [1]}, "expecting list of objects"),
    "plain columns": ({**PAIR, "inputs": [1]}, "expecting an object"),
    "mixed rows": ({**PAIR, "instances": [*ROWS, 1]}, "at item 2 of input"),
    "keys": (
        {**PAIR, "instances": [ROWS[0], {"a": 1}]},
        "Failed to process element: 1 of 'instances' list. JSON object: "
        '{"a": 1} keys must be equal to: a,b',
    ),
    "missing": (
        {**PAIR, "inputs": {"a": [1]}},
        "Missing named input: b in 'inputs' object.",
    ),
    "type": (
        {"inputs": ["one"]},
        'JSON Value: ["one"] is not of expected type: float32',
    ),
    "string": (
        {**PAIR, "inputs": {"a": [1], "b": [1]}},
        "JSON Value: 1 is not of expected type: string",
    ),
    "whole number": (
        {"signature_name": "spin", "inputs": [1.5]},
        "JSON Value: [1.5] is not of expected type: int64",
    ),
    "too large": (
        {"inputs": [1e300]},
        "Cannot convert JSON value: 1e+300 to float32 without loss",
    ),
    "ragged": ({"inputs": [[1], [1, 2]]}, "Encountered list at unexpected"),
    "ragged strings": (
        {**PAIR, "inputs": {"a": [1], "b": [["x"], ["y", "z"]]}},
        "Encountered list at unexpected size: 2",
    ),
    "base64": (
        {**PAIR, "inputs": {"a": [1], "b": [{"b64": "a"}]}},
        "Unable to base64 decode",
    ),
    "limit": ({"inputs": [0.5] * 3000}, "at most 10000 bytes"),
    "graph": (
        {"signature_name": "refuse", "inputs": ["why"]},
        "assertion failed: [why]",
    ),
}


@pytest.mark.parametrize("body, message", BAD.values(), ids=BAD.keys())
def test_bad_requests(server, body, message):
    code, found = predict(server, body)
    assert code == 400
    assert list(found) == ["error"]
    assert message in found["error"]


OTHERS = {
    "model": ("/v1/models/x:predict", {"inputs": [1]}, 404, "Latest(x)"),
    "version": (
        "/v1/models/m/versions/7:predict",
        {"inputs": [1]},
        404,
        "Specific(m, 7)",
    ),
    "large version": (
        f"/v1/models/m/versions/{10**30}:predict",
        {"inputs": [1]},
        400,
        "Failed to convert version",
    ),
    "label": (
        "/v1/models/m/labels/x:predict",
        {"inputs": [1]},
        400,
        "Unrecognized servable version label: x",
    ),
    "status": ("/v1/models/x", None, 404, "any versions of model x"),
    "no name": ("/v1/models", None, 400, "Missing model name in request."),
    "get": (
        "/v1/models/m:predict",
        None,
        400,
        "Malformed request: GET /v1/models/m:predict",
    ),
    "post": ("/v1/models/m", {}, 400, "Malformed request: POST /v1/models/m"),
    "classify": ("/v1/models/m:classify", {}, 501, "not offered"),
    "elsewhere": ("/", None, 404, "models are at /v1/"),
}


@pytest.mark.parametrize(
    "path, body, code, message", OTHERS.values(), ids=OTHERS.keys()
)
def test_other_errors(server, path, body, code, message):
    status, found = ask(server, path, body)
    assert status == code
    assert message in found["error"]


def test_the_longest_time_is_the_deadline(base_path):
    limits = Limits(max_seconds=0.3)
    with EmbeddedServer(
        base_path, model_name="m", port=0, rest_port=0, limits=limits
    ) as server:
        body = {"signature_name": "spin", "instances": [10**12]}
        code, found = predict(server, body)
        assert (code, found["error"]) == (
            504,
            "Timed out waiting for notification",
        )


def test_requests_are_counted_as_those_of_grpc(server):
    before = metrics_of(server).count("REST")
    predict(server, {"instances": [1]})
    text = metrics_of(server)
    labels = 'model_name="m",API="Predict",entrypoint="REST"'
    assert f":tensorflow:serving:request_latency_count{{{labels}}}" in text
    assert before <= text.count("REST")
    assert "# TYPE :rs_keras:serving:fullness gauge\n" in text
    assert ":rs_keras:serving:fullness{} 0\n" in text


def test_half_sent_requests_hold_no_thread(server):
    """Fifty of them, for 32 threads; grpc is as quick as before."""
    host, port = server.rest_address.split(":")
    head = b"POST /v1/models/m:predict HTTP/1.1\r\nContent-Length: 100\r\n"
    opened = []
    for _ in range(50):
        connection = socket.create_connection((host, port), 5)
        connection.sendall(head)
        opened.append(connection)
    assert predict(server, {"instances": [2]})[0] == 200
    for connection in opened:
        connection.close()
    with connect(server) as wire:
        assert wire.line() == 3.0


def test_slow_connections_are_closed(base_path):
    limits = Limits(receive_seconds=1)
    with EmbeddedServer(
        base_path, model_name="m", port=0, rest_port=0, limits=limits
    ) as server:
        host, port = server.rest_address.split(":")
        with socket.create_connection((host, port), 20) as connection:
            connection.sendall(b"POST /v1/")
            begun = time.monotonic()
            while connection.recv(1000):
                pass
            assert time.monotonic() - begun < 15


def test_stop_closes_the_port(base_path):
    before = threading.active_count()
    server = EmbeddedServer(base_path, model_name="m", port=0, rest_port=0)
    with server:
        host, port = server.rest_address.split(":")
        idle = socket.create_connection((host, port), 5)
        assert predict(server, {"instances": [2]})[0] == 200
    with pytest.raises(OSError, match="refused"):
        socket.create_connection((host, port), 5)
    idle.close()
    deadline = time.monotonic() + 10
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.05)
    assert threading.active_count() <= before


def test_stop_finishes_what_runs(base_path):
    answers = []
    with EmbeddedServer(
        base_path, model_name="m", port=0, rest_port=0
    ) as server:
        body = {"signature_name": "spin", "instances": [30_000]}
        running = threading.Thread(
            target=lambda: answers.append(predict(server, body))
        )
        running.start()
        while not metrics_of(server).count(":fullness{} 0.1"):
            if answers:
                break
            time.sleep(0.005)
        server.stop(30)
    running.join()
    assert answers == [(200, {"predictions": [30_000]})]


def test_a_port_that_is_taken(server, base_path):
    port = int(server.rest_address.rpartition(":")[2])
    with pytest.raises(OSError, match=f"Cannot listen on 127.0.0.1:{port}"):
        EmbeddedServer(base_path, port=0, rest_port=port).start()
