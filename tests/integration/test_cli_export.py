"""`rs-keras export`: a checkpoint in, a version out, errors in one line."""

import keras
import numpy as np
import pytest
from kits import session_capi

from rs_keras import Certifier
from rs_keras.classifiers import load_classifier
from rs_keras.cli import main
from rs_keras.export import metadata
from rs_keras.trainers import Gaussian


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory):
    """What training leaves: a trainer, which knows its sigma."""
    keras.utils.set_random_seed(1)
    model = keras.Sequential(
        [
            keras.Input((4, 4, 1)),
            keras.layers.Flatten(),
            keras.layers.Dense(2),
        ]
    )
    folder = tmp_path_factory.mktemp("run")
    Gaussian(model, sigma=0.75).save(folder / "model.keras")
    return folder


def test_a_run_becomes_a_version(run_folder, tmp_path, capsys):
    out = tmp_path / "exports" / "toy"
    command = ["export", str(run_folder), "--out", str(out), "--n", "50"]
    command += ["--max-n", "1000", "--plain", "--class-names", "no,yes"]
    command += ["--batch-size", "8", "--image-bytes", "--decide-n", "900"]
    assert main(command) == 0
    assert f"{out / '1'}: sigma 0.75, n0 100, n 50" in capsys.readouterr().out
    facts = metadata.read(out / "1")
    wanted = {
        "sigma": 0.75,
        "n": 50,
        "max_n": 1000,
        "decide_n": 900,
        "runner_up": False,
        "class_names": ["no", "yes"],
        "image_bytes": True,
    }
    assert {name: facts[name] for name in wanted} == wanted
    x = np.random.default_rng(0).uniform(size=(1, 4, 4, 1)).astype("float32")
    inputs = {
        "images": x,
        "seed": np.array([[5, 6]]),
        "first": np.array([0]),
        "n": np.array([77]),
    }
    answers, _ = session_capi.run(
        tmp_path / "job", [(out / "1", "sample", inputs)]
    )
    certifier = Certifier(load_classifier(run_folder), sigma=0.75)
    want = certifier.sample(x, n=77, seed=inputs["seed"])
    np.testing.assert_array_equal(answers[0]["counts"], want)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "either CHECKPOINT and --out, or --show"),
        (["{run}"], "either CHECKPOINT and --out, or --show"),
        (["nowhere", "--sigma", "1", "--out", "{out}"], "no such checkpoint"),
        (["{run}", "--sigma", "0", "--out", "{out}"], "`sigma` must be"),
        (["{run}", "--alpha", "2", "--out", "{out}"], "`alpha` must be"),
        (["{run}", "--n", "3", "--out", "{out}"], "`n` must be >= 11"),
        (["{run}", "--seeds", "fixed", "--out", "{out}"], "`seed` must be"),
        (
            ["{run}", "--image-shape", "5,5,1", "--out", "{out}"],
            "`image_shape`",
        ),
        (["--show", "{out}"], "no export of rs-keras"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_errors_are_one_line(arguments, message, run_folder, tmp_path, capsys):
    places = {"run": run_folder, "out": tmp_path / "out"}
    arguments = [argument.format(**places) for argument in arguments]
    assert main(["export", *arguments]) == 2
    error = capsys.readouterr().err
    assert error.startswith("rs-keras export: ")
    assert message in error
    assert error.count("\n") == 1
    assert not (tmp_path / "out").exists()
