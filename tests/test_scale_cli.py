"""The commands' --strategy, in this process: what needs no second one."""

import json

import numpy as np
import pytest

from rs_keras import CertificationLog
from rs_keras.cli import main

TRAIN = [
    *("train", "fashion_mini", "--method", "gaussian", "--sigma", "0.5"),
    *("--epochs", "1", "--limit", "100", "--set", "batch_size=50"),
]
CERTIFY = ["certify", "fashion_mini", "--skip", "100", "--max-examples", "4"]
CERTIFY += ["--n0", "10", "--n", "100"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A folder of a run under a strategy, with synchronised statistics."""
    folder = tmp_path_factory.mktemp("run") / "here"
    model = ["--set", 'model={"name": "cifar_resnet", "depth": 8}']
    strategy = ["--strategy", "mirrored", "--sync-batch-norm"]
    certify = ["--certify-every", "1", "--set", "certify.examples=2"]
    certify += ["--set", "certify.n=10"]
    command = [*TRAIN, *model, *strategy, *certify, "--out", str(folder)]
    assert main(command) == 0
    return folder


def worker(monkeypatch, index):
    names = ["a.example:1", "b.example:1", "c.example:1"]
    task = {"type": "worker", "index": index}
    config = {"cluster": {"worker": names}, "task": task}
    monkeypatch.setenv("TF_CONFIG", json.dumps(config))


def test_train_under_a_strategy(run):
    recipe = json.loads((run / "recipe.json").read_text())
    assert recipe["sync_batch_norm"] is True
    header, row = (run / "history.csv").read_text().splitlines()
    assert "val_acr" in header.split(",")
    assert len(row.split(",")) == len(header.split(","))
    assert (run / "model.keras").is_file()


def test_certify_under_strategies(run, tmp_path, monkeypatch, capsys):
    command = [*CERTIFY, "--model", str(run), "--seed", "5", "--out"]
    assert main([*command, str(tmp_path / "one.tsv")]) == 0
    mirrored = ["--strategy", "mirrored"]
    assert main([*command, str(tmp_path / "two.tsv"), *mirrored]) == 0
    shared = ["--strategy", "multi_worker"]
    for index in range(3):
        worker(monkeypatch, index)
        assert main([*command, str(tmp_path / "all.tsv"), *shared]) == 0
        assert f"all.{index}-of-3.tsv: " in capsys.readouterr().out
    shards = [str(tmp_path / f"all.{i}-of-3.tsv") for i in range(3)]
    out = tmp_path / "all.tsv"
    merge = ["merge", *shards, "--examples", "4", "--out", str(out)]
    assert main(merge) == 0
    one = CertificationLog.read(tmp_path / "one.tsv")
    assert one.idx.tolist() == [0, 100, 200, 300]
    for path in (tmp_path / "two.tsv", out):
        other = CertificationLog.read(path)
        for column in ("idx", "predict", "radius"):
            wanted = getattr(one, column)
            np.testing.assert_array_equal(getattr(other, column), wanted)
        assert other.settings == one.settings


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--strategy", "multi_worker", "--out", "x"], "needs --seed"),
        (
            ["--strategy", "mirrored", "--sigma-mode", "data-dependent"],
            "--strategy mirrored needs --sigma-mode fixed",
        ),
    ],
    ids=["seed", "sigma_mode"],
)
def test_certify_refuses(run, capsys, arguments, message):
    assert main([*CERTIFY, "--model", str(run), *arguments]) == 2
    assert message in capsys.readouterr().err


def test_tf_config_that_names_no_worker(monkeypatch, tmp_path, capsys):
    worker(monkeypatch, 3)
    command = [*TRAIN, "--strategy", "multi_worker", "--out", str(tmp_path)]
    assert main(command) == 2
    message = "`TF_CONFIG` names no such task: worker 3"
    assert message in capsys.readouterr().err
    worker(monkeypatch, -1)
    arguments = ["--model", "m", "--seed", "1", "--out", str(tmp_path / "x")]
    strategy = ["--strategy", "multi_worker"]
    assert main([*CERTIFY, *arguments, *strategy]) == 2
    assert "names no such task: worker -1" in capsys.readouterr().err
