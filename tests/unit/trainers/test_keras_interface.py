"""Trainers where users of Keras expect what Keras does."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from kits import golden_cases as golden

import rs_keras
from rs_keras import Certifier
from rs_keras.trainers import SGD
from rs_keras.trainers import Gaussian
from rs_keras.trainers import methods

RNG = np.random.default_rng(0)
IMAGES = RNG.random((8, 8, 8, 1), dtype=np.float32)
LABELS = np.arange(8) % 3
METHODS = [name for name in vars(methods) if not name.startswith("_")]


def trainer_of(**kwargs):
    trainer = Gaussian(golden.tiny(), 0.25)
    trainer.compile(optimizer=SGD(0.05), run_eagerly=True, **kwargs)
    return trainer


@pytest.mark.parametrize("name", METHODS)
def test_a_loss_of_another_kind_is_refused_by_name(name):
    trainer = getattr(methods, name)(golden.tiny(), 0.25)
    message = f"`loss` must be left out: {name} trains .*Set `.* instead.*'mse'"
    with pytest.raises(ValueError, match=message):
        trainer.compile(optimizer="adam", loss="mse")
    with pytest.raises(ValueError, match="`loss_weights` must be left out"):
        trainer.compile(optimizer="adam", loss_weights=[1.0])
    trainer.compile(optimizer="adam")


@pytest.mark.parametrize("kind", ["arrays", "dataset", "dict"])
def test_class_weights_are_weights_of_examples(kind):
    weights = {0: 2.0, 2: 0.0}
    each = np.array([2.0, 1.0, 0.0])[LABELS].astype("float32")
    one, other = trainer_of(), trainer_of()
    options = {"shuffle": False, "verbose": 0}
    one.fit(IMAGES, LABELS, sample_weight=each, batch_size=4, **options)
    if kind == "dataset":
        data = tf.data.Dataset.from_tensor_slices((IMAGES, np.eye(3)[LABELS]))
        other.fit(data.batch(4), class_weight=weights, **options)
    else:
        targets = {"label": LABELS} if kind == "dict" else LABELS
        options["batch_size"] = 4
        other.fit(IMAGES, targets, class_weight=weights, **options)
    for a, b in zip(one.get_weights(), other.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7)


def test_class_weights_are_those_of_one_fit_and_multiply():
    one, other = trainer_of(), trainer_of()
    for trainer in (one, other):
        trainer.run_eagerly = False
    options = {"batch_size": 8, "shuffle": False, "verbose": 0}
    halves = np.full(8, 0.5, np.float32)
    one.fit(IMAGES, LABELS, sample_weight=halves * 4, **options)
    one.fit(IMAGES, LABELS, **options)
    quads = {0: 4.0, 1: 4.0, 2: 4.0}
    other.fit(
        IMAGES, LABELS, sample_weight=halves, class_weight=quads, **options
    )
    other.fit(IMAGES, LABELS, **options)
    for a, b in zip(one.get_weights(), other.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(
    "weights, message",
    [
        ({3: 1.0}, r"must name classes in \[0, 3\). Received: class 3"),
        ({"0": 1.0}, "`class_weight` must be a whole number"),
        ({0: -1.0}, "`class_weight` must be a finite number >= 0"),
    ],
    ids=["class", "word", "negative"],
)
def test_bad_class_weights_are_refused(weights, message):
    with pytest.raises(ValueError, match=message):
        trainer_of().fit(IMAGES, LABELS, class_weight=weights, verbose=0)


def test_export_gives_the_base_classifiers_logits(tmp_path):
    trainer = trainer_of()
    trainer.export(tmp_path / "exported", verbose=False)
    loaded = tf.saved_model.load(str(tmp_path / "exported"))
    found = loaded.serve(tf.constant(IMAGES))
    np.testing.assert_allclose(found, trainer.model(IMAGES), rtol=1e-5)


def test_whatever_is_saved_here_is_loaded(tmp_path):
    trainer = trainer_of(metrics=["accuracy"])
    trainer.fit(IMAGES, LABELS, verbose=0)
    trainer.save(tmp_path / "model.keras")
    for path in (tmp_path, str(tmp_path / "model.keras")):
        loaded = rs_keras.load_model(path)
        assert type(loaded) is Gaussian and loaded.compiled
        assert loaded.optimizer.built
        for a, b in zip(loaded.weights, trainer.weights, strict=True):
            np.testing.assert_array_equal(a, b)
    assert not rs_keras.load_model(tmp_path, compile=False).compiled
    trainer.model.save(tmp_path / "base.keras")
    assert rs_keras.load_model(tmp_path / "base.keras").count_params()
    with pytest.raises(FileNotFoundError, match="no such checkpoint"):
        rs_keras.load_model(tmp_path / "nothing.keras")


def test_paths_are_models(tmp_path):
    path = tmp_path / "trainer.keras"
    trainer = trainer_of()
    trainer.save(path)
    certifier, known = Certifier(path), Certifier(trainer)
    assert certifier.sigma == 0.25
    arguments = {"n": 100, "seed": 7}
    np.testing.assert_array_equal(
        certifier.certify(IMAGES[:2], **arguments).counts,
        known.certify(IMAGES[:2], **arguments).counts,
    )
    assert Certifier(str(path), sigma=0.5).sigma == 0.5
    again = Gaussian(str(path), sigma=0.5)
    np.testing.assert_array_equal(again(IMAGES), trainer(IMAGES))
    chosen = rs_keras.DataDependentCertifier(path, steps=0)
    assert isinstance(chosen.model, keras.Model)
    labels = rs_keras.smoothed_labels(
        path, (IMAGES, LABELS), n=10, progress=False
    )
    assert labels.shape == (8, 3)


def test_terminate_on_nan_ends_the_run():
    class Break(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            if batch == 1:
                weights = self.model.model.get_weights()
                self.model.model.set_weights([w * np.nan for w in weights])

    trainer = trainer_of()
    callbacks = [Break(), keras.callbacks.TerminateOnNaN()]
    trainer.fit(
        IMAGES, LABELS, batch_size=2, epochs=3, callbacks=callbacks, verbose=0
    )
    assert int(trainer.step.numpy()) == 2
    with pytest.raises(FloatingPointError, match="not finite at step"):
        trainer_of().fit(IMAGES, LABELS, callbacks=[Break()], batch_size=2)


def test_a_model_without_weights_is_told_so():
    model = keras.Sequential([keras.layers.Flatten(), keras.layers.Dense(2)])
    with pytest.raises(ValueError, match="Sequential .*, which is not built"):
        Certifier(model, sigma=0.5, dtype="bfloat16")
