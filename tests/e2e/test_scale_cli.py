"""The commands' --strategy, where it needs no second worker."""

import json

import numpy as np
import pytest
from kits import distributed

from rs_keras import CertificationLog
from rs_keras.classifiers import load_classifier
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


def run_elsewhere(calls, log):
    """Runs commands one after the other, all in one process of their own."""
    code = (
        f"from rs_keras.cli import main; codes = [main(c) for c in {calls}]; "
        "assert set(codes) == {0}, codes"
    )
    process = distributed.start(["-c", code], log, distributed.environment())
    assert distributed.wait([process]) == [0], log.read_text()[-3000:]


def test_replicas_that_share_the_cores(tmp_path):
    """One command here, and on two replicas in a process of their own."""
    kinds = {"one": [], "two": ["--strategy", "mirrored", "--replicas", "2"]}
    train = [*TRAIN, "--method", "catrs", "--limit", "60"]
    train += ["--teacher", "train", "--teacher-n", "50"]
    # The same network for both.
    certify = [*CERTIFY, "--model", f"{tmp_path}/one", "--seed", "5"]
    calls = {
        name: [
            [*train, *kind, "--out", f"{tmp_path}/{name}"],
            [*certify, *kind, "--out", f"{tmp_path}/{name}.tsv"],
        ]
        for name, kind in kinds.items()
    }
    assert [main(call) for call in calls["one"]] == [0, 0]
    run_elsewhere(calls["two"], tmp_path / "log")
    one, two = (load_classifier(tmp_path / name).weights for name in kinds)
    for weight, other in zip(one, two, strict=True):
        np.testing.assert_allclose(other, weight, rtol=1e-3, atol=1e-5)
    labels = [np.load(tmp_path / name / "soft_labels_50.npz") for name in kinds]
    # A vote on the border can fall to either side of it.
    apart = np.abs(labels[0]["soft_label"] - labels[1]["soft_label"])
    assert apart.shape == (60, 10) and apart.max() <= 1.5 / 50
    logs = [CertificationLog.read(tmp_path / f"{name}.tsv") for name in kinds]
    np.testing.assert_array_equal(logs[1].radius, logs[0].radius)


def test_two_trainings_in_one_process(tmp_path):
    """What one hands to the all-reduce is not taken for the other's."""
    spread = ["--strategy", "mirrored", "--replicas", "2"]
    shape = [["--set", "batch_size=50"], ["--set", "batch_size=20"]]
    model = ["--set", 'model={"name": "cifar_resnet", "depth": 8}']
    calls = [
        [*TRAIN, *spread, *shape[0], "--out", f"{tmp_path}/one"],
        [*TRAIN, *spread, *shape[1], *model, "--out", f"{tmp_path}/two"],
    ]
    run_elsewhere(calls, tmp_path / "log")


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--strategy", "multi_worker", "--out", "x"], "needs --seed"),
        (
            ["--strategy", "mirrored", "--sigma-mode", "data-dependent"],
            "--strategy mirrored needs --sigma-mode fixed",
        ),
        (["--replicas", "2"], "--replicas needs --strategy mirrored"),
    ],
    ids=["seed", "sigma_mode", "replicas"],
)
def test_certify_refuses_bad_strategies(run, capsys, arguments, message):
    assert main([*CERTIFY, "--model", str(run), *arguments]) == 2
    assert message in capsys.readouterr().err


def test_commands_refuse_a_tf_config_that_names_no_worker(
    monkeypatch, tmp_path, capsys
):
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
