"""Models that end in a softmax, a sigmoid, a dict, or in several outputs."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from rs_keras import Certifier
from rs_keras import DataDependentCertifier
from rs_keras.classifiers import with_logits
from rs_keras.classifiers.ensembles import ensemble
from rs_keras.trainers import SGD
from rs_keras.trainers import Gaussian

SHAPE = (4, 4, 1)
LABELS = np.array([0, 1, 2, 1, 0])
KERNEL = np.random.default_rng(3).normal(size=[16, 3]).astype("float32")
BIAS = np.float32([0.1, -0.2, 0.3])


@keras.saving.register_keras_serializable("tests")
def kernel(shape, dtype=None):
    return KERNEL[:, : shape[1]]


@keras.saving.register_keras_serializable("tests")
def bias(shape, dtype=None):
    return BIAS[: shape[0]]


def dense(units=3, activation=None, **kwargs):
    return keras.layers.Dense(
        units,
        activation,
        kernel_initializer=kernel,
        bias_initializer=bias,
        **kwargs,
    )


def sequential(*layers, inputs=True):
    start = [keras.Input(SHAPE)] if inputs else []
    return keras.Sequential([*start, keras.layers.Flatten(), *layers])


def functional(make=lambda output: output, units=3, activation=None):
    images = keras.Input(SHAPE, name="images")
    flat = keras.layers.Flatten()(images)
    return keras.Model(images, make(dense(units, activation)(flat)))


class Subclassed(keras.Model):
    """Tells nothing of its last layer."""

    def __init__(self, activation="softmax"):
        super().__init__()
        self.inner = sequential(dense(3, activation))

    def call(self, images, training=False):
        return self.inner(images)


SOFTMAX = {
    "dense": lambda: sequential(dense(3, "softmax")),
    "activation": lambda: sequential(
        dense(), keras.layers.Activation("softmax")
    ),
    "layer": lambda: sequential(dense(), keras.layers.Softmax()),
    "functional": lambda: functional(activation="softmax"),
    "inside": lambda: keras.Sequential(
        [
            keras.Input(SHAPE),
            keras.layers.Rescaling(1.0),
            functional(activation="softmax"),
        ]
    ),
    "inside twice": lambda: keras.Sequential(
        [keras.Input(SHAPE), keras.Sequential([SOFTMAX["inside"]()])]
    ),
    "dict": lambda: functional(lambda y: {"p": y}, activation="softmax"),
    "list": lambda: functional(lambda y: [y], activation="softmax"),
    "sigmoids": lambda: sequential(dense(3, "sigmoid")),
}
WITHOUT = {
    "dict": lambda: functional(lambda y: {"logits": y}),
    "list": lambda: functional(lambda y: [y]),
    "no inputs": lambda: sequential(
        dense(), keras.layers.Softmax(), inputs=False
    ),
}


def by_hand(images):
    """Logits in float64."""
    flat = np.reshape(images, [-1, 16]).astype(np.float64)
    return flat @ KERNEL.astype(np.float64) + BIAS


def votes_by_hand(certifier, images, n, seed):
    """Argmax of the logits of the noise that the certifier draws."""
    from rs_keras.noise import as_seeds

    sampler = certifier.sampler(SHAPE)
    counts = []
    seeds = as_seeds(seed, len(images))
    for image, row in zip(images, seeds, strict=True):
        noisy = sampler.noisy(tf.constant(image), tf.constant(row), 0, n)
        counts.append(np.bincount(by_hand(noisy).argmax(-1), minlength=3))
    return np.array(counts)


@pytest.mark.parametrize("name", [*SOFTMAX, *WITHOUT])
def test_votes_are_those_of_the_logits(name, images):
    make = SOFTMAX.get(name) or WITHOUT[name]
    certifier = Certifier(make(), sigma=0.5)
    counts = certifier.sample(images, n=300, seed=5)
    assert (counts > 0).sum() > len(images)
    wanted = votes_by_hand(certifier, images, 300, 5)
    np.testing.assert_array_equal(counts, wanted)


@pytest.mark.parametrize("name", SOFTMAX)
def test_soft_bounds_take_the_logits(name, images):
    soft = {"bound": "bernstein", "runner_up": False, "n": 400, "beta": 2.0}
    found, wanted = (
        Certifier(model, sigma=0.5).certify(images, seed=1, **soft)
        for model in (SOFTMAX[name](), sequential(dense()))
    )
    np.testing.assert_allclose(found.counts, wanted.counts, rtol=1e-5)
    np.testing.assert_allclose(found.radius, wanted.radius, rtol=1e-4)


PROBABILITIES = {
    "subclassed": Subclassed,
    "function": lambda: lambda x: tf.nn.softmax(logits_in_graph(x)),
}


def logits_in_graph(x):
    return tf.reshape(x, [-1, 16]) @ KERNEL + BIAS


@pytest.mark.parametrize("name", PROBABILITIES)
def test_probabilities_vote_and_are_no_logits(name, images):
    certifier = Certifier(PROBABILITIES[name](), sigma=0.5)
    counts = certifier.sample(images, n=300, seed=5)
    wanted = votes_by_hand(certifier, images, 300, 5)
    # In float32 close probabilities round to a tie, which goes to the first.
    assert np.abs(counts - wanted).sum() <= 2
    with pytest.raises(ValueError, match="without softmax.*logarithm"):
        certifier.certify(images, bound="bernstein", runner_up=False)


def test_near_ties_of_probabilities_go_to_one_class(images):
    """Logits 2e-8 apart, far below the rounding of a probability near 1/2.

    The certificate is about the classifier as it is: the first class wins.
    """

    def tied(x):
        return tf.nn.softmax(
            tf.stack([x[:, 0, 0, 0] * 1e-9, x[:, 0, 0, 0] * 1e-9 + 1e-8], -1)
        )

    counts = Certifier(tied, sigma=0.5).sample(images, n=100)
    assert counts.sum() == 500
    assert counts[:, 0].min() == 100


@pytest.mark.parametrize("name", SOFTMAX)
def test_training_takes_the_logits_and_trains_the_model(name, images, tmp_path):
    """CE(y, softmax(z)) on clean images, by hand; weights are shared."""
    model = SOFTMAX[name]()
    before = [weight.copy() for weight in model.get_weights()]
    trainer = Gaussian(model, sigma=0.5)
    draw = {"noise": np.zeros([1, *images.shape], np.float32)}
    found = trainer.losses_of(images, LABELS, draw)["ce"]
    logits = by_hand(images)
    rows = np.arange(len(images))
    wanted = np.log(np.exp(logits).sum(-1)) - logits[rows, LABELS]
    np.testing.assert_allclose(found, wanted, rtol=1e-5)
    trainer.compile(optimizer=SGD(0.1))
    trainer.fit(images, LABELS, verbose=0)
    assert (model.get_weights()[0] != before[0]).any()
    trainer.save(tmp_path / "trainer.keras")
    loaded = keras.saving.load_model(tmp_path / "trainer.keras")
    np.testing.assert_array_equal(loaded(images), trainer(images))


def test_a_model_that_does_not_tell_is_refused_at_the_first_batch(images):
    trainer = Gaussian(Subclassed(), sigma=0.5)
    trainer.compile(optimizer=SGD(0.1))
    with pytest.raises(ValueError, match="without softmax"):
        trainer.fit(images, LABELS, verbose=0)
    Gaussian(Subclassed(None), sigma=0.5).check_batch(images, LABELS)


def test_a_softmax_without_inputs_is_refused_in_training():
    with pytest.raises(ValueError, match="must begin with a keras.Input"):
        Gaussian(WITHOUT["no inputs"](), sigma=0.5)


def binary(activation):
    return sequential(dense(1, activation))


def test_one_sigmoid_is_two_classes(images):
    certifier = Certifier(binary("sigmoid"), sigma=0.5)
    counts = certifier.sample(images, n=300, seed=5)
    said = Certifier(binary(None), sigma=0.5, num_classes=2)
    np.testing.assert_array_equal(said.sample(images, n=300, seed=5), counts)

    def in_numpy(x):  # class 1 where p > 1/2
        z = tf.reshape(x, [-1, 16]) @ KERNEL[:, :1] + BIAS[:1]
        return tf.one_hot(tf.cast(z[:, 0] > 0, tf.int32), 2)

    wanted = Certifier(in_numpy, sigma=0.5).sample(images, n=300, seed=5)
    assert (counts > 0).all(-1).any()
    np.testing.assert_array_equal(counts, wanted)
    column = Certifier(
        lambda x: logits_in_graph(x)[:, :1], sigma=0.5, num_classes=2
    )
    np.testing.assert_array_equal(column.sample(images, n=300, seed=5), counts)


@pytest.mark.parametrize(
    "make",
    [
        lambda: binary("sigmoid"),
        lambda: with_logits(binary(None), num_classes=2),
    ],
)
def test_binary_training_is_on_the_binary_cross_entropy(make, images):
    """-log p for class 1, -log(1 - p) for class 0."""
    labels = LABELS % 2
    trainer = Gaussian(make(), sigma=0.5)
    draw = {"noise": np.zeros([1, *images.shape], np.float32)}
    found = trainer.losses_of(images, labels, draw)["ce"]
    p = 1 / (1 + np.exp(-by_hand(images)[:, 0]))
    wanted = -np.log(np.where(labels == 1, p, 1 - p))
    np.testing.assert_allclose(found, wanted, rtol=1e-5)
    trainer.compile(optimizer=SGD(0.1), metrics=["accuracy"])
    trainer.fit(images, labels, verbose=0)


def test_a_sigma_for_each_image_of_a_binary_model(images):
    certifier = DataDependentCertifier(
        binary(None), steps=2, num_classes=2, sigma0=0.25
    )
    assert certifier.certify(images, n=100, seed=3).counts.shape == (5, 2)


class OwnCall(keras.Model):
    """Made as a Functional model, and called otherwise."""

    def call(self, images, training=False):
        return 1.0 - super().call(images, training=training)


@pytest.mark.parametrize("nested", [False, True])
def test_a_call_of_ones_own_is_not_bypassed(nested, images):
    """Least probable classes win here."""
    layers = functional(activation="softmax")
    model = OwnCall(layers.inputs, layers.outputs[0])
    if nested:
        model = keras.Sequential([keras.Input(SHAPE), model])
    counts = Certifier(model, sigma=0.5).sample(images, n=300, seed=5)
    opposite = Certifier(lambda x: -logits_in_graph(x), sigma=0.5)
    wanted = opposite.sample(images, n=300, seed=5)
    assert np.abs(counts - wanted).sum() <= 2


def two_outputs():
    images = keras.Input(SHAPE, name="images")
    flat = keras.layers.Flatten()(images)
    return keras.Model(
        images, {"label": dense(name="x")(flat), "box": dense(name="y")(flat)}
    )


def two_inputs():
    left, right = (
        keras.Input(SHAPE, name="left"),
        keras.Input([2], name="right"),
    )
    both = keras.layers.Concatenate()([keras.layers.Flatten()(left), right])
    return keras.Model([left, right], keras.layers.Dense(3)(both))


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (two_outputs, "Received: 2 outputs, box, label"),
        (two_inputs, "Received: 2 inputs, left, right"),
        (lambda: binary(None), "`num_classes=2` must be given"),
    ],
    ids=["outputs", "inputs", "one logit"],
)
def test_certifier_and_trainer_refuse_the_same_when_they_are_made(make, told):
    messages, model = [], make()
    for user in (Certifier, Gaussian):
        with pytest.raises(ValueError, match=told) as caught:
            user(model, sigma=0.5)
        messages.append(str(caught.value))
    assert messages[0] == messages[1]


def test_a_dict_of_one_input(images):
    inputs = keras.Input(SHAPE, name="images")
    flat = keras.layers.Flatten()(inputs)
    model = keras.Model({"images": inputs}, {"logits": dense()(flat)})
    certifier = Certifier(model, sigma=0.5)
    counts = certifier.sample(images, n=300, seed=5)
    np.testing.assert_array_equal(
        counts, votes_by_hand(certifier, images, 300, 5)
    )
    with pytest.raises(ValueError, match=r"\[batch, 4, 4, 1\]"):
        certifier.predict(np.zeros([1, 5, 4, 1], np.float32))


def test_an_ensemble_is_of_logits(images):
    joined = ensemble([SOFTMAX["dense"](), SOFTMAX["functional"]()])
    np.testing.assert_allclose(joined(images), by_hand(images), rtol=1e-5)


def edit_activation(model):
    model.layers[-1].activation = keras.activations.tanh


@pytest.mark.parametrize(
    "edit",
    [
        lambda model: model.add(keras.layers.Dense(3)),
        lambda model: model.pop(),
        edit_activation,
    ],
    ids=["add", "pop", "activation"],
)
def test_edits_behind_the_logits_are_noticed(edit, images):
    model = sequential(keras.layers.Dense(3), dense_like(3))
    certifier = Certifier(model, sigma=0.5)
    certifier.sample(images, n=20)
    model.set_weights([2 * weight for weight in model.get_weights()])
    certifier.sample(images, n=20)
    edit(model)
    with pytest.raises(ValueError, match="was edited since"):
        certifier.sample(images, n=20)


def dense_like(units):
    return keras.layers.Dense(units, activation="softmax")


def test_layers_of_the_users_model_are_left_as_they_were(images):
    """A second call of a layer would make its `output` ambiguous."""
    model = SOFTMAX["functional"]()
    before = model(images)
    Certifier(model, sigma=0.5).sample(images, n=20)
    Gaussian(model, sigma=0.5)
    assert model.layers[1].output is not None
    assert model.layers[-1].output is model.outputs[0]
    np.testing.assert_array_equal(model(images), before)


def test_a_model_of_logits_is_returned_as_it_is():
    for model in (sequential(dense()), functional(), Subclassed(), len):
        assert with_logits(model) is model


def test_a_probability_taken_for_a_logit_is_told(images):
    certifier = Certifier(
        lambda x: tf.sigmoid(logits_in_graph(x)[:, :1]), 0.5, num_classes=2
    )
    with pytest.warns(UserWarning, match="less 0.5, or its logit"):
        certifier.sample(images, n=20)


def test_another_backend_is_refused_by_both(monkeypatch):
    model = sequential(dense())
    monkeypatch.setattr(keras.backend, "backend", lambda: "jax")
    for user in (Certifier, Gaussian):
        with pytest.raises(ValueError, match="KERAS_BACKEND=tensorflow.*'jax'"):
            user(model, sigma=0.5)
