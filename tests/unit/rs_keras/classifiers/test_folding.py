"""Folded networks answer as the models do, layer by layer.

The oracle is Keras' own call of the model.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf

from rs_keras import models
from rs_keras.classifiers import folding
from rs_keras.classifiers.adapters import as_logits
from rs_keras.classifiers.adapters import prepared
from rs_keras.classifiers.ensembles import ensemble
from rs_keras.classifiers.graphs import operations
from rs_keras.classifiers.precision import computing_in

layers = keras.layers
SHAPE = (8, 8, 3)


def shaken(model, seed=0):
    """Gives a model random weights and moving statistics, all of size 1."""
    random = np.random.default_rng(seed)
    for weight in model.weights:
        values = random.normal(size=weight.shape)
        if weight.path.endswith("variance") or weight.path.endswith("gamma"):
            values = random.uniform(0.5, 2.0, weight.shape)
        elif weight.path.endswith("kernel"):
            values /= np.sqrt(np.prod(weight.shape[:-1]))
        weight.assign(values)
    return model


def sequential(*parts, shape=SHAPE):
    return keras.Sequential([keras.Input(shape), *parts])


def head():
    return layers.GlobalAveragePooling2D(), layers.Dense(5)


def traced(logits, shape):
    spec = tf.TensorSpec([None, *shape], tf.float32)
    return tf.function(logits).get_concrete_function(spec)


def normalisations(folded, images):
    """How many batch normalisations a loop over passes runs in each."""
    found = operations(traced(prepared(folded), images.shape[1:]))
    return sum(node.op == "Rsqrt" for node in found)


def check(model, tolerance=1e-5, left=0):
    shape = model.input_shape[1:]
    images = np.random.default_rng(1).uniform(size=[4, *shape]).astype("f")
    wanted = keras.ops.convert_to_numpy(
        keras.ops.cast(model(images, training=False), "float32")
    )
    folded = as_logits(model)
    found = tf.cast(folded(tf.constant(images)), tf.float32).numpy()
    size = np.ptp(wanted, axis=-1, keepdims=True)
    assert (np.abs(found - wanted) <= tolerance * size).all()
    assert normalisations(folded, images) == left
    return folded


def test_the_networks_here():
    check(shaken(models.lenet()), 1e-4)
    check(shaken(models.cifar_resnet(8)), 1e-4)
    check(shaken(models.resnet18((8, 8, 3))), 1e-4)


def test_a_network_of_keras():
    model = keras.applications.MobileNetV2(
        weights=None,
        alpha=0.35,
        input_shape=(32, 32, 3),
        classes=5,
        classifier_activation=None,
    )
    check(shaken(model), 1e-4)


def test_a_fold_that_forgets_the_statistics_is_noticed(monkeypatch):
    right = folding._folded

    def forgetting(layer, norm):
        kernel, bias = right(layer, norm)
        return kernel, tf.zeros_like(bias)

    monkeypatch.setattr(folding, "_folded", forgetting)
    with pytest.raises(AssertionError):
        check(shaken(models.cifar_resnet(8)), 1e-4)


def test_in_bfloat16_it_is_about_as_exact_as_keras():
    model = shaken(models.cifar_resnet(8))
    images = np.random.default_rng(1).uniform(size=[64, 32, 32, 3]).astype("f")
    exact = model(images, training=False).numpy()
    short = computing_in(model, "bfloat16")

    def error(logits):
        return np.abs(tf.cast(logits, tf.float32).numpy() - exact).mean()

    folded = as_logits(short)(tf.constant(images))
    assert error(folded) <= 2.0 * error(short(images, training=False))


@pytest.mark.parametrize("scale", [True, False])
@pytest.mark.parametrize("center", [True, False])
@pytest.mark.parametrize("use_bias", [True, False])
def test_options_of_a_pair(scale, center, use_bias):
    model = sequential(
        layers.Conv2D(4, 3, 2, "same", use_bias=use_bias),
        layers.BatchNormalization(scale=scale, center=center, axis=3),
        layers.DepthwiseConv2D(3, depth_multiplier=2, use_bias=use_bias),
        layers.BatchNormalization(scale=scale, center=center, epsilon=0.1),
        layers.LeakyReLU(),
        *head(),
    )
    check(shaken(model))


def a_layer_called_twice():
    conv = layers.Conv2D(3, 3, padding="same")
    x = y = keras.Input(SHAPE)
    for _ in range(2):
        y = layers.BatchNormalization()(conv(y))
    return keras.Model(x, layers.Flatten()(y))


def a_convolution_used_twice():
    x = keras.Input(SHAPE)
    y = layers.Conv2D(3, 3, padding="same")(x)
    z = layers.BatchNormalization()(y)
    return keras.Model(x, layers.Flatten()(layers.Add()([y, z])))


def a_layer_shared_with_an_inner_model():
    conv = layers.Conv2D(3, 3, padding="same")
    inner = sequential(conv, layers.BatchNormalization())
    x = keras.Input(SHAPE)
    return keras.Model(x, layers.Flatten()(conv(inner(x))))


def one_normalisation_of_two():
    norm = layers.BatchNormalization()
    x = y = keras.Input(SHAPE)
    for _ in range(2):
        y = norm(layers.Conv2D(3, 3, padding="same")(y))
    return keras.Model(x, layers.Flatten()(y))


def an_activation_between():
    return sequential(
        layers.Conv2D(3, 3, activation="relu"),
        layers.BatchNormalization(),
        *head(),
    )


def another_axis():
    return sequential(
        layers.Conv2D(3, 3), layers.BatchNormalization(axis=1), *head()
    )


def groups():
    return sequential(
        layers.Conv2D(3, 3, groups=3), layers.BatchNormalization(), *head()
    )


def a_class_of_its_own():
    class Doubled(layers.Conv2D):
        def call(self, inputs):
            return 2.0 * super().call(inputs)

    return sequential(Doubled(3, 3), layers.BatchNormalization(), *head())


def a_product():
    return sequential(
        layers.Flatten(), layers.Dense(4), layers.BatchNormalization()
    )


def a_model_of_its_own():
    class Doubled(keras.Model):
        def call(self, inputs):
            return 2.0 * super().call(inputs)

    x = keras.Input(SHAPE)
    y = layers.BatchNormalization()(layers.Conv2D(3, 3)(x))
    return Doubled(x, layers.Flatten()(y))


LEFT = {
    a_layer_called_twice: 2,
    a_convolution_used_twice: 1,
    a_layer_shared_with_an_inner_model: 1,
    one_normalisation_of_two: 2,
    an_activation_between: 1,
    another_axis: 1,
    groups: 1,
    a_class_of_its_own: 1,
    a_product: 1,
    a_model_of_its_own: 1,
}


@pytest.mark.parametrize("build", LEFT, ids=lambda build: build.__name__)
def test_what_cannot_be_folded_is_left_as_it_is(build):
    check(shaken(build()), left=LEFT[build])


def test_a_quantised_layer_and_one_with_lora_are_left_as_they_are():
    model = shaken(
        sequential(
            layers.Conv2D(4, 3, use_bias=False),
            layers.BatchNormalization(),
            *head(),
        )
    )
    model.layers[0].enable_lora(2)
    model.layers[-1].quantize("int8")
    check(shaken_lora(model), left=1)


def shaken_lora(model):
    model.layers[0].lora_kernel_b.assign(
        np.random.default_rng(2).normal(
            size=model.layers[0].lora_kernel_b.shape
        )
    )
    return model


def test_a_call_that_is_set_on_a_layer_is_called():
    model = shaken(
        sequential(layers.Conv2D(4, 3), layers.BatchNormalization(), *head())
    )
    conv = model.layers[0]
    plain = conv.call
    conv.call = lambda x: 3.0 * plain(x)
    check(model, left=1)


def test_layers_in_a_layer_are_in_inference_mode():
    """Their own default is training, and the layer around takes no mode."""

    class Noisy(layers.Layer):
        def call(self, inputs, training=True):
            return inputs + 1.0 if training else inputs

    class Around(layers.Layer):
        def __init__(self):
            super().__init__()
            self.inner = Noisy()

        def call(self, inputs):
            return self.inner(inputs)

    conv, norm = layers.Conv2D(3, 3), layers.BatchNormalization()
    check(shaken(sequential(conv, norm, Around(), *head())))


def test_layers_that_were_called_by_the_name_of_their_input():
    x = keras.Input(SHAPE)
    y = layers.Conv2D(3, 3)(inputs=x)
    y = layers.BatchNormalization()(inputs=y)
    y = sequential(*head(), shape=(6, 6, 3))(inputs=y)
    check(shaken(keras.Model(x, layers.Dense(4)(inputs=y))))


# Keras says that a Sequential model drops the mask of what it returns.
@pytest.mark.filterwarnings("ignore:Layer 'sequential:UserWarning")
@pytest.mark.parametrize("nested", [False, True])
def test_masks_are_handed_on(nested):
    rows, dense = layers.Reshape((8, 24)), layers.Dense(4)
    pooling = layers.GlobalAveragePooling1D()
    if nested:
        pooling = sequential(pooling, shape=(8, 4))
    model = sequential(rows, layers.Masking(), dense, pooling)
    images = np.ones([2, *SHAPE], "f")
    images[0, 3:] = 0.0
    wanted = shaken(model)(images, training=False)
    np.testing.assert_allclose(as_logits(model)(images), wanted, rtol=1e-5)


def test_nested_models_are_folded_in_each_call():
    inner = sequential(
        layers.Conv2D(3, 3, padding="same"),
        layers.BatchNormalization(),
        layers.Dropout(0.5),
    )
    x = keras.Input(SHAPE)
    y = layers.Flatten()(inner(inner(x)))
    check(shaken(keras.Model(x, layers.Dense(4)(y))))


def test_a_sequential_model_that_is_not_built_yet():
    model = keras.Sequential(
        [layers.Conv2D(4, 3), layers.BatchNormalization(), *head()]
    )
    folded = as_logits(model)
    names = [node.op for node in operations(traced(folded, SHAPE))]
    assert names.count("Conv2D") == 1 and "BiasAdd" in names
    assert normalisations(folded, np.zeros([1, *SHAPE])) == 0


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_types_of_mixed_models_are_kept(policy):
    model = keras.Sequential(
        [
            keras.Input(SHAPE),
            layers.Conv2D(4, 3, dtype=policy),
            layers.BatchNormalization(dtype=policy),
            layers.Conv2D(4, 3, dtype="float32"),
            layers.GlobalAveragePooling2D(dtype=policy),
            layers.Dense(5, dtype="float32"),
        ]
    )
    # In float16 a kernel with a scale in it might overflow.
    folded = check(shaken(model), 2e-2, left=int(policy == "mixed_float16"))
    assert folded(tf.zeros([1, *SHAPE])).dtype == tf.float32


def test_weights_are_read_in_each_call():
    model = shaken(models.cifar_resnet(8))
    graph = traced(as_logits(model), (32, 32, 3))
    images = tf.random.stateless_uniform([2, 32, 32, 3], [1, 2])
    shaken(model, seed=5)
    wanted = model(images, training=False).numpy()
    np.testing.assert_allclose(graph(images), wanted, rtol=1e-3, atol=1e-3)


def test_layers_of_the_model_stay_its_own():
    model = models.cifar_resnet(8)
    before = [len(layer._inbound_nodes) for layer in model.layers]
    as_logits(model)(tf.zeros([1, 32, 32, 3]))
    assert [len(layer._inbound_nodes) for layer in model.layers] == before


def test_the_parts_of_an_ensemble_are_folded():
    parts = [shaken(models.cifar_resnet(8), seed) for seed in range(2)]
    images = np.ones([2, 32, 32, 3], "f")
    both = ensemble(parts)
    assert normalisations(both, images) == 0
    wanted = sum(part(images, training=False) for part in parts) / 2
    np.testing.assert_allclose(both(images), wanted, rtol=1e-3, atol=1e-3)
