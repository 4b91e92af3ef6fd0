"""`rs-keras request`, against a server that counts without TensorFlow."""

import json
import re

import numpy as np
import pytest
from kits.fake_servers import Fake
from kits.fake_servers import votes
from PIL import Image

from rs_keras.cli import main


@pytest.fixture
def fake():
    with Fake() as fake:
        yield fake


@pytest.fixture
def picture(tmp_path):
    path = tmp_path / "picture.png"
    pixels = np.arange(16, dtype=np.uint8).reshape(4, 4)
    Image.fromarray(pixels).save(path)
    return str(path)


def request(fake, *arguments):
    return main(["request", fake.address, "--model-name", "m", *arguments])


def test_the_answer_in_words(fake, picture, capsys):
    assert request(fake, "--image", picture) == 0
    said = capsys.readouterr().out
    # 8 votes of 10 for class 0, 1 for each other: 0.53 with as many as one
    # likes, as below.
    assert re.fullmatch(
        re.escape(f"{picture}: class 0; no change of the image smaller than ")
        + r"0\.4\d\d in L2 can alter this, with 99\.9% confidence\n",
        said,
    )


def test_photographs_are_resized_as_the_export_says(tmp_path, capsys):
    """Unless the flags say otherwise, or the export nothing."""
    photo = str(tmp_path / "photo.png")
    Image.fromarray(np.zeros([30, 20], np.uint8)).save(photo)
    with Fake(resize=[4, 4], fit="pad") as fake:
        assert request(fake, "--image", photo) == 0
        assert "resized to 4 x 4, pad" in capsys.readouterr().out
        assert request(fake, "--image", photo, "--resize", "4,4") == 0
        assert "resized to 4 x 4, crop" in capsys.readouterr().out
    with Fake() as fake:
        assert request(fake, "--image", photo) == 2
        assert "must be 4 x 4 pixels" in capsys.readouterr().err


def test_answers_that_another_server_repeats(fake, picture, capsys):
    with Fake() as other:
        servers = f"{fake.address},{other.address}"
        asked = ["--model-name", "m", "--image", picture, "--audit", "1"]
        assert main(["request", servers, *asked]) == 0
        made = sum(n for one in (fake, other) for _, n in one.drawn)
        assert made == 2 * 1_100
        assert main(["request", servers, *asked, "--audit", "2"]) == 2
    assert "`audit` must be in [0, 1]" in capsys.readouterr().err


def test_request_shows_what_is_served(fake, capsys):
    assert request(fake) == 0
    said = capsys.readouterr().out
    assert said.startswith("m, version 1: images [4, 4, 1], 3 classes, ")
    assert request(fake, "--json") == 0
    assert json.loads(capsys.readouterr().out)["sigma"] == 0.5


def test_request_prints_json_for_programs(fake, tmp_path, capsys):
    archive = tmp_path / "images.npz"
    np.savez(archive, images=np.zeros([2, 4, 4, 1], np.float32))
    arguments = ["--npz", str(archive), "--json", "--n", "500", "--n0", "20"]
    assert request(fake, *arguments) == 0
    for line in capsys.readouterr().out.splitlines():
        found = json.loads(line)
        assert found["counts"] == votes(found["seed"], 20, 500).tolist()
        assert found["settings"]["n"] == 500


def test_request_predicts_labels_alone(fake, picture, capsys):
    assert request(fake, "--image", picture, "--predict") == 0
    said = capsys.readouterr().out
    assert re.fullmatch(
        re.escape(f"{picture}: class 0 (p-value ") + r"[\d.e-]+\)\n", said
    )


def test_request_decides_one_radius(fake, picture, capsys):
    asked = ["--image", picture, "--seed", "1", "--radius"]
    assert request(fake, *asked, "0.2") == 0
    assert "class 0; no change" in capsys.readouterr().out
    # Shares of 0.8 and 0.1 are worth 0.25 * (icdf(0.8) - icdf(0.1)) = 0.53.
    assert request(fake, *asked, "0.6") == 1
    assert "not certified within 0.6" in capsys.readouterr().out


BAD = {
    "no file": (["--image", "absent.png"], "absent.png"),
    "no images": (["--npz", "setup.py"], "--npz must be|pickle|load"),
    "no archive": (["--npz", "{cut}"], "--npz must be"),
    "no array": (["--npz", "{scalar}"], "--npz must be"),
    "selection": (
        ["--npz", "{images}", "--predict", "--n0", "5"],
        "--n0 must not be given with --predict",
    ),
    "another name": (["--model-name", "x"], "is `model_name` the name"),
    "n": (["--npz", "{images}", "--n", "3"], "to certify anything"),
    "tls": (["--tls-cert", "setup.py"], "need each other"),
}


@pytest.mark.parametrize(("arguments", "words"), BAD.values(), ids=BAD.keys())
def test_bad_request_calls_are_one_line(
    fake, tmp_path, capsys, arguments, words
):
    archive = tmp_path / "images.npz"
    np.savez(archive, images=np.zeros([2, 4, 4, 1], np.float32))
    cut = tmp_path / "cut.npz"
    cut.write_bytes(archive.read_bytes()[:-10])
    scalar = tmp_path / "scalar.npz"
    np.savez(scalar, images=np.float32(0))
    given = [
        one.format(images=archive, cut=cut, scalar=scalar) for one in arguments
    ]
    assert request(fake, *given) == 2
    said = capsys.readouterr().err
    assert said.startswith("rs-keras request: ")
    assert any(word in said for word in words.split("|"))


def test_an_image_of_another_size(fake, tmp_path, capsys):
    path = tmp_path / "large.png"
    Image.new("L", (8, 8)).save(path)
    assert request(fake, "--image", str(path)) == 2
    assert "must be 4 x 4 pixels" in capsys.readouterr().err
