"""A model that was edited after its graphs were traced votes no more."""

import types

import keras
import numpy as np
import pytest
import tensorflow as tf

from rs_keras import Certifier
from rs_keras.classifiers.ensembles import ensemble
from rs_keras.export import export_certifier
from rs_keras.trainers import SGD
from rs_keras.trainers import Gaussian

SHAPE = (4, 4, 1)
EDITED = "`model` must keep the layers and attributes.*another certifier"


def network():
    keras.utils.set_random_seed(4)
    return keras.Sequential(
        [
            keras.Input(SHAPE),
            keras.layers.Conv2D(4, 3, activation="relu"),
            keras.layers.Flatten(),
            keras.layers.Dense(8),
            keras.layers.Dense(3),
        ]
    )


class Scaled(keras.Model):
    """Its `call` reads attributes of several kinds."""

    def __init__(self):
        super().__init__()
        keras.utils.set_random_seed(4)
        self.flatten = keras.layers.Flatten()
        self.dense = keras.layers.Dense(3)
        self.other = keras.layers.Dense(3)
        self.scale = 1.0
        self._shift = 0.0
        self.flip = False
        self.config = {"offsets": [1.0, 2.0]}
        self.mask = np.ones(3, np.float32)
        self.settings = types.SimpleNamespace(power=1)
        self.function = lambda x: x
        self.noted = 0

    def build(self, shape):
        for layer in (self.dense, self.other):
            layer.build([None, 16])

    def call(self, images):
        logits = self.dense(self.flatten(images)) * self.scale + self._shift
        logits = (logits + self.config["offsets"][1]) * self.mask
        logits = self.function(-logits if self.flip else logits)
        return logits**self.settings.power


class Turned(keras.Model):
    """Its `call` reads what is not its own: of its class, of the module."""

    sign = 1.0

    def __init__(self):
        super().__init__()
        self.flatten = keras.layers.Flatten()
        self.dense = keras.layers.Dense(3)

    def call(self, images):
        return self.turned(self.dense(self.flatten(images))) * FACTORS.one

    def turned(self, logits):
        return logits * self.sign


FACTORS = types.SimpleNamespace(one=1.0)


@pytest.fixture(autouse=True)
def as_it_was():
    """What tests change of the class and the module is put back."""
    kept = Turned.sign, Turned.turned, FACTORS.one
    yield
    Turned.sign, Turned.turned, FACTORS.one = kept


EDITS = {
    "class attribute": (Turned, lambda m: setattr(Turned, "sign", -1.0)),
    "method": (Turned, lambda m: setattr(Turned, "turned", lambda s, x: -x)),
    "global": (Turned, lambda m: setattr(FACTORS, "one", -1.0)),
    "pop": (network, lambda m: m.pop()),
    "pop and add": (
        network,
        lambda m: (m.pop(), m.add(keras.layers.Dense(3))),
    ),
    "add": (network, lambda m: m.add(keras.layers.ReLU())),
    "lora": (network, lambda m: m.layers[-1].enable_lora(4)),
    "quantise": (network, lambda m: m.layers[-1].quantize("int8")),
    "activation": (
        network,
        lambda m: setattr(m.layers[0], "activation", keras.activations.gelu),
    ),
    "other shape": (
        network,
        lambda m: (m.pop(), m.pop(), m.add(keras.layers.Dense(7))),
    ),
    "number": (Scaled, lambda m: setattr(m, "scale", 3.0)),
    "private number": (Scaled, lambda m: setattr(m, "_shift", 3.0)),
    "flag": (Scaled, lambda m: setattr(m, "flip", True)),
    "in a dictionary": (
        Scaled,
        lambda m: m.config["offsets"].__setitem__(1, 4.0),
    ),
    "array in place": (Scaled, lambda m: m.mask.__setitem__(0, 0.0)),
    "of an object": (Scaled, lambda m: setattr(m.settings, "power", 2)),
    "function": (Scaled, lambda m: setattr(m, "function", tf.abs)),
    "layer": (Scaled, lambda m: setattr(m, "dense", m.other)),
}


@pytest.fixture
def call(images):
    """Certifies, in the form that was given by name."""

    def called(certifier, name="certify"):
        forms = {
            "certify": lambda: certifier.certify(images, n=100, seed=1),
            "sample": lambda: certifier.sample(images, n=100),
            "predict": lambda: certifier.predict(images, n=100),
            "decide": lambda: certifier.decide(images, 0.1, n_max=200),
            "soft": lambda: certifier.soft_predict(images, n=10),
            "bernstein": lambda: certifier.certify(
                images, n=100, bound="bernstein", runner_up=False
            ),
            "another shape": lambda: certifier.sample(
                np.zeros([1, 5, 5, 1]), n=10
            ),
        }
        return forms[name]()

    return called


@pytest.mark.parametrize(("make", "edit"), EDITS.values(), ids=EDITS)
def test_an_edit_after_the_first_call_is_refused(make, edit, call):
    model = make()
    certifier = Certifier(model, sigma=0.5)
    call(certifier)
    edit(model)
    # Not once only: the graph is still the old one.
    for _ in range(2):
        with pytest.raises(ValueError, match=EDITED):
            call(certifier)
    if make is Scaled:
        call(Certifier(model, sigma=0.5))


@pytest.mark.parametrize(
    "form",
    ["sample", "predict", "decide", "soft", "bernstein", "another shape"],
)
def test_it_is_refused_in_every_form(form, call):
    model = Scaled()
    certifier = Certifier(model, sigma=0.5)
    call(certifier)
    model.scale = 3.0
    with pytest.raises(ValueError, match=EDITED):
        call(certifier, form)


def test_an_export_is_refused(call, tmp_path):
    model = network()
    certifier = Certifier(model, sigma=0.5)
    call(certifier)
    model.layers[-1].enable_lora(4)
    with pytest.raises(ValueError, match=EDITED):
        export_certifier(certifier, tmp_path, image_shape=SHAPE)


def test_an_edit_before_the_first_call_is_what_is_certified(images):
    model = Scaled()
    certifier = Certifier(model, sigma=0.5)
    model.flip = True
    flipped = certifier.sample(images, n=500)
    model = Scaled()
    model.flip = True
    np.testing.assert_array_equal(
        Certifier(model, sigma=0.5).sample(images, n=500), flipped
    )


def test_a_trace_that_tensorflow_keeps_is_no_edit(call):
    """The graph of the caller's tf.function is the same for everyone."""
    factors = [1.0]
    model = tf.function(lambda x: factors[0] * tf.reshape(x, [-1, 16])[:, :3])
    certifier = Certifier(model, sigma=0.5)
    before = call(certifier)
    factors[0] = -1.0
    np.testing.assert_array_equal(call(certifier).counts, before.counts)
    again = call(Certifier(model, sigma=0.5))
    np.testing.assert_array_equal(again.counts, before.counts)


FACTOR = 2.0


def with_global(x):
    return FACTOR * tf.reshape(x, [-1, 16])[:, :3]


def test_what_functions_reach_is_followed(call, monkeypatch):
    certifier = Certifier(with_global, sigma=0.5)
    call(certifier)
    monkeypatch.setitem(with_global.__globals__, "FACTOR", -1.0)
    with pytest.raises(ValueError, match=EDITED):
        call(certifier)

    model, weights = network(), [1.0, 1.0]
    for wrapped in (
        lambda x: model(x, training=False) * weights[0],
        ensemble([model, lambda x: weights[0] * model(x, training=False)]),
    ):
        certifier = Certifier(wrapped, sigma=0.5)
        call(certifier)
        weights[0] += 1.0
        with pytest.raises(ValueError, match=EDITED):
            call(certifier)
    certifier = Certifier(lambda x: model(x, training=False), sigma=0.5)
    call(certifier)
    model.pop()
    with pytest.raises(ValueError, match=EDITED):
        call(certifier)


HARMLESS = {
    "weights": lambda m: m.dense.kernel.assign(m.dense.kernel + 1.0),
    "trainable": lambda m: setattr(m.dense, "trainable", False),
    "another attribute": lambda m: setattr(m, "noted", 5),
    "compiled": lambda m: m.compile("sgd", "mse"),
    "called": lambda m: m(np.zeros([2, *SHAPE]), training=True),
}


@pytest.mark.parametrize("change", HARMLESS.values(), ids=HARMLESS)
def test_what_does_not_change_the_function_is_accepted(change, call):
    model = Scaled()
    certifier = Certifier(model, sigma=0.5)
    call(certifier)
    change(model)
    call(certifier)


@pytest.mark.parametrize("of_trainer", [False, True])
def test_weights_may_be_trained_on(of_trainer, call, images):
    """The votes follow, as the fingerprint does."""
    model = network()
    trainer = Gaussian(model, sigma=0.5)
    trainer.compile(SGD(0.5))
    certifier = Certifier(trainer if of_trainer else model, sigma=0.5)
    before = call(certifier).counts
    trainer.fit(images, np.zeros(5, int), epochs=3, verbose=0)
    after = call(certifier).counts
    assert (after != before).any()
    np.testing.assert_array_equal(
        after, call(Certifier(model, sigma=0.5)).counts
    )


def test_a_function_that_notes_its_calls_is_traced_no_more(images):
    traces = []

    def model(x):
        traces.append(x.shape)
        return tf.reshape(x, [-1, 16])[:, :3]

    certifier = Certifier(model, sigma=0.5)
    certifier.sample(images, n=10)
    before = len(traces)
    certifier.sample(images, n=10)
    assert len(traces) == before
