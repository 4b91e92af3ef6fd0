"""The scripts in examples/ run, and what they print is right."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
# `make quickstart` runs this one; its stages are tested where they live.
SCRIPTS = {path.stem for path in EXAMPLES.glob("*.py")} - {"quickstart"}

# As in pyproject.toml, and what Keras Tuner 1.4.8 asks in the old way.
WARNINGS = (
    "error",
    "ignore:distutils Version classes are deprecated:DeprecationWarning",
    "ignore:__array__ implementation doesn't accept a copy:DeprecationWarning",
    "ignore:currentThread:DeprecationWarning",
    "ignore:getName:DeprecationWarning",
)


@pytest.fixture
def run(tmp_path):
    """Runs a script in an empty folder; returns what it prints."""

    def call(name, *flags_of_script):
        flags = [flag for text in WARNINGS for flag in ("-W", text)]
        found = subprocess.run(
            [
                sys.executable,
                *flags,
                str(EXAMPLES / f"{name}.py"),
                *flags_of_script,
            ],
            env={
                **os.environ,
                "PYTHONPATH": str(ROOT),
                "TF_CPP_MIN_LOG_LEVEL": "3",
            },
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=600,
        )
        assert found.returncode == 0, found.stderr[-3000:]
        return found.stdout

    return call


def numbers(text):
    return [float(word) for word in re.findall(r"-?\d+(?:\.\d+)?", text)]


def line_of(text, begin):
    """Returns the numbers of the one line that begins so, after that."""
    (line,) = [row for row in text.splitlines() if row.startswith(begin)]
    return numbers(line.removeprefix(begin))


def test_train_smoothmix(run):
    text = run("train_smoothmix")
    for method in ("Gaussian", "SmoothMix"):
        acr = line_of(text, f"{method}: held-out ACR after each epoch:")
        assert len(acr) == 3 and acr[-1] > acr[0] > 0
    gaussian, smoothmix = (
        line_of(text, f"{name}  ")[0] for name in ("gaussian", "smoothmix")
    )
    (compared,) = re.findall(r"against gaussian: ACR ([+-][\d.]+)", text)
    # Both ACRs are printed to three decimals.
    assert float(compared) == pytest.approx(smoothmix - gaussian, abs=1.1e-3)
    assert smoothmix > 0.2


def test_certify_dataset_goes_on_where_it_was(run, tmp_path):
    first = run("certify_dataset")
    assert "0 images were in the log, 50 are new" in first
    folder = tmp_path / "runs" / "certify_dataset"
    before = (folder / "gaussian.tsv").read_bytes()
    again = run("certify_dataset")
    assert "50 images were in the log, 0 are new" in again
    assert (folder / "gaussian.tsv").read_bytes() == before
    rows = [row.split("\t") for row in before.decode().splitlines()[1:]]
    assert [int(row[0]) for row in rows] == list(range(0, 1_000, 20))
    share = sum(float(row[3]) >= 0.25 for row in rows if row[4] == "1") / 50
    # Of 50 certificates, each false with .001, two or more are with .0012, one
    # with .05: so one may be, at 99 %.
    bound = share - 1 / 50
    assert line_of(again, "certified accuracy at 0.25 is at least")[
        0
    ] == pytest.approx(bound, abs=6e-4)
    assert (folder / "curve.png").read_bytes().startswith(b"\x89PNG")


def test_sequential_decision(run):
    text = run("sequential_decision")
    found = {
        name: line_of(text, f"{name:<10} ")
        for name in ("fixed n", "tolerance", "decide")
    }
    draws = {name: row[2] for name, row in found.items()}
    assert draws["fixed n"] == 12 * 10_100
    assert draws["decide"] < draws["tolerance"] < draws["fixed n"]
    certified = [row[0] for row in found.values()]
    # All three err with probability 0.001 an image: an image or two may be
    # decided differently at the border.
    assert min(certified) >= 6 and max(certified) - min(certified) <= 2
    assert all(row[1] == 12 for row in found.values())


def test_serve_and_request(run):
    text = run("serve_and_request")
    assert line_of(text, "votes of two servers") == []
    assert "votes of two servers equal those of this process: True" in text
    # Both images are trousers, class 1.
    assert line_of(text, "predict:") == [1, 1]
    for name in ("certify:", "decide:", "chunked:"):
        label, radius, confidence = line_of(text, name)[:3]
        # n draws that all agree, sigma / 2 * 2 * icdf(alpha**(1/n)) at most.
        assert label == 1 and 0 < radius < 0.9 and confidence in (2, 99.9)


def test_sweep(run, tmp_path):
    text = run("sweep")
    rows = [row.split() for row in text.splitlines() if "COMPLETED" in row]
    assert len(rows) == 3
    acr, *_, eta, rate = max(rows, key=lambda row: float(row[2]))[2:]
    recipe = json.loads((tmp_path / "runs" / "sweep" / "best.json").read_text())
    assert recipe["trainer"]["eta"] == pytest.approx(float(eta), rel=1e-4)
    assert line_of(text, "best: eta=") == pytest.approx(
        [float(eta), float(rate)], abs=6e-3
    )
    assert float(acr) > 0


def test_own_adversary(run):
    text = run("own_adversary")
    for name in ("no adversary", "Momentum  "):
        clean, *attacked = line_of(text, name)
        assert clean > 0.5 and len(attacked) == 2
        assert max(attacked) < clean


def test_two_replicas(run):
    text = run("two_replicas")
    assert "trained on 2 replica(s)" in text
    (apart,) = re.findall(r"between their weights: (\S+)", text)
    assert float(apart) < 1e-9
    radii = line_of(text, "radii:")
    assert len(radii) == 8 and max(radii) > 0.25
    assert "votes of two replicas equal those of one: True" in text


def test_several_sigmas(run):
    text = run("several_sigmas")
    low, high, composed, chosen = (
        line_of(text, name)
        for name in (
            "sigma 0.25",
            "sigma 0.75",
            "composed (sound) ",
            "per-input (not deployed) ",
        )
    )
    # n draws certify at most sigma * icdf(0.001 ** (1 / 1000)) = 2.46 sigma;
    # a composition no more than its experts could.
    assert 0 < low[0] < 0.25 * 2.7 and low[-1] == 0
    assert high[-1] > 0 and chosen[-1] > 0
    assert 0 < composed[0] < max(low[0], high[0]) + 0.1
    assert "about which nothing is certified" in text.replace("\n", " ")


def test_denoise(run):
    """Short: each row is there, and no larger radius certifies more."""
    text = run("denoise", "--epochs", "1", "--images", "10", "--n", "200")
    rows = [
        line_of(text, name)
        for name in (
            "classifier alone:",
            "behind a denoiser (MSE):",
            "behind a denoiser (MSE, then stability):",
        )
    ]
    for row in rows:
        assert len(row) == 3 and sorted(row, reverse=True) == row
    assert line_of(text, "accuracy on clean images:")[0] > 0.5


@pytest.mark.parametrize("name", sorted(SCRIPTS))
def test_every_script_is_run_and_says_how(name):
    assert any(key.startswith(f"test_{name}") for key in globals()), (
        f"no test runs {name}.py"
    )
    text = (EXAMPLES / f"{name}.py").read_text()
    assert f"\n    python examples/{name}.py\n" in text.split('"""')[1]


def test_every_file_is_listed():
    text = (EXAMPLES / "README.md").read_text()
    listed = set(re.findall(r"\]\(([\w.]+)\)", text))
    there = {p.name for p in EXAMPLES.iterdir() if p.is_file()} - {"README.md"}
    assert listed == there
