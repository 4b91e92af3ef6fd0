"""Long requests in slices: the same answers, and nobody waits for them."""

import itertools
import json
import threading
import time
from contextlib import nullcontext

import grpc
import numpy as np
import pytest
import tensorflow as tf
from kits.tf_serving import connect
from kits.tf_serving import fails
from kits.tf_serving import predict_request

from rs_keras import Certifier
from rs_keras.export import export_certifier
from rs_keras.serving import EmbeddedServer
from rs_keras.serving import Limits
from rs_keras.serving.server.runtime import SessionModel
from rs_keras.serving.server.scheduling import limits as limits_lib
from rs_keras.serving.server.scheduling import scheduler
from rs_keras.serving.server.scheduling.costs import Backlog
from rs_keras.serving.server.scheduling.costs import DrawCost

SHAPE = (4, 4, 3)
MAX_N = 10**9
SEEDS = np.array([[3, 4], [5, 6], [-7, 2**62]])
LIMITS = Limits(max_seconds=3.0)


@pytest.fixture(scope="module")
def images():
    levels = np.random.default_rng(2).integers(0, 256, (3, *SHAPE))
    return levels.astype(np.float32) / np.float32(255)


@pytest.fixture(scope="module")
def certifier():
    return Certifier(lambda x: x[:, 0, 0, :], sigma=0.5)


@pytest.fixture(scope="module")
def folder(certifier, tmp_path_factory):
    folder = tmp_path_factory.mktemp("exports")
    export_certifier(
        certifier,
        folder,
        n0=20,
        n=300,
        predict_n=50,
        max_n=MAX_N,
        decide_n=2_000,
        image_shape=SHAPE,
        image_bytes=True,
        warmup=False,
    )
    return folder


@pytest.fixture(scope="module")
def server(folder):
    with EmbeddedServer(
        folder, model_name="m", port=0, limits=LIMITS
    ) as server:
        yield server


@pytest.fixture(scope="module")
def wire(server):
    with connect(server) as wire:
        yield wire


@pytest.fixture
def slices(monkeypatch):
    """The draws of every slice, of which none has more than seven."""
    made = []
    call = SessionModel.call

    def spy(self, name, inputs, *args):
        if name == "sample":
            made.append(int(inputs["n"].sum()))
        return call(self, name, inputs, *args)

    monkeypatch.setattr(scheduler, "SLICE_SECONDS", 0.0)
    monkeypatch.setattr(DrawCost, "slice_draws", lambda self: 7)
    monkeypatch.setattr(SessionModel, "call", spy)
    return made


def outputs(response):
    return {k: tf.make_ndarray(v) for k, v in response.outputs.items()}


def rows(*values):
    return np.array(values, np.int64)


def sample_request(images, **changed):
    request = {
        "images": images,
        "seed": SEEDS,
        "first": rows(0, 7, 2**40),
        "n": rows(100, 40, 33),
    }
    return {**request, **changed}


def certify_with_request(images, **changed):
    request = {
        "images": images,
        "seed": SEEDS,
        "n0": rows(20, 21, 50),
        "n": rows(301, 150, 80),
        "alpha": np.array([0.01, 0.001, 0.02]),
    }
    return {**request, **changed}


def spoiled(images):
    images = images.copy()
    images[1, 0, 0, 0] = np.nan
    return images


REQUESTS = {
    "sample": ("sample", lambda x: sample_request(x)),
    "sample beside no image": (
        "sample",
        lambda x: sample_request(spoiled(x)),
    ),
    "sample off the end": (
        "sample",
        lambda x: sample_request(x, first=rows(-1, 2**60, 0)),
    ),
    "sample nothing": (
        "sample",
        lambda x: sample_request(x, n=rows(0, -3, 5)),
    ),
    "certify_with": ("certify_with", lambda x: certify_with_request(x)),
    "certify_with nonsense": (
        "certify_with",
        lambda x: certify_with_request(
            spoiled(x),
            n0=rows(20, 20, 30),
            alpha=np.array([1.5, 0.1, 0.1]),
        ),
    ),
}


@pytest.mark.parametrize("name, inputs", REQUESTS.values(), ids=REQUESTS.keys())
def test_slices_answer_as_one_run_does(
    name, inputs, wire, folder, images, slices, monkeypatch
):
    """The seed is the client's, so the two answers must be the same."""
    inputs = inputs(images)
    found = outputs(wire.predict(signature=name, **inputs))
    drawn = [draws for draws in slices]
    model = SessionModel(str(folder / "1"))
    names = sorted(found)
    whole = dict(zip(names, model.call(name, inputs, names), strict=True))
    model.close()
    for key in names:
        if whole[key].dtype == np.float64:
            np.testing.assert_allclose(found[key], whole[key], rtol=1e-12)
        else:
            np.testing.assert_array_equal(found[key], whole[key])
    assert max(drawn) <= 7
    total = whole["counts"].sum() + whole.get("selection_counts", rows()).sum()
    assert sum(drawn) == total > 0


@pytest.mark.parametrize("name", ["predict", "predict_bytes"])
def test_a_sliced_prediction_replays(name, wire, certifier, images, slices):
    response = wire.predict(signature=name, **asked(name, images))
    found = outputs(response)
    assert sum(slices) == 150
    again = certifier.predict(images, n=50, seed=found["seed"])
    np.testing.assert_array_equal(found["counts"], again.counts)
    np.testing.assert_array_equal(found["label"], again.label)
    np.testing.assert_allclose(found["p_value"], again.p_value, rtol=1e-12)
    assert found["n"].tolist() == [50] * 3


@pytest.mark.parametrize("name", ["certify", "certify_bytes"])
def test_a_sliced_certificate_replays(name, wire, certifier, images, slices):
    found = outputs(wire.predict(signature=name, **asked(name, images)))
    assert sum(slices) == 3 * 320
    again = certifier.certify(images, n0=20, n=300, seed=found["seed"])
    for key in ("label", "counts", "selection_counts", "n"):
        np.testing.assert_array_equal(found[key], getattr(again, key))
    for key in ("radius", "p_lower"):
        np.testing.assert_allclose(found[key], getattr(again, key), rtol=1e-12)
    assert len({tuple(seed) for seed in found["seed"]}) == 3


def test_a_sliced_decision_replays(wire, certifier, images, slices):
    images = np.concatenate([images, images, spoiled(images)[1:2]])
    radius = np.array([0.0, 0.1, 0.3, 0.9, -1.0, 50.0, 0.0])
    response = wire.predict(signature="decide", images=images, radius=radius)
    found = outputs(response)
    assert sum(slices) == found["n"].sum()
    for row in range(4):
        again = certifier.decide(
            images[row : row + 1],
            radius[row],
            n_max=2_000,
            n0=20,
            seed=found["seed"][row : row + 1],
        )
        for key in ("certified", "label", "counts", "n"):
            np.testing.assert_array_equal(
                found[key][row : row + 1], getattr(again, key)
            )
    assert found["n"][4:].tolist() == [0, 0, 0]
    assert found["label"][4:].tolist() == [-1, -1, -1]
    assert not found["certified"][4:].any()


def asked(name, images):
    if not name.endswith("_bytes"):
        return {"images": images}
    pixels = np.rint(images * 255).astype(np.uint8)
    files = [tf.io.encode_png(image).numpy() for image in pixels]
    return {"image_bytes": np.array(files, object)}


@pytest.mark.parametrize("broken", [False, True])
def test_votes_that_are_lost_fail_the_request(
    broken, wire, images, slices, monkeypatch
):
    real = scheduler.slices

    def some(request, size):
        yield from itertools.islice(real(request, size), 2)
        if broken:
            raise MemoryError

    monkeypatch.setattr(scheduler, "slices", some)
    with fails("INTERNAL") as caught:
        wire.predict(signature="certify", images=images)
    wanted = "MemoryError" if broken else "slices of the request were lost"
    assert wanted in caught[0].details()


def test_the_output_filter_holds_for_slices(wire, images, slices):
    response = wire.predict(
        signature="certify", output_filter=["radius"], images=images
    )
    assert list(response.outputs) == ["radius"]


def test_wrong_requests_get_the_words_of_the_graph(wire, images, slices):
    with fails("INVALID_ARGUMENT") as caught:
        wire.predict(images=images[:, :2])
    assert "is not compatible with expected shape" in caught[0].details()
    with fails("INVALID_ARGUMENT") as caught:
        wire.predict(signature="sample", **sample_request(images[:2]))
    assert "the same number of rows" in caught[0].details()
    with fails("INVALID_ARGUMENT") as caught:
        wire.predict(images=images.astype(np.float64))
    assert "to be float but double is provided" in caught[0].details()


# -- many at once --------------------------------------------------------------


@pytest.fixture
def any_cost(monkeypatch):
    """The cost of a draw may be known by now."""
    monkeypatch.setattr(limits_lib, "check_cost", lambda limits, seconds: None)
    monkeypatch.setattr(
        Backlog, "admitted", lambda self, seconds, size: nullcontext()
    )


def an_hour(images):
    return predict_request(
        signature="sample",
        **sample_request(images, n=rows(10**9, 10**9, 10**9)),
    )


def test_short_requests_pass_between_slices(wire, images, any_cost):
    """Two requests that would run for hours, and twenty of fifty draws."""
    wire.predict(images=images[:1])
    running = [
        wire.prediction.Predict.future(an_hour(images), timeout=60)
        for _ in range(2)
    ]
    time.sleep(0.5)
    begun = time.monotonic()
    for _ in range(20):
        wire.predict(images=images[:1], timeout=5)
    assert time.monotonic() - begun < 5
    for call in running:
        call.cancel()


def test_requests_without_a_deadline_get_the_servers(
    server, images, wire, any_cost
):
    """And more of them than there are cores disable nothing."""
    begun = time.monotonic()
    with connect(server) as other:
        calls = [
            other.prediction.Predict.future(an_hour(images)) for _ in range(20)
        ]
        wire.predict(images=images[:1], timeout=5)
        for call in calls:
            assert call.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert time.monotonic() - begun < 10 * LIMITS.max_seconds


def test_work_ends_when_its_caller_is_gone(server, images, slices, any_cost):
    with connect(server) as wire:
        call = wire.prediction.Predict.future(an_hour(images), timeout=60)
        while not slices:
            time.sleep(0.01)
        call.cancel()
        time.sleep(0.3)
        before = len(slices)
        time.sleep(0.3)
        assert len(slices) == before


# -- limits --------------------------------------------------------------------


def test_a_few_bytes_do_not_fill_the_memory(wire):
    """A shape of 170,000 rows, without values."""
    request = predict_request()
    images = request.inputs["images"]
    images.dtype = 1
    for size in (170_000, *SHAPE):
        images.tensor_shape.dim.add().size = size
    assert request.ByteSize() < 54
    with fails("INVALID_ARGUMENT") as caught:
        wire.call("Predict", request)
    assert "at most 4096 rows (`max_rows`)" in caught[0].details()


def test_limits_are_described(wire):
    response = wire.predict(signature="describe", query=rows(0, 0))
    for text in outputs(response)["metadata_json"].tolist():
        assert json.loads(text)["limits"] == {
            "max_rows": 4096,
            "max_draws": None,
            "max_request_bytes": 2**27,
            "max_seconds": 3.0,
        }


def test_draws_and_cost_are_limited(folder, images):
    limits = Limits(max_draws=320, max_seconds=2)
    with (
        EmbeddedServer(folder, model_name="m", port=0, limits=limits) as server,
        connect(server) as wire,
    ):
        wire.predict(signature="certify", images=images)
        with fails("INVALID_ARGUMENT") as caught:
            wire.predict(
                signature="certify_with", **certify_with_request(images)
            )
        assert "at most 320 draws" in caught[0].details()


def test_concurrent_clients_get_their_own_votes(wire, certifier, images):
    """Slices of different requests take turns; none gets another's."""
    answers = {}

    def ask(seed):
        pairs = np.full([3, 2], seed)
        response = wire.predict(
            signature="sample",
            **sample_request(images, seed=pairs, n=rows(4_000, 9, 600)),
        )
        answers[seed] = outputs(response)["counts"]

    threads = [threading.Thread(target=ask, args=[seed]) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for seed, counts in answers.items():
        for row, (first, n) in enumerate([(0, 4_000), (7, 9), (2**40, 600)]):
            again = certifier.sample(
                images[row : row + 1],
                n=n,
                seed=np.full([1, 2], seed),
                first=first,
            )
            np.testing.assert_array_equal(counts[row], again[0])
    assert sorted(answers) == list(range(6))
