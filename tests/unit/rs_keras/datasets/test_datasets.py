"""Data sets against plain loops, Pillow and their own definition."""

import os
import urllib.request
from collections import Counter
from contextlib import nullcontext
from pathlib import Path

import keras
import numpy as np
import pytest
import scipy.stats
import tensorflow as tf
from PIL import Image

from rs_keras import datasets
from rs_keras.datasets import augmentation
from rs_keras.datasets.sources import ArraySource
from rs_keras.datasets.sources import Plan

BUNDLED = Path(datasets.__file__).parents[1] / "data"


@pytest.fixture
def archive(tmp_path):
    """Writes an npz file and returns its name for `load`."""

    def write(**arrays):
        np.savez(tmp_path / "some.npz", **arrays)
        return f"npz:{tmp_path / 'some.npz'}"

    return write


@pytest.fixture
def pictures(tmp_path):
    """Writes images of random noise, [H, W] or [H, W, 3], and keeps them."""
    rng = np.random.default_rng(0)

    def write(sizes):
        kept = {}
        for name, size in sizes.items():
            kept[name] = rng.integers(0, 256, size, np.uint8)
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(kept[name]).save(tmp_path / name)
        return kept

    return write


def plan(batch_size=4, seed=0, training=True, drop=False, start=(0, 0)):
    return Plan(batch_size, seed, training, drop, start)


def ids(data):
    return np.concatenate(
        [np.atleast_1d(t["example_id"]) for _, t in data]
    ).tolist()


# -- what comes out ----------------------------------------------------------


@pytest.mark.parametrize(
    ("split", "each"), [("train", 400), ("test", 100)], ids=["train", "test"]
)
def test_fashion_mini_is_balanced(split, each):
    images, labels = datasets.arrays("fashion_mini", split)
    assert images.shape == (10 * each, 28, 28, 1)
    assert images.dtype == np.float32 and labels.dtype == np.int64
    assert images.min() == 0 and images.max() == 1
    assert Counter(labels.tolist()) == dict.fromkeys(range(10), each)


def test_fashion_mini_comes_with_its_licence():
    folder = BUNDLED
    text = (folder / "LICENSE.fashion-mnist").read_text(encoding="utf-8")
    assert "MIT License" in text and "Zalando" in text


@pytest.mark.parametrize("split", ["train", "test"])
@pytest.mark.parametrize("size", [None, 300], ids=["single", "batched"])
def test_elements_are_typed_and_counted(split, size):
    data = datasets.load("fashion_mini", split, size)
    image, label = data.element_spec
    lead = [] if size is None else [None]
    assert image.shape.as_list() == [*lead, 28, 28, 1]
    assert label.shape.as_list() == lead
    assert (image.dtype, label.dtype) == (tf.float32, tf.int64)
    count = {"train": 4_000, "test": 1_000}[split]
    assert len(data) == (count if size is None else -(-count // size))


def test_drop_remainder_fixes_the_batch():
    data = datasets.load("fashion_mini", batch_size=300, drop_remainder=True)
    assert data.element_spec[0].shape.as_list() == [300, 28, 28, 1]
    assert len(list(data)) == len(data) == 3
    assert datasets.steps("fashion_mini", 300, drop_remainder=True) == 13
    assert datasets.steps("fashion_mini", 300) == 14


def test_test_split_keeps_its_order():
    with np.load(BUNDLED / "fashion_mini.npz") as bundled:
        images, labels = bundled["x_test"], bundled["y_test"]
    data = datasets.load("fashion_mini", batch_size=128, example_id=True)
    found = np.concatenate([x for x, _ in data])
    np.testing.assert_array_equal(found, np.float32(images) / np.float32(255))
    assert np.concatenate([t["label"] for _, t in data]).tolist() == (
        labels.tolist()
    )
    assert ids(data) == list(range(1_000))


# -- a pass is a function of (seed, epoch) -----------------------------------


def test_every_pass_holds_every_example_once():
    passes = [
        ids(datasets.epoch("fashion_mini", e, 256, seed=s, example_id=True))
        for e, s in [(0, 0), (1, 0), (0, 1), (0, 0)]
    ]
    assert all(sorted(p) == list(range(4_000)) for p in passes)
    assert passes[0] == passes[3]
    assert passes[0] != passes[1] != passes[2] != passes[0]


def test_order_does_not_depend_on_the_batch_size():
    one, other = (
        ids(datasets.epoch("fashion_mini", 5, size, example_id=True))
        for size in (64, 1_000)
    )
    assert one == other


def test_limit_takes_the_first_examples_only():
    data = datasets.epoch("fashion_mini", 1, 8, example_id=True, limit=20)
    assert sorted(ids(data)) == list(range(20))
    assert datasets.steps("fashion_mini", 8, limit=20) == 3
    with pytest.raises(ValueError, match="`limit` must be a whole number"):
        datasets.steps("fashion_mini", 8, limit=0)


def test_all_orders_are_equally_likely():
    orders = Counter(
        tuple(plan().permutation(3, epoch, 0).numpy().tolist())
        for epoch in range(600)
    )
    assert len(orders) == 6
    assert scipy.stats.chisquare(list(orders.values())).pvalue > 1e-3


def test_load_passes_are_the_epochs():
    data = datasets.load("fashion_mini", "train", 500, seed=3, example_id=True)
    for number in range(2):
        epoch = datasets.epoch(
            "fashion_mini", number, 500, seed=3, example_id=True
        )
        assert ids(data) == ids(epoch)


def test_stream_is_the_epochs_in_a_row():
    stream = datasets.stream(
        "fashion_mini",
        1_500,
        seed=3,
        first_epoch=4,
        first_step=2,
        example_id=True,
    )
    # Three batches a pass, the last one not full: 1 + 3 of them.
    found = ids(stream.take(4))
    rest, whole = (
        ids(
            datasets.epoch(
                "fashion_mini", e, 1_500, seed=3, first_step=s, example_id=True
            )
        )
        for e, s in [(4, 2), (5, 0)]
    )
    assert len(rest) == 1_000
    assert found == rest + whole


class Recorder(keras.Model):
    """Trains nothing; notes which examples each step sees."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def call(self, images):
        return images

    def train_step(self, data):
        def note(places):
            self.seen.extend(places.numpy().tolist())

        tf.py_function(note, [data[1]["example_id"]], [])
        return {"count": tf.cast(tf.shape(data[0])[0], tf.float32)}


def test_fit_on_a_stream_sees_the_epochs():
    kwargs = {"seed": 5, "example_id": True}
    stream = datasets.stream("fashion_mini", 1_500, first_epoch=2, **kwargs)
    model = Recorder()
    model.compile()
    steps = datasets.steps("fashion_mini", 1_500)
    model.fit(
        stream,
        steps_per_epoch=steps,
        initial_epoch=2,
        epochs=4,
        shuffle=False,
        verbose=0,
    )
    expected = [
        ids(datasets.epoch("fashion_mini", e, 1_500, **kwargs)) for e in (2, 3)
    ]
    assert model.seen == expected[0] + expected[1]


def test_resumed_pass_is_the_rest_of_the_whole():
    images = np.random.default_rng(0).integers(0, 256, (50, 8, 8, 3), np.uint8)
    source = ArraySource(images, np.arange(50), augmented=True)
    whole = list(source.batches(plan(8), 3))
    rest = list(source.batches(plan(8, start=(3, 4)), 3))
    assert len(whole) == 7 and len(rest) == 3
    for left, right in zip(whole[4:], rest, strict=True):
        for a, b in zip(left, right, strict=True):
            np.testing.assert_array_equal(a, b)


def test_augmentation_belongs_to_example_and_epoch():
    images = np.random.default_rng(0).integers(0, 256, (60, 8, 8, 1), np.uint8)
    source = ArraySource(images, np.arange(60), augmented=True)

    def by_id(batch_size, epoch, seed=0):
        found = {}
        for x, _, places in source.batches(plan(batch_size, seed), epoch):
            found |= dict(zip(places.numpy().tolist(), x.numpy(), strict=True))
        return np.stack([found[i] for i in range(60)])

    first = by_id(7, 2)
    np.testing.assert_array_equal(first, by_id(60, 2))
    for other in (by_id(7, 3), by_id(7, 2, seed=1)):
        same = [np.array_equal(a, b) for a, b in zip(first, other, strict=True)]
        # 9 * 9 places, mirrored or not: one in 162 is the same by chance.
        assert sum(same) < 6


def test_other_passes_are_not_augmented():
    images = np.random.default_rng(0).integers(0, 256, (9, 8, 8, 1), np.uint8)
    source = ArraySource(images, np.arange(9), augmented=True)
    found = np.concatenate(
        [x for x, _, _ in source.batches(plan(training=False), 0)]
    )
    np.testing.assert_array_equal(found, np.float32(images) / np.float32(255))


# -- augmentation ------------------------------------------------------------


@pytest.mark.parametrize("mirror", [False, True], ids=["plain", "mirrored"])
def test_crop_and_flip_is_a_plain_loop(mirror):
    images = np.random.default_rng(0).integers(0, 256, (81, 6, 5, 2), np.uint8)
    down, right = np.divmod(np.arange(81), 9)
    numbers = np.stack(
        [
            (down + 0.5) / 9,
            (right + 0.5) / 9,
            np.full(81, 0.49 if mirror else 0.5),
        ],
        -1,
    ).astype(np.float32)
    found = augmentation.crop_and_flip(images, numbers).numpy()
    for image, result, y, x in zip(images, found, down, right, strict=True):
        padded = np.pad(image, [(4, 4), (4, 4), (0, 0)])
        expected = padded[y : y + 6, x : x + 5]
        np.testing.assert_array_equal(
            result, expected[:, ::-1] if mirror else expected
        )


def encoded(image, kind):
    return (
        tf.io.encode_png(image)
        if kind == "png"
        else tf.io.encode_jpeg(image, quality=95)
    )


def smooth_image(height, width):
    """Waves: what a JPEG file and two resampling libraries agree on."""
    y, x = np.mgrid[:height, :width]
    planes = [np.sin(y / 9 + c) * np.cos(x / 11 - c) for c in range(3)]
    return np.uint8(127.5 + 120 * np.stack(planes, -1))


@pytest.mark.parametrize("kind", ["png", "jpeg"])
@pytest.mark.parametrize(
    ("height", "width"),
    [(300, 400), (400, 300), (100, 90)],
    ids=["wide", "tall", "small"],
)
def test_resized_centre_is_what_pillow_does(kind, height, width):
    data = encoded(smooth_image(height, width), kind)
    image = Image.fromarray(tf.io.decode_image(data).numpy())
    shorter = min(height, width)
    image = image.resize(
        (width * 256 // shorter, height * 256 // shorter), Image.BILINEAR
    )
    left, top = round((image.width - 224) / 2), round((image.height - 224) / 2)
    expected = np.asarray(image.crop((left, top, left + 224, top + 224)))
    found = augmentation.resized_centre(data)
    assert found.shape == (224, 224, 3)
    # Pillow rounds to whole levels, twice.
    np.testing.assert_allclose(found, expected / 255, atol=2.01 / 255)


@pytest.mark.parametrize("kind", ["png", "jpeg"])
@pytest.mark.parametrize("mirror", [False, True], ids=["plain", "mirrored"])
def test_resized_crop_is_what_pillow_does(kind, mirror):
    data = encoded(smooth_image(200, 240), kind)
    image = Image.fromarray(tf.io.decode_image(data).numpy())
    # First try: area (0.08 + 0.92 / 2) * 48000, shape exp(0) = 1.
    numbers = np.full(23, 0.5, np.float32)
    numbers[-1] = 0.1 if mirror else 0.9
    side = round((0.54 * 48_000) ** 0.5)
    top, left = (200 - side + 1) // 2, (240 - side + 1) // 2
    expected = image.crop((left, top, left + side, top + side))
    expected = np.asarray(expected.resize((224, 224), Image.BILINEAR)) / 255
    found = augmentation.resized_crop(data, tf.constant(numbers)).numpy()
    found = found[:, ::-1] if mirror else found
    np.testing.assert_allclose(found, expected, atol=2.01 / 255)


def resized_crop_windows(height, width, numbers, size):
    """(top, left, height, width) of the windows that `resized_crop` takes.

    Each pixel of the picture says where it is. Resized to `size`, which is
    larger than any window, the corners of a window keep their values.
    """
    place = np.arange(height * width).reshape(height, width)
    pixels = np.stack([place >> 8, place & 255, 0 * place], -1)
    png = tf.io.encode_png(pixels.astype(np.uint8))
    windows = []
    for row in numbers:
        # 0.9: not mirrored.
        row = tf.constant([*row[:-1], 0.9], tf.float32)
        crop = augmentation.resized_crop(png, row, size).numpy()
        corners = np.rint(crop[[0, -1], [0, -1]] * 255) @ [256, 1, 0]
        # Rows and columns of the two corners, [2, 2].
        (top, left), (bottom, right) = np.stack(np.divmod(corners, width), -1)
        windows.append([top, left, bottom - top + 1, right - left + 1])
    return np.array(windows, int)


def test_resized_crop_windows_fit_and_vary():
    numbers = np.random.default_rng(0).random((300, 23))
    windows = resized_crop_windows(150, 250, numbers, size=250)
    top, left, height, width = windows.T
    assert top.min() >= 0 and left.min() >= 0
    assert (top + height).max() <= 150 and (left + width).max() <= 250
    share = height * width / 37_500
    assert 0.075 < share.min() and share.max() <= 1
    # Rounding to whole pixels moves the shape a little.
    assert 0.73 < (width / height).min() and (width / height).max() < 1.36
    # A window of 150 x 112 or less (45% of the image) fits whatever its
    # shape, so below that every share is equally likely.
    low = share[share < 0.4]
    uniform = scipy.stats.uniform(0.08, 0.32)
    assert scipy.stats.kstest(low, uniform.cdf).pvalue > 1e-3


@pytest.mark.parametrize(
    ("height", "width", "expected"),
    [
        # No window of 8% fits with a shape in [3/4, 4/3]: the centre, at
        # (1000 - 13) / 2 = 493.5, rounded down.
        pytest.param(10, 1_000, [0, 493, 10, 13], id="wide"),
        pytest.param(1_000, 10, [493, 0, 13, 10], id="tall"),
    ],
)
def test_resized_crop_falls_back_on_the_centre(height, width, expected):
    numbers = np.full((1, 23), 0.5)
    windows = resized_crop_windows(height, width, numbers, size=32)
    assert windows.tolist() == [expected]


# -- archives ----------------------------------------------------------------


@pytest.mark.parametrize("kind", ["uint8", "float32", "float64"])
def test_archive_of_two_splits(archive, kind):
    x = np.random.default_rng(0).integers(0, 256, (6, 5, 4), np.uint8)
    scaled = x if kind == "uint8" else (x / 255).astype(kind)
    y = np.array([0, 2, 1], np.uint8)
    name = archive(x_train=scaled[:3], y_train=y, x_test=scaled[3:], y_test=y)
    images, labels = datasets.arrays(name, "test")
    np.testing.assert_allclose(images, x[3:, ..., None] / 255, rtol=1e-6)
    assert labels.tolist() == [0, 2, 1]
    found = datasets.info(name)
    assert (found.image_shape, found.num_classes) == ((5, 4, 1), 3)
    assert found.mean is None and found.splits == ("train", "test")


def test_archive_of_one_split_serves_any(archive):
    arrays = {"images": np.zeros([2, 4, 4, 3]), "labels": [0, 1]}
    name = archive(**arrays, class_names=["cat", "dog", "eel"])
    assert sorted(datasets.arrays(name, "train")[1]) == [0, 1]
    assert datasets.info(name).class_names == ("cat", "dog", "eel")


def test_archive_that_was_written_again_is_read_again(archive, tmp_path):
    archive(images=np.zeros([2, 4, 4]), labels=[0, 1])
    assert len(datasets.load("npz:some.npz", data_dir=tmp_path)) == 2
    archive(images=np.zeros([3, 4, 4]), labels=[0, 1, 2])
    os.utime(tmp_path / "some.npz", ns=(1, 1))
    assert len(datasets.load("npz:some.npz", data_dir=tmp_path)) == 3


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        pytest.param({"x_test": np.zeros([1, 2, 2])}, "must hold", id="keys"),
        pytest.param(
            {"images": np.full([1, 2, 2], 200.0), "labels": [0]},
            "divide by 255",
            id="range",
        ),
        pytest.param(
            {"images": np.full([1, 2, 2], np.nan), "labels": [0]},
            "must be finite",
            id="nan",
        ),
        pytest.param(
            {"images": np.zeros([1, 2, 2], np.int32), "labels": [0]},
            "floats in",
            id="int32",
        ),
        pytest.param(
            {"images": np.zeros([0, 2, 2]), "labels": np.zeros(0, int)},
            "at least one image",
            id="empty",
        ),
        pytest.param(
            {"images": np.zeros([2, 2, 2]), "labels": [0]},
            "each of the 2 images",
            id="labels-short",
        ),
        pytest.param(
            {"images": np.zeros([1, 2, 2]), "labels": [0.5]},
            "whole number",
            id="labels-float",
        ),
        pytest.param(
            {"images": np.zeros([1, 2, 2]), "labels": [-1]},
            "whole number >= 0",
            id="labels-negative",
        ),
    ],
)
def test_bad_archives_are_refused(archive, arrays, words):
    with pytest.raises(ValueError, match=words):
        datasets.load(archive(**arrays))


def test_archives_must_agree_with_themselves(archive):
    shapes = archive(
        x_train=np.zeros([1, 2, 2]),
        y_train=[0],
        x_test=np.zeros([1, 3, 3]),
        y_test=[0],
    )
    with pytest.raises(ValueError, match="images of one shape"):
        datasets.info(shapes)
    names = archive(
        images=np.zeros([2, 2, 2]), labels=[0, 1], class_names=["only"]
    )
    with pytest.raises(ValueError, match="name every label"):
        datasets.info(names)


def test_file_that_is_no_archive_is_refused(tmp_path):
    (tmp_path / "text.npz").write_text("not an archive")
    with pytest.raises(ValueError, match="archive of plain arrays"):
        datasets.load("npz:text.npz", data_dir=tmp_path)
    with pytest.raises(FileNotFoundError, match="there is no file"):
        datasets.load("npz:missing.npz", data_dir=tmp_path)


# -- folders -----------------------------------------------------------------


def test_folder_of_images(pictures, tmp_path):
    kept = pictures(
        {
            "train/cat/1.png": (6, 5, 3),
            "train/eel/1.png": (6, 5, 3),
            "train/eel/2.bmp": (6, 5, 3),
            "val/cat/9.png": (6, 5),
            "val/dog/8.png": (6, 5, 3),
        }
    )
    (tmp_path / "val/dog/notes.txt").write_text("no image")
    name = f"image_folder:{tmp_path}"
    found = datasets.info(name)
    assert found.class_names == ("cat", "dog", "eel")
    assert found.image_shape == (6, 5, 3)
    images, labels = datasets.arrays(name, "test")
    assert labels.tolist() == [0, 1]
    grey = np.repeat(kept["val/cat/9.png"][..., None], 3, -1)
    np.testing.assert_allclose(images[0], grey / 255, rtol=1e-6)
    np.testing.assert_allclose(
        images[1], kept["val/dog/8.png"] / 255, rtol=1e-6
    )
    data = datasets.epoch(name, 0, 2, example_id=True)
    assert sorted(ids(data)) == [0, 1, 2]
    assert len(datasets.load(name, "train")) == 3


def test_folder_without_splits_serves_any(pictures, tmp_path):
    pictures({"a/1.png": (4, 4), "b/1.png": (4, 4)})
    name = f"image_folder:{tmp_path}"
    assert datasets.info(name).image_shape == (4, 4, 1)
    for split in ("train", "test"):
        assert sorted(datasets.arrays(name, split)[1]) == [0, 1]


@pytest.mark.parametrize(
    ("sizes", "split", "words"),
    [
        pytest.param(
            {"a/1.png": (4, 4), "b/1.png": (4, 5)},
            "test",
            "same size",
            id="sizes",
        ),
        pytest.param({"a/1.png": (4, 4)}, "test", "at least two", id="class"),
        pytest.param(
            {"test/a/1.png": (4, 4), "test/b/1.png": (4, 4)},
            "train",
            "`split` must be one of test",
            id="split",
        ),
    ],
)
def test_bad_folders_are_refused(pictures, tmp_path, sizes, split, words):
    pictures(sizes)
    with pytest.raises(ValueError, match=words):
        datasets.load(f"image_folder:{tmp_path}", split)


def test_folders_without_images_are_refused(tmp_path):
    name = f"image_folder:{tmp_path}"
    with pytest.raises(FileNotFoundError, match="there is no folder"):
        datasets.load(f"{name}/missing")
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
    with pytest.raises(ValueError, match="Received: none in"):
        datasets.load(name)
    (tmp_path / "a/broken.png").write_text("no image")
    with pytest.raises(ValueError, match="not an image: .*broken.png"):
        datasets.load(name)


# -- ImageNet ----------------------------------------------------------------


@pytest.fixture(scope="module")
def tiny_imagenet(tmp_path_factory):
    """Twelve training and five validation images in ImageNet's own format."""
    import tensorflow_datasets as tfds

    root = tmp_path_factory.mktemp("imagenet")
    builder = tfds.builder("imagenet2012", data_dir=str(root))

    def examples(count):
        for i in range(count):
            image = np.full([40, 50, 3], 10 * i, np.uint8)
            yield i, {"image": image, "label": i, "file_name": f"{i}.JPEG"}

    builder._split_generators = lambda *_: {
        "train": examples(12),
        "validation": examples(5),
    }
    config = tfds.download.DownloadConfig(num_shards=3)
    builder.download_and_prepare(download_config=config)
    return root


def test_imagenet_validation_keeps_its_order(tiny_imagenet):
    data = datasets.load(
        "imagenet2012", data_dir=tiny_imagenet, example_id=True
    )
    found = [(x, t) for x, t in data]
    assert ids(data) == list(range(5))
    for image, targets in found:
        assert image.shape == (224, 224, 3)
        # Image i is plain, of level 10 i; JPEG keeps plain colours.
        level = 10 * int(targets["label"]) / 255
        np.testing.assert_allclose(image, level, atol=1.01 / 255)


def test_imagenet_training_is_a_function_of_the_epoch(tiny_imagenet):
    def passes(epoch, **kwargs):
        data = datasets.epoch(
            "imagenet2012", epoch, 4, tiny_imagenet, example_id=True, **kwargs
        )
        return [(x.numpy(), t["example_id"].numpy().tolist()) for x, t in data]

    own = datasets.load(
        "imagenet2012",
        "train",
        data_dir=tiny_imagenet,
        training=False,
        example_id=True,
    )
    labels = {int(t["example_id"]): int(t["label"]) for _, t in own}
    assert sorted(labels) == sorted(labels.values()) == list(range(12))
    first, again, other = passes(0), passes(0), passes(1)
    assert sorted(sum((i for _, i in first), [])) == list(range(12))
    for (x, i), (x2, i2) in zip(first, again, strict=True):
        assert i == i2
        np.testing.assert_array_equal(x, x2)
    assert [i for _, i in first] != [i for _, i in other]
    ((rest, places),) = passes(0, first_step=2)
    assert places == first[2][1]
    np.testing.assert_array_equal(rest, first[2][0])


def test_imagenet_in_folders(pictures, tmp_path):
    pictures(
        {
            f"{split}/{kind}/1.JPEG": (30, 40, 3)
            for split in ("train", "val")
            for kind in ("n01", "n02")
        }
    )
    data = datasets.load("imagenet2012", data_dir=tmp_path, batch_size=2)
    images, labels = next(iter(data))
    assert images.shape == (2, 224, 224, 3) and labels.numpy().tolist() == [
        0,
        1,
    ]
    images, _ = next(iter(datasets.epoch("imagenet2012", 0, 2, tmp_path)))
    assert images.shape == (2, 224, 224, 3)
    assert 0 <= images.numpy().min() and images.numpy().max() <= 1


# -- extra targets -----------------------------------------------------------


@pytest.mark.parametrize("size", [None, 300], ids=["single", "batched"])
def test_attach_joins_by_example(size):
    data = datasets.load("fashion_mini", "train", size, example_id=True)
    _, labels = datasets.arrays("fashion_mini", "train")
    soft = np.eye(10, dtype=np.float32)[labels]
    joined = datasets.attach(data, soft_label=soft, place=np.arange(4_000))
    for _, targets in joined.take(3):
        assert sorted(targets) == ["label", "place", "soft_label"]
        np.testing.assert_array_equal(
            np.argmax(targets["soft_label"], -1), targets["label"]
        )
        np.testing.assert_array_equal(
            labels[targets["place"].numpy()], targets["label"]
        )


def test_attach_needs_ids_and_rows():
    plain = datasets.load("fashion_mini")
    with pytest.raises(ValueError, match="example_id=True"):
        datasets.attach(plain, soft_label=np.zeros([1_000, 10]))
    data = datasets.load("fashion_mini", example_id=True)
    with pytest.raises(ValueError, match="Received: none"):
        datasets.attach(data)
    with pytest.raises(ValueError, match="one row per example"):
        datasets.attach(data, soft_label=0.5)


# -- names -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "words"),
    [
        pytest.param(
            lambda: datasets.load("mnsit"), "Did you mean 'mnist'", id="typo"
        ),
        pytest.param(
            lambda: datasets.info("imagenet"), "'imagenet2012'", id="info"
        ),
        pytest.param(
            lambda: datasets.load("cifar10/fog_3"), "must be one of", id="base"
        ),
        pytest.param(
            lambda: datasets.load("zip:file"), "npz:PATH", id="pattern"
        ),
        pytest.param(
            lambda: datasets.load("npz:"), "must say where", id="nowhere"
        ),
        pytest.param(
            lambda: datasets.load("cifar10_corrupted/fog_9"),
            "Did you mean 'cifar10_corrupted/fog",
            id="variant",
        ),
        pytest.param(
            lambda: datasets.load("mnist_corrupted"),
            "mnist_corrupted/shear",
            id="no-variant",
        ),
        pytest.param(
            lambda: datasets.load("fashion_mini", "val"),
            "`split` must be one of train, test",
            id="split",
        ),
        pytest.param(
            lambda: datasets.load("cifar10_corrupted/fog_3", "train"),
            "`split` must be one of test",
            id="no-train",
        ),
        pytest.param(
            lambda: datasets.load("fashion_mini", batch_size=0),
            "`batch_size` must be a whole number >= 1",
            id="batch",
        ),
        pytest.param(
            lambda: datasets.load("fashion_mini", seed=-1), "`seed`", id="seed"
        ),
        pytest.param(
            lambda: datasets.epoch("fashion_mini", -1, 8), "`epoch`", id="epoch"
        ),
        pytest.param(
            lambda: datasets.arrays("imagenet2012"), "into memory", id="large"
        ),
    ],
)
def test_bad_calls_are_refused(call, words):
    with pytest.raises(ValueError, match=words):
        call()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        pytest.param("cifar100", "tfds build cifar100", id="no-network"),
        pytest.param("imagenet2012", "ILSVRC2012_img_train.tar", id="manual"),
    ],
)
def test_data_that_cannot_be_had_says_what_to_do(
    name, words, tmp_path, monkeypatch
):
    def no_network(*_, **__):
        raise OSError("no network")

    monkeypatch.setattr(urllib.request, "urlopen", no_network)
    with pytest.raises(FileNotFoundError, match=words):
        datasets.load(name, data_dir=tmp_path)


def test_server_that_fails_says_what_to_do(tmp_path, monkeypatch):
    import tensorflow_datasets as tfds

    def fail(*_, **__):
        raise RuntimeError("checksum mismatch")

    monkeypatch.setattr(
        urllib.request, "urlopen", lambda *_, **__: nullcontext()
    )
    monkeypatch.setattr(tfds.core.DatasetBuilder, "download_and_prepare", fail)
    with pytest.raises(FileNotFoundError, match="checksum mismatch.*build"):
        datasets.load("svhn_cropped", data_dir=tmp_path)


def test_data_at_a_closed_port_cannot_be_fetched(tmp_path, monkeypatch):
    import tensorflow_datasets as tfds

    # Nothing answers there.
    url = "http://127.0.0.1:9/file"
    monkeypatch.setattr(tfds.core.DatasetBuilder, "url_infos", {url: None})
    with pytest.raises(FileNotFoundError, match=f"no way to {url}"):
        datasets.load("svhn_cropped", data_dir=tmp_path)


def test_epochs_of_a_part_of_the_split():
    epochs = datasets.Epochs("fashion_mini", 1_000, held_out=1_000, limit=2_500)
    assert (epochs.source.size, epochs.steps) == (2_500, 3)
    whole = list(epochs.epoch(1))
    for rest in (epochs.epoch(1, 2), epochs.stream(1, 2).take(1)):
        [(images, labels)] = rest
        np.testing.assert_array_equal(images, whole[2][0])
        np.testing.assert_array_equal(labels, whole[2][1])
