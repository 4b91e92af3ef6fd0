"""What README and docs show is run, and what they link to is there.

Blocks marked `py` need machines of the reader's: servers in this process and
certificates made here stand in for them.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import keras
import numpy as np
import pytest
from kits.authority import Authority
from PIL import Image
from scipy import stats

from rs_keras import Certifier
from rs_keras.cli import make_parser
from rs_keras.export import export_certifier
from rs_keras.serving import TLS
from rs_keras.serving import EmbeddedServer

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")])
BLOCK = re.compile(r"```python\n(.*?)```", re.S)
LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)(#[^)\s]+)?\)")
ELSEWHERE = re.compile(r"```py\n(.*?)```", re.S)
# A command on a line of its own, or in running text.
CALL = re.compile(r"^ *\$? *rs-keras (.+)$|`rs-keras ([^`]+)`", re.M)
# What stands for a word of the reader's.
STANDS_FOR = {"SIGMA": "1.0", "$SEED": "7"}


# Keras Tuner 1.4.8 asks for a thread's name in the old way.
pytestmark = [
    pytest.mark.filterwarnings("ignore:currentThread:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:getName:DeprecationWarning"),
]


def pages_with_code():
    return [page for page in PAGES if BLOCK.search(page.read_text())]


@pytest.mark.parametrize("page", pages_with_code(), ids=lambda p: p.name)
def test_code_runs_as_it_stands(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "__main__"}
    for number, block in enumerate(BLOCK.findall(page.read_text()), 1):
        exec(compile(block, f"{page.name}, block {number}", "exec"), names)


def anchor(heading):
    text = re.sub(r"[^\w\- ]", "", heading.strip().lower())
    return "#" + text.replace(" ", "-")


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_lead_somewhere(page):
    for target, fragment in LINK.findall(page.read_text()):
        place = page.parent / target if target else page
        assert place.exists(), f"{page.name}: no {target}"
        if fragment:
            headings = re.findall(r"^#+ (.*)$", place.read_text(), re.M)
            assert fragment in map(anchor, headings), f"no {fragment}"


def calls():
    for page in PAGES:
        for match in CALL.finditer(page.read_text().replace("\\\n", " ")):
            yield pytest.param(
                match[1] or match[2], id=f"{page.name}: {match[0]}"
            )


@pytest.mark.parametrize("call", list(calls()))
def test_commands_are_understood(call):
    words = shlex.split(call.rstrip(" &"), comments=True)
    if len(words) == 1:  # only named
        words.append("--help")
    if "COMMAND" in words or words[0].startswith("--"):
        return
    words = [STANDS_FOR.get(word, word) for word in words]
    try:
        args = make_parser().parse_args(words)
    except SystemExit as ended:
        assert ended.code == 0, call
    else:
        assert args.command == words[0]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with an export and the certificates that pages name."""
    folder = tmp_path_factory.mktemp("place")
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [keras.Input((4, 4, 1)), keras.layers.Flatten(), keras.layers.Dense(3)]
    )
    model.save(folder / "model.keras")
    # Three servers load it.
    certifier = Certifier(model, 0.5)
    export_certifier(certifier, folder / "exports", n=500, warmup=False)
    (folder / "token").write_text("abc.def\n")
    authority = Authority(folder, "ca")
    for name in ("server", "client"):
        for file in authority.issue(name):
            file.rename(folder / file.name.removeprefix("ca."))
    return folder


@pytest.fixture(scope="module")
def servers(place):
    """What the addresses on the pages stand for."""
    asked = {"model_name": "mnist", "port": 0}
    tls = TLS(
        *(place / f for f in ("server.key", "server.crt", "ca.crt")), True
    )
    with (
        EmbeddedServer(place / "exports", **asked) as first,
        EmbeddedServer(place / "exports", **asked) as second,
        EmbeddedServer(place / "exports", **asked, tls=tls) as safe,
    ):
        yield {
            "a:8500,b:8500": f"{first.address},{second.address}",
            "certifier.example:8500": safe.address.replace(
                "127.0.0.1", "localhost"
            ),
        }


def elsewhere():
    for page in PAGES:
        for number, block in enumerate(ELSEWHERE.findall(page.read_text()), 1):
            yield pytest.param(block, id=f"{page.name}, {number}")


@pytest.mark.parametrize("block", list(elsewhere()))
def test_code_for_other_machines_runs_against_these(
    block, place, servers, monkeypatch
):
    monkeypatch.chdir(place)
    monkeypatch.setattr("builtins.input", lambda prompt: "")
    names = {
        "images": np.full((2, 4, 4, 1), 0.5, np.float32),
        "model": keras.saving.load_model(place / "model.keras"),
    }
    for told, real in servers.items():
        block = block.replace(told, real)
    exec(compile(block, "block", "exec"), names)
    if "tls" in names:
        assert names["client"].predict(names["images"], n=100).counts.any()
        names["client"].close()


CURL = re.compile(r"^curl .+$", re.M)


@pytest.fixture(scope="module")
def rest_server(tmp_path_factory):
    """A server of REST on port 8501 of the pages."""
    pytest.importorskip("waitress")
    folder = tmp_path_factory.mktemp("rest")
    pixels = np.zeros((4, 4, 1), np.uint8)
    Image.fromarray(pixels[..., 0]).save(folder / "digit.png")
    certifier = Certifier(lambda x: x[:, 0, :2, 0], 0.5)
    export_certifier(
        certifier,
        folder / "exports",
        n=500,
        image_bytes=True,
        image_shape=(4, 4, 1),
        warmup=False,
    )
    with EmbeddedServer(
        folder / "exports", model_name="mnist", port=0, rest_port=0
    ) as server:
        yield server.rest_address, folder


@pytest.mark.skipif(not shutil.which("curl"), reason="curl is not installed")
def test_curl_lines_get_answers(rest_server):
    address, folder = rest_server
    answers = []
    for line in CURL.findall((ROOT / "docs" / "serving.md").read_text()):
        line = line.replace("localhost:8501", address)
        command = line.replace("curl ", "curl --silent --show-error --fail ")
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, f"{line}: {done.stderr}"
        answers.append(done.stdout)
    states, metadata, rows, columns, bound, metrics = answers
    assert json.loads(states)["model_version_status"][0]["state"] == "AVAILABLE"
    described = json.loads(metadata)["metadata"]["signature_def"]
    assert "certify_bytes" in described["signature_def"]
    (certificate,) = json.loads(rows)["predictions"]
    assert sum(certificate["counts"]) == certificate["n"] == 500
    assert json.loads(columns)["outputs"]["n"] == [500]
    (limits,) = json.loads(bound)["predictions"]
    # Cohen et al.'s bound at nine tenths of alpha.
    wanted = stats.beta.ppf(0.9 * 0.001, 990, 11)
    assert limits["p_lower"] == pytest.approx(wanted, rel=1e-9)
    assert ":tensorflow:serving:request_count" in metrics


def test_the_readme_is_short_and_its_picture_whole():
    assert len((ROOT / "README.md").read_text().splitlines()) < 200
    assert os.path.getsize(ROOT / "docs" / "images" / "curves.png") > 1_000
