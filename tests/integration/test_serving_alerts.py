"""Every alert fires against a server that has the trouble, and else none.

The server's metrics are scraped at times that the test makes up; TF Serving's
are written as its source does.
"""

import time
from pathlib import Path

import grpc
import numpy as np
import pytest
import yaml
from kits.promql import Prometheus
from kits.tf_serving import connect
from kits.tf_serving import metrics_of
from kits.tf_serving import predict_request
from kits.tf_serving import save

from rs_keras.serving import EmbeddedServer

pytest.importorskip("waitress")

ALERTS = (
    Path(__file__).resolve().parents[2]
    / "serving"
    / "deploy"
    / "prometheus"
    / "alerts.yaml"
)
RULES = yaml.safe_load(ALERTS.read_text())["groups"][0]["rules"]
NAMES = sorted(rule["alert"] for rule in RULES if "alert" in rule)
WHERE = {"job": "certifiers", "instance": "a:8501"}
UP = "up{} 1\n"


def firing(prometheus):
    """The alerts whose expression holds now."""
    found = set()
    for rule in RULES:
        vector = prometheus.query(rule["expr"])
        if "record" in rule:
            prometheus.record(rule["record"], vector)
        elif vector:
            found.add(rule["alert"])
    return found


@pytest.fixture(scope="module")
def base_path(tmp_path_factory):
    path = tmp_path_factory.mktemp("models") / "m"
    save(path / "1")
    return path


@pytest.fixture
def server(base_path):
    with EmbeddedServer(
        base_path,
        model_name="m",
        port=0,
        rest_port=0,
        max_concurrency=2,
        poll_seconds=0.05,
        load_retries=0,
    ) as server:
        yield server


def spin(wire, seconds):
    return wire.prediction.Predict.future(
        predict_request(signature="spin", n=np.int64([10**12])), timeout=seconds
    )


def until(condition):
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)


def test_nothing_fires_at_a_server_that_works(server):
    prometheus = Prometheus()
    with connect(server) as wire:
        for minute in range(15):
            assert wire.line() == 3.0
            prometheus.scrape(60 * minute, UP + metrics_of(server), **WHERE)
            assert not firing(prometheus)


def test_full_late_and_turning_away(server):
    prometheus = Prometheus()
    with connect(server) as wire:
        # The series are there before there is any trouble.
        with pytest.raises(grpc.RpcError):
            spin(wire, 0.2).result()
        until(lambda: ":fullness{} 0\n" in metrics_of(server))
        running = [spin(wire, 20) for _ in range(2)]
        until(lambda: ":fullness{} 1\n" in metrics_of(server))
        with pytest.raises(grpc.RpcError, match="Server Threadpool Exhausted"):
            wire.line()
        prometheus.scrape(0, UP + metrics_of(server), **WHERE)
        assert firing(prometheus) == {"CertifierIsFull"}
        for call in running:
            call.cancel()
        for _ in range(3):
            with pytest.raises(grpc.RpcError):
                wire.line()
        prometheus.scrape(60, UP + metrics_of(server), **WHERE)
        assert firing(prometheus) == {
            "CertifierIsFull",
            "CertifierTurnsRequestsAway",
        }


def test_missed_deadlines(server):
    prometheus = Prometheus()
    with connect(server) as wire:
        for minute in range(2):
            for _ in range(1 + 40 * minute):
                with pytest.raises(grpc.RpcError):
                    spin(wire, 0.02).result()
            until(lambda: ":fullness{} 0\n" in metrics_of(server))
            prometheus.scrape(60 * minute, UP + metrics_of(server), **WHERE)
        assert firing(prometheus) == {"CertifierMissesDeadlines"}


def test_a_version_that_does_not_load(server, base_path):
    prometheus = Prometheus()
    prometheus.scrape(0, UP + metrics_of(server), **WHERE)
    assert not firing(prometheus)
    (base_path / "2").mkdir()
    (base_path / "2" / "saved_model.pb").write_bytes(b"\xff not a graph")
    until(lambda: 'status="fail"' in metrics_of(server))
    prometheus.scrape(60, UP + metrics_of(server), **WHERE)
    # At the first failure.
    assert firing(prometheus) == {"CertifierLoadFails"}
    for minute in range(2, 20):
        prometheus.scrape(60 * minute, UP + metrics_of(server), **WHERE)
    assert not firing(prometheus)


def test_servers_that_are_away():
    prometheus = Prometheus()
    other = {**WHERE, "instance": "b:8501"}
    prometheus.scrape(0, UP, **WHERE)
    prometheus.scrape(0, "up{} 0\n", **other)
    assert firing(prometheus) == {"CertifierDown"}
    prometheus.scrape(60, "up{} 0\n", **WHERE)
    prometheus.scrape(60, "up{} 0\n", **other)
    assert firing(prometheus) == {"CertifierDown", "CertifiersAllDown"}
    assert firing(Prometheus()) == {"CertifiersAllDown"}


# As tensorflow_serving/util/prometheus_exporter.cc writes it.
TF_SERVING = """\
# TYPE :tensorflow:serving:request_count counter
:tensorflow:serving:request_count{{model_name="m",status="OK"}} {requests}
# TYPE :tensorflow:serving:runtime_latency histogram
:tensorflow:serving:runtime_latency_bucket{{model_name="m",API="Predict",\
runtime="TF1",le="+Inf"}} {requests}
:tensorflow:serving:runtime_latency_sum{{model_name="m",API="Predict",\
runtime="TF1"}} {microseconds}
:tensorflow:serving:runtime_latency_count{{model_name="m",API="Predict",\
runtime="TF1"}} {requests}
"""


@pytest.mark.parametrize("threads", [3, 15])
def test_tf_serving_with_all_threads_at_work(threads):
    """What it turns away it does not count; the seconds of its runs it does."""
    prometheus = Prometheus()
    for half in range(4):
        text = TF_SERVING.format(
            requests=half * threads, microseconds=half * threads * 30 * 10**6
        )
        prometheus.scrape(30 * half, UP + text, **WHERE)
        fired = firing(prometheus)
    assert fired == ({"CertifierIsSaturated"} if threads > 12.8 else set())
    ((_, in_flight),) = prometheus.query("certifier_in_flight").items()
    assert in_flight == threads


def test_every_alert_was_shown_to_fire():
    text = Path(__file__).read_text()
    assert len(NAMES) == 7
    for name in NAMES:
        assert f'"{name}"' in text
