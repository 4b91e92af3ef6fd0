"""Soft labels against closed forms, and files that resume."""

import numpy as np
import pytest
import tensorflow as tf
from scipy import stats

import rs_keras
from rs_keras import datasets
from rs_keras import teacher
from rs_keras.certification import Certifier
from rs_keras.noise import fold_in

N = 2_000


@pytest.fixture
def data():
    # More than one chunk.
    images = np.random.default_rng(2).random((70, 4, 4, 1), np.float32)
    return images, list(zip(images, np.zeros(70, int), strict=True))


def labels_of(model, data, **options):
    options = {"sigma": 0.5, "n": N, "progress": False, **options}
    return rs_keras.smoothed_labels(model, data, **options)


def test_soft_labels_by_a_closed_form(linear, data):
    images, examples = data
    labels = labels_of(linear, examples)
    # The score is Normal(w.x + b, (sigma |w|)**2), so P[class 1] is known.
    scale = 0.5 * np.linalg.norm(linear.weights)
    p = stats.norm.cdf(linear.score(images) / scale)
    error = np.sqrt(p * (1 - p) / N)
    assert labels.shape == (70, 2) and labels.dtype == np.float32
    assert (np.abs(labels[:, 1] - p) < 5 * error).all()
    np.testing.assert_allclose(labels.sum(1), 1, rtol=1e-6)


def test_each_row_is_drawn_by_its_number(linear, data):
    images, examples = data
    labels = labels_of(linear, examples, n=100, seed=5)
    certifier = Certifier(linear, 0.5)
    for i in (0, 31, 32, 69):
        seed = fold_in(5, i)[None]
        counts = certifier.sample(images[i : i + 1], 100, seed)
        np.testing.assert_allclose(labels[i], counts[0] / 100, rtol=1e-6)


def test_batches_and_limits_change_nothing(linear, data):
    images, examples = data
    whole = labels_of(linear, examples, n=100)
    batched = tf.data.Dataset.from_tensor_slices(
        (images, np.zeros(70, int))
    ).batch(33)
    np.testing.assert_array_equal(labels_of(linear, batched, n=100), whole)
    some = labels_of(linear, examples, n=100, limit=40)
    np.testing.assert_array_equal(some, whole[:40])


def test_by_name_and_into_a_training_pass(tmp_path):
    # Looks at one pixel only; what matters here is whose row is whose.
    labels = rs_keras.smoothed_labels(
        lambda x: x[:, 14, 13:16, 0] - 0.5,
        "fashion_mini",
        n=20,
        limit=40,
        progress=False,
    )
    images, _ = datasets.arrays("fashion_mini", "train")
    certifier = Certifier(lambda x: x[:, 14, 13:16, 0] - 0.5, 0.25)
    counts = certifier.sample(images[7:8], 20, fold_in(0, 7)[None])
    np.testing.assert_allclose(labels[7], counts[0] / 20, rtol=1e-6)
    passes = datasets.epoch("fashion_mini", 0, 40, example_id=True, limit=40)
    joined = datasets.attach(passes, soft_label=labels)
    (found, targets), (_, plain) = next(iter(joined)), next(iter(passes))
    rows = plain["example_id"].numpy()
    np.testing.assert_array_equal(found, images[rows])
    np.testing.assert_array_equal(targets["soft_label"], labels[rows])


class Counting:
    """A data set that counts what is asked of it, and may break."""

    def __init__(self, examples, breaks=None):
        self.examples = examples
        self.breaks = breaks

    def __iter__(self):
        for i, example in enumerate(self.examples):
            if i == self.breaks:
                raise RuntimeError("killed")
            yield example


def test_a_stopped_call_goes_on_where_it_was(
    linear, data, tmp_path, monkeypatch
):
    whole = labels_of(linear, data[1], n=100)
    path = tmp_path / "labels" / "soft.npz"
    with pytest.raises(RuntimeError):
        labels_of(linear, Counting(data[1], breaks=66), n=100, path=path)
    assert not path.exists()
    # A row that was cut off is made again.
    part = path.with_name("soft.npz.part")
    with part.open("ab") as file:
        file.write(b"\x01\x02\x03")
    sampled = []
    sample = Certifier.sample

    def counted(self, images, *args):
        sampled.append(len(images))
        return sample(self, images, *args)

    monkeypatch.setattr(Certifier, "sample", counted)
    found = labels_of(linear, Counting(data[1]), n=100, path=path)
    np.testing.assert_array_equal(found, whole)
    # 64 of the 70 were there.
    assert sampled == [6]
    assert [file.name for file in path.parent.iterdir()] == ["soft.npz"]
    # A third call reads them.
    again = labels_of(linear, Counting(data[1]), n=100, path=path)
    np.testing.assert_array_equal(again, whole)
    assert sampled == [6]
    np.testing.assert_array_equal(teacher.read_labels(path), whole)


@pytest.mark.parametrize("whole", [True, False], ids=["file", "part"])
def test_soft_labels_of_other_settings_are_refused(
    whole, linear, data, tmp_path
):
    path = tmp_path / "soft.npz"
    examples = Counting(data[1], breaks=None if whole else 40)
    try:
        labels_of(linear, examples, n=100, path=path)
    except RuntimeError:
        pass
    with pytest.raises(
        ValueError, match="n: stored 100, given 200; seed: stored"
    ):
        labels_of(linear, data[1], n=200, seed=1, path=path)


def test_a_shuffled_data_set_is_refused(linear):
    shuffled = datasets.load("fashion_mini", "train")
    with pytest.raises(ValueError, match="`dataset`.*same order.*training"):
        labels_of(linear, shuffled)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"n": 0}, "`n` must be"),
        ({"sigma": -1}, "`sigma` must be"),
        ({"limit": 0}, "`limit` must be"),
        ({"path": "soft.csv"}, "`path` must end in .npz"),
    ],
    ids=["n", "sigma", "limit", "path"],
)
def test_bad_arguments_of_soft_labels_are_refused(
    options, message, linear, data
):
    with pytest.raises(ValueError, match=message):
        labels_of(linear, data[1], **options)


def test_images_out_of_range(linear):
    bad = np.full([4, 4, 1], np.nan, np.float32)
    with pytest.raises(ValueError, match="`images` must be finite"):
        labels_of(linear, [(bad, 0)])


@pytest.mark.parametrize("text", [b"{x\nyz", b"[]\nyz", b"{}\nyz"])
def test_another_file_in_place_of_the_votes(text, linear, data, tmp_path):
    (tmp_path / "soft.npz.part").write_bytes(text)
    with pytest.raises(
        ValueError, match="soft.npz.part is not a file of votes"
    ):
        labels_of(linear, data[1], path=tmp_path / "soft.npz")


def test_fewer_examples_than_there_are_votes(linear, data, tmp_path):
    path = tmp_path / "soft.npz"
    with pytest.raises(RuntimeError):
        labels_of(linear, Counting(data[1], breaks=66), n=100, path=path)
    with pytest.raises(ValueError, match="64 .* 40"):
        labels_of(linear, data[1][:40], n=100, path=path)
    assert not path.exists()


def test_an_empty_data_set(linear):
    with pytest.raises(ValueError, match="at least one example"):
        labels_of(linear, [])


@pytest.mark.parametrize(
    "arrays, message",
    [
        ({"other": np.zeros([2, 3])}, "holds no soft labels"),
        ({"soft_label": np.zeros([2, 3], int)}, "must be floats"),
        ({"soft_label": np.ones([2])}, "`soft_label` must be one distribution"),
        ({"soft_label": np.ones([2, 3])}, "`soft_label` must sum to 1"),
        ({"soft_label": np.ones([0, 3])}, "`soft_label` must be one distrib"),
    ],
    ids=["name", "type", "shape", "sum", "empty"],
)
def test_reading_another_kind_of_file(arrays, message, tmp_path):
    path = tmp_path / "soft.npz"
    np.savez(path, **arrays)
    with pytest.raises(ValueError, match=message):
        teacher.read_labels(path)


def _array(path):
    with path.open("wb") as file:
        np.save(file, np.full([2, 2], 0.5))


def _cut(path):
    np.savez(path, soft_label=np.full([99, 2], 0.5))
    path.write_bytes(path.read_bytes()[:-40])


def _broken(path):
    np.savez_compressed(path, soft_label=np.random.rand(99, 2))
    whole = bytearray(path.read_bytes())
    whole[200:240] = bytes(40)
    path.write_bytes(whole)


@pytest.mark.parametrize(
    "write",
    [lambda path: path.write_bytes(b"nothing"), _array, _cut, _broken],
    ids=["text", "array", "cut", "broken"],
)
def test_a_file_that_is_no_archive_holds_no_soft_labels(write, tmp_path):
    path = tmp_path / "soft.npz"
    write(path)
    with pytest.raises(ValueError, match="holds no soft labels"):
        teacher.read_labels(path)


def test_labels_of_another_data_set_are_refused(tmp_path):
    path = tmp_path / "soft.npz"
    labels = rs_keras.smoothed_labels(
        lambda x: x[:, 14, 13:16, 0] - 0.5,
        "fashion_mini",
        n=5,
        limit=3,
        path=path,
        progress=False,
    )
    found = teacher.read_labels(path, "fashion_mini")
    np.testing.assert_array_equal(found, labels)
    with pytest.raises(ValueError, match="fashion_mini/train, not of mnist"):
        teacher.read_labels(path, "mnist")
