"""`rs-keras demo` without a browser: its HTTP, votes, distances, command."""

import json
import re
import shutil
import signal
import socket
import tempfile
import threading

import numpy as np
import psutil
import pytest
from kits.demo import SHAPE
from kits.demo import SIGMA
from kits.demo import Asker
from kits.demo import an_image
from kits.demo import demo_server
from kits.demo import from_text
from kits.demo import linear_model
from kits.demo import reason
from kits.demo import to_text
from scipy import stats

from rs_keras import Certifier
from rs_keras.cli import demo as command
from rs_keras.cli import main
from rs_keras.serving.demo import web
from rs_keras.serving.demo.perturbations import PerturbationSearch
from rs_keras.serving.errors import ServingError


@pytest.fixture(scope="module")
def served():
    server, certifier = demo_server()
    with server:
        yield server, certifier


@pytest.fixture
def asker(served):
    return Asker(served[0].address)


@pytest.fixture
def certifier(served):
    return served[1]


# -- HTTP ---------------------------------------------------------------------


def test_only_loopback_listens(served):
    listening = [
        connection.laddr
        for connection in psutil.Process().net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    ]
    # The page and the gRPC server.
    assert len(listening) >= 2
    ips = {address.ip.removeprefix("::ffff:") for address in listening}
    assert ips == {"127.0.0.1"}


@pytest.mark.parametrize(
    "path, kind",
    [
        ("/", "text/html"),
        ("/style.css", "text/css"),
        ("/main.js", "text/javascript"),
        ("/about.json", "application/json"),
    ],
)
def test_the_demos_files_are_served_with_their_types(asker, path, kind):
    with asker.get(path) as response:
        body = response.read().decode()
        assert response.status == 200
        assert response.headers.get_content_type() == kind
        policy = response.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy and "http" not in policy
    # A namespace is a name, not a place.
    places = re.findall(r"\w+:(?=//)", body.replace("http://www.w3.org", ""))
    assert places == []


def test_every_part_of_the_page_is_served(asker):
    found, wanted = set(), {"/"}
    while wanted - found:
        path = (wanted - found).pop()
        with asker.get(path) as response:
            assert response.status == 200, path
            text = response.read().decode()
        found.add(path)
        names = re.findall(r'(?:src|href|from) ?=? ?"(?:\./)?(\w+\.\w+)"', text)
        wanted |= {f"/{name}" for name in names}
    assert {"/style.css", "/main.js", "/stream.js"} <= found


@pytest.mark.parametrize(
    "path", ["/nothing", "/server.py", "/../server.py", "/%2e"]
)
def test_nothing_else_is_served(asker, path):
    status, words = reason(asker.get(path))
    assert (status, words) == (404, f"There is nothing at {path}.")
    assert reason(asker.post(path, {}))[0] == 404


@pytest.mark.parametrize("method", ["get", "post"])
@pytest.mark.parametrize(
    "host", [None, "evil.example", "evil.example:{port}", "127.0.0.1"]
)
def test_other_names_are_refused(asker, method, host):
    port = asker.host.rpartition(":")[2]
    given = host and host.format(port=port)
    ask = getattr(asker, method)
    arguments = [{}] if method == "post" else []
    status, words = reason(ask("/certify", *arguments, Host=given))
    assert status == 421
    assert words == f"This page is at http://{asker.host}/ only."


def test_localhost_is_this_machine(asker):
    port = asker.host.rpartition(":")[2]
    with asker.get("/", Host=f"localhost:{port}") as response:
        assert response.status == 200


@pytest.fixture
def on_port_80(bare):
    """Binding it takes privileges: only its number is put in."""
    asker = Asker(bare.address)
    bare.port = 80
    return asker


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_port_80_goes_without_saying(on_port_80, host):
    """In `Host` and `Origin`: of the default port browsers say nothing."""
    names = {"Host": host, "Origin": f"http://{host}"}
    body = {"early": True}
    status, _ = reason(on_port_80.post("/failing", body, **names))
    assert status == 503
    names["Host"] = "evil.example"
    status, _ = reason(on_port_80.post("/failing", body, **names))
    assert status == 421


@pytest.mark.parametrize(
    "origin",
    [None, "null", "http://evil.example", "http://127.0.0.1:1", "https://{}"],
)
def test_other_pages_are_refused(asker, origin):
    given = origin and origin.format(asker.host)
    status, words = reason(asker.post("/certify", {}, Origin=given))
    assert status == 403
    assert words == f"Only the page at http://{asker.host}/ may send requests."


def test_forms_are_refused(asker):
    answer = asker.post("/certify", {}, Content_Type="text/plain")
    assert reason(answer) == (415, "Requests must be application/json.")


# 3,136 bytes of pixels are 4,184 in base64; a request has 1,000 more at most.
@pytest.mark.parametrize("length", ["5200", "9" * 5000], ids=["few", "many"])
def test_bodies_are_limited(asker, length):
    answer = asker.post("/certify", b"", Content_Length=length)
    status, words = reason(answer)
    assert status == 413
    assert words.startswith("The image is too large: ")


@pytest.mark.parametrize("length", [None, "", "-1", "1e3", "\u00b2"])
def test_bodies_tell_their_length(asker, length):
    answer = asker.post("/certify", b"", Content_Length=length)
    assert reason(answer) == (411, "Requests must have a Content-Length.")


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"1", b"\xff", b"[" * 3000], ids=repr
)
def test_bodies_are_objects(asker, body):
    answer = asker.post("/certify", body)
    assert reason(answer) == (400, "Requests must be one JSON object.")


GOOD = to_text(np.full(SHAPE, 0.5))
BAD_QUESTIONS = {
    "no pixels": ({"n": 1000}, "`pixels` must be text in base64"),
    "no base64": ({"pixels": "?"}, "`pixels` must be text in base64"),
    "a list": ({"pixels": [1]}, "`pixels` must be text in base64"),
    "too small": ({"pixels": GOOD[:8]}, "must be 3136 bytes"),
    "bright": ({"pixels": to_text(np.full(SHAPE, 2.0))}, "in [0, 1]"),
    "not a number": ({"pixels": to_text(np.full(SHAPE, np.nan))}, "finite"),
    "no n": ({"pixels": GOOD}, "`n` must be a whole number >= 1"),
    "no draws": ({"pixels": GOOD, "n": 0}, "`n` must be a whole number >= 1"),
    "in vain": ({"pixels": GOOD, "n": 5}, "to certify anything at alpha=0.001"),
    "endless": ({"pixels": GOOD, "n": 1_000_001}, "`n` must be <= 1000000"),
}


@pytest.mark.parametrize(
    "body, message", BAD_QUESTIONS.values(), ids=BAD_QUESTIONS
)
def test_bad_questions_about_certificates(asker, body, message):
    status, words = reason(asker.post("/certify", body))
    assert status == 400
    assert message in words


@pytest.mark.parametrize(
    "change, message",
    [
        ({"label": 10}, "`label` must be < 10. Received: label=10"),
        ({"label": -1}, "`label` must be a whole number >= 0"),
        ({"label": 1.5}, "`label` must be a whole number >= 0"),
        ({"radius": -1}, "`radius` must be a finite number >= 0"),
        ({"radius": None}, "`radius` must be a finite number >= 0"),
        ({"pixels": ""}, "must be 3136 bytes"),
    ],
)
def test_bad_questions_about_surroundings(asker, change, message):
    body = {"pixels": GOOD, "label": 0, "radius": 1.0, **change}
    status, words = reason(asker.post("/explore", body))
    assert status == 400
    assert message in words


class Endless:
    """A question that is answered until somebody stops listening."""

    def __init__(self):
        self.left = threading.Semaphore(0)

    def __call__(self, body):
        try:
            while True:
                yield {"more": True}
        finally:
            self.left.release()


def failing(body):
    if body["early"]:
        raise ServingError("the server is away")
    yield {"stage": "begin"}
    raise ServingError("the server went away")


@pytest.fixture
def endless():
    return Endless()


@pytest.fixture
def bare(endless):
    questions = {"/endless": endless, "/failing": failing}
    with web.WebServer({}, questions, 1_000, 0) as server:
        yield server


def test_a_browser_that_leaves_ends_the_work(bare, endless):
    response = Asker(bare.address).post("/endless", {})
    assert json.loads(response.readline()) == {"more": True}
    assert not endless.left.acquire(timeout=0.2)
    response.close()
    assert endless.left.acquire(timeout=5)


def test_closing_ends_the_work(endless):
    with web.WebServer({}, {"/endless": endless}, 1_000, 0) as server:
        response = Asker(server.address).post("/endless", {})
        assert json.loads(response.readline()) == {"more": True}
        reader = threading.Thread(target=response.read)
        reader.start()
    assert endless.left.acquire(timeout=0)
    reader.join()


def test_too_many_questions_at_a_time(bare, monkeypatch):
    monkeypatch.setattr(web, "MAX_WAIT", 0.1)
    asker = Asker(bare.address)
    running = [asker.post("/endless", {}) for _ in range(4)]
    for response in running:
        assert response.readline()
    assert reason(asker.post("/endless", {})) == (
        503,
        "The server is busy with other images. Try again in a moment.",
    )
    running.pop().close()
    monkeypatch.setattr(web, "MAX_WAIT", 5.0)
    with asker.post("/endless", {}) as response:
        assert response.status == 200
    for response in running:
        response.close()


def test_failures_are_told(bare):
    asker = Asker(bare.address)
    status, words = reason(asker.post("/failing", {"early": True}))
    assert (status, words) == (503, "The server cannot: the server is away")
    assert asker.lines("/failing", early=False) == [
        {"stage": "begin"},
        {"error": "The server cannot: the server went away"},
    ]


# -- certificates -------------------------------------------------------------


def seed_of(line):
    return np.array([[int(word) for word in line["seed"]]])


@pytest.mark.parametrize("n", [100, 1_001])
def test_votes_add_up_to_those_of_the_certifier(asker, certifier, n):
    image = an_image()
    begin, *lines, last = asker.lines("/certify", pixels=to_text(image), n=n)
    assert begin == {"stage": "begin", "n0": 100, "n": n}
    assert last["stage"] == "certificate"
    for stage, first, count in (("selection", 0, 100), ("estimation", 100, n)):
        found = [line for line in lines if line["stage"] == stage]
        drawn = [line["drawn"] for line in found]
        assert drawn == sorted(set(drawn)) and drawn[-1] == count
        assert [sum(line["counts"]) for line in found] == drawn
        counts = certifier.sample(image[None], count, seed_of(last), first)
        assert found[-1]["counts"] == counts[0].tolist()
    assert last["counts"] == lines[-1]["counts"]
    assert last["drawn"] == n


def test_certificate_is_scipys(asker):
    *_, last = asker.lines("/certify", pixels=to_text(an_image()), n=1_000)
    counts = sorted(last["counts"])
    # A tenth of alpha = 0.001 bounds the second class, the rest the first.
    lower = stats.beta.ppf(0.0009, counts[-1], 1_000 - counts[-1] + 1)
    upper = stats.beta.ppf(0.9999, counts[-2] + 1, 1_000 - counts[-2])
    upper = min(upper, 1 - lower)
    radius = SIGMA / 2 * (stats.norm.ppf(lower) - stats.norm.ppf(upper))
    assert last["p_lower"] == pytest.approx(lower, rel=1e-9)
    assert last["radius"] == pytest.approx(radius, rel=1e-9)
    assert last["radius_text"] == f"{np.floor(1000 * radius) / 1000:.3f}"
    assert last["label"] == last["chosen"] == np.argmax(last["counts"])
    assert f"smaller than {last['radius_text']} in L2" in last["sentence"]
    assert f"standard deviation {SIGMA}" in last["statement"]


def test_certificate_is_true(asker, certifier):
    image = an_image()
    *_, last = asker.lines("/certify", pixels=to_text(image), n=1_000)
    (weights,) = certifier.model.get_weights()
    scores = image.reshape(-1) @ weights
    label = int(scores.argmax())
    others = np.delete(np.arange(10), label)
    # Under noise the score of a linear classifier moves by its average, none:
    # so the smoothed classifier has the same borders.
    gaps = (scores[label] - scores[others]) / np.linalg.norm(
        weights[:, [label]] - weights[:, others], axis=0
    )
    assert last["label"] == label
    assert 0 < last["radius"] < gaps.min()


def test_the_demo_draws_fresh_noise_for_each_question(asker):
    seeds = {
        tuple(asker.lines("/certify", pixels=GOOD, n=100)[-1]["seed"])
        for _ in range(3)
    }
    assert len(seeds) == 3


def test_the_noisy_copy_shown_is_one_that_voted(asker, certifier):
    image = an_image()
    lines = asker.lines("/certify", pixels=to_text(image), n=100)
    shown = from_text(lines[-2]["noisy"])
    (weights,) = certifier.model.get_weights()
    vote = int((shown.reshape(-1) @ weights).argmax())
    seed = seed_of(lines[-1])
    # Draw number 199 is the last of 100 + 100.
    counts = certifier.sample(image[None], 1, seed, first=199)
    assert counts[0, vote] == 1
    assert np.std(shown - image) == pytest.approx(SIGMA, rel=0.15)


# -- surroundings -------------------------------------------------------------


def test_the_demo_shows_the_surroundings_of_an_image(asker):
    image, radius = an_image(), 0.6
    begin, *points, end = asker.lines(
        "/explore", pixels=to_text(image), label=3, radius=radius
    )
    assert begin["stage"] == "begin" and end == {"stage": "end"}
    assert begin["reach"] == pytest.approx(2.5 * radius)
    for point in points:
        pixels = from_text(point["pixels"])
        assert 0 <= pixels.min() and pixels.max() <= 1
        far = np.sqrt(((pixels.astype(float) - image) ** 2).sum())
        assert point["distance"] == pytest.approx(far, rel=1e-9)
        assert point["inside"] == (far < radius)
        assert sum(point["counts"]) == begin["n"]
    rays = [(point["kind"], point["ray"]) for point in points]
    assert rays[:20] == [("random", i // 4) for i in range(20)]
    assert rays[20:] == [("adversarial", 0)] * begin["stops"]
    worst = [point["distance"] for point in points[20:]]
    step = 2.5 * radius / begin["stops"]
    wanted = step * np.arange(1, begin["stops"] + 1)
    np.testing.assert_allclose(worst, wanted, rtol=1e-5)


def test_a_model_that_is_sure_is_attacked_as_well(linear):
    """Logits so steep that their softmax is 0 or 1 in float32."""
    image = np.full([4, 4, 1], 0.5, np.float32)
    image += 0.05 * np.sign(linear.weights).astype(np.float32)
    border = float(linear.radius(image[None])[0])
    steep = Certifier(lambda images: 1e4 * linear(images), sigma=0.01)
    search = PerturbationSearch(steep.sampler((4, 4, 1)))
    found = search.adversarial(image, 1, [0.95 * border, 1.05 * border])
    labels = linear.label(np.stack(found))
    assert labels.tolist() == [1, 0]


def test_without_a_radius_nothing_is_inside(asker):
    begin, *points, _ = asker.lines("/explore", pixels=GOOD, label=0, radius=0)
    assert begin["scale"] == 0.5 * SIGMA
    assert not any(point["inside"] for point in points)


def test_the_adversary_finds_the_border(linear):
    """Of a linear classifier: no nearer than it is, and not much farther."""
    image = np.full([4, 4, 1], 0.5, np.float32)
    image += 0.05 * np.sign(linear.weights).astype(np.float32)
    border = float(linear.radius(image[None])[0])
    search = PerturbationSearch(Certifier(linear, sigma=0.5).sampler((4, 4, 1)))
    distances = [0.5 * border, 0.99 * border, 1.05 * border, 2 * border]
    found = search.adversarial(image, 1, distances)
    labels = linear.label(np.stack(found))
    assert labels.tolist() == [1, 1, 0, 0]


# -- examples and the command -------------------------------------------------


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    path = tmp_path_factory.mktemp("saved") / "model.keras"
    linear_model().save(path)
    return str(path)


@pytest.fixture
def handlers():
    """Puts back the handlers of signals that the command sets."""
    kept = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, kept)


def test_classes_have_the_names_of_the_data_set_of_the_training(
    saved, handlers, tmp_path, monkeypatch
):
    shown = []

    def not_served(certifier, names, *_):
        shown.append(names)
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "DemoServer", not_served)

    def names_of(model):
        call = ["demo", "--model", str(model), "--sigma", "1", "--no-browser"]
        assert main(call) == 0
        return shown.pop()

    assert "".join(names_of("pretrained:mnist-gaussian-1.00")) == "0123456789"
    assert names_of(saved) is None
    shutil.copy(saved, tmp_path / "model.keras")
    recipe = tmp_path / "recipe.json"
    recipe.write_text('{"dataset": "fashion_mini"}')
    assert names_of(tmp_path)[1] == "Trouser"
    recipe.write_text('{"dataset": "npz:/no/such"}')
    assert names_of(tmp_path) is None


def test_the_demo_names_a_port_that_is_in_use(saved, handlers, capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        call = ["demo", "--model", saved, "--sigma", "0.5", "--no-browser"]
        assert main([*call, "--port", str(port)]) == 2
    assert capsys.readouterr().err == (
        f"rs-keras demo: Cannot listen on 127.0.0.1:{port}: Address already "
        "in use. Choose another port, or stop the server that has it.\n"
    )


@pytest.mark.parametrize(
    "flags, message",
    [
        (["--sigma", "0.5", "--port", "65536"], "between 0 and 65535"),
        (["--sigma", "0.5", "--port", "-1"], "`port` must be a whole number"),
        ([], "--sigma must be given"),
        (["--sigma", "0"], "`sigma` must be a finite number > 0"),
    ],
)
def test_bad_demo_calls_are_one_line(saved, handlers, capsys, flags, message):
    assert main(["demo", "--model", saved, "--no-browser", *flags]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line


def test_command_serves_until_it_is_stopped(
    saved, handlers, monkeypatch, capsys, tmp_path
):
    opened = []

    def browse(address):
        with Asker(address).get("/about.json") as response:
            opened.append((address, json.loads(response.read())))
        # A browser keeps a connection open for what it may yet ask.
        host, port = Asker(address).host.split(":")
        opened.append(socket.create_connection((host, port)))
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(command.webbrowser, "open", browse)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert main(["demo", "--model", saved, "--sigma", "0.25"]) == 0
    (address, about), kept = opened
    kept.close()
    assert about["title"] == saved and about["sigma"] == 0.25
    assert capsys.readouterr() == (f"{address} (Ctrl-C ends it)\n", "")
    with pytest.raises(ConnectionRefusedError):
        Asker(address).get("/")
    # The export is gone.
    assert list(tmp_path.iterdir()) == []
