"""`rs-keras tune`: a search, its files, and that `train` takes the best."""

import json
import os
import socket
import subprocess
import sys

import pytest

pytest.importorskip("tensorboard", reason="tensorboard is not installed")
pytest.importorskip("sklearn", reason="scikit-learn is not installed")

import rs_keras.cli  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore:currentThread:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:getName:DeprecationWarning"),
]

TINY = (
    "tune fashion_mini --method gaussian --sigma 0.5 --trials 2 --epochs 1 "
    "--tuner random --validation 20 --n 50 --set limit=40 --set batch_size=20"
).split()


def test_the_best_recipe_of_a_search_is_trained(tmp_path, capsys):
    folder = tmp_path / "sweep"
    assert rs_keras.cli.main([*TINY, "--out", str(folder)]) == 0
    out = capsys.readouterr().out
    assert f"rs-keras train --recipe {folder}/best.json" in out
    trials = (folder / "trials.tsv").read_text().splitlines()
    assert len(trials) == 3 and trials[1].split("\t")[1] == "COMPLETED"
    best = json.loads((folder / "best.json").read_text())
    assert best["method"] == "gaussian" and best["limit"] == 40
    run = ["train", "--recipe", str(folder / "best.json")]
    assert rs_keras.cli.main([*run, "--out", str(tmp_path / "run")]) == 0
    assert (tmp_path / "run" / "model.keras").is_file()


@pytest.mark.parametrize(
    "flags, message",
    [
        (["--tuner", "bayes"], "Did you mean 'bayesian'?"),
        (["--objective", "val_acc"], "Did you mean 'val_acr'?"),
        (["--set", "etaa"], "--set must be NAME=VALUE"),
        (["--method", "smoothmi"], "Did you mean 'smoothmix'?"),
        (["--validation", "0"], "`validation`"),
        (
            ["--method", "stability", "--set", "weight=high"],
            "`weight` must be a number to be varied. Received: weight='high'",
        ),
    ],
    ids=["tuner", "objective", "set", "method", "validation", "number"],
)
def test_bad_tune_calls_are_refused(tmp_path, capsys, flags, message):
    folder = tmp_path / "sweep"
    assert rs_keras.cli.main([*TINY, "--out", str(folder), *flags]) == 2
    assert message in capsys.readouterr().err
    assert not folder.exists()


def test_only_failures_are_an_answer(tmp_path, capsys):
    flags = ["--out", str(tmp_path), "--trials", "1"]
    flags += ["--set", "batch_size=4", "--set", "weight_decay=1e30"]
    assert rs_keras.cli.main([*TINY, *flags]) == 1
    assert "no trial was completed" in capsys.readouterr().err


def test_chief_and_worker_share_a_search(tmp_path):
    """Two processes, as Keras Tuner sets them up: one chooses, one trains."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    shared = os.environ | {
        "KERASTUNER_ORACLE_IP": "127.0.0.1",
        "KERASTUNER_ORACLE_PORT": str(port),
    }
    # Imported as this process does it, installed or from a checkout.
    command = [
        sys.executable,
        "-c",
        f"import sys; sys.path[:0] = {sys.path!r}; import rs_keras.cli; "
        "sys.exit(rs_keras.cli.main(sys.argv[1:]))",
        *TINY,
        "--out",
        str(tmp_path),
    ]
    running = [
        subprocess.Popen(
            command,
            env=shared | {"KERASTUNER_TUNER_ID": name},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for name in ("chief", "tuner0")
    ]
    try:
        said = [process.communicate(timeout=240)[0] for process in running]
    finally:
        for process in running:
            process.kill()
    assert [process.returncode for process in running] == [0, 0], said
    # The worker trained, the chief has the results.
    assert "rs-keras train --recipe" in said[0]
    assert "val_acr" in said[1] and "rs-keras train" not in said[1]
    trials = (tmp_path / "trials.tsv").read_text().splitlines()
    assert [line.split("\t")[1] for line in trials[1:]] == ["COMPLETED"] * 2
