"""Frozen and restarted servers, many threads, proxies and tokens.

What a server votes is a formula in `fake_servers`.
"""

import asyncio
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import numpy as np
import pytest
from kits.authority import Authority
from kits.fake_servers import Fake
from kits.fake_servers import votes

from rs_keras.serving import TLS
from rs_keras.serving import AsyncCertificationClient
from rs_keras.serving import CertificationClient
from rs_keras.serving import ClientTLS
from rs_keras.serving import ServingError

SEEDS = np.int64([[3, 1], [-5, 2]])
# Seconds after which a second server is asked, of requests that usually take a
# few milliseconds: documented in docs/serving.md.
HEDGING_DELAY = 0.25
# What a busy machine adds to one call.
NOISE = 0.5


@pytest.fixture
def fakes():
    with Fake() as one, Fake() as two, Fake() as three:
        yield one, two, three


@pytest.fixture
def images():
    return np.random.default_rng(0).uniform(size=(2, 4, 4, 1)).astype("f4")


def client_of(*fakes, **options):
    return CertificationClient([one.address for one in fakes], "m", **options)


def expected(first, n):
    return np.stack([votes(seed, first, n) for seed in SEEDS])


def seconds_of(work, times):
    taken = []
    for _ in range(times):
        begun = time.monotonic()
        work()
        taken.append(time.monotonic() - begun)
    return taken


# -- servers that freeze, or die -----------------------------------------------


@pytest.mark.parametrize("seeds", ["fresh", "keyed"])
@pytest.mark.parametrize("call", ["predict", "certify"])
def test_a_frozen_server_costs_one_hedging_delay(images, seeds, call):
    with ExitStack() as stack:
        fakes = [stack.enter_context(Fake(seed=seeds)) for _ in range(3)]
        client = stack.enter_context(client_of(*fakes))
        ask = getattr(client, call)
        healthy = max(seconds_of(lambda: ask(images), 20))
        fakes[0].freeze()
        # An error would end this.
        taken = seconds_of(lambda: ask(images), 20)
    assert max(taken) < healthy + HEDGING_DELAY + NOISE
    # Once known, it is not asked any more: the median call is as before.
    assert sorted(taken)[10] < healthy + 0.1


def test_the_second_request_is_for_the_same_draws(fakes, images):
    with client_of(*fakes) as client:
        for _ in range(5):
            client.predict(images)
        fakes[0].freeze()
        before = len(fakes[0].arrived)
        while len(fakes[0].arrived) == before:
            client.predict(images)
        stuck = fakes[0].arrived[before:]
    for row in stuck:
        assert any(row in one.arrived for one in fakes[1:])


def test_of_two_answers_one_is_counted(fakes, images):
    """The slow one arrives, too, while the call goes on."""
    with client_of(*fakes) as client:
        for _ in range(3):
            client.sample(images, 2_000, SEEDS)
        fakes[0].faults.extend([1.0, 1.0])
        for one in fakes[1:]:
            one.pace = 1e-4
        counts = client.sample(images, 30_000, SEEDS)
    assert (counts == expected(0, 30_000)).all()


def test_a_frozen_server_works_again_when_it_answers(fakes, images):
    with client_of(*fakes) as client:
        client.sample(images, 2_000)
        fakes[0].freeze()
        for _ in range(5):
            client.predict(images)
        fakes[0].thaw()
        before, deadline = len(fakes[0].drawn), time.monotonic() + 20
        while len(fakes[0].drawn) == before and time.monotonic() < deadline:
            client.sample(images, 500, chunk=50)
        assert len(fakes[0].drawn) > before


def test_a_dead_server_costs_nothing(fakes, images):
    with client_of(*fakes) as client:
        healthy = max(seconds_of(lambda: client.predict(images), 20))
        fakes[0].stop()
        taken = seconds_of(lambda: client.predict(images), 20)
    assert max(taken) < healthy + NOISE


def test_a_server_that_never_answered_is_not_waited_for(fakes, images):
    """It accepts the connection: a listener that nobody serves."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        frozen = f"127.0.0.1:{listener.getsockname()[1]}"
        servers = [frozen, *(one.address for one in fakes[:2])]
        with CertificationClient(servers, "m") as client:
            begun = time.monotonic()
            client.predict(images)
            assert time.monotonic() - begun < 0.5 + NOISE
            taken = seconds_of(lambda: client.certify(images), 5)
    assert max(taken) < NOISE


def test_a_stream_outlives_a_restart_that_takes_long(images):
    """One of two is away for longer than its retries last, then works."""
    with Fake() as one, Fake() as two:
        two.pace = 2e-5
        with client_of(one, two, retries=0) as client:
            examples = ((row, images[0], SEEDS[0]) for row in range(10_000))
            found = client.certify_each(examples, n=1_000)
            next(found)
            one.stop()
            for _ in range(30):
                next(found)
            with Fake(port=one.port) as again:
                deadline = time.monotonic() + 20
                while not again.samples and time.monotonic() < deadline:
                    _, certificate = next(found)
                    assert (
                        certificate.counts[0] == votes(SEEDS[0], 100, 1_000)
                    ).all()
                assert again.samples
            found.close()


# -- balancing -----------------------------------------------------------------


def test_a_restarted_server_gets_its_share_and_no_more(fakes, images):
    with client_of(*fakes) as client:
        for _ in range(60):
            client.predict(images)
        fakes[0].stop()
        for _ in range(5):
            client.predict(images)
        with Fake(port=fakes[0].port) as again:
            deadline = time.monotonic() + 20
            while not again.samples and time.monotonic() < deadline:
                client.predict(images)
            before = again.samples, fakes[1].samples, fakes[2].samples
            for _ in range(60):
                client.predict(images)
            after = again.samples, fakes[1].samples, fakes[2].samples
    shares = np.subtract(after, before)
    # A third of 60, and as much more or less as its latency differs.
    assert 4 <= shares[0] <= 45
    assert shares.sum() >= 60


def test_a_slow_server_gets_less(fakes, images):
    for one, pace in zip(fakes, (1e-3, 1e-5, 1e-5), strict=True):
        one.pace = pace
    with client_of(*fakes) as client:
        client.sample(images, 3_000)
        before = fakes[0].samples
        for _ in range(30):
            client.predict(images)
    assert fakes[0].samples - before <= 5


# -- many threads --------------------------------------------------------------


def test_64_threads_lose_nothing_to_a_busy_server(images):
    """One that takes 4 requests at a time, and refuses all others."""
    with Fake() as fake, client_of(fake) as client:
        fake.most, fake.pace = 4, 2e-5

        def ask(number):
            first = 1_000 * number
            counts = client.sample(images, 200, SEEDS, first=first)
            assert (counts == expected(first, 200)).all()

        with ThreadPoolExecutor(64) as pool:
            done = list(pool.map(ask, range(192)))
        assert len(done) == 192
        asked = fake.samples
    # Most requests were sent once: the client learned the limit.
    assert asked < 2 * 192


def test_threads_that_begin_together_ask_once_what_is_served(fakes, images):
    with client_of(*fakes) as client, ThreadPoolExecutor(32) as pool:
        list(pool.map(lambda _: client.predict(images), range(32)))
    assert [one.asked.count("describe") for one in fakes] == [1, 1, 1]


def test_threads_that_begin_together_learn_why_nobody_answers():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
    with CertificationClient(address, "m", retries=1) as client:

        def ask(_):
            with pytest.raises(ServingError, match="no server answers"):
                _ = client.model

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(ask, range(8)))


def test_a_stream_that_nobody_reads_keeps_no_place(images):
    with Fake() as fake, client_of(fake) as client:
        examples = ((row, images[0], None) for row in range(1_000))
        stream = client.certify_each(examples, n=1_000, chunk=1_100)
        next(stream)
        begun = time.monotonic()
        for _ in range(5):
            client.predict(images, n=200)
        assert time.monotonic() - begun < 5 * NOISE
        stream.close()


def test_200_connections_are_closed_at_once():
    """Of one port, under the 200 addresses that Linux gives this machine."""
    with Fake(host="0.0.0.0") as fake:
        servers = [f"127.0.1.{number}:{fake.port}" for number in range(1, 201)]
        with CertificationClient(servers, "m") as client:
            client.wait_ready()
            begun = time.monotonic()
            client.close()
            assert time.monotonic() - begun < 1.0


# -- proxies and tokens --------------------------------------------------------


def test_a_proxy_that_takes_the_connection_is_named(monkeypatch):
    with Fake() as fake:
        monkeypatch.setenv("http_proxy", "http://user:secret@127.0.0.1:9")
        monkeypatch.setenv("no_proxy", "")
        with client_of(fake, retries=0) as client:
            with pytest.raises(ServingError) as caught:
                _ = client.model
        text = str(caught.value)
        assert "http_proxy=http://...@127.0.0.1:9 sends it" in text
        assert "add 127.0.0.1 to no_proxy" in text
        assert "secret" not in text
        monkeypatch.setenv("no_proxy", "localhost,127.0.0.0/8")
        fake.status_fault = None
        with CertificationClient(fake.address, "x", retries=0) as client:
            with pytest.raises(ServingError) as caught:
                _ = client.model
        assert "proxy" not in str(caught.value)


def test_a_token_is_sent_with_each_request(images):
    with Fake() as fake:
        fake.token = "abc.def"
        with client_of(fake, token="abc.def") as client:
            client.sample(images, 500)
    assert {*fake.tokens} == {"Bearer abc.def"}


def test_a_token_may_change_during_a_call(images):
    """A function gives the token of each request."""
    given = iter(range(10_000))
    with Fake() as fake:
        with client_of(fake, token=lambda: f"t{next(given)}") as client:
            client.sample(images, 500, chunk=100)
    assert sorted(fake.tokens) == sorted({*fake.tokens})
    assert len(fake.tokens) == 2 + 10


def test_asyncio_sends_tokens_too(images):
    async def ask(address):
        async with AsyncCertificationClient(address, "m", token="t") as client:
            await client.predict(images)

    with Fake() as fake:
        fake.token = "t"
        asyncio.run(ask(fake.address))


def test_the_error_of_a_wrong_token_names_it(images):
    with Fake() as fake:
        fake.token = "right"
        with client_of(fake, token="wrong", retries=0) as client:
            with pytest.raises(ServingError, match="want a `token`") as caught:
                client.predict(images)
    assert "UNAUTHENTICATED" in str(caught.value)


def test_a_token_goes_to_other_machines_over_tls_only(tmp_path, images):
    with pytest.raises(ValueError, match="`token` must be sent over TLS"):
        CertificationClient("certifier.example:8500", "m", token="t")
    authority = Authority(tmp_path, "ours")
    key, certificate = authority.issue("server")
    tls = TLS(key, certificate, authority.path)
    with Fake(host="localhost", credentials=tls.credentials()) as fake:
        fake.token = "t"
        ours = ClientTLS(authority.path)
        with client_of(fake, tls=ours, token="t") as client:
            client.predict(images)


BAD_TOKENS = {
    "line end": "abc\n",
    "space": "a secret",
    "empty": "",
    "header": "a\r\nx: y",
    "letters": "sécret",
}


@pytest.mark.parametrize("token", BAD_TOKENS.values(), ids=BAD_TOKENS.keys())
@pytest.mark.parametrize("kind", ["static", "function"])
def test_what_is_no_token_is_refused_and_not_shown(token, kind):
    with pytest.raises(ValueError, match="`token` must consist") as caught:
        given = token if kind == "static" else (lambda: token)
        with CertificationClient("127.0.0.1:1", "m", token=given) as client:
            _ = client.model
    assert "cret" not in str(caught.value)


def test_what_a_token_function_raises_is_passed_on():
    def fails():
        raise PermissionError("no ticket")

    with CertificationClient("127.0.0.1:1", "m", token=fails) as client:
        with pytest.raises(PermissionError, match="no ticket"):
            _ = client.model
    with pytest.raises(ValueError, match="`token` must be a string"):
        CertificationClient("127.0.0.1:1", "m", token=7)


def test_a_call_in_line_can_be_cancelled(images):
    """Two requests fill the window of a server that does not answer."""

    async def ask(address):
        async with AsyncCertificationClient(address, "m") as client:
            await client.model()
            fake.freeze()
            calls = [
                asyncio.create_task(client.predict(images, n=200))
                for _ in range(8)
            ]
            await asyncio.sleep(0.3)
            for call in calls:
                call.cancel()
            done = await asyncio.gather(*calls, return_exceptions=True)
            fake.thaw()
            assert all(isinstance(e, asyncio.CancelledError) for e in done)
            await client.predict(images)

    with Fake() as fake:
        begun = threading.active_count()
        asyncio.run(ask(fake.address))
    deadline = time.monotonic() + 10
    while threading.active_count() > begun and time.monotonic() < deadline:
        time.sleep(0.05)


def test_many_threads_give_up_a_dead_server_together(images):
    """They share its probes; each alone would ask for as long."""
    with Fake() as fake, client_of(fake, retries=2) as client:
        client.predict(images)
        fake.stop()

        def ask(_):
            with pytest.raises(ServingError, match="no server is left"):
                client.predict(images)

        begun = time.monotonic()
        with ThreadPoolExecutor(16) as pool:
            list(pool.map(ask, range(16)))
        assert time.monotonic() - begun < 8
