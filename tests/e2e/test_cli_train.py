"""`rs-keras train`: a run's folder, kills and what is refused."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import keras
import numpy as np
import pytest

from rs_keras.classifiers import load_classifier
from rs_keras.classifiers import trained_sigma
from rs_keras.cli import main
from rs_keras.trainers import recipes

ROOT = Path(__file__).resolve().parents[2]
EPOCHS, STEPS = 3, 20


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Three kinds of bars, 16x16: 80 to train on, 30 to test."""
    rng = np.random.default_rng(0)
    labels = np.arange(110) % 3
    images = rng.random((110, 16, 16, 1)) * 0.3
    for image, label in zip(images, labels, strict=True):
        image[5 * label : 5 * label + 5] += 0.6
    path = tmp_path_factory.mktemp("data") / "bars.npz"
    np.savez(
        path,
        x_train=images[:80].astype("float32"),
        y_train=labels[:80],
        x_test=images[80:].astype("float32"),
        y_test=labels[80:],
    )
    return f"npz:{path}"


def arguments(data, out, *more, method="smoothmix_onestep"):
    """The command; the warm-up outlasts the run."""
    return [
        "train",
        data,
        f"--method={method}",
        "--sigma=0.25",
        f"--out={out}",
        *("--set", f"epochs={EPOCHS}", "--set", "batch_size=4"),
        *more,
    ]


def smoothmix(data, out, *more):
    steps = ("--set", "steps=2", "--set", "num_noise=2")
    return arguments(data, out, *steps, "--snapshot-seconds=0", *more)


def state_of(folder):
    """Returns (epoch, step) of a run's snapshot, or None before the first."""
    try:
        with np.load(folder / "snapshot.npz") as archive:
            state = json.loads(str(archive["state"]))
    except FileNotFoundError:
        return None
    return state["epoch"], state["step"]


def start(command):
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }
    code = "import sys; from rs_keras.cli import main; sys.exit(main())"
    return subprocess.Popen(
        [sys.executable, "-c", code, *command],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for(process, folder, epoch, step):
    """Waits until a run is in the middle of an epoch."""
    while process.poll() is None:
        found = state_of(folder)
        if found is not None and found >= (epoch, step):
            return found
        time.sleep(0.002)
    raise AssertionError(process.communicate()[1])


def weights_of(folder):
    with np.load(folder / "snapshot.npz") as archive:
        names = [n for n in archive.files if n.split("/")[0] != "metrics"]
        return {n: archive[n] for n in names if n != "state"}


def test_a_training_killed_in_the_middle_of_an_epoch_resumes(data, tmp_path):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    process = start(smoothmix(data, killed))
    epoch, step = wait_for(process, killed, 1, 5)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert 0 < epoch < EPOCHS and state_of(killed) < (EPOCHS, 0)
    assert main(smoothmix(data, whole)) == 0
    assert main(smoothmix(data, killed, "--resume")) == 0
    one, other = weights_of(whole), weights_of(killed)
    assert one.keys() == other.keys() and len(one) > 8
    for name, value in one.items():
        np.testing.assert_array_equal(other[name], value, err_msg=name)
    logs = [(f / "history.csv").read_bytes() for f in (whole, killed)]
    assert logs[0] == logs[1] and logs[0].count(b"\n") == EPOCHS + 1
    models = [load_classifier(folder) for folder in (whole, killed)]
    for a, b in zip(models[0].weights, models[1].weights, strict=True):
        np.testing.assert_array_equal(a.numpy(), b.numpy())
    assert trained_sigma(whole) == 0.25


def test_ctrl_c_stops_a_training_with_a_snapshot(data, tmp_path):
    folder = tmp_path / "run"
    process = start(smoothmix(data, folder))
    wait_for(process, folder, 0, 2)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate()
    assert process.returncode == 130
    assert "stopped" in errors and "--resume" in errors
    assert "Traceback" not in errors
    assert state_of(folder) < (EPOCHS, 0)


@pytest.fixture(scope="module")
def trained(data, tmp_path_factory):
    """A run of one epoch on twelve images, certified after it."""
    folder = tmp_path_factory.mktemp("runs") / "gaussian"
    command = arguments(
        data,
        folder,
        *("--set", "epochs=1", "--limit=12", "--certify-every=1"),
        *("--set", "certify.n=50", "--set", "certify.examples=6"),
        method="gaussian",
    )
    assert main(command) == 0
    return folder, command


def test_a_run_is_a_folder(trained):
    folder, _ = trained
    names = sorted(path.name for path in folder.iterdir())
    assert names == [
        "history.csv",
        "model.keras",
        "recipe.json",
        "snapshot.npz",
    ]
    header, line = (folder / "history.csv").read_text().splitlines()
    for column in ("epoch", "loss", "val_accuracy", "val_acr"):
        assert column in header.split(",")
    recipe = json.loads((folder / "recipe.json").read_text())
    assert recipe["limit"] == 12 and recipe["sources"]["limit"] == "given"
    trainer = keras.saving.load_model(folder / "model.keras")
    # Twelve images in batches of four.
    assert int(trainer.step.numpy()) == 3


def test_a_finished_run_stays_as_it_is(trained, capsys):
    folder, command = trained
    old = (folder / "model.keras").read_bytes()
    assert main([*command, "--resume"]) == 0
    # The folder says what was trained.
    assert main(["train", f"--out={folder}", "--resume"]) == 0
    assert (folder / "model.keras").read_bytes() == old


def test_training_does_not_write_over_a_run(trained, capsys):
    folder, command = trained
    assert main(command) == 2
    assert (
        "holds a run already: continue it with --resume"
        in capsys.readouterr().err
    )


def test_resuming_a_run_with_other_settings_names_them(trained, capsys):
    _, command = trained
    assert main([*command, "--resume", "--seed=1", "--set", "momentum=0"]) == 2
    errors = capsys.readouterr().err
    assert (
        "optimizer.momentum: stored 0.9, given 0; seed: stored 0, given 1"
        in errors
    )
    assert errors.count("\n") == 1


def test_a_recipe_from_a_file(trained, tmp_path, capsys):
    folder, _ = trained
    path = tmp_path / "mine.json"
    recipe = json.loads((folder / "recipe.json").read_text())
    path.write_text(json.dumps({**recipe, "certify": {}, "sources": {}}))
    out = tmp_path / "run"
    assert main(["train", f"--recipe={path}", f"--out={out}"]) == 0
    same = load_classifier(out).get_weights()
    for a, b in zip(same, load_classifier(folder).get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_loss_that_breaks_leaves_the_last_good_epoch(data, tmp_path, capsys):
    out = tmp_path / "run"
    # The first epoch is trained at rate 0, the second at an absurd one.
    command = arguments(
        data,
        out,
        *("--set", "epochs=2", "--limit=16", "--set", "learning_rate=1e-9"),
        *("--set", "drops=[1]", "--set", "factor=1e30"),
        method="gaussian",
    )
    assert main(command) == 1
    errors = capsys.readouterr().err
    assert "not finite at step" in errors and "ce=" in errors
    assert all(np.isfinite(w).all() for w in load_classifier(out).get_weights())
    assert state_of(out)[0] == 1


@pytest.fixture(scope="module")
def soft_labels(tmp_path_factory):
    path = tmp_path_factory.mktemp("labels") / "soft.npz"
    np.savez(path, soft_label=np.full([80, 3], 1 / 3, np.float32))
    return path


def catrs(data, out, *more):
    options = ("--set", "epochs=1", "--set", "steps=1", "--limit=8")
    return arguments(data, out, *options, *more, method="catrs")


def test_catrs_without_a_teacher_says_so(data, tmp_path, capsys):
    assert main(catrs(data, tmp_path / "run")) == 0
    assert "without a teacher" in capsys.readouterr().out
    assert recipes.load(tmp_path / "run" / "recipe.json").teacher == {}


def test_catrs_with_soft_labels(data, soft_labels, tmp_path, capsys):
    out = tmp_path / "run"
    command = catrs(data, out, f"--soft-labels={soft_labels}")
    assert main(command) == 0
    assert "without a teacher" not in capsys.readouterr().out
    # Other labels are other settings.
    assert main([*catrs(data, out), "--resume"]) == 2
    assert "soft_labels: " in capsys.readouterr().err


def test_catrs_trains_its_teacher(data, tmp_path, capsys):
    out = tmp_path / "run"
    settings = ("--set", "teacher.epochs=1", "--set", "teacher.sigma=0.5")
    command = catrs(data, out, *settings, "--teacher=train", "--teacher-n=100")
    assert main(command) == 0
    assert "100 votes per example" in capsys.readouterr().out
    assert trained_sigma(out / "teacher") == 0.5
    assert recipes.load(out / "recipe.json").teacher["n"] == 100
    with np.load(out / "soft_labels_100.npz") as archive:
        labels = archive["soft_label"]
    assert labels.shape == (8, 3)
    np.testing.assert_allclose(labels.sum(1), 1, rtol=1e-6)
    # The folder holds the labels, too: it says all that a run goes on with.
    assert main(["train", f"--out={out}", "--resume"]) == 0


def test_soft_labels_are_looked_at_from_end_to_end(data, tmp_path, capsys):
    labels = np.full([80, 3], 1 / 3, np.float32)
    path = tmp_path / "soft.npz"
    for bad, message in (
        (np.ones([80, 1], np.float32), "shape [80, 3]"),
        (np.r_[labels[1:], labels[:1] * 2], "must sum to 1"),
    ):
        np.savez(path, soft_label=bad)
        out = tmp_path / "run"
        assert main(catrs(data, out, f"--soft-labels={path}")) == 2
        assert message in capsys.readouterr().err
        assert not out.exists()


@pytest.mark.parametrize(
    "options, message",
    [
        (["--teacher=train", "--teacher-n=0"], "`teacher-n` must be"),
        (["--teacher=train", "--set=epsilon=-1"], "`epsilon` must be"),
        (["--set=confidence_mask=true"], "--soft-labels or --teacher must be"),
        (["--soft-labels={labels}", "--teacher-n=9"], "--teacher-n cannot be"),
        (["--teacher-n=9"], "--teacher-n cannot be given beside no --teacher"),
    ],
    ids=["votes", "student", "mask", "both", "nobody"],
)
def test_no_teacher_is_trained_for_nothing(
    options, message, data, soft_labels, tmp_path, capsys
):
    out = tmp_path / "run"
    options = [option.format(labels=soft_labels) for option in options]
    assert main(catrs(data, out, *options)) == 2
    assert message in capsys.readouterr().err
    assert not out.exists()


@pytest.mark.parametrize(
    "command, message",
    [
        (["train"], "DATASET, --method, --sigma must be given"),
        (["train", "mnst", "--method=gaussian", "--sigma=1"], "'mnist'"),
        (["train", "mnist", "--method=gausian", "--sigma=1"], "'gaussian'"),
        (["train", "mnist", "--method=gaussian", "--sigma=0"], "`sigma`"),
        (
            ["train", "mnist", "--method=macer", "--sigma=1", "--set=gama=2"],
            "Did you mean 'gamma'",
        ),
        (
            ["train", "mnist", "--method=macer", "--sigma=1", "--set=gamma"],
            "--set must be NAME=VALUE",
        ),
        (["train", "mnist", "--recipe=x.json"], "beside --recipe FILE"),
        (
            [
                *("train", "fashion_mini", "--method=gaussian", "--sigma=1"),
                "--steps-per-execution=0",
            ],
            "`steps-per-execution` must be",
        ),
        (
            [
                *("train", "fashion_mini", "--method=gaussian", "--sigma=1"),
                "--snapshot-seconds=-1",
            ],
            "`snapshot-seconds` must be",
        ),
        (["train", "--recipe=no/such.json"], "no/such.json"),
        (
            [
                *("train", "fashion_mini", "--method=gaussian", "--sigma=1"),
                "--soft-labels=x.npz",
            ],
            "--soft-labels cannot be given",
        ),
        (
            ["train", "npz:no/such.npz", "--method=gaussian", "--sigma=1"],
            "no/such.npz",
        ),
    ],
    ids=[
        "nothing",
        "dataset",
        "method",
        "sigma",
        "name",
        "assignment",
        "recipe",
        "steps",
        "seconds",
        "file",
        "labels",
        "data",
    ],
)
def test_bad_train_calls_are_refused(command, message, tmp_path, capsys):
    out = tmp_path / "run"
    assert main([*command, f"--out={out}"]) == 2
    errors = capsys.readouterr().err
    assert errors.startswith("rs-keras train: ") and errors.count("\n") == 1
    assert message in errors
    assert not out.exists()
