"""Strangers, slow readers, lost connections, stops: it goes on serving."""

import gc
import socket
import ssl
import threading
import time
import urllib.request

import grpc
import numpy as np
import psutil
import pytest
from google.protobuf import descriptor_pb2
from google.protobuf import descriptor_pool
from google.protobuf import message_factory
from google.protobuf import text_format
from hypothesis import HealthCheck
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
from kits.authority import Authority
from kits.tf_serving import REST_PORT
from kits.tf_serving import Wire
from kits.tf_serving import connect
from kits.tf_serving import fails
from kits.tf_serving import model
from kits.tf_serving import predict_request
from kits.tf_serving import reload_request
from kits.tf_serving import save
from tensorflow_serving.apis import predict_pb2

from rs_keras.serving import TLS
from rs_keras.serving import EmbeddedServer
from rs_keras.serving import Limits

A_LONG_LOOP = {"signature": "spin", "n": np.int64([10**12])}
METHODS = [
    f"/tensorflow.serving.{name}"
    for name in (
        "PredictionService/Predict",
        "PredictionService/GetModelMetadata",
        "PredictionService/Classify",
        "ModelService/GetModelStatus",
        "ModelService/HandleReloadConfigRequest",
    )
]


@pytest.fixture(scope="module")
def export(tmp_path_factory):
    path = tmp_path_factory.mktemp("models") / "m"
    save(path / "1")
    return path


@pytest.fixture(scope="module")
def server(export):
    with EmbeddedServer(
        export, model_name="m", port=0, allow_reload=True
    ) as server:
        yield server


@pytest.fixture(scope="module")
def wire(server):
    with connect(server) as wire:
        yield wire


def start(export, **options):
    options = {"model_name": "m", "port": 0, **options}
    return EmbeddedServer(export, **options)


# -- random requests ---------------------------------------------------------

words = st.sampled_from(
    ["", "m", "x", "y", "a", "b", "serving_default", "pair", "types", "é"]
)


@st.composite
def requests(draw):
    """Predict requests that are nearly right."""
    request = predict_pb2.PredictRequest()
    if draw(st.booleans()):
        request.model_spec.name = draw(st.sampled_from(["m", "m", "m", "é"]))
        request.model_spec.signature_name = draw(words)
    if draw(st.integers(0, 4)) == 0:
        request.model_spec.version.value = draw(st.integers(-1, 2))
    for name in draw(st.lists(words, max_size=3)):
        tensor = request.inputs[name]
        tensor.dtype = draw(st.sampled_from([0, 1, 1, 1, 2, 7, 7, 9, 20, 21]))
        for size in draw(st.lists(st.integers(-1, 3), max_size=3)):
            tensor.tensor_shape.dim.add().size = size
        tensor.float_val.extend(draw(st.lists(st.floats(width=32))))
        tensor.string_val.extend(draw(st.lists(st.binary())))
        tensor.tensor_content = draw(st.just(b"") | st.binary(max_size=16))
    request.output_filter.extend(draw(st.lists(words, max_size=2)))
    return request


fuzzing = settings(
    max_examples=150,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


@fuzzing
@given(request_=requests())
def test_any_request_gets_a_status(wire, request_):
    try:
        wire.call("Predict", request_)
    except grpc.RpcError as error:
        assert error.code() not in (
            grpc.StatusCode.UNKNOWN,
            grpc.StatusCode.INTERNAL,
            grpc.StatusCode.UNAVAILABLE,
            grpc.StatusCode.DEADLINE_EXCEEDED,
        ), error.details()
    assert wire.line() == 3.0


@fuzzing
@given(
    method=st.sampled_from(METHODS),
    message=st.binary(max_size=200)
    | st.tuples(requests(), st.integers(0, 200), st.binary(max_size=3)).map(
        lambda parts: _damaged(*parts)
    ),
)
def test_any_bytes_get_a_status(wire, caplog, method, message):
    call = wire.channel.unary_unary(method)
    try:
        call(message, timeout=10)
    except grpc.RpcError as error:
        # INTERNAL is gRPC's word for a message that does not parse.
        assert error.code() not in (
            grpc.StatusCode.UNAVAILABLE,
            grpc.StatusCode.DEADLINE_EXCEEDED,
        )
    assert "request_crashed" not in caplog.text


def _damaged(request, position, junk):
    content = request.SerializeToString()
    return content[:position] + junk + content[position + len(junk) :]


def test_still_serves_after_random_bytes(server, wire):
    # An empty list of models is a valid reload: it unloads everything.
    assert server.models in ({"m": [1]}, {"m": []})


def test_bytes_that_are_not_grpc(server, wire):
    host, port = server.address.split(":")
    for message in (b"GET / HTTP/1.1\r\n\r\n", bytes(100), b"PRI * HTTP/2.0"):
        with socket.create_connection((host, port), 5) as connection:
            connection.sendall(message)
    with connect(server) as fresh:
        assert fresh.states()


# -- connections that end ------------------------------------------------------


def leave_early(export, rounds):
    """Serves clients that go away; returns what that left behind."""
    process = psutil.Process()

    def left():
        gc.collect()
        sockets = len(process.net_connections())
        return process.num_threads(), sockets, process.memory_info().rss

    with start(export) as server:
        host, port = server.address.split(":")

        def drop(count):
            for _ in range(count):
                connection = socket.create_connection((host, port), 5)
                connection.close()
                with grpc.insecure_channel(
                    server.address, [("grpc.use_local_subchannel_pool", 1)]
                ) as channel:
                    stub = Wire(channel).prediction
                    stub.Predict.future(predict_request(**A_LONG_LOOP), 0.05)
                    call = stub.Predict.future(
                        predict_request(x=np.float32([1.0]))
                    )
                    call.cancel()

        drop(rounds // 4)
        time.sleep(0.3)
        before = left()
        drop(rounds)
        deadline = time.monotonic() + 20
        while left()[1] > before[1] and time.monotonic() < deadline:
            time.sleep(0.1)
        after = left()
        with connect(server) as wire:
            assert wire.line() == 3.0
    return [last - first for last, first in zip(after, before, strict=True)]


def test_dropped_connections_leave_nothing(export):
    threads, sockets, memory = leave_early(export, rounds=60)
    # The pool keeps as many as were busy at once; a leak would leave 60.
    assert threads <= 10
    assert sockets <= 0
    assert memory < 8e6


def test_slow_clients_do_not_take_the_slots(export):
    """Requests that never arrive in full hold no slot and no thread."""
    before = threading.active_count()
    with start(export, max_concurrency=2) as server, connect(server) as wire:
        channels = []
        for _ in range(12):
            channel = grpc.insecure_channel(
                server.address, [("grpc.use_local_subchannel_pool", 1)]
            )
            gate = threading.Event()
            call = channel.stream_unary(METHODS[0]).future(_never(gate))
            channels.append((channel, gate, call))
        time.sleep(0.3)
        assert wire.line() == 3.0
        for channel, gate, call in channels:
            call.cancel()
            gate.set()
            channel.close()
        assert wire.line() == 3.0
    deadline = time.monotonic() + 10
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.05)
    assert threading.active_count() <= before


def _never(gate):
    gate.wait(30)
    yield from ()


def half_open(server, count):
    """Connections of one client with requests that never arrive in full."""
    opened = []
    for index in range(count):
        if index % 50 == 0:
            channel = grpc.insecure_channel(
                server.address, [("grpc.use_local_subchannel_pool", 1)]
            )
        gate = threading.Event()
        method = METHODS[index % len(METHODS)]
        call = channel.stream_unary(method).future(_never(gate))
        opened.append((channel, gate, call))
    return opened


def test_one_client_cannot_take_all_threads(export, tmp_path):
    """270 half-open streams took every thread there was."""
    limits = Limits(max_streams=100, receive_seconds=1.0)
    before = threading.active_count()
    with start(export, limits=limits, unix_socket=tmp_path / "s") as server:
        opened = half_open(server, 600)
        # Another client: the socket is not the loopback interface.
        with connect(f"unix:{tmp_path}/s") as wire:
            assert wire.line(timeout=5) == 3.0
        codes = [call.code() for _, _, call in opened]
        refused = codes.count(grpc.StatusCode.RESOURCE_EXHAUSTED)
        assert refused >= 100
        # Those that were let in had a second to arrive.
        late = codes.count(grpc.StatusCode.CANCELLED)
        assert refused + late == 600
        with connect(server) as wire:
            assert wire.line(timeout=5) == 3.0
        for channel, gate, _ in opened:
            gate.set()
            channel.close()
    assert threading.active_count() <= before + 5


def test_messages_beyond_the_limit_are_refused_unread(export):
    limits = Limits(max_request_bytes=1_000_000)
    with start(export, limits=limits) as server, connect(server) as wire:
        with fails("INVALID_ARGUMENT") as caught:
            wire.predict(x=np.zeros(300_000, np.float32))
        assert "(`max_request_bytes`)" in caught[0].details()
        with fails("RESOURCE_EXHAUSTED") as caught:
            wire.predict(x=np.zeros(10**6, np.float32))
        # The client of this library does not retry this.
        assert "larger than max" in caught[0].details()
        assert wire.line() == 3.0


# What a client of HTTP/2 says first, and its empty settings.
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, *bytes(5)])


@pytest.mark.parametrize("said", [b"", b"PRI", PREFACE])
def test_idle_connections_are_closed(export, said):
    limits = Limits(receive_seconds=0.5, idle_seconds=0.5)
    with start(export, limits=limits) as server:
        host, port = server.address.split(":")
        with socket.create_connection((host, port), 20) as connection:
            connection.sendall(said)
            begun = time.monotonic()
            while connection.recv(1000):
                pass
            assert time.monotonic() - begun < 15


def test_reload_is_off_unless_asked_for(export):
    with start(export) as server, connect(server) as wire:
        with fails("PERMISSION_DENIED") as caught:
            wire.call("HandleReloadConfigRequest", reload_request())
        assert "--allow-reload" in caught[0].details()
        assert server.models == {"m": [1]}


def test_garbage_is_one_line_of_the_log(server, caplog):
    caplog.set_level("DEBUG")
    with connect(server) as wire:
        for method in METHODS[:2]:
            with fails("INTERNAL"):
                wire.channel.unary_unary(method)(b"\xff\xff garbage", timeout=5)
    lines = [r for r in caplog.records if r.levelname in ("WARNING", "ERROR")]
    assert [line.getMessage() for line in lines] == [
        "request_unreadable message=PredictRequest",
        "request_unreadable message=GetModelMetadataRequest",
    ]
    assert not any(line.exc_info for line in lines)


def test_health_checks_that_do_not_arrive_hold_no_thread(export):
    limits = Limits(receive_seconds=0.5)
    with start(export, limits=limits) as server, connect(server) as wire:
        gate = threading.Event()
        method = "/grpc.health.v1.Health/Check"
        call = wire.channel.stream_unary(method).future(_never(gate))
        assert call.code() is grpc.StatusCode.CANCELLED
        gate.set()


# -- stops ---------------------------------------------------------------------


def test_stop_finishes_what_runs_and_refuses_what_comes(export):
    server = start(export).start()
    with connect(server) as wire, connect(server) as other:
        assert other.line() == 3.0
        # About a second of work.
        running = wire.prediction.Predict.future(
            predict_request(signature="spin", n=np.int64([_a_second(wire)])),
            timeout=60,
        )
        time.sleep(0.2)
        stopping = threading.Thread(target=server.stop, args=[30])
        stopping.start()
        time.sleep(0.2)
        with fails("UNAVAILABLE"):
            other.line()
        assert running.code() is grpc.StatusCode.OK
        stopping.join()
    assert server.wait(0)


def _a_second(wire):
    start = time.monotonic()
    wire.predict(signature="spin", n=np.int64([20_000]))
    return int(20_000 / (time.monotonic() - start))


def test_stop_after_the_grace_ends_what_runs(export):
    server = start(export).start()
    with connect(server) as wire:
        running = wire.prediction.Predict.future(predict_request(**A_LONG_LOOP))
        time.sleep(0.3)
        before = time.monotonic()
        server.stop(0.2)
        assert time.monotonic() - before < 5
        assert running.code() is grpc.StatusCode.UNAVAILABLE
    with pytest.raises(RuntimeError, match="started before"):
        server.start()
    with pytest.raises(RuntimeError, match="not running"):
        _ = server.address


def test_reload_leaves_no_memory(export):
    process = psutil.Process()
    with (
        start(export, poll_seconds=0, allow_reload=True) as server,
        connect(server) as wire,
    ):

        def reload(times):
            for _ in range(times):
                for models in ([], [model("m", export)]):
                    request = reload_request(*models)
                    wire.call("HandleReloadConfigRequest", request)

        reload(10)
        gc.collect()
        before = process.memory_info().rss
        reload(30)
        gc.collect()
        assert process.memory_info().rss - before < 6e6
        assert server.models == {"m": [1]}


# -- sockets and TLS -----------------------------------------------------------


def test_unix_socket_beside_a_port(export, tmp_path):
    path = tmp_path / "s"
    with start(export, unix_socket=path) as server:
        for address in (server.address, f"unix:{path}"):
            with connect(address) as wire:
                assert wire.line() == 3.0
    assert not path.exists()


def test_unix_socket_alone_and_after_a_crash(export, tmp_path):
    path = tmp_path / "s"
    # What a killed server leaves behind.
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    with start(export, port=None, unix_socket=path) as server:
        assert server.address == f"unix:{path}"
        with connect(server) as wire:
            assert wire.line() == 3.0
        with pytest.raises(OSError, match="already in use"):
            start(export, port=None, unix_socket=path).start()


def test_unix_socket_that_is_a_file(export, tmp_path):
    path = tmp_path / "s"
    path.write_text("mine")
    with pytest.raises(OSError, match="it is not a socket"):
        start(export, unix_socket=path).start()
    assert path.read_text() == "mine"


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("certificates"), "ours")


@pytest.fixture(scope="module")
def stranger(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("certificates"), "theirs")


def connect_secure(server, root, pair=(None, None)):
    content = [path and path.read_bytes() for path in (root, *pair)]
    credentials = grpc.ssl_channel_credentials(*content)
    address = server.address.replace("127.0.0.1", "localhost")
    return grpc.secure_channel(address, credentials)


def test_the_server_answers_over_tls(export, authority, stranger):
    tls = TLS(*authority.issue("server"))
    with start(export, tls=tls) as server:
        with connect_secure(server, authority.path) as channel:
            assert Wire(channel).line() == 3.0
        with connect_secure(server, stranger.path) as channel:
            with fails("UNAVAILABLE"):
                Wire(channel).line(timeout=5)
        with connect(server) as wire, fails("UNAVAILABLE"):
            wire.line(timeout=5)


def test_the_server_wants_the_clients_certificate(export, authority, stranger):
    tls = TLS(*authority.issue("server"), authority.path, client_verify=True)
    client = authority.issue("client")
    foreign = stranger.issue("client")
    with start(export, tls=tls) as server:
        with connect_secure(
            server, authority.path, [client[0], client[1]]
        ) as channel:
            assert Wire(channel).line() == 3.0
        with connect_secure(server, authority.path) as channel:
            with fails("UNAVAILABLE"):
                Wire(channel).line(timeout=5)
        with connect_secure(server, authority.path, foreign) as channel:
            with fails("UNAVAILABLE"):
                Wire(channel).line(timeout=5)


def test_socket_beside_tls_is_in_the_clear(export, authority, tmp_path):
    tls = TLS(*authority.issue("server"))
    with start(export, tls=tls, unix_socket=tmp_path / "s"):
        with connect(f"unix:{tmp_path}/s") as wire:
            assert wire.line() == 3.0


@pytest.mark.skipif(REST_PORT is None, reason="waitress is not installed")
def test_the_server_listens_on_all_interfaces(export):
    with start(export, host="0.0.0.0", rest_port=REST_PORT) as server:
        assert server.address.startswith("127.0.0.1:")
        assert server.rest_address.startswith("127.0.0.1:")
        with connect(server) as wire:
            assert wire.line() == 3.0


@pytest.mark.skipif(REST_PORT is None, reason="waitress is not installed")
def test_the_server_listens_on_ipv6(export):
    if not socket.has_ipv6 or not _has_address("::1"):
        pytest.skip("this machine has no ::1")
    with start(export, host="::1", rest_port=REST_PORT) as server:
        assert server.address.startswith("[::1]:")
        with connect(server) as wire:
            assert wire.line() == 3.0
        url = f"http://{server.rest_address}/monitoring/prometheus/metrics"
        with urllib.request.urlopen(url, timeout=10) as response:
            assert b":tensorflow:serving:request_count" in response.read()


def _has_address(host):
    try:
        socket.create_server((host, 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


def test_tls_files_that_do_not_match(authority, stranger, tmp_path):
    key, certificate = authority.issue("server")
    other_key, _ = stranger.issue("server")
    with pytest.raises(ValueError, match="belong together"):
        TLS(other_key, certificate)
    with pytest.raises(ValueError, match="belong together"):
        TLS(certificate, key)
    junk = tmp_path / "junk"
    junk.write_text("junk")
    with pytest.raises(ValueError, match="`ca` must be a PEM file"):
        TLS(key, certificate, junk)
    with pytest.raises(OSError, match="absent"):
        TLS(tmp_path / "absent", certificate)


def test_tls_as_tf_serving_reads_it(authority):
    # config/ssl_config.proto, which no package carries.
    file = descriptor_pb2.FileDescriptorProto(name="ssl.proto")
    message = file.message_type.add(name="SSLConfig")
    names = ("server_key", "server_cert", "custom_ca", "client_verify")
    for number, name in enumerate(names, start=1):
        kind = 8 if name == "client_verify" else 9
        message.field.add(name=name, number=number, type=kind, label=1)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    config = message_factory.GetMessageClass(
        pool.FindMessageTypeByName("SSLConfig")
    )()

    key, certificate = authority.issue("server")
    tls = TLS(key, certificate, authority.path, client_verify=True)
    text_format.Parse(tls.text_proto(), config)
    assert config.server_key == key.read_text()
    assert config.server_cert == certificate.read_text()
    assert config.custom_ca == authority.path.read_text()
    assert config.client_verify is True
    assert ssl.PEM_cert_to_DER_cert(config.server_cert)


# -- arguments -----------------------------------------------------------------

BAD_ARGUMENTS = {
    "nothing to serve": (
        {"export_dir": None},
        "Either `export_dir` or `config_file` must be given",
    ),
    "two things to serve": (
        {"config_file": "x"},
        "Either `export_dir` or `config_file` must be given",
    ),
    "port too large": (
        {"port": 65536},
        "`port` must be between 0 and 65535. Received: port=65536",
    ),
    "port of text": ({"port": "8500"}, "`port` must be a whole number"),
    "no port": ({"port": None}, "`port` may be None only with"),
    "rest port": ({"rest_port": -1}, "`rest_port` must be a whole"),
    "no name": ({"model_name": ""}, "`model_name` must be a word"),
    "poll": ({"poll_seconds": -1}, "`poll_seconds` must be a finite number"),
    "poll endless": (
        {"poll_seconds": float("inf")},
        "`poll_seconds` must be a finite number >= 0",
    ),
    "poll nan": (
        {"config_poll_seconds": float("nan")},
        "`config_poll_seconds` must be a finite number >= 0",
    ),
    "concurrency": (
        {"max_concurrency": 0},
        "`max_concurrency` must be",
    ),
    "versions": ({"versions": "newest"}, '`versions` must be "latest"'),
    "no versions": ({"versions": []}, '`versions` must be "latest"'),
    "version 0": ({"versions": 0}, '`versions` must be "latest"'),
    "long socket": (
        {"unix_socket": "/" + "s" * 107},
        "`unix_socket` must have at most 107 bytes",
    ),
}


@pytest.mark.parametrize(
    "arguments, message", BAD_ARGUMENTS.values(), ids=BAD_ARGUMENTS.keys()
)
def test_bad_server_arguments_are_refused(arguments, message):
    arguments = {"export_dir": "/models/m", **arguments}
    with pytest.raises(ValueError) as caught:
        EmbeddedServer(**arguments)
    assert message in str(caught.value)


def test_host_that_is_not_here(export):
    with pytest.raises(OSError, match="Cannot listen on 192.0.2.1:0|192.0.2.1"):
        start(export, host="192.0.2.1").start()
