import hashlib
import json
import struct
import zlib

import numpy as np
import pytest
import scipy.stats
import tensorflow as tf

from rs_keras import CertificationLog
from rs_keras import Certifier
from rs_keras import certify_dataset
from rs_keras.classifiers.fingerprint import fingerprint
from rs_keras.logs import decide_dataset
from rs_keras.logs import evaluation
from rs_keras.logs import selected
from rs_keras.noise import fold_in

N = {"n0": 20, "n": 300, "progress": False}


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(5)
    images = rng.uniform(size=(20, 4, 4, 1)).astype(np.float32)
    return images, rng.integers(0, 2, 20)


def dataset_of(data):
    return tf.data.Dataset.from_tensor_slices(data)


def test_each_example_is_its_own_certificate(linear, data, tmp_path):
    certifier = Certifier(linear, sigma=0.5)
    path = tmp_path / "new" / "log.tsv"
    log = certify_dataset(
        certifier, dataset_of(data), path, skip=3, seed=9, **N
    )
    assert log.idx.tolist() == [0, 3, 6, 9, 12, 15, 18]
    for row, idx in enumerate(log.idx):
        alone = certifier.certify(
            data[0][idx][None], n0=20, n=300, seed=fold_in(9, idx)[None]
        )
        assert log.predict[row] == alone.label[0]
        assert 0 <= alone.radius[0] - log.radius[row] < 1e-6
        assert log.label[row] == data[1][idx]
    assert log.settings["seed"] == 9
    assert log.settings["n"] == 300
    header = path.read_text().splitlines()[0]
    wanted = "idx label predict radius correct time n p_top example checksum"
    assert header.split("\t") == wanted.split()


@pytest.mark.parametrize("seed", [9, "keyed"])
def test_several_images_a_call_are_the_same_log(
    seed, linear, data, tmp_path, monkeypatch
):
    certifier = Certifier(linear, sigma=0.5, key=b"a key of the test's own")
    sizes, certify = [], certifier.certify

    def watched(images, **arguments):
        sizes.append(len(images))
        return certify(images, **arguments)

    monkeypatch.setattr(certifier, "certify", watched)
    # 16,384 // 2,020 = 8 images a call.
    arguments = {"n0": 20, "n": 2_000, "progress": False, "seed": seed}
    together = certify_dataset(
        certifier, dataset_of(data), tmp_path / "a.tsv", **arguments
    )
    assert sizes == [8, 8, 4]
    monkeypatch.setattr(evaluation, "_MOST_TOGETHER", 1)
    alone = certify_dataset(
        certifier, dataset_of(data), tmp_path / "b.tsv", **arguments
    )
    assert sizes[3:] == [1] * 20
    for name in ("idx", "label", "predict", "radius", "correct"):
        np.testing.assert_array_equal(
            getattr(together, name), getattr(alone, name)
        )
    for name in ("n", "p_top", "example"):
        assert together.extra[name].tolist() == alone.extra[name].tolist()
    assert together.settings == alone.settings


def test_images_of_several_sizes_and_types_are_certified(tmp_path):
    """They cannot share a call: bytes would be joined with floats as numbers.

    The classifier says 1 where the mean is above 0.3, and 0.8 is 204 / 255.
    """
    certifier = Certifier(
        lambda x: (tf.reduce_mean(x, [1, 2]) - 0.3) * [-1.0, 1.0], sigma=0.25
    )
    floats = np.full([2, 4, 4, 1], np.float32(0.8))
    small = np.zeros([2, 2, 1], np.float32)
    data = [
        (floats[0], 1),
        (np.full([4, 4, 1], 204, np.uint8), 1),
        (floats[1], 1),
        (small, 0),
        (small, 0),
    ]
    log = certify_dataset(certifier, data, tmp_path / "log.tsv", seed=3, **N)
    assert log.predict.tolist() == [1, 1, 1, 0, 0]


def test_batched_or_not_is_the_same_log(linear, data, tmp_path):
    certifier = Certifier(linear, sigma=0.5)
    sets = {
        "single": dataset_of(data),
        "batched": dataset_of(data).batch(7),
        "list": list(zip(*data, strict=True)),
        "dict": dataset_of((data[0], {"label": data[1]})).batch(4),
    }
    logs = {
        name: certify_dataset(
            certifier, dataset, tmp_path / f"{name}.tsv", skip=2, seed=1, **N
        )
        for name, dataset in sets.items()
    }
    for log in logs.values():
        np.testing.assert_array_equal(log.idx, logs["single"].idx)
        np.testing.assert_array_equal(log.radius, logs["single"].radius)


def test_max_examples_may_grow(linear, data, tmp_path):
    certifier = Certifier(linear, sigma=0.5)
    call = (certifier, dataset_of(data), tmp_path / "log.tsv")
    assert len(certify_dataset(*call, max_examples=4, seed=1, **N)) == 4
    before = (tmp_path / "log.tsv").read_text()
    assert len(certify_dataset(*call, max_examples=9, seed=1, **N)) == 9
    assert (tmp_path / "log.tsv").read_text().startswith(before)


def test_a_fresh_seed_is_kept_for_the_rest(linear, data, tmp_path):
    certifier = Certifier(linear, sigma=0.5)
    call = (certifier, dataset_of(data), tmp_path / "log.tsv")
    first = certify_dataset(*call, max_examples=2, **N)
    second = certify_dataset(*call, max_examples=4, **N)
    assert first.settings["seed"] == second.settings["seed"]
    other = certify_dataset(
        certifier, dataset_of(data), tmp_path / "b.tsv", max_examples=1, **N
    )
    assert other.settings["seed"] != first.settings["seed"]


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("n", {"n": 301}),
        ("alpha", {"alpha": 0.01}),
        ("runner_up", {"runner_up": False}),
        ("skip", {"skip": 2}),
        ("seed", {"seed": 2}),
        ("dataset", {"name": "other"}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_log_of_other_settings_is_not_continued(
    linear, data, tmp_path, name, change
):
    certifier = Certifier(linear, sigma=0.5)
    call = (certifier, dataset_of(data), tmp_path / "log.tsv")
    certify_dataset(*call, seed=1, max_examples=1, **N)
    before = (tmp_path / "log.tsv").read_bytes()
    with pytest.raises(ValueError, match=name):
        certify_dataset(*call, **{"seed": 1, **N, **change})
    assert (tmp_path / "log.tsv").read_bytes() == before


def test_other_weights_and_sigma_are_refused(data, tmp_path):
    import keras

    keras.utils.set_random_seed(1)
    model = keras.Sequential(
        [keras.Input((4, 4, 1)), keras.layers.Flatten(), keras.layers.Dense(2)]
    )
    path = tmp_path / "log.tsv"

    def run(sigma=0.5):
        return certify_dataset(
            Certifier(model, sigma=sigma),
            dataset_of(data),
            path,
            seed=1,
            max_examples=1,
            **N,
        )

    run()
    with pytest.raises(ValueError, match="sigma"):
        run(sigma=0.25)
    model.layers[-1].bias.assign([1.0, 0.0])
    with pytest.raises(ValueError, match="model"):
        run()


def test_the_log_names_the_weights_that_vote(data, tmp_path):
    """A copy in another type does not follow the training of its original."""
    import keras

    model = keras.Sequential(
        [keras.Input((4, 4, 1)), keras.layers.Flatten(), keras.layers.Dense(2)]
    )
    certifier = Certifier(model, 0.5, dtype="bfloat16")
    voting = fingerprint(model)
    model.layers[-1].bias.assign([100.0, 0.0])
    call = dataset_of(data), tmp_path / "log.tsv"
    log = certify_dataset(certifier, *call, seed=1, max_examples=1, **N)
    assert log.settings["model"] == voting != fingerprint(model)
    with pytest.raises(ValueError, match="model"):
        again = Certifier(model, 0.5, dtype="bfloat16")
        certify_dataset(again, *call, seed=1, max_examples=2, **N)


def test_a_decision_without_a_single_vote_is_logged(data, tmp_path):
    """Logits that are not finite vote for nobody: no share, no warning."""

    def nowhere(x):
        return tf.fill([tf.shape(x)[0], 3], np.float32(np.nan))

    log = decide_dataset(
        Certifier(nowhere, 0.5),
        dataset_of(data),
        tmp_path / "log.tsv",
        radius=0.1,
        n_max=1_000,
        max_examples=1,
        progress=False,
    )
    assert log.predict.tolist() == [-1] and log.radius.tolist() == [0.0]
    assert log.extra["p_top"].tolist() == [0.0]


def test_bad_arguments_come_before_any_file(linear, data, tmp_path):
    certifier = Certifier(linear, sigma=0.5)
    path = tmp_path / "log.tsv"
    values = {"skip": 0, "max_examples": 0, "alpha": 2, "n": 5, "seed": 2**63}
    for name, value in values.items():
        bad = {name: value}
        with pytest.raises(ValueError, match=f"`{next(iter(bad))}` must"):
            certify_dataset(certifier, dataset_of(data), path, **{**N, **bad})
    assert not path.exists()
    with pytest.raises(ValueError, match="pairs"):
        certify_dataset(certifier, [data[0][0]], path, **N)


@pytest.mark.parametrize("bad", [{"skip": 0}, {"max_examples": -1}], ids=str)
def test_bad_selections_of_examples_are_refused(data, bad):
    with pytest.raises(
        ValueError, match=f"`{next(iter(bad))}` must be a whole"
    ):
        next(selected(dataset_of(data), **bad))


def test_the_share_is_that_of_the_certified_class(tmp_path):
    """Class 0 wins 60 % of the votes, narrowly; class 1 the soft mean.

    softmax(0.1, 0) = (0.525, 0.475) and softmax(0, 10) = (0, 1): the mean of
    class 1 is 0.6 * 0.475 + 0.4 = 0.685.
    """

    def model(x):
        narrow = x[:, 0, 0, 0] < 0.5 + 0.5 * scipy.stats.norm.ppf(0.6)
        return tf.where(narrow[:, None], [[0.1, 0.0]], [[0.0, 10.0]])

    log = certify_dataset(
        Certifier(model, sigma=0.5),
        [(np.full([1, 1, 1], 0.5, np.float32), 1)],
        tmp_path / "log.tsv",
        seed=1,
        n=5_000,
        bound="hoeffding",
        runner_up=False,
        progress=False,
    )
    assert log.predict[0] == 1
    assert log.extra["p_top"][0] == pytest.approx(0.685, abs=0.02)


def blake2b_of(image, label):
    """As docs/formats.md has it, by hand."""
    pixels = struct.pack(f"<{image.size}f", *image.ravel().tolist())
    sizes = ",".join(str(size) for size in (*image.shape, label))
    text = f"{sizes}\n".encode()
    return hashlib.blake2b(text + pixels, digest_size=8).hexdigest()


def crc_of(header, line):
    """As docs/formats.md has it, by hand."""
    *values, _ = line.split("\t")
    del values[header.split("\t").index("time")]
    text = header + "\n" + "\t".join(values)
    return f"{zlib.crc32(text.encode()):08x}"


RUNS = {
    "certify": (certify_dataset, N),
    "decide": (
        decide_dataset,
        {"radius": 0.25, "n_max": 1_000, "progress": False},
    ),
}
each_run = pytest.mark.parametrize("run", RUNS)


@each_run
def test_lines_hold_the_hash_of_the_example_and_a_checksum(
    linear, data, tmp_path, run
):
    call, arguments = RUNS[run]
    path = tmp_path / "log.tsv"
    log = call(
        Certifier(linear, sigma=0.5),
        dataset_of(data),
        path,
        skip=7,
        seed=9,
        **arguments,
    )
    wanted = [blake2b_of(data[0][i], data[1][i]) for i in log.idx.tolist()]
    assert log.extra["example"].tolist() == wanted
    assert log.settings["first_example"] == wanted[0]
    assert "checksum" not in log.extra
    header, *lines = path.read_text().splitlines()
    for line in lines:
        assert line.split("\t")[-1] == crc_of(header, line)


def test_pixels_of_8_bits_are_the_same_examples(linear, tmp_path):
    images = np.arange(3 * 16, dtype=np.uint8).reshape(3, 4, 4, 1)
    floats = images.astype(np.float32) / np.float32(255)
    certifier = Certifier(linear, sigma=0.5)
    path = tmp_path / "log.tsv"
    kinds = images, floats, floats.astype(np.float64)
    for count, kind in enumerate(kinds, 1):
        examples = [(image, 1) for image in kind]
        certify_dataset(
            certifier, examples, path, max_examples=count, seed=1, **N
        )
    log = CertificationLog.read(path)
    wanted = [blake2b_of(image, 1) for image in floats]
    assert log.extra["example"].tolist() == wanted


def changed(data, what):
    """The data set with its example 4 changed."""
    images, labels = data[0].copy(), data[1].copy()
    if what == "first":
        images[0, 0, 0, 0] = 0.5
    elif what == "pixel":
        images[4, 3, 3, 0] = np.nextafter(images[4, 3, 3, 0], 1)
    elif what == "label":
        labels[4] = 1 - labels[4]
    elif what == "shape":
        return [
            (images[i].reshape(2, 8, 1) if i == 4 else images[i], labels[i])
            for i in range(20)
        ]
    elif what == "order":
        images, labels = np.roll(images, -1, 0), np.roll(labels, -1, 0)
    return dataset_of((images, labels))


@each_run
@pytest.mark.parametrize(
    ("what", "idx", "shard"),
    [
        ("first", 0, None),
        ("pixel", 4, None),
        ("label", 4, None),
        ("shape", 4, None),
        ("order", 0, None),
        ("pixel", 4, (1, 2)),
        ("first", 0, (1, 2)),
    ],
    ids=["first", "pixel", "label", "shape", "order", "shard", "shard-first"],
)
def test_other_examples_are_refused(
    linear, data, tmp_path, run, what, idx, shard
):
    """Before any work: the certifier would fail."""
    call, arguments = RUNS[run]
    path = tmp_path / "log.tsv"
    arguments = {**arguments, "skip": 2 if shard is None else 4, "seed": 1}
    certifier = Certifier(linear, sigma=0.5)
    call(
        certifier,
        dataset_of(data),
        path,
        shard=shard,
        max_examples=4,
        **arguments,
    )
    before = path.read_bytes(), (tmp_path / "log.tsv.json").read_bytes()
    certifier.certify = certifier.decide = None
    with pytest.raises(ValueError) as error:
        call(certifier, changed(data, what), path, shard=shard, **arguments)
    message = str(error.value)
    assert f"{path} was made of another data set: example {idx} " in message
    assert "choose another name" in message
    if what == "label":
        assert f"label: stored {data[1][4]}, given {1 - data[1][4]}" in message
    after = path.read_bytes(), (tmp_path / "log.tsv.json").read_bytes()
    assert before == after


def test_examples_done_out_of_order_are_compared(linear, data, tmp_path):
    """As a fleet logs them: 4 before 2. All are compared before 2 is done."""
    certifier = Certifier(linear, sigma=0.5)
    call = {"skip": 2, "seed": 1, **N}
    path = tmp_path / "log.tsv"
    certify_dataset(certifier, dataset_of(data), path, max_examples=3, **call)
    lines = path.read_bytes().splitlines(True)
    path.write_bytes(b"".join([*lines[:2], lines[3]]))
    with pytest.raises(ValueError, match="example 4 is not the same"):
        certify_dataset(certifier, changed(data, "pixel"), path, **call)
    assert CertificationLog.read(path).idx.tolist() == [0, 4]
    log = certify_dataset(certifier, dataset_of(data), path, **call)
    assert log.idx.tolist() == [0, 4, 2, *range(6, 20, 2)]


def without_hashes(path):
    """Makes a log what an older version would have written."""
    rows = [line.split("\t") for line in path.read_text().splitlines()]
    path.write_text("".join("\t".join(row[:-2]) + "\n" for row in rows))
    beside = path.with_name(f"{path.name}.json")
    settings = json.loads(beside.read_text())
    del settings["first_example"]
    beside.write_text(json.dumps(settings))


@each_run
def test_older_logs_are_continued_as_they_are(linear, data, tmp_path, run):
    call, arguments = RUNS[run]
    arguments = {**arguments, "skip": 2, "seed": 1}
    certifier = Certifier(linear, sigma=0.5)
    path, whole = tmp_path / "log.tsv", tmp_path / "whole.tsv"
    wanted = call(certifier, dataset_of(data), whole, **arguments)
    call(certifier, dataset_of(data), path, max_examples=3, **arguments)
    without_hashes(path)
    assert len(CertificationLog.read(path)) == 3
    with pytest.warns(UserWarning, match="log.tsv was .* no hashes") as told:
        log = call(certifier, dataset_of(data), path, **arguments)
    assert told[0].filename == __file__
    np.testing.assert_array_equal(log.radius, wanted.radius)
    header = path.read_text().splitlines()[0]
    assert header.endswith("\ttime\tn\tp_top")
    assert "example" not in log.extra and "first_example" not in log.settings
    with (
        pytest.warns(UserWarning, match="no hashes"),
        pytest.raises(ValueError, match="example 4 is not the same .label"),
    ):
        call(certifier, changed(data, "label"), path, **arguments)


def test_a_log_without_lines_may_change_its_data_set(linear, data, tmp_path):
    certifier = Certifier(linear, sigma=0.5)
    path = tmp_path / "log.tsv"
    empty = certify_dataset(certifier, [], path, seed=1, **N)
    assert len(empty) == 0 and empty.settings["first_example"] is None
    log = certify_dataset(
        certifier, dataset_of(data), path, max_examples=1, seed=1, **N
    )
    assert len(log) == 1


@pytest.mark.parametrize(
    "radius",
    [128 / 255, [0.1, 128 / 255, 1 / 3, 0.75], [0.2500001, 0.2500002]],
    ids=["one", "several", "equal-in-six-decimals"],
)
def test_radii_of_decisions_are_those_asked_for(linear, data, tmp_path, radius):
    certifier = Certifier(linear, sigma=0.5)
    call = {"radius": radius, "n_max": 2_000}
    images, labels = data
    path = tmp_path / "log.tsv"
    log = decide_dataset(
        certifier, dataset_of(data), path, seed=3, progress=False, **call
    )
    asked = np.sort(np.atleast_1d(radius))
    found = np.concatenate(
        [
            certifier.decide(
                image[None], seed=fold_in(3, idx)[None], **call
            ).radius
            for idx, image in enumerate(images)
        ]
    )
    if asked[0] > 0.25 and asked[-1] < 0.26:
        # The smaller one is what both stand for.
        found = np.minimum(found, asked[0])
    assert (found > 0).any()
    np.testing.assert_array_equal(log.radius, found)
    for one in asked[:3] if len(asked) == 4 else asked[:1]:
        share = np.mean(log.correct & (found >= one))
        assert log.certified_accuracy(one) == share > 0
    # The file's own six decimals stay below.
    rows = [line.split("\t") for line in path.read_text().splitlines()[1:]]
    written = np.array([float(row[3]) for row in rows])
    assert (written <= found).all() and (found - written < 1e-6).all()
    assert log.settings["radii"] == asked.tolist()


@pytest.mark.parametrize("kind", ["certify", "decide"])
def test_settings_tell_how_exact_the_noise_on_the_grid_is(
    linear, data, tmp_path, kind
):
    certifier = Certifier(linear, sigma=0.5, noise="grid")
    if kind == "certify":
        log = certify_dataset(
            certifier, dataset_of(data), tmp_path / "log.tsv", 10, **N
        )
    else:
        log = decide_dataset(
            certifier,
            dataset_of(data),
            tmp_path / "log.tsv",
            radius=0.25,
            skip=10,
            n_max=500,
            progress=False,
        )
    # 16 pixels, each within half a word of 2**-64 in some 4,600 cells.
    assert 0 < log.settings["total_variation"] < 16 * 4_600 * 2.0**-65
