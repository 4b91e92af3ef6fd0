"""What can be exported, what cannot, and what is left behind."""

import os
import threading

import keras
import numpy as np
import pytest
import tensorflow as tf
from kits import session_capi

from rs_keras import Certifier
from rs_keras.classifiers.adapters import traced_classifier
from rs_keras.export import export_certifier
from rs_keras.export import graph
from rs_keras.export import metadata
from rs_keras.export import versions
from rs_keras.export.classifier import classifier_hash
from rs_keras.trainers import Gaussian

SHAPE = (4, 4, 1)
SMALL = {"n0": 5, "n": 40, "predict_n": 20, "max_n": 200}


def network(policy=None, seed=3):
    keras.utils.set_random_seed(seed)
    return keras.Sequential(
        [
            keras.Input(SHAPE),
            keras.layers.Conv2D(5, 3, activation="relu", dtype=policy),
            keras.layers.Flatten(),
            keras.layers.Dense(3, dtype="float32" if policy else None),
        ]
    )


@keras.saving.register_keras_serializable("test_export")
class Subclassed(keras.Model):
    """A user's own model, which tells no shape."""

    def __init__(self):
        super().__init__()
        self.flat = keras.layers.Flatten()
        self.dense = keras.layers.Dense(3)

    def call(self, images):
        return self.dense(self.flat(images))


class Module(tf.Module):
    """Variables of TensorFlow, and a Keras model as an attribute."""

    def __init__(self):
        super().__init__()
        self.scale = tf.Variable(2.0)
        self.inner = network()

    def __call__(self, images):
        return self.scale * self.inner(images)


def linear(images):
    kernel = np.linspace(-1, 1, 32, dtype=np.float32).reshape(16, 2)
    return tf.reshape(images, [-1, 16]) @ tf.constant(kernel)


def saved_model(folder):
    """A SavedModel with a table, which is no variable."""
    module = tf.Module()
    module.kernel = tf.Variable(tf.random.stateless_normal([16, 3], [1, 2]))
    module.order = tf.lookup.StaticHashTable(
        tf.lookup.KeyValueTensorInitializer([0, 1, 2], [2, 0, 1]), -1
    )

    @tf.function(input_signature=[tf.TensorSpec([None, *SHAPE], tf.float32)])
    def serve(images):
        logits = tf.reshape(images, [-1, 16]) @ module.kernel
        return {
            "logits": tf.gather(
                logits, module.order.lookup(tf.constant([0, 1, 2])), axis=1
            )
        }

    tf.saved_model.save(module, str(folder), {"serving_default": serve})
    return tf.saved_model.load(str(folder))


KINDS = {
    "trainer": lambda folder: Certifier(Gaussian(network(), sigma=0.5)),
    "subclassed keras": lambda folder: Certifier(Subclassed()),
    "mixed_bfloat16": lambda folder: Certifier(network("mixed_bfloat16")),
    "mixed_float16": lambda folder: Certifier(network("mixed_float16")),
    "bfloat16 copy": lambda folder: Certifier(network(), dtype="bfloat16"),
    "module around keras": lambda folder: Certifier(Module()),
    "function": lambda folder: Certifier(linear),
    "saved model with a table": lambda folder: Certifier(saved_model(folder)),
    "grid": lambda folder: Certifier(network(), noise="grid"),
}


def images(count=2):
    levels = np.random.default_rng(4).integers(0, 256, (count, *SHAPE))
    return levels.astype(np.float32) / np.float32(255)


@pytest.fixture(scope="module")
def certifiers(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    return {kind: make(folder / "saved") for kind, make in KINDS.items()}


@pytest.fixture(scope="module")
def served(certifiers, tmp_path_factory):
    """Counts of each kind of classifier, all in one process of the runtime."""
    base = tmp_path_factory.mktemp("exports")
    request = {
        "images": images(),
        "seed": np.array([[1, 2], [3, 4]]),
        "first": np.array([0, 7]),
        "n": np.array([50, 50]),
    }
    calls = []
    for kind, certifier in certifiers.items():
        path = export_certifier(
            certifier, base / kind, image_shape=SHAPE, **SMALL
        )
        calls.append((path, "sample", request))
    answers, _ = session_capi.run(tmp_path_factory.mktemp("job"), calls)
    return dict(zip(certifiers, answers, strict=True))


@pytest.mark.parametrize("kind", KINDS)
def test_any_classifier_counts_as_in_process(kind, served, certifiers):
    x = images()
    for row, first in enumerate([0, 7]):
        want = certifiers[kind].sample(
            x[[row]], n=50, first=first, seed=np.array([[1, 2], [3, 4]])[[row]]
        )
        np.testing.assert_array_equal(served[kind]["counts"][[row]], want)


@pytest.fixture(scope="module")
def certifier():
    return Certifier(linear, sigma=0.5)


def export(certifier, base, **changed):
    return export_certifier(
        certifier, base, image_shape=SHAPE, **{**SMALL, **changed}
    )


def test_numbers_of_exported_versions_count_on(certifier, tmp_path):
    (tmp_path / "00007").mkdir()
    (tmp_path / "notes").mkdir()
    assert export(certifier, tmp_path) == tmp_path / "8"
    assert export(certifier, tmp_path, version=3, warmup=False).name == "3"
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["00007", "3", "8", "notes"]
    assert not (tmp_path / "3/assets.extra/tf_serving_warmup_requests").exists()


def test_what_is_no_version_is_stepped_over(certifier, tmp_path):
    (tmp_path / "5").write_text("a file, not a version")
    (tmp_path / "²").mkdir()
    (tmp_path / str(2**63)).mkdir()
    version = export(certifier, tmp_path, warmup=False)
    assert version == tmp_path / "6"
    assert versions.existing(tmp_path) == [6]
    assert versions.folder_of(tmp_path, 6) == version
    with pytest.raises(FileExistsError, match="version=5, which exists"):
        export(certifier, tmp_path, version=5)


def test_numbers_of_numpy_are_numbers(certifier, tmp_path):
    version = export(
        certifier,
        tmp_path,
        n=np.int64(40),
        alpha=np.float32(0.125),
        runner_up=np.bool_(False),
    )
    facts = metadata.read(version)
    found = {name: facts[name] for name in ("n", "alpha", "runner_up")}
    assert found == {"n": 40, "alpha": 0.125, "runner_up": False}


def test_the_hash_is_of_the_classifier():
    """Not of the names, which Keras makes up as it goes."""

    def normalised(scale, offset):
        layer = keras.layers.Rescaling(scale, offset)
        inner = network(seed=3)
        return lambda images: inner(layer(images), training=False)

    @tf.function
    def called(images):
        return linear(images)

    def stacked(first, second):
        def both(images):
            score = tf.reduce_mean(images, [1, 2, 3])
            return tf.stack([first * score, second * score], -1)

        return both

    def branching(first, second):
        def one(images):
            score = tf.reduce_mean(images, [1, 2, 3])
            return tf.cond(
                tf.reduce_mean(images) > 0.5,
                lambda: tf.stack([score, first(score)], -1),
                lambda: tf.stack([score, second(score)], -1),
            )

        return one

    def swapped(order):
        def both(images):
            score = tf.reduce_mean(images, [1, 2, 3])
            pair = [score, -score]
            return tf.stack([pair[place] for place in order], -1)

        return both

    found = [
        classifier_hash(
            traced_classifier(certifier.sampler(SHAPE).logits, SHAPE)
        )
        for certifier in (
            Certifier(network(seed=3)),
            Certifier(network(seed=3), sigma=2.0, batch_size=9),
            Certifier(called),
            Certifier(tf.function(lambda images: linear(images))),
            Certifier(network(seed=4)),
            Certifier(linear),
            Certifier(lambda images: -linear(images)),
            Certifier(lambda images: linear(images) @ tf.eye(2)),
            Certifier(normalised(2.0, -1.0)),
            Certifier(normalised(-1.0, 2.0)),
            Certifier(normalised(2.0, -0.5)),
            Certifier(tf.function(lambda images: -linear(images))),
            Certifier(stacked(1.0, 2.0)),
            Certifier(stacked(2.0, 1.0)),
            Certifier(swapped([0, 1])),
            Certifier(swapped([1, 0])),
            Certifier(tf.function(swapped([0, 1]))),
            Certifier(tf.function(swapped([1, 0]))),
            Certifier(branching(tf.sin, tf.exp)),
            Certifier(branching(tf.exp, tf.sin)),
        )
    ]
    assert found[0] == found[1] and found[2] == found[3]
    # Constants count, and what is done with them, in functions as well: labels
    # that change places, the branches of a condition.
    assert len(set(found)) == len(found) - 2


def of_rank_three(images):
    return tf.reshape(images, [-1, 4, 4])


def python_code(images):
    return tf.ensure_shape(
        tf.numpy_function(lambda x: x[:, 0, :2, 0], [images], tf.float32),
        [None, 2],
    )


compiled = tf.function(linear, jit_compile=True)

_TABLE = tf.lookup.StaticHashTable(
    tf.lookup.KeyValueTensorInitializer([0, 1], [1, 0]), -1
)


def with_a_table(images):
    return tf.gather(linear(images), _TABLE.lookup(tf.constant([0, 1])), axis=1)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"alpha": 0.0}, r"`alpha` must be in \(0, 1\)"),
        ({"alpha": 1.5}, r"`alpha` must be in \(0, 1\).*1\.5"),
        ({"n": 5}, "`n` must be >= 11"),
        ({"n": 5, "runner_up": False}, "`n` must be >= 10"),
        ({"predict_n": 5}, "`predict_n` must be >= 11"),
        ({"n0": 0}, "`n0` must be a whole number >= 1"),
        ({"max_n": 39}, "`max_n` must be >= `n`.*max_n=39, n=40"),
        ({"max_n": 10**13}, r"`max_n` must be <= 8796093022208"),
        ({"decide_n": 15}, "`decide_n` must be >= 16 to certify anything"),
        ({"decide_n": 206}, "`decide_n` must be <= `n0` .*decide_n=206, n0=5"),
        ({"decide_n": 1.5}, "`decide_n` must be a whole number >= 1"),
        ({"version": 0}, "`version` must be a whole number >= 1"),
        ({"version": 2**63}, "`version` must be <= 9223372036854775807"),
        ({"seed": "fixed"}, "`seed` must be one of fresh, keyed"),
        ({"key": b"16 bytes or more"}, "`key` must be None for seed='fresh'"),
        ({"seed": "keyed", "key": b"short"}, "`key` must have at least 16"),
        ({"class_names": ["a"]}, "`class_names` must be 2 names"),
        ({"class_names": [1, 2]}, "`class_names` must be strings"),
        ({"image_shape": None}, "`image_shape` must be given"),
        ({"image_shape": (4, 4)}, "`image_shape` must be three whole numbers"),
        ({"image_shape": (4, 4, 0)}, "`image_shape` must be three whole"),
    ],
    ids=str,
)
def test_bad_export_arguments_are_refused(
    changed, message, certifier, tmp_path
):
    arguments = {"image_shape": SHAPE, **SMALL, **changed}
    with pytest.raises(ValueError, match=message):
        export_certifier(certifier, tmp_path / "base", **arguments)
    assert not (tmp_path / "base").exists()


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (of_rank_three, r"must return one floating-point matrix"),
        (python_code, "made of TensorFlow operations.*EagerPyFunc|PyFunc"),
        (compiled, "must not be compiled with XLA"),
        (with_a_table, "must keep its state in TensorFlow variables"),
        (network(), r"`image_shape` must be the model's, \(4, 4, 1\)"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_models_that_cannot_be_served(model, message, tmp_path):
    shape = SHAPE if callable(model) else None
    if isinstance(model, keras.Model):
        shape = (8, 8, 1)
    with pytest.raises(ValueError, match=message):
        export_certifier(Certifier(model), tmp_path, image_shape=shape, **SMALL)
    assert list(tmp_path.iterdir()) == []


def test_what_is_no_certifier_is_not_exported(tmp_path):
    with pytest.raises(ValueError, match=r"`certifier` must be.*function"):
        export_certifier(linear, tmp_path)


def test_a_version_that_exists(certifier, tmp_path):
    (tmp_path / "0003").mkdir()
    with pytest.raises(FileExistsError, match="version=3, which exists"):
        export(certifier, tmp_path, version=3)


@pytest.mark.parametrize("below", ["", "deeper/still"])
def test_a_file_in_the_way(below, certifier, tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(NotADirectoryError, match=r"file is a file"):
        export(certifier, tmp_path / "file" / below)
    assert (tmp_path / "file").read_text() == "mine"


def test_a_folder_without_permission_gets_no_export(
    certifier, tmp_path, monkeypatch
):
    # The superuser, as whom tests may run, is denied nothing.
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(PermissionError, match="`directory` must be writable"):
        export(certifier, tmp_path / "base")
    assert list(tmp_path.iterdir()) == []


def test_a_broken_signature_gets_no_version(certifier, tmp_path, monkeypatch):
    def fails(self, k, k2, n, alpha):
        bad = tf.debugging.check_numerics(tf.math.log(-tf.abs(alpha)), "why")
        return {"p_lower": bad, "radius": bad}

    monkeypatch.setattr(graph.CertifierGraph, "bound", fails)
    with pytest.raises(
        ValueError, match=r"fails in 'bound': why : Tensor had NaN"
    ):
        export(certifier, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_other_counts_get_no_version(certifier, tmp_path, monkeypatch):
    true = Certifier.sample

    def swapped(*args):
        return true(*args)[:, ::-1]

    monkeypatch.setattr(Certifier, "sample", swapped)
    with pytest.raises(ValueError, match="must count the same"):
        export(certifier, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_number_that_was_taken_meanwhile(tmp_path):
    for name in ("1", "one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "saved_model.pb").write_text(name)
    with pytest.raises(FileExistsError, match="version=1"):
        versions.publish(tmp_path / "one", tmp_path, 1)
    assert versions.publish(tmp_path / "one", tmp_path, None).name == "2"
    assert (tmp_path / "1/saved_model.pb").read_text() == "1"
    assert (tmp_path / "2/saved_model.pb").read_text() == "one"


def test_exports_at_the_same_time_share_no_number(tmp_path):
    folders = [tmp_path / f"tmp.{i}" for i in range(8)]
    for folder in folders:
        folder.mkdir()
        (folder / "saved_model.pb").write_text(folder.name)
    found = []

    def publish(folder):
        found.append(versions.publish(folder, tmp_path, None))

    threads = [threading.Thread(target=publish, args=[f]) for f in folders]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(int(path.name) for path in found) == list(range(1, 9))
    texts = {(path / "saved_model.pb").read_text() for path in found}
    assert texts == {folder.name for folder in folders}
