"""In which type a model computes, and the same weights in another."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

from rs_keras import Certifier
from rs_keras import DataDependentCertifier
from rs_keras import smoothed_labels
from rs_keras.classifiers.ensembles import denoised
from rs_keras.classifiers.ensembles import ensemble
from rs_keras.classifiers.fingerprint import fingerprint
from rs_keras.classifiers.precision import compute_dtype
from rs_keras.classifiers.precision import computing_in
from rs_keras.trainers import Gaussian

SHAPE = (4, 4, 1)


def sequential(*layers):
    return keras.Sequential([keras.Input(SHAPE), *layers])


def network(dtype="mixed_bfloat16"):
    keras.utils.set_random_seed(5)
    return sequential(
        keras.layers.Conv2D(8, 3, activation="relu", dtype=dtype),
        keras.layers.Flatten(),
        keras.layers.Dense(3, dtype="float32"),
    )


def wrapped(dtype="mixed_bfloat16"):
    keras.utils.set_random_seed(5)
    inner = keras.layers.Conv2D(8, 3, dtype=dtype)
    return sequential(
        keras.layers.SpectralNormalization(inner),
        keras.layers.Flatten(),
        keras.layers.Dense(3),
    )


def functional(dtype="mixed_bfloat16"):
    """A Functional model around a Sequential one."""
    inputs = keras.Input(SHAPE)
    return keras.Model(inputs, network(dtype)(inputs))


class Subclassed(keras.Model):
    """Its own policy casts the images, whatever its layers compute in."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.flatten = keras.layers.Flatten(dtype="float32")
        self.dense = keras.layers.Dense(3, dtype="float32")

    def call(self, images):
        return self.dense(self.flatten(images))


def quantised(mode):
    model = sequential(keras.layers.Flatten(), keras.layers.Dense(3))
    model.layers[-1].quantize(mode)
    return model


def stack(*policies):
    layers = [keras.layers.Dense(2, dtype=name) for name in policies]
    return sequential(keras.layers.Flatten(), *layers)


MODELS = {
    "float32": (lambda: network("float32"), "float32"),
    "mixed": (network, "bfloat16"),
    "float64": (lambda: stack("float64"), "float32"),
    "later layer": (lambda: stack("float32", "mixed_float16"), "float16"),
    "wrapped layer": (wrapped, "bfloat16"),
    "functional": (functional, "bfloat16"),
    "subclassed": (lambda: Subclassed(dtype="mixed_bfloat16"), "bfloat16"),
    "subclassed float32": (Subclassed, "float32"),
    "int8": (lambda: quantised("int8"), "int8"),
    "float8": (lambda: quantised("float8"), "float8"),
    "trainer": (lambda: Gaussian(network(), sigma=0.5), "bfloat16"),
    "ensemble": (lambda: ensemble([stack("float32"), network()]), "bfloat16"),
    "denoised": (lambda: denoised(network(), lambda z, s: z, 0.5), "bfloat16"),
    "function": (lambda: lambda x: x, "float32"),
}


@pytest.mark.parametrize(("make", "wanted"), MODELS.values(), ids=MODELS)
def test_a_model_computes_in_its_narrowest_type(make, wanted):
    assert compute_dtype(make()) == wanted


def test_a_model_of_the_policy_float64_computes_in_it(policy):
    policy("float64")
    model = stack("float64")
    assert compute_dtype(model) == "float64"
    # What is told can be given back.
    assert Certifier(model, dtype="float64").dtype == "float64"


@pytest.mark.parametrize("make", [network, wrapped, functional])
def test_a_copy_in_float32_votes_as_if_it_had_never_been_short(make, images):
    """Each layer's weights in float32, and those of layers within it."""
    short, whole = make(), make("float32")
    whole.set_weights(short.get_weights())
    copy = computing_in(short, "float32")
    np.testing.assert_array_equal(copy(images), whole(images))
    assert (short(images) != whole(images)).numpy().any()
    assert compute_dtype(short) == "bfloat16"


def test_the_policy_of_the_day_does_not_reach_a_copy(policy, images):
    whole = network("float32")
    short = network()
    short.set_weights(whole.get_weights())
    policy("mixed_bfloat16")
    copy = computing_in(short, "float32")
    np.testing.assert_array_equal(copy(images), whole(images))


@pytest.mark.parametrize(
    "make", [network, Subclassed, lambda: lambda x: x[:, 0, :2, 0]]
)
def test_what_computes_in_a_type_already_is_left_alone(make):
    model = make()
    assert computing_in(model, compute_dtype(model)) is model


def test_its_own_type_is_one_classifier_by_either_name(images):
    """A head that was kept in float32 stays so."""
    model = network()
    own, named = Certifier(model), Certifier(model, dtype="bfloat16")
    np.testing.assert_array_equal(
        own.sample(images, n=2_000), named.sample(images, n=2_000)
    )
    assert own.settings() == named.settings()


class Pinned(keras.layers.Layer):
    """Computes in bfloat16, whatever it is told."""

    def __init__(self, **kwargs):
        super().__init__(**{**kwargs, "dtype": "mixed_bfloat16"})

    def call(self, images):
        return images * 2


class Bare(keras.layers.Layer):
    """Takes no `dtype`: it cannot be made anew."""

    def __init__(self):
        super().__init__(dtype="mixed_bfloat16")

    def call(self, images):
        return images * 2


@pytest.mark.parametrize(
    ("make", "dtype", "message"),
    [
        (network, "half", "`dtype` must be one of float32, bfloat16, float16"),
        (network, "", "`dtype` must be one of"),
        (MODELS["function"][0], "bfloat16", "needs a Keras model"),
        (MODELS["ensemble"][0], "float32", "Received: model of type Joined"),
        (MODELS["subclassed"][0], "float32", "Received: Subclassed"),
        (MODELS["int8"][0], "float32", "`dtype`"),
        (lambda: sequential(Pinned()), "float32", "always compute in bfloat16"),
        (lambda: sequential(Bare()), "float32", "Sequential, which failed"),
    ],
    ids=[
        "unknown",
        "empty",
        "function",
        "ensemble",
        "subclassed",
        "quantised",
        "pinned",
        "no dtype",
    ],
)
def test_types_that_a_model_cannot_take(make, dtype, message):
    with pytest.raises(ValueError, match=message):
        Certifier(make(), sigma=0.5, dtype=dtype)


def test_sigma_is_chosen_with_the_network_that_is_certified(images):
    short, whole = network(), network("float32")
    whole.set_weights(short.get_weights())
    arguments = {"sigma0": 0.25, "steps": 5, "learning_rate": 0.1}
    certifiers = [
        DataDependentCertifier(short, dtype="float32", **arguments),
        DataDependentCertifier(whole, **arguments),
    ]
    found = [c.certify(images, n=100, seed=3).sigma for c in certifiers]
    np.testing.assert_array_equal(*found)


def test_a_teachers_votes_are_of_its_type(images, tmp_path):
    """Weights alone do not tell two teachers apart."""
    whole, short = network("float32"), network()
    short.set_weights(whole.get_weights())
    labels = np.zeros(len(images), np.int64)
    data = tf.data.Dataset.from_tensor_slices((images, labels))
    path = tmp_path / "soft.npz"
    made = {"n": 100, "path": path, "progress": False}
    first = smoothed_labels(whole, data, 0.5, **made)
    np.testing.assert_array_equal(
        smoothed_labels(whole, data, 0.5, **made), first
    )
    with pytest.raises(ValueError, match="Differing: dtype"):
        smoothed_labels(short, data, 0.5, **made)


def scaled(scale, offset, slope=0.0, weight=1.0):
    model = sequential(
        keras.layers.Rescaling(scale, offset),
        keras.layers.ReLU(negative_slope=slope),
        keras.layers.Dropout(0.5),
        keras.layers.Flatten(),
        keras.layers.Dense(3),
    )
    model.set_weights([np.full([16, 3], weight), np.zeros(3)])
    return model


def test_a_fingerprint_is_of_all_numbers_that_make_the_classifier():
    """Those of a normalisation are no weights."""
    cases = [(2, -1), (-1, 2), ([2.0], -1), (2, -0.5), (2, -1, 0.1)]
    cases.append((2, -1, 0.0, 0.5))
    found = [fingerprint(scaled(*case)) for case in cases]
    # [2.0] and 2 are the same number.
    assert found[2] == found[0]
    assert len(set(found)) == len(cases) - 1


def test_a_fingerprint_outlives_loading_evaluating_and_another_type(tmp_path):
    """The states of random seeds and metrics are no part of the classifier."""
    model = scaled(2, -1)
    before = fingerprint(model)
    model.save(tmp_path / "model.keras")
    assert fingerprint(keras.saving.load_model(tmp_path / "model.keras")) == (
        before
    )
    assert fingerprint(computing_in(model, "bfloat16")) == before
    model.compile(loss="mse", metrics=["accuracy"])
    model.evaluate(np.ones([2, *SHAPE]), np.ones([2, 3]), verbose=0)
    assert fingerprint(model) == before


class Own(keras.layers.Layer):
    """Takes what its configuration cannot say."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def call(self, x):
        return self.function(x)


class Broken(keras.layers.Layer):
    def call(self, x):
        return x

    def get_config(self):
        return self.nothing


class Odd(Broken):
    def get_config(self):
        return {3: 4.0, "name": self.name, "slopes": [1.0, [2.0]]}


@pytest.mark.parametrize(
    "layer",
    [
        lambda: Own(lambda x: x),
        Broken,
        Odd,
        lambda: keras.layers.Activation(functools.partial(keras.ops.relu)),
    ],
    ids=["function", "broken", "odd", "partial"],
)
def test_layers_that_cannot_be_saved_have_a_fingerprint(layer):
    model = sequential(layer(), keras.layers.Flatten(), keras.layers.Dense(2))
    model.parts = 4
    assert len(fingerprint(model)) == 32


def test_the_fingerprint_of_joined_models_outlives_loading(tmp_path):
    models = [scaled(2, -1), scaled(1, -1)]
    before = fingerprint(ensemble(models))
    for place, model in enumerate(models):
        model.save(tmp_path / f"{place}.keras")
    loaded = [
        keras.saving.load_model(tmp_path / f"{place}.keras")
        for place in range(2)
    ]
    assert fingerprint(ensemble(loaded)) == before
    assert fingerprint(ensemble(loaded[::-1])) != before
