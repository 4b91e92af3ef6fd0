import keras
import numpy as np
import pytest
from PIL import Image

from rs_keras import CertificationLog
from rs_keras import Certifier
from rs_keras import noise
from rs_keras.cli import main
from rs_keras.logs import certify_dataset
from rs_keras.logs import decide_dataset

SECRET = "sixteen bytes or more"


@pytest.fixture(scope="module")
def model():
    """Class 1 where the first pixel is bright: its radius is known."""
    layer = keras.layers.Dense(2)
    flat = keras.layers.Flatten()
    model = keras.Sequential([keras.Input((4, 4, 1)), flat, layer])
    kernel = np.zeros([16, 2], np.float32)
    kernel[0, 1] = 1.0
    layer.set_weights([kernel, np.array([0.5, 0.0], np.float32)])
    return model


@pytest.fixture(scope="module")
def saved(model, tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "model.keras"
    model.save(path)
    return str(path)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "some.npz"
    images = np.zeros([8, 4, 4, 1], np.uint8)
    images[:, 0, 0, 0] = [255, 0, 255, 0, 250, 5, 130, 128]
    labels = np.array([1, 0, 1, 0, 1, 0, 1, 1])
    both = {"x_test": images, "y_test": labels}
    np.savez(path, x_train=images, y_train=labels, **both)
    return path, images / np.float32(255), labels


def test_each_example_is_decided_alone(model, data, tmp_path):
    certifier = Certifier(model, sigma=0.5)
    _, images, labels = data
    pairs = list(zip(images, labels, strict=True))
    path = tmp_path / "log.tsv"
    asked = {"radius": [0.2, 0.3], "n_max": 3_000}
    first = decide_dataset(
        certifier, pairs, path, max_examples=3, seed=4, progress=False, **asked
    )
    log = decide_dataset(
        certifier, pairs, path, seed=4, progress=False, **asked
    )
    np.testing.assert_array_equal(log.radius[:3], first.radius)
    assert log.radius.tolist() == [0.3] * 6 + [0.0] * 2
    assert log.predict.tolist() == [1, 0, 1, 0, 1, 0, -1, -1]
    np.testing.assert_array_equal(log.certified_accuracy([0.2, 0.3]), 0.75)
    assert log.settings["radii"] == [0.2, 0.3]
    for idx in (2, 5):
        seed = noise.fold_in(4, idx)[None]
        alone = certifier.decide(images[idx][None], seed=seed, **asked)
        assert log.extra["n"][idx] == alone.n[0]
        share = alone.counts.max() / alone.counts.sum()
        assert log.extra["p_top"][idx] == pytest.approx(share, abs=1e-6)


def test_certify_logs_all_samples_and_the_share(model, data, tmp_path):
    certifier = Certifier(model, sigma=0.5)
    _, images, labels = data
    log = certify_dataset(
        certifier,
        list(zip(images, labels, strict=True)),
        tmp_path / "log.tsv",
        n=3_000,
        tolerance=0.3,
        seed=4,
        progress=False,
    )
    found = certifier.certify(
        images,
        n=3_000,
        tolerance=0.3,
        seed=np.stack([noise.fold_in(4, idx) for idx in range(8)]),
    )
    np.testing.assert_array_equal(log.extra["n"], 1_000 + found.n)
    chosen = found.selection_counts.argmax(1)
    share = found.counts[np.arange(8), chosen] / found.n
    np.testing.assert_allclose(log.extra["p_top"], share, atol=1e-6)
    assert log.settings["tolerance"] == 0.3


def test_the_seed_of_a_log_may_be_keyed(model, data, tmp_path, monkeypatch):
    monkeypatch.setenv("RS_KERAS_SEED_KEY", SECRET)
    certifier = Certifier(model, sigma=0.5)
    _, images, labels = data
    paths = [tmp_path / "1.tsv", tmp_path / "2.tsv"]
    logs = [
        certify_dataset(
            certifier,
            list(zip(images, labels, strict=True)),
            path,
            n=200,
            seed="keyed",
            progress=False,
        )
        for path in paths
    ]
    np.testing.assert_array_equal(logs[0].radius, logs[1].radius)
    assert logs[0].settings["seed"] == "keyed"
    # Equal images, equal noise.
    assert logs[0].extra["p_top"][0] == logs[0].extra["p_top"][2]
    assert all(SECRET not in file.read_text() for file in tmp_path.iterdir())


def test_a_data_set_is_decided_into_a_log(saved, data, tmp_path, capsys):
    path = tmp_path / "log.tsv"
    command = ["decide", f"npz:{data[0]}", "--model", saved, "--sigma", "0.5"]
    command += ["--radius", "0.4,0.2", "--n-max", "3000", "--seed", "4"]
    assert main([*command, "--out", str(path)]) == 0
    said = capsys.readouterr().out
    assert "8 examples, certified accuracy 75.0% at 0.2, 75.0% at 0.4" in said
    log = CertificationLog.read(path)
    # Without a log, the same decisions are printed.
    assert main(command) == 0
    head, header, *lines = capsys.readouterr().out.splitlines()
    assert head == "# sigma=0.5 radius=0.4,0.2 n_max=3000 alpha=0.001 seed=4"
    assert header == "idx\tlabel\tpredict\tradius\tn"
    rows = np.array([line.split() for line in lines], float)
    np.testing.assert_array_equal(rows[:, 2], log.predict)
    np.testing.assert_array_equal(rows[:, 3], log.radius)
    np.testing.assert_array_equal(rows[:, 4], log.extra["n"])


def test_a_radius_finer_than_a_log_is_read_as_logged(
    saved, data, tmp_path, capsys
):
    command = ["decide", f"npz:{data[0]}", "--model", saved, "--sigma", "0.5"]
    command += ["--radius", "0.2345678", "--n-max", "3000", "--seed", "4"]
    assert main([*command, "--out", str(tmp_path / "log.tsv")]) == 0
    assert "accuracy 75.0% at 0.234567," in capsys.readouterr().out


@pytest.mark.parametrize("bright, code", [(255, 0), (129, 1)])
def test_decide_answers_for_one_image(saved, tmp_path, capsys, bright, code):
    pixels = np.zeros([4, 4], np.uint8)
    pixels[0, 0] = bright
    path = tmp_path / "image.png"
    Image.fromarray(pixels).save(path)
    command = ["decide", str(path), "--model", saved, "--sigma", "0.5"]
    command += ["--radius", "0.3", "--plain", "--seed", "1", "--n-max", "5000"]
    assert main(command) == code
    said = capsys.readouterr().out
    if code:
        assert "not certified within 0.3 after" in said
    else:
        assert "class 1; no change of the image smaller than 0.3" in said
        assert "99.9% confidence" in said


def test_certify_with_a_plan(saved, data, tmp_path, capsys):
    path = tmp_path / "log.tsv"
    command = ["certify", f"npz:{data[0]}", "--model", saved, "--sigma", "0.5"]
    command += ["--n", "5000", "--tolerance", "0.1", "--max-radius", "0.3"]
    assert main([*command, "--seed", "4", "--out", str(path)]) == 0
    log = CertificationLog.read(path)
    assert log.settings["tolerance"] == 0.1
    assert log.settings["max_radius"] == 0.3
    assert log.radius.max() == 0.3
    assert log.extra["n"].mean() < 5_000


@pytest.mark.parametrize(
    "flags, message",
    [
        (["--radius", "9"], "`radius` must be <= "),
        (["--radius", "-1"], "`radius` must be a finite number >= 0"),
        (["--radius", "0.5", "--n-max", "50"], "`n_max` must be >= "),
    ],
    ids=["too large", "negative", "too few draws"],
)
def test_bad_values_are_one_line(saved, data, capsys, flags, message):
    command = ["decide", f"npz:{data[0]}", "--model", saved, "--sigma", "0.5"]
    # "--radius=-1": argparse takes a lone -1 for a flag.
    flags = [f"{flags[0]}={flags[1]}", *flags[2:]]
    assert main([*command, *flags]) == 2
    error = capsys.readouterr().err
    assert error.startswith("rs-keras decide: ") and message in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("text", ["", "half", "0.5,,1"])
def test_radii_that_are_no_numbers(capsys, text):
    with pytest.raises(SystemExit):
        main(["decide", "mnist", "--model", "m", f"--radius={text}"])
    error = capsys.readouterr().err
    assert f"such as 0,0.25,0.5. Received: {text}\n" in error
