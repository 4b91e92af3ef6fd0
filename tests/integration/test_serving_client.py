"""The client against servers that count without TensorFlow, and that fail.

What a fake server votes is a formula in `fake_servers`; bounds are SciPy's.
"""

import asyncio
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import grpc
import numpy as np
import pytest
import scipy.stats
import tensorflow as tf
from kits.authority import Authority
from kits.fake_servers import ANEW
from kits.fake_servers import CLASSES
from kits.fake_servers import METADATA
from kits.fake_servers import Fake
from kits.fake_servers import certificate
from kits.fake_servers import votes

from rs_keras import bounds
from rs_keras.serving import TLS
from rs_keras.serving import AsyncCertificationClient
from rs_keras.serving import CertificationClient
from rs_keras.serving import ClientTLS
from rs_keras.serving import ServingError
from rs_keras.serving.client import fanout
from rs_keras.serving.client.server_state import ServerState

Code = grpc.StatusCode
SEEDS = np.int64([[3, 1], [-5, 2]])


@pytest.fixture
def fakes():
    with Fake() as one, Fake() as two, Fake() as three:
        yield one, two, three


@pytest.fixture
def fake():
    with Fake() as fake:
        yield fake


@pytest.fixture
def images():
    return np.random.default_rng(0).uniform(size=(2, 4, 4, 1)).astype("f4")


def client_of(*fakes, **options):
    return CertificationClient([one.address for one in fakes], "m", **options)


def expected(first, n, version=1):
    return np.stack([votes(seed, first, n, version) for seed in SEEDS])


def drawn_once(fakes, first, n, rows=2):
    """Each row's draws were answered, each once."""
    ranges = sorted(row for one in fakes for row in one.drawn)
    drawn = np.concatenate([np.arange(f, f + m) for f, m in ranges])
    numbers, times = np.unique(drawn, return_counts=True)
    assert numbers.tolist() == list(range(first, first + n))
    assert set(times.tolist()) == {rows}


# -- counting ------------------------------------------------------------------


@pytest.mark.parametrize("chunk", [None, 1, 7, 100, 100_000])
def test_chunks_add_up(fakes, images, chunk):
    n = 90 if chunk == 1 else 2_345
    with client_of(*fakes) as client:
        counts = client.sample(images, n, seed=SEEDS, first=11, chunk=chunk)
    assert (counts == expected(11, n)).all()
    drawn_once(fakes, 11, n)
    if chunk is not None:
        sizes = [n for one in fakes for _, n in one.drawn]
        assert max(sizes) <= chunk


def test_more_draws_than_the_server_makes_at_once(fakes, images):
    with client_of(*fakes) as client:
        counts = client.sample(images, 25_000, seed=SEEDS, chunk=50_000)
    assert (counts == expected(0, 25_000)).all()
    assert max(n for one in fakes for _, n in one.drawn) == 10_000


def test_short_images_share_requests(fake):
    images = np.zeros([40, 4, 4, 1], np.float32)
    with client_of(fake) as client:
        counts = client.sample(images, 10, seed=1, chunk=1_000)
    assert counts.shape == (40, CLASSES)
    assert fake.samples == 1


def test_all_servers_work(fakes, images):
    for one in fakes:
        one.pace = 2e-6
    with client_of(*fakes) as client:
        client.sample(images, 20_000, seed=SEEDS, chunk=500)
    shares = np.array([one.samples for one in fakes])
    assert shares.sum() == 80
    assert shares.min() >= 10


def test_two_servers_take_about_half_the_time(fakes, images):
    """They only wait, one request at a time, so that no core is missing."""
    cores = {one.address: threading.Lock() for one in fakes}
    for one in fakes:

        def busy(n, core=cores[one.address]):
            with core:
                time.sleep(n * 1e-4)

        one.before_sample = busy
    seconds = {}
    for used in (1, 2):
        with client_of(*fakes[:used]) as client:
            assert client.model.version == 1
            begun = time.monotonic()
            client.sample(images[:1], 15_000)
            seconds[used] = time.monotonic() - begun
    assert seconds[1] / seconds[2] > 1.6


def test_certificates_are_scipys(fakes, images):
    with client_of(*fakes) as client:
        found = client.certify(
            images, n0=50, n=3_000, alpha=0.01, runner_up=False, seed=SEEDS
        )
    assert (found.selection_counts == expected(0, 50)).all()
    assert (found.counts == expected(50, 3_000)).all()
    k = found.counts.max(1)
    lower = scipy.stats.beta.ppf(0.01, k, 3_000 - k + 1)
    np.testing.assert_allclose(found.p_lower, lower, rtol=1e-9)
    radius = 0.5 * scipy.stats.norm.ppf(lower)
    np.testing.assert_allclose(found.radius, radius, rtol=1e-8)
    assert found.label.tolist() == [0, 0]
    assert found.n.tolist() == [3_000, 3_000]
    assert (found.seed == SEEDS).all()
    assert found.settings["version"] == 1
    assert found.settings["n0"] == 50


def test_the_client_can_test_both_counts(fakes, images):
    with client_of(*fakes) as client:
        found = client.certify(images, n=3_000, bound="joint", seed=SEEDS)
        plain = client.certify(images, n=3_000, seed=SEEDS)
    k, k2 = np.sort(found.counts)[:, :-3:-1].T
    wanted = bounds.joint_count(k, k2, 3_000, 0.001, 0.5).radius
    np.testing.assert_array_equal(found.radius, wanted)
    assert (found.radius >= plain.radius).all()
    assert np.isnan(found.p_lower).all()
    assert found.settings["bound"] == "joint"
    assert plain.settings["bound"] == "clopper_pearson"


def is_right(found, labels):
    """A certificate with the export's numbers, and a prediction."""
    for row in range(len(found.label)):
        seed = found.seed[row]
        counts = votes(seed, 0, 100), votes(seed, 100, 1_000)
        assert (found.selection_counts[row] == counts[0]).all()
        assert (found.counts[row] == counts[1]).all()
        label, radius, p_lower = certificate(*counts)
        assert found.label[row] == label
        np.testing.assert_allclose(found.radius[row], radius, rtol=1e-9)
        np.testing.assert_allclose(found.p_lower[row], p_lower, rtol=1e-9)
        assert (labels.counts[row] == votes(labels.seed[row], 0, 100)).all()
    assert found.settings["n"] == 1_000
    assert (labels.label == 0).all()


def test_images_alone_are_one_request_to_one_server(fake, images):
    with client_of(fake) as client:
        is_right(client.certify(images), client.predict(images))
    assert fake.asked == ["describe", "certify", "predict"]


def test_images_alone_are_shared_out_among_several_servers(fakes, images):
    """So that no single one decides: a frozen one, or one that lies."""
    fakes[0].before_sample = lambda n: time.sleep(20)
    with client_of(*fakes) as client:
        begun = time.monotonic()
        is_right(client.certify(images), client.predict(images))
        assert time.monotonic() - begun < 10
    asked = {name for one in fakes for name in one.asked}
    assert asked == {"describe", "sample"}


def test_a_keyed_seed_is_one_request_that_any_server_may_answer(images):
    with Fake(seed="keyed") as frozen, Fake(seed="keyed") as two:
        frozen.always = 20.0
        with client_of(frozen, two) as client:
            begun = time.monotonic()
            # Either is asked first, in turn.
            for _ in range(2):
                is_right(client.certify(images), client.predict(images))
            assert time.monotonic() - begun < 15
    assert {*frozen.asked, *two.asked} == {"describe", "certify", "predict"}


def test_predict_with_a_seed(fakes, images):
    with client_of(*fakes) as client:
        found = client.predict(images, n=200, seed=SEEDS)
    assert (found.counts == expected(0, 200)).all()
    for row, p_value in enumerate(found.p_value):
        top = np.sort(found.counts[row])[::-1][:2].tolist()
        exact = scipy.stats.binomtest(top[0], sum(top)).pvalue
        np.testing.assert_allclose(p_value, exact, rtol=1e-9)


def test_fresh_seeds_differ(fake, images):
    with client_of(fake) as client:
        found = [client.certify(images, n=500).seed for _ in range(2)]
    assert len(np.unique(np.concatenate(found)[:, 0])) == 4


def test_progress_rises_to_the_total(fakes, images):
    seen = []
    with client_of(*fakes) as client:
        client.certify(
            images, n=2_000, seed=1, progress=lambda *state: seen.append(state)
        )
    done = [state[0] for state in seen]
    assert done == sorted(done) and done[-1] == 4_200
    assert {state[1] for state in seen} == {4_200}


def test_finished_images_come_one_by_one(fakes, images):
    examples = ((f"image {row}", images[row], SEEDS[row]) for row in range(2))
    with client_of(*fakes) as client:
        found = dict(client.certify_each(examples, n=2_000))
    assert sorted(found) == ["image 0", "image 1"]
    for row in range(2):
        counts = found[f"image {row}"].counts
        assert (counts[0] == votes(SEEDS[row], 100, 2_000)).all()


def test_a_stream_is_read_as_it_is_needed(fake, images):
    taken = []

    def examples():
        for number in range(10_000):
            taken.append(number)
            yield number, images[0], None

    with client_of(fake) as client:
        found = client.certify_each(examples(), n=1_000)
        for _ in range(5):
            next(found)
        found.close()
    assert len(taken) < 200


def test_async_is_the_same(fakes, images):
    async def ask():
        addresses = [one.address for one in fakes]
        async with AsyncCertificationClient(addresses, "m") as client:
            model = await client.wait_ready(5)
            both = await asyncio.gather(
                client.certify(images, n=2_000, seed=SEEDS),
                client.sample(images, n=3_000, seed=SEEDS),
            )
            examples = [(0, images[0], SEEDS[0])]
            each = [pair async for pair in client.certify_each(examples, n=500)]
            settings = await client.settings(n=2_000)
            label = (await client.predict(images)).label
            return model, *both, each, settings, label

    model, certificate, counts, each, settings, label = asyncio.run(ask())
    assert model.version == 1
    assert (certificate.counts == expected(100, 2_000)).all()
    assert (counts == expected(0, 3_000)).all()
    assert (each[0][1].counts[0] == votes(SEEDS[0], 100, 500)).all()
    assert settings["n"] == 2_000
    assert label.tolist() == [0, 0]


def test_async_leaves_the_loop_free_and_can_be_cancelled(fake, images):
    fake.always = 0.2
    ticks = []

    async def ask():
        async with AsyncCertificationClient(fake.address, "m") as client:
            await client.model()
            call = asyncio.create_task(
                client.sample(images, n=10_000, chunk=100)
            )
            for _ in range(10):
                await asyncio.sleep(0.02)
                ticks.append(time.monotonic())
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call

    asyncio.run(ask())
    assert len(ticks) == 10
    asked = fake.samples
    time.sleep(0.5)
    assert fake.samples <= asked + 2


def test_an_async_stream_that_is_left_gives_up_its_requests(fake, images):
    fake.always = 0.1

    async def ask():
        async with AsyncCertificationClient(fake.address, "m") as client:
            examples = ((row, images[0], SEEDS[0]) for row in range(1_000))
            stream = client.certify_each(examples, n=500, chunk=600)
            _, first = await anext(stream)
            await stream.aclose()
            return first

    first = asyncio.run(ask())
    assert (first.counts[0] == votes(SEEDS[0], 100, 500)).all()
    asked = fake.samples
    time.sleep(0.5)
    assert fake.samples <= asked + 2


# -- failures ------------------------------------------------------------------

AGAIN = {
    "connection lost": (Code.UNAVAILABLE, "Connection reset by peer"),
    "threads exhausted": (
        Code.RESOURCE_EXHAUSTED,
        "Server Threadpool Exhausted",
    ),
    "queue full": (
        Code.UNAVAILABLE,
        "The batch scheduling queue to which this task was submitted is full",
    ),
    "deadline": (
        Code.DEADLINE_EXCEEDED,
        "Timed out waiting for notification",
    ),
    "server stops": (Code.CANCELLED, "Session has been closed."),
    "stream removed": (Code.UNKNOWN, "Stream removed"),
    "stream reset": (Code.INTERNAL, "Received RST_STREAM with error code 2"),
}


@pytest.mark.parametrize("fault", AGAIN.values(), ids=AGAIN.keys())
def test_what_is_sent_again_is_counted_once(fakes, images, fault):
    for one in fakes:
        one.faults.extend([fault] * 2)
    with client_of(*fakes) as client:
        counts = client.sample(images, 3_000, seed=SEEDS, chunk=200)
    assert (counts == expected(0, 3_000)).all()
    drawn_once(fakes, 0, 3_000)


FINAL = {
    "wrong shape": (Code.INVALID_ARGUMENT, "Shape of tensor images [2,4]"),
    "signature": (
        Code.FAILED_PRECONDITION,
        'Serving signature key "sample" not found.',
    ),
    "crash": (Code.INTERNAL, "a failed check"),
    "unimplemented": (Code.UNIMPLEMENTED, "Method not found!"),
    "no certificate": (Code.UNAUTHENTICATED, "who are you"),
    "message": (
        Code.RESOURCE_EXHAUSTED,
        "CLIENT: Sent message larger than max (5 vs. 4)",
    ),
}


@pytest.mark.parametrize("fault", FINAL.values(), ids=FINAL.keys())
def test_what_cannot_end_otherwise_is_an_error_at_once(fake, images, fault):
    fake.always = fault
    with client_of(fake, in_flight=1) as client:
        with pytest.raises(ServingError, match=fault[0].name) as caught:
            client.sample(images, 3_000)
    assert caught.value.code is fault[0]
    assert caught.value.details == fault[1]
    assert caught.value.server == fake.address
    assert fake.address in str(caught.value)
    assert fake.samples == 1


def test_a_message_that_the_server_cut(fake, images):
    fake.always = (Code.INVALID_ARGUMENT, "x" * 1024 + "...TRUNCATED")
    with client_of(fake) as client:
        with pytest.raises(ServingError, match=r"xx \[cut by the server\]"):
            client.certify(images)


def test_tasks_that_take_too_long_are_halved(fake, images):
    # 1 ms a draw: no more than 300 draws fit into the deadline.
    fake.pace = 1e-3
    with client_of(fake, timeout=0.3, retries=20) as client:
        counts = client.sample(images, 600, seed=SEEDS, chunk=1_200)
    assert (counts == expected(0, 600)).all()
    assert max(n for _, n in fake.drawn) > 300
    assert min(n for _, n in fake.drawn) <= 300


def test_one_request_that_takes_too_long(fake, images):
    fake.always = 1.0
    with client_of(fake, timeout=0.2) as client:
        with pytest.raises(ServingError, match="give `n` and `chunk`"):
            client.certify(images)


def test_the_others_do_the_work_of_one_that_fails(fakes, images):
    fakes[0].always = AGAIN["connection lost"]
    with client_of(*fakes, retries=2) as client:
        counts = client.sample(images, 3_000, seed=SEEDS, chunk=100)
    assert (counts == expected(0, 3_000)).all()
    assert fakes[0].drawn == []


def test_nobody_left(fakes, images):
    for one in fakes:
        one.always = AGAIN["threads exhausted"]
    with client_of(*fakes, timeout=1) as client:
        with pytest.raises(ServingError, match="no server is left") as caught:
            client.sample(images, 1_000)
    for one in fakes:
        assert one.address in str(caught.value)
    assert "Server Threadpool Exhausted" in str(caught.value)


def test_a_server_that_hangs_is_not_waited_for(fakes, images):
    with client_of(*fakes) as client:
        client.sample(images, 3_000)
        fakes[0].faults.extend([5.0, 5.0])
        begun = time.monotonic()
        counts = client.sample(images, 3_000, seed=SEEDS, chunk=100)
        seconds = time.monotonic() - begun
    assert (counts == expected(0, 3_000)).all()
    assert seconds < 3.0


def test_a_server_that_comes_back_works_again(images):
    with Fake() as one, Fake() as two:
        with client_of(one, two, retries=0) as client:
            client.sample(images, 100)
            one.stop()
            two.pace = 1e-4
            counts = client.sample(images, 1_000, seed=SEEDS, chunk=100)
            assert (counts == expected(0, 1_000)).all()
            with Fake(port=one.port) as again:
                deadline = time.monotonic() + 20
                while not again.samples and time.monotonic() < deadline:
                    client.sample(images, 500, chunk=50)
                assert again.samples


def test_a_server_that_comes_back_with_another_model(images, caplog):
    with Fake() as one, Fake() as two:
        with client_of(one, two) as client:
            client.sample(images, 100)
            one.stop()
            two.pace = 1e-4
            with Fake(port=one.port, sigma=0.25) as other:
                while "differs in sigma: 0.5 and 0.25" not in caplog.text:
                    found = client.sample(images, 1_000, SEEDS, chunk=100)
                    assert (found == expected(0, 1_000)).all()
                assert not other.drawn


def test_a_connection_lost_when_nothing_is_under_way(monkeypatch, fake, images):
    """gRPC says so in a thread of its own, between any two lines here."""
    has_room = ServerState.has_room
    lost = []

    def lost_before(self, now, in_flight):
        if not lost:
            lost.append(True)
            self.server.ready = False
        return has_room(self, now, in_flight)

    monkeypatch.setattr(ServerState, "has_room", lost_before)
    found = []
    with client_of(fake) as client:
        thread = threading.Thread(
            target=lambda: found.append(client.sample(images, 100, SEEDS)),
            daemon=True,
        )
        thread.start()
        thread.join(10)
    assert lost
    assert (found[0] == expected(0, 100)).all()


# -- versions ------------------------------------------------------------------

NEXT = {"classifier_sha256": "1" * 64, "fingerprint": "1" * 32}


OTHER = {1: {**NEXT, "sigma": 0.125}}


def roll(fake, after, versions=None):
    """Replaces version 1, by 2 if not told, at a given `sample` request."""

    def before(n):
        if fake.samples >= after:
            fake.versions = versions or {2: NEXT}

    fake.before_sample = before


@pytest.mark.parametrize("seed", [SEEDS, None], ids=["given", "fresh"])
def test_a_version_that_goes_leaves_no_count_behind(fakes, images, seed):
    for number, one in enumerate(fakes):
        roll(one, after=3 + number)
    with client_of(*fakes) as client:
        found = client.certify(images, n=3_000, seed=seed, chunk=100)
    assert found.settings["version"] == 2
    for row in range(2):
        wanted = votes(found.seed[row], 100, 3_000, version=2)
        assert (found.counts[row] == wanted).all()


@pytest.mark.parametrize("seed", [SEEDS, None], ids=["given", "fresh"])
def test_a_number_that_is_given_anew_leaves_no_count_behind(
    fakes, images, seed
):
    """What came of the old export has its sigma, not the new one's."""
    for number, one in enumerate(fakes):
        roll(one, after=3 + number, versions=OTHER)
    with client_of(*fakes) as client:
        assert client.model.sigma == 0.5
        found = client.certify(images, n=3_000, seed=seed, chunk=100)
        assert found.settings["sigma"] == 0.125 == client.model.sigma
        for row in range(2):
            wanted = votes(found.seed[row], 100, 3_000, version=1 + ANEW)
            assert (found.counts[row] == wanted).all()
        whole = client.certify(images)
        assert whole.settings["sigma"] == 0.125


def test_one_server_with_another_export_is_left_out(fakes, images):
    roll(fakes[0], after=2, versions=OTHER)
    with client_of(*fakes) as client:
        # The first call is told by an answer, the next ones by a description.
        for _ in range(3):
            found = client.certify(images, n=3_000, seed=SEEDS, chunk=100)
            assert found.settings["sigma"] == 0.5
            assert (found.counts == expected(100, 3_000)).all()
        for one in fakes:
            one.versions = OTHER
        for _ in range(2):
            found = client.certify(images, n=3_000, seed=SEEDS, chunk=100)
            assert found.settings["sigma"] == 0.125


def test_a_server_that_comes_back_with_another_export(images):
    with Fake() as one, client_of(one) as client:
        client.sample(images, 100)
        one.stop()
        with Fake(port=one.port, sigma=0.25):
            for _ in range(2):
                found = client.certify(images, n=500, seed=SEEDS)
                assert found.settings["sigma"] == 0.25


def test_calls_at_once_survive_a_number_that_is_given_anew(fakes, images):
    for one in fakes:
        roll(one, after=10, versions=OTHER)
    with client_of(*fakes) as client, ThreadPoolExecutor(3) as pool:
        calls = [
            pool.submit(client.certify, images, n=3_000, chunk=100)
            for _ in range(6)
        ]
        for call in calls:
            found = call.result()
            sigma = found.settings["sigma"]
            version = 1 + ANEW * (sigma != 0.5)
            wanted = votes(found.seed[0], 100, 3_000, version)
            assert (found.counts[0] == wanted).all()


def test_a_version_that_was_asked_for_is_not_another_export(fake, images):
    roll(fake, after=3, versions=OTHER)
    with client_of(fake, version=1) as client:
        with pytest.raises(ServingError, match="1 is not what it was"):
            client.certify(images, n=3_000, chunk=100)


def test_another_export_may_have_other_classes(fake, images):
    four = {**OTHER[1], "num_classes": 4}
    roll(fake, after=3, versions={1: four})

    def widen(response):
        if fake.versions[1]:
            n = tf.make_ndarray(response.outputs["n"])
            counts = n[:, None] * np.int64([0, 0, 0, 1])
            response.outputs["counts"].CopyFrom(tf.make_tensor_proto(counts))

    fake.spoil = widen
    with client_of(fake) as client:
        found = client.certify(images, n=3_000, seed=SEEDS, chunk=100)
        np.testing.assert_array_equal(found.label, [3, 3])
        assert client.model.num_classes == 4


def test_a_stream_is_about_one_export(fake, images):
    roll(fake, after=5, versions=OTHER)
    with client_of(fake) as client:
        examples = [(idx, image, None) for idx, image in enumerate(images)]
        with pytest.raises(ServingError, match="given to another export"):
            list(client.certify_each(examples, n=3_000, chunk=100))


def test_a_balancer_before_two_exports_is_found_out(fake, images):
    """It describes one and draws with the other."""
    told = iter(range(10**6))

    def other(n):
        fake.versions = {1: {"sigma": 0.125} if next(told) % 2 else {}}

    fake.before_sample = other
    with client_of(fake) as client:
        with pytest.raises(
            ServingError, match="change too often.*another export"
        ):
            client.sample(images, 3_000, chunk=100)


def test_one_rolled_server_is_left_out(fakes, images):
    roll(fakes[0], after=2)
    with client_of(*fakes) as client:
        found = client.certify(images, n=3_000, seed=SEEDS, chunk=100)
        assert found.settings["version"] == 1
        assert (found.counts == expected(100, 3_000)).all()


def test_a_version_that_was_asked_for_is_not_replaced(fakes, images):
    for one in fakes:
        roll(one, after=3)
    with client_of(*fakes, version=1) as client:
        with pytest.raises(ServingError, match=r"serves \[2\]"):
            client.sample(images, 3_000, chunk=100)


def test_a_stream_is_about_one_version(fake, images):
    roll(fake, after=5)
    examples = ((row, images[0], None) for row in range(100))
    with client_of(fake) as client:
        with pytest.raises(ServingError, match="version 2 is served now"):
            list(client.certify_each(examples, n=1_000, chunk=500))


def test_versions_that_come_and_go(fake, images):
    def before(n):
        (old,) = fake.versions
        fake.versions = {old + 1: {"sigma": 0.5}}

    fake.before_sample = before
    with client_of(fake) as client:
        with pytest.raises(ServingError, match="change too often"):
            client.sample(images, 100)


def test_the_newest_version_that_most_have(fakes, images):
    fakes[0].versions = {1: {}, 2: NEXT, 3: NEXT}
    fakes[1].versions = {1: {}, 2: NEXT}
    fakes[2].versions = {1: {}, 2: NEXT}
    with client_of(*fakes) as client:
        assert client.model.version == 2


def test_a_version_is_awaited(fake):
    fake.states[1] = 20  # LOADING
    timer = threading.Timer(0.3, fake.states.clear)
    timer.start()
    with client_of(fake) as client:
        assert client.wait_ready(10).version == 1
    timer.join()


def test_waiting_has_an_end(fake):
    fake.states[1] = 20
    with client_of(fake) as client:
        with pytest.raises(ServingError, match="version 1 is LOADING"):
            client.wait_ready(0.2)


DIFFERENT = {
    "sigma": ({"sigma": 0.25}, "sigma: .*0.25"),
    "weights": ({"classifier_sha256": "2" * 64}, "classifier_sha256: "),
    "draws": ({"n": 2_000}, "n: (1000 and 2000|2000 and 1000)"),
}


@pytest.mark.parametrize(
    ("changes", "words"), DIFFERENT.values(), ids=DIFFERENT.keys()
)
def test_servers_with_different_models(fake, changes, words):
    with Fake(**changes) as other, client_of(fake, other) as client:
        with pytest.raises(ServingError, match=words) as caught:
            _ = client.model
    assert fake.address in str(caught.value)
    assert other.address in str(caught.value)


def test_who_exported_is_no_difference(fake):
    with Fake(library="rs-keras 1", tensorflow="1") as other:
        with client_of(fake, other) as client:
            assert client.model.sigma == 0.5


# -- answers that are none -----------------------------------------------------


def _fewer(response):
    response.outputs["n"].int64_val[0] -= 1


def _refused(response):
    for row in range(len(response.outputs["n"].int64_val)):
        response.outputs["n"].int64_val[row] = 0


def _more_votes(response):
    response.outputs["counts"].int64_val[0] += 5_000


def _negative(response):
    response.outputs["counts"].int64_val[0] = -1


def _other_version(response):
    response.model_spec.version.value = 9


def _missing(response):
    del response.outputs["counts"]


def _other_shape(response):
    del response.outputs["counts"].tensor_shape.dim[-1]
    del response.outputs["counts"].int64_val[:]


def _other_type(response):
    response.outputs["n"].dtype = 3
    response.outputs["n"].ClearField("tensor_content")


def _raw(change):
    """Applies a change to a response that holds plain lists of values."""

    def spoiled(response):
        for name in list(response.outputs):
            proto = response.outputs[name]
            values = np.frombuffer(proto.tensor_content, np.int64)
            if len(values):
                proto.ClearField("tensor_content")
                proto.int64_val.extend(values.tolist())
        change(response)

    return spoiled


SPOILED = {
    "fewer draws": (_fewer, "asked for"),
    "refused": (_refused, "rejects image 0"),
    "more votes than draws": (_more_votes, "cannot be|no such answer"),
    "negative votes": (_negative, "no such answer"),
    "another version": (_other_version, "version 9, not 1"),
    "an output is missing": (_missing, "'counts' is missing"),
    "another shape": (_other_shape, "'counts' is int64"),
    "another type": (_other_type, "'n' is int32"),
}


@pytest.mark.parametrize(
    ("change", "words"), SPOILED.values(), ids=SPOILED.keys()
)
def test_wrong_answers_are_never_counted(fake, images, change, words):
    fake.spoil = _raw(change)
    with client_of(fake) as client:
        with pytest.raises(ServingError, match=words):
            client.sample(images, 500)


# -- bad input -----------------------------------------------------------------

GOOD = np.zeros([1, 4, 4, 1], np.float32)
BAD_CALLS = {
    "shape": (dict(images=np.zeros([1, 5, 4, 1])), "for this model"),
    "rank": (dict(images=GOOD[0]), r"images\[None\]"),
    "empty": (dict(images=GOOD[:0]), "at least one image"),
    "dtype": (dict(images=GOOD.astype(int)), "floats in .0, 1. or uint8"),
    "range": (dict(images=GOOD + 255.0), "divide by 255"),
    "NaN": (dict(images=GOOD * np.nan), "finite"),
    "n": (dict(images=GOOD, n=0), "`n` must be a whole number >= 1"),
    "n too small": (dict(images=GOOD, n=5), "to certify anything"),
    "n0": (dict(images=GOOD, n0=0), "`n0`"),
    "alpha": (dict(images=GOOD, alpha=1.0), "`alpha`"),
    "bound": (dict(images=GOOD, bound="hoeffding"), "`bound`"),
    "seed": (dict(images=GOOD, seed=[[1, 2, 3]]), "`seed`"),
    "chunk": (dict(images=GOOD, chunk=0), "`chunk`"),
    "draws without a number": (dict(images=GOOD, n=2**47), "`n` must leave"),
    "tolerance": (dict(images=GOOD, tolerance=-1.0), "`tolerance`"),
}


@pytest.mark.parametrize(
    ("call", "words"), BAD_CALLS.values(), ids=BAD_CALLS.keys()
)
def test_bad_calls_are_refused_before_anything_is_sent(fake, call, words):
    with client_of(fake) as client:
        with pytest.raises(ValueError, match=words):
            client.certify(**call)
    assert set(fake.asked) <= {"describe"}


def test_uint8_images(fake):
    with client_of(fake) as client:
        found = client.certify(np.full([1, 4, 4, 1], 255, np.uint8))
    assert found.label.tolist() == [0]


BAD_CLIENTS = {
    "no server": (dict(servers=[]), "at least one server"),
    "no port": (dict(servers="localhost"), "host:8500"),
    "scheme": (dict(servers="http://a:8501"), "such as host:8500"),
    "bare IPv6": (dict(servers="::1:8500"), r"\[::1\]"),
    "port": (dict(servers="a:99999"), "a:99999"),
    "twice": (dict(servers="a:1,a:1"), "twice"),
    "name": (dict(servers="a:1", model_name=""), "`model_name`"),
    "version": (dict(servers="a:1", version=0), "`version`"),
    "timeout": (dict(servers="a:1", timeout=0), "`timeout`"),
    "retries": (dict(servers="a:1", retries=-1), "`retries`"),
    "audit": (dict(servers="a:1", audit=1.5), r"`audit` must be in \[0, 1\]"),
    "negative audit": (dict(servers="a:1", audit=-0.1), "`audit`"),
    "in flight": (dict(servers="a:1", in_flight=0), "`in_flight`"),
    "tls": (dict(servers="a:1", tls="yes"), "`tls`"),
}


@pytest.mark.parametrize(
    ("arguments", "words"), BAD_CLIENTS.values(), ids=BAD_CLIENTS.keys()
)
def test_bad_clients(arguments, words):
    with pytest.raises(ValueError, match=words):
        CertificationClient(**arguments)


# -- reaching servers ----------------------------------------------------------


def test_a_name_that_does_not_resolve():
    with CertificationClient("no-such-host.invalid:8500") as client:
        with pytest.raises(ServingError, match="no-such-host.invalid"):
            _ = client.model


def test_nobody_listens():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with CertificationClient(f"127.0.0.1:{port}", retries=1) as client:
        with pytest.raises(ServingError, match="is it running") as caught:
            _ = client.model
    assert caught.value.code is Code.UNAVAILABLE


def test_another_model_name(fake):
    with CertificationClient(fake.address, "other") as client:
        with pytest.raises(ServingError, match="is `model_name` the name"):
            _ = client.model


def test_a_model_of_another_kind(fake, images):
    fake.metadata = {"format": 99}
    with client_of(fake) as client:
        with pytest.raises(ServingError, match="another format"):
            client.certify(images)


def test_a_closed_client(fake):
    client = client_of(fake)
    client.close()
    with pytest.raises(ValueError, match="closed"):
        _ = client.model


def test_a_closed_async_client(fake, images):
    async def ask():
        client = AsyncCertificationClient(fake.address, "m")
        await client.close()
        with pytest.raises(ValueError, match="closed"):
            await client.certify(images)

    asyncio.run(ask())


def resolved_as(monkeypatch, machines):
    """Lets the name "certifiers" resolve to what the list holds."""
    asked = socket.getaddrinfo

    def resolved(host, port, *args, **kwargs):
        if host != "certifiers":
            return asked(host, port, *args, **kwargs)
        if not machines:
            raise socket.gaierror(-2, "Name or service not known")
        kind = (socket.AF_INET, socket.SOCK_STREAM, 6, "")
        return [(*kind, (number, port)) for number in machines]

    monkeypatch.setattr(socket, "getaddrinfo", resolved)


def test_every_machine_of_a_name(monkeypatch, images):
    """Linux answers on all of 127/8, so one machine can be several."""
    resolved_as(monkeypatch, ["127.0.0.2", "127.0.0.3"])
    with Fake(host="127.0.0.2") as one:
        with Fake(host="127.0.0.3", port=one.port) as two:
            address = f"dns:///certifiers:{one.port}"
            with CertificationClient(address, "m") as client:
                counts = client.sample(images, 4_000, seed=SEEDS, chunk=100)
    assert (counts == expected(0, 4_000)).all()
    assert one.samples and two.samples


def test_a_name_that_is_forgotten_while_servers_answer(monkeypatch, images):
    machines, servers = ["127.0.0.2"], []
    resolved_as(monkeypatch, machines)

    def recorded(server, *arguments):
        servers.append(server)
        return ServerState(server, *arguments)

    monkeypatch.setattr(fanout, "ServerState", recorded)
    with Fake(host="127.0.0.2") as one:
        address = f"dns:///certifiers:{one.port}"
        with CertificationClient(address, "m") as client:
            client.sample(images, 100)
            machines.clear()
            for server in servers:
                server.ready = False
            counts = client.sample(images, 500, SEEDS)
            assert (counts == expected(0, 500)).all()
        with CertificationClient(address, "m") as client:
            with pytest.raises(ServingError, match="does not resolve"):
                _ = client.model


def test_a_machine_that_left_its_name_meanwhile(monkeypatch, images):
    """Another call closes its connection; this one goes on without it."""
    machines = ["127.0.0.2", "127.0.0.3"]
    resolved_as(monkeypatch, machines)
    with Fake(host="127.0.0.2") as one:
        with Fake(host="127.0.0.3", port=one.port) as two:
            address = f"dns:///certifiers:{one.port}"
            with CertificationClient(address, "m") as client:
                client.sample(images, 100)

                def leave(done, total):
                    if len(machines) == 2:
                        two.stop()
                        # Until this fails, nobody need know that it stopped.
                        client.sample(images, 1_000, chunk=100)
                        machines.pop()
                        client.sample(images, 100)

                counts = client.sample(
                    images, 2_000, SEEDS, chunk=50, progress=leave
                )
    assert (counts == expected(0, 2_000)).all()


def test_a_connection_that_is_closed_before_a_request(
    monkeypatch, fakes, images
):
    has_room = ServerState.has_room

    def closed_before(self, now, in_flight):
        if self.server.label == fakes[0].address:
            self.server.close()
        return has_room(self, now, in_flight)

    with client_of(*fakes) as client:
        client.sample(images, 100)
        monkeypatch.setattr(ServerState, "has_room", closed_before)
        counts = client.sample(images, 500, SEEDS, chunk=50)
    assert (counts == expected(0, 500)).all()


def test_the_fakes_describe_what_exports_do():
    """Else these tests would be about another protocol."""
    from rs_keras.export import metadata
    from rs_keras.export import signature

    assert METADATA["format"] == metadata.FORMAT
    sample = signature.SIGNATURES["sample"]
    assert set(sample.inputs) == {"images", "seed", "first", "n"}
    assert set(sample.outputs) == {"counts", "n", "export"}


# -- TLS -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("ours"), "ours")


@pytest.fixture(scope="module")
def stranger(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("theirs"), "theirs")


def secure(authority, client_verify=False, **issue):
    key, certificate = authority.issue("server", **issue)
    tls = TLS(key, certificate, authority.path, client_verify)
    return Fake(host="localhost", credentials=tls.credentials())


def test_encrypted(authority, images):
    with secure(authority) as fake:
        tls = ClientTLS(authority.path)
        with client_of(fake, tls=tls) as client:
            counts = client.sample(images, 500, seed=SEEDS)
    assert (counts == expected(0, 500)).all()


def test_the_systems_certificates(authority, monkeypatch):
    """OpenSSL reads them where this says; gRPC has a list of its own."""
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.path))
    with secure(authority) as fake:
        with client_of(fake, tls=True) as client:
            assert client.model.version == 1


def test_mutual(authority, images):
    key, certificate = authority.issue("client")
    with secure(authority, client_verify=True) as fake:
        tls = ClientTLS(authority.path, certificate, key)
        with client_of(fake, tls=tls) as client:
            assert client.model.version == 1


def test_a_name_that_the_address_does_not_tell(authority):
    with secure(authority, host="certifier.example") as fake:
        tls = ClientTLS(authority.path, server_name="certifier.example")
        with client_of(fake, tls=tls) as client:
            assert client.model.version == 1


UNTRUSTED = {
    "expired": (dict(hours=-1), {}, "certificate has expired"),
    "another host": (
        dict(host="elsewhere.example"),
        {},
        "not for 'localhost'.*`tls.server_name`",
    ),
    "wants a certificate": (
        dict(client_verify=True),
        {},
        "wants one; give `tls.certificate`",
    ),
}


@pytest.mark.parametrize(
    ("issue", "tls", "words"), UNTRUSTED.values(), ids=UNTRUSTED.keys()
)
def test_certificates_that_are_refused(authority, issue, tls, words):
    with secure(authority, **issue) as fake:
        tls = ClientTLS(authority.path, **tls)
        with client_of(fake, tls=tls, retries=0) as client:
            with pytest.raises(ServingError, match=words) as caught:
                _ = client.model
    assert fake.address in str(caught.value)


def test_an_issuer_that_is_not_known(authority, stranger):
    with secure(authority) as fake:
        tls = ClientTLS(stranger.path)
        with client_of(fake, tls=tls, retries=0) as client:
            with pytest.raises(ServingError, match="right `tls.ca`"):
                _ = client.model


def test_the_clients_own_certificate_has_expired(authority):
    key, certificate = authority.issue("late", hours=-1)
    with secure(authority, client_verify=True) as fake:
        tls = ClientTLS(authority.path, certificate, key)
        with client_of(fake, tls=tls, retries=0) as client:
            with pytest.raises(ServingError, match="has that expired"):
                _ = client.model


def test_a_server_that_wants_tls(authority):
    with secure(authority) as fake:
        with client_of(fake, retries=0) as client:
            with pytest.raises(ServingError, match="wants TLS; give `tls`"):
                _ = client.model


def test_a_server_that_does_not_speak_tls(fake, authority):
    tls = ClientTLS(authority.path)
    with client_of(fake, tls=tls, retries=0) as client:
        with pytest.raises(ServingError, match="leave out `tls`"):
            _ = client.model


def test_bad_files(authority, stranger, tmp_path):
    key, certificate = authority.issue("client")
    other, _ = stranger.issue("client")
    junk = tmp_path / "junk.pem"
    junk.write_text("junk")
    with pytest.raises(ValueError, match="need each other"):
        ClientTLS(certificate=certificate)
    with pytest.raises(ValueError, match="belong together"):
        ClientTLS(certificate=certificate, key=other)
    with pytest.raises(ValueError, match="`ca` must be a PEM file"):
        ClientTLS(junk)
    with pytest.raises(OSError, match="absent"):
        ClientTLS(tmp_path / "absent")
