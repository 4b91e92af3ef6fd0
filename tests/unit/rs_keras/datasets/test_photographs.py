"""Photographs: sizes, orientation, modes, and what is recorded of them."""

import argparse
import os

import numpy as np
import pytest
import tensorflow as tf
from kits import golden_cases as golden
from PIL import Image

from rs_keras import Certifier
from rs_keras import certify_dataset
from rs_keras import datasets
from rs_keras.certification.certificate import guarantee
from rs_keras.cli import _photographs
from rs_keras.cli import main
from rs_keras.datasets.photographs import Resize
from rs_keras.datasets.photographs import read_photograph
from rs_keras.export import metadata
from rs_keras.serving.client import metadata_check
from rs_keras.trainers.tuning import hypermodel

RNG = np.random.default_rng(3)
# Of a camera that was turned: the stored image is shown turned clockwise.
_ORIENTATION, _CLOCKWISE = 0x0112, 6


def save(path, array, mode=None, orientation=None):
    picture = Image.fromarray(np.asarray(array, np.uint8), mode)
    exif = picture.getexif()
    if orientation is not None:
        exif[_ORIENTATION] = orientation
    path.parent.mkdir(parents=True, exist_ok=True)
    picture.save(path, exif=exif)
    return path


@pytest.mark.parametrize(
    "fit, columns",
    [
        # Of 4 x 8: dark left half, light right half.
        ("crop", [0, 0, 200, 200]),
        ("stretch", [0, 0, 200, 200]),
    ],
)
def test_proportions_and_bars(fit, columns, tmp_path):
    dark_and_light = np.repeat([[0, 200]], 4, 1).repeat(4, 0)
    path = save(tmp_path / "a.png", dark_and_light)
    found = read_photograph(path, 1, Resize(4, 4, fit))[..., 0]
    assert found[:, [0, -1]].tolist() == [[columns[0], columns[-1]]] * 4
    padded = read_photograph(path, 1, Resize(4, 4, "pad"))[..., 0]
    assert padded[[0, -1]].tolist() == [[0] * 4] * 2
    assert padded[1:3, -1].tolist() == [200, 200]


def test_resizing_is_bilinear_with_antialiasing(tmp_path):
    array = RNG.integers(0, 256, [24, 36, 3])
    path = save(tmp_path / "a.png", array)
    found = read_photograph(path, 3, Resize(8, 12, "stretch"))
    # TensorFlow's own, which shares no code with Pillow.
    wanted = tf.image.resize(array, [8, 12], antialias=True)
    assert np.abs(found - wanted.numpy()).max() <= 1


def test_photographs_are_turned_upright(tmp_path):
    left_is_light = np.array([[250, 0]] * 3)
    path = save(tmp_path / "a.png", left_is_light, orientation=_CLOCKWISE)
    found = read_photograph(path, 1, Resize(2, 3, "stretch"))
    # Turned clockwise, what was left is above.
    assert found[..., 0].tolist() == [[250] * 3, [0] * 3]


@pytest.mark.parametrize("channels", [1, 3])
def test_alpha_is_dropped_and_colours_become_grey(channels, tmp_path):
    pixel = np.full([2, 2, 4], [100, 150, 200, 0])
    path = save(tmp_path / "a.png", pixel)
    found = read_photograph(path, channels, Resize(2, 2))[0, 0]
    # The weights of ITU-R 601.
    grey = 0.299 * 100 + 0.587 * 150 + 0.114 * 200
    wanted = [100, 150, 200] if channels == 3 else [grey]
    assert np.abs(found - np.array(wanted)).max() <= 1


def test_sixteen_bits_and_other_files_are_refused(tmp_path):
    Image.fromarray(np.ones([2, 2], np.uint16)).save(tmp_path / "a.png")
    with pytest.raises(ValueError, match="a.png.*8 bits a channel.*'I;16'"):
        read_photograph(tmp_path / "a.png", 1, Resize(2, 2))
    (tmp_path / "b.png").write_text("no image")
    with pytest.raises(ValueError, match="not an image: .*b.png"):
        read_photograph(tmp_path / "b.png", 1, Resize(2, 2))


@pytest.fixture
def folder(tmp_path):
    """Two classes of photographs of different sizes, one of them turned."""
    place = tmp_path / "photos"
    for number, name in enumerate(("cats", "dogs", "dogs")):
        size = [20 + 4 * number, 30]
        array = RNG.integers(0, 256, size)
        turned = _CLOCKWISE if number else None
        save(place / name / f"{number}.png", array, orientation=turned)
    return place


def test_a_folder_of_mixed_sizes_needs_a_size(folder):
    with pytest.raises(ValueError, match="same size, or be resized .--resize"):
        datasets.load(f"image_folder:{folder}")
    name = Resize(8, 8).in_name(f"image_folder:{folder}")
    assert datasets.info(name).image_shape == (8, 8, 1)
    images, labels = next(iter(datasets.load(name, batch_size=4)))
    assert images.shape == (3, 8, 8, 1) and labels.numpy().tolist() == [0, 1, 1]
    files = ["cats/0.png", "dogs/1.png", "dogs/2.png"]
    wanted = [read_photograph(folder / f, 1, Resize(8, 8)) for f in files]
    np.testing.assert_allclose(images, np.float32(wanted) / 255, rtol=1e-6)


def test_logs_and_statements_tell_the_size(folder, tmp_path):
    name = Resize(8, 8, "pad").in_name(f"image_folder:{folder}")
    log = certify_dataset(
        Certifier(golden.tiny(), sigma=0.5),
        datasets.load(name),
        tmp_path / "log.tsv",
        name=f"{name}/test",
        n=100,
        progress=False,
    )
    assert log.settings["resize"] == [8, 8] and log.settings["fit"] == "pad"
    said = guarantee({**log.settings, "scope": "fixed_sigma"}, "answers")
    assert "about the image resized to 8 x 8 pixels (pad)" in said


def test_only_photographs_are_resized():
    with pytest.raises(ValueError, match="`resize` needs image_folder:PATH"):
        datasets.info(Resize(8, 8).in_name("mnist"))
    with pytest.raises(ValueError, match="`fit` must be one of crop, pad"):
        Resize(8, 8, "squeeze")


def test_the_command_line_resizes(folder, tmp_path, capsys):
    golden.tiny(classes=2).save(tmp_path / "two.keras")
    out = tmp_path / "log.tsv"
    size = ["--resize", "8,8", "--sigma", "0.5", "--n", "100"]
    model = ["--model", str(tmp_path / "two.keras"), *size]
    data = f"image_folder:{folder}"
    assert main(["certify", data, *model, "--out", str(out)]) == 0
    assert "?resize=8,8&fit=crop" in (tmp_path / "log.tsv.json").read_text()
    capsys.readouterr()
    assert main(["certify", str(folder / "cats/0.png"), *model]) == 0
    assert "resized to 8 x 8, crop" in capsys.readouterr().out
    golden.tiny(classes=3).save(tmp_path / "two.keras")
    assert main(["certify", data, *model, "--out", "other.tsv"]) == 2
    assert "2 folders in image_folder:" in capsys.readouterr().err


def test_an_export_tells_the_size(folder, tmp_path, capsys):
    golden.tiny(classes=2).save(tmp_path / "two.keras")
    out = str(tmp_path / "exports")
    command = ["export", str(tmp_path / "two.keras"), "--sigma", "0.5"]
    command += ["--out", out, "--no-warmup", "--fit", "pad", "--resize"]
    assert main([*command, "8,9"]) == 2
    assert "the model's images, 8 and 8. Received" in capsys.readouterr().err
    assert main([*command, "8,8"]) == 0
    facts = metadata.read(tmp_path / "exports" / "1")
    assert (facts["resize"], facts["fit"]) == ([8, 8], "pad")
    assert "resized to 8 x 8 before (pad)" in facts["guarantee"]
    metadata_check.check(facts)
    for wrong in ({"resize": [8, 9]}, {"resize": 8}, {"fit": "squeeze"}):
        with pytest.raises(ValueError, match="`resize` must be the height"):
            metadata_check.check(facts | wrong)
    capsys.readouterr()
    assert main(["export", "--show", out]) == 0
    assert "resize: 8, 8" in capsys.readouterr().out


def test_a_search_takes_photographs(folder, tmp_path, monkeypatch):
    """What it holds out and trains is resized, and its recipes say so."""
    found = []

    def searched(model, *args, **kwargs):
        found.append(model)
        raise ValueError("enough")

    monkeypatch.setattr(hypermodel, "tuner", searched)
    command = ["tune", f"image_folder:{folder}", "--method", "gaussian"]
    command += ["--sigma", "0.5", "--validation", "1", "--out", str(tmp_path)]
    assert main([*command, "--resize", "8,8"]) == 2
    [model] = found
    assert model.validation[0][0].shape == (8, 8, 1)
    assert model.base.dataset.endswith("?resize=8,8&fit=crop")


@pytest.mark.parametrize(
    "resize, fit, message",
    [
        (None, "pad", "--fit needs --resize"),
        ((8,), None, "--resize must be two numbers"),
        ((8, 0), None, "`resize` must be a whole number >= 1"),
    ],
    ids=["fit", "one", "zero"],
)
def test_bad_flags_are_refused(resize, fit, message):
    args = argparse.Namespace(resize=resize, fit=fit)
    with pytest.raises(ValueError, match=message):
        _photographs.resize_of(args)


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "BMP", "GIF"])
def test_damaged_images_are_read_or_refused(kind, tmp_path):
    """200 of each: one kind of error, with the file's name."""
    path, rng = tmp_path / "image", np.random.default_rng(0)
    pixels = rng.integers(0, 256, [9, 11, 3], np.uint8)
    Image.fromarray(pixels).save(path, kind)
    whole, refused = path.read_bytes(), 0
    for _ in range(200):
        damaged = bytearray(whole)
        at = int(rng.integers(len(whole)))
        if rng.random() < 0.5:
            damaged[at : at + 4] = rng.bytes(4)
        else:
            del damaged[at:]
        path.write_bytes(damaged)
        try:
            read_photograph(path, 3, Resize(4, 4))
        except ValueError as error:
            assert str(path) in str(error)
            refused += 1
    assert refused > 20


def test_an_image_without_pixels_is_refused(tmp_path):
    """A BMP of width 0."""
    path = tmp_path / "none.bmp"
    Image.new("RGB", [4, 4]).save(path)
    data = bytearray(path.read_bytes())
    data[18:22] = bytes(4)
    path.write_bytes(data)
    with pytest.raises(ValueError, match="not an image: .*none.bmp"):
        read_photograph(path, 3, Resize(4, 4))


def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe.png")
    with pytest.raises(ValueError, match="pipe.png .it is no regular file"):
        read_photograph(tmp_path / "pipe.png", 3, Resize(4, 4))
