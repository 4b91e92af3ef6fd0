"""Certified accuracy in the logs: closed forms, and Keras' own callbacks."""

import csv

import keras
import numpy as np
import pytest
import tensorflow as tf
from scipy import stats

from rs_keras.certification import Certifier
from rs_keras.trainers import SGD
from rs_keras.trainers import Gaussian
from rs_keras.trainers.callbacks import CertifyCallback
from rs_keras.trainers.callbacks import SaveModel

N, ALPHA, SIGMA = 200, 0.001, 0.5
LABELS = np.array([0, 0, 1, 0, 2])
IMAGES = np.random.default_rng(0).random((5, 4, 4, 1), np.float32)
DATA = tf.data.Dataset.from_tensor_slices((IMAGES, LABELS))


def network(bias=(5.0, 0.0, 0.0)):
    """Answers by its bias alone, whatever the image."""
    layers = [keras.layers.Flatten(), keras.layers.Dense(3)]
    model = keras.Sequential([keras.Input([4, 4, 1]), *layers])
    model.set_weights([np.zeros([16, 3]), np.array(bias)])
    return model


def trainer_of(rate=0.0, metrics=()):
    trainer = Gaussian(network(), sigma=SIGMA)
    trainer.compile(SGD(rate), metrics=list(metrics))
    return trainer


def fit(trainer, callbacks, epochs=1):
    return trainer.fit(
        IMAGES, LABELS, epochs=epochs, verbose=0, callbacks=callbacks
    ).history


# All n votes are for class 0, so the lower bound is alpha**(1/n).
RADIUS = SIGMA * stats.norm.ppf(ALPHA ** (1 / N))


def test_certify_callback_by_a_closed_form():
    callback = CertifyCallback(DATA, n=N, alpha=ALPHA, radii=(0.5, 0.9, 1.05))
    logs = fit(trainer_of(), [callback])
    # Three of the five labels are 0; RADIUS is 0.9115.
    np.testing.assert_allclose(logs["val_acr"], [0.6 * RADIUS], rtol=1e-9)
    assert logs["val_certified_accuracy_r050"] == [0.6]
    assert logs["val_certified_accuracy_r090"] == [0.6]
    assert logs["val_certified_accuracy_r105"] == [0.0]


@pytest.mark.parametrize("batched", [False, True], ids=["single", "batched"])
def test_what_a_data_set_may_be(batched):
    data = DATA.batch(2) if batched else list(zip(IMAGES, LABELS, strict=True))
    logs = fit(trainer_of(), [CertifyCallback(data, n=N)])
    np.testing.assert_allclose(logs["val_acr"], [0.6 * RADIUS], rtol=1e-9)


def test_a_plain_keras_model_needs_a_sigma():
    model = network()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(SGD(0.0), loss)
    with pytest.raises(ValueError, match="`sigma` must be given"):
        fit(model, [CertifyCallback(DATA, n=N)])
    logs = fit(model, [CertifyCallback(DATA, n=N, sigma=SIGMA)])
    np.testing.assert_allclose(logs["val_acr"], [0.6 * RADIUS], rtol=1e-9)


def test_it_may_stand_behind_those_that_read_its_logs(tmp_path):
    stop = keras.callbacks.EarlyStopping("val_acr", mode="max", patience=1)
    pattern = "{epoch}-{val_certified_accuracy_r050:.2f}.keras"
    callbacks = [
        stop,
        keras.callbacks.ModelCheckpoint(
            tmp_path / pattern,
            monitor="val_acr",
            mode="max",
            save_best_only=True,
        ),
        keras.callbacks.CSVLogger(tmp_path / "log.csv"),
        CertifyCallback(DATA, n=N),
    ]
    # Nothing is learnt at rate 0: the second epoch is no better.
    logs = fit(trainer_of(), callbacks, epochs=9)
    assert len(logs["val_acr"]) == 2 and stop.stopped_epoch == 1
    assert [path.name for path in tmp_path.glob("*.keras")] == ["1-0.60.keras"]
    with open(tmp_path / "log.csv") as file:
        rows = list(csv.DictReader(file))
    assert [float(row["val_acr"]) for row in rows] == logs["val_acr"]


def test_tensorboard_reads_what_certify_callback_logs(tmp_path):
    pytest.importorskip("tensorboard")
    board = keras.callbacks.TensorBoard(tmp_path)
    fit(trainer_of(), [board, CertifyCallback(DATA, n=N)])
    assert list((tmp_path / "validation").iterdir())


def test_certify_callback_does_not_touch_the_training():
    plain, watched = trainer_of(0.1), trainer_of(0.1)
    for trainer, callbacks in (
        (plain, []),
        (watched, [CertifyCallback(DATA, n=N)]),
    ):
        # `fit` shuffles arrays with the generators that this seeds.
        keras.utils.set_random_seed(4)
        fit(trainer, callbacks, epochs=2)
    for a, b in zip(plain.variables, watched.variables, strict=True):
        np.testing.assert_array_equal(a.numpy(), b.numpy())


def test_it_follows_the_weights_with_the_same_noise(monkeypatch):
    seeds = []
    certify = Certifier.certify

    def watched(self, images, **arguments):
        seeds.append(arguments["seed"].tolist())
        return certify(self, images, **arguments)

    monkeypatch.setattr(Certifier, "certify", watched)
    trainer = trainer_of()

    class Flip(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            if epoch == 1:
                kernel, bias = trainer.model.get_weights()
                trainer.model.set_weights([kernel, bias[::-1]])

    logs = fit(trainer, [CertifyCallback(DATA, n=N), Flip()], epochs=2)
    # Three labels are 0, one is 2.
    acr = [0.6 * RADIUS, 0.2 * RADIUS]
    np.testing.assert_allclose(logs["val_acr"], acr, rtol=1e-9)
    assert seeds[0] == seeds[1] and len(set(map(tuple, seeds[0]))) == 5


def test_every_third_epoch_and_the_last(monkeypatch):
    calls = []
    certify = Certifier.certify

    def counted(self, *args, **kwargs):
        calls.append(1)
        return certify(self, *args, **kwargs)

    monkeypatch.setattr(Certifier, "certify", counted)
    logs = fit(trainer_of(), [CertifyCallback(DATA, every=3, n=N)], epochs=6)
    # Epochs 0, 3 and 5; the others repeat.
    assert len(calls) == 3 and len(logs["val_acr"]) == 6


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"every": 0}, "`every`"),
        ({"n": 0}, "`n` must be"),
        ({"alpha": 1.0}, "`alpha`"),
        ({"radii": [0.255]}, "`radii` must be multiples of 0.01.*0.255"),
        ({"radii": [-0.25]}, "`radii`.*-0.25"),
        ({"radii": ["wide"]}, "`radii`.*'wide'"),
        ({"sigma": 0}, "`sigma`"),
        ({"dataset": []}, "`dataset` must hold at least one"),
    ],
    ids=lambda value: str(value)[:24],
)
def test_bad_arguments_of_certify_callback_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        CertifyCallback(**{"dataset": DATA, **arguments})


# -- saving -------------------------------------------------------------------


def test_the_model_is_saved_after_each_epoch(tmp_path):
    trainer = trainer_of(0.1)
    fit(trainer, [SaveModel(tmp_path / "run" / "model.keras")])
    loaded = keras.saving.load_model(tmp_path / "run" / "model.keras")
    assert int(loaded.step.numpy()) == 1
    for a, b in zip(loaded.variables, trainer.variables, strict=True):
        np.testing.assert_array_equal(a.numpy(), b.numpy())


def test_a_save_that_fails_leaves_the_old_model(tmp_path, monkeypatch):
    trainer, path = trainer_of(), tmp_path / "model.keras"
    fit(trainer, [SaveModel(path)])
    old = path.read_bytes()

    def fail(self, path):
        path.write_bytes(b"half of it")
        raise OSError("disk full")

    monkeypatch.setattr(Gaussian, "save", fail)
    with pytest.raises(OSError, match="disk full"):
        fit(trainer, [SaveModel(path)])
    assert path.read_bytes() == old
    assert list(tmp_path.iterdir()) == [path]


def test_the_model_has_to_be_a_keras_file():
    with pytest.raises(ValueError, match="`path` must end in .keras"):
        SaveModel("model.h5")
