"""`rs-keras attack`: the log of a saved model whose boundary is known."""

import keras
import numpy as np
import pytest

from rs_keras import CertificationLog
from rs_keras.cli import main
from rs_keras.cli import make_parser
from rs_keras.cli.attack import method_of


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Class 1 where the first pixel is above 1/2."""
    layer = keras.layers.Dense(2)
    flat = keras.layers.Flatten()
    model = keras.Sequential([keras.Input((4, 4, 1)), flat, layer])
    kernel = np.zeros([16, 2], np.float32)
    kernel[0, 1] = 4.0
    layer.set_weights([kernel, np.array([2.0, 0.0], np.float32)])
    path = tmp_path_factory.mktemp("model") / "model.keras"
    model.save(path)
    return str(path)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "some.npz"
    images = np.zeros([4, 4, 4, 1], np.uint8)
    images[:, 0, 0, 0] = [255, 0, 204, 102]
    labels = np.array([1, 0, 1, 1])
    np.savez(path, x_train=images, y_train=labels, x_test=images, y_test=labels)
    return f"npz:{path}"


def test_an_attack_is_logged_and_resumed(saved, data, tmp_path, capsys):
    path = tmp_path / "log.tsv"
    command = ["attack", data, "--model", saved, "--sigma", "0.25"]
    command += ["--radius", "0.2,0.4", "--n", "2000", "--seed", "3"]
    command += ["--method", "smallest", "--steps", "3", "--out", str(path)]
    assert main([*command, "--max-examples", "2"]) == 0
    images = tmp_path / "images"
    assert main([*command, "--save-images", str(images)]) == 0
    said = capsys.readouterr().out.splitlines()[-1]
    # Two of four are 1/2 away, one 3/10, and one is wrong.
    assert said == (
        f"{path}: 4 examples, empirical robust accuracy 75.0% at 0, 75.0% at "
        "0.2, 50.0% at 0.4"
    )
    log = CertificationLog.read(path)
    assert log.extra["adversarial_norm"][2] == pytest.approx(0.32, abs=0.03)
    assert log.settings["attack_settings"]["steps"] == 3
    assert log.settings["dataset"].endswith("/test")
    # Those of the first call were logged without their images.
    assert {file.name for file in images.iterdir()} == {"2.npy", "3.npy"}
    # Of the same images, certificates lie below.
    own = str(tmp_path / "certified.tsv")
    words = ["certify", data, "--model", saved, "--sigma", "0.25"]
    assert main([*words, "--n", "2000", "--seed", "3", "--out", own]) == 0
    capsys.readouterr()
    assert main(["table", own, str(path), "--radii", "0.2,0.4"]) == 0
    rows = capsys.readouterr().out.splitlines()
    shares = [[float(cell) for cell in row.split()[1:3]] for row in rows[1:3]]
    assert (np.array(shares[0]) <= np.array(shares[1])).all()


def words_of(*flags):
    return [
        "attack",
        "d",
        "--model",
        "m",
        "--radius",
        "1",
        "--out",
        "o",
        *flags,
    ]


def test_flags_are_arguments_of_the_method():
    args = make_parser().parse_args(
        words_of("--method", "pgd", "--fixed-noise", "--goals", "2")
    )
    config = method_of(args).get_config()
    assert config["goals"] == 2 and config["noises"] == 32
    assert config["fresh_noise"] is False


@pytest.mark.parametrize(
    "flags, message",
    [
        (["--method", "cw"], "`--method` must be one of smallest, pgd, random"),
        (
            ["--method", "random", "--noises", "3"],
            "--noises must not be given with --method random",
        ),
        (["--method", "random", "--fixed-noise"], "--fixed-noise must not be"),
        (["--steps", "0"], "`steps` must be a whole number >= 1"),
    ],
)
def test_flags_that_a_method_does_not_take(flags, message, capsys):
    assert main(words_of(*flags)) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


def test_an_image_file_has_no_label(capsys):
    words = ["attack", "a.png", "--model", "m", "--radius", "1", "--out", "o"]
    assert main(words) == 2
    assert "`DATASET` must be a data set" in capsys.readouterr().err
