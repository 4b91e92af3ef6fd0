"""The pass of a step is the network's own, batch normalisations included."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from rs_keras.trainers import Gaussian
from rs_keras.trainers._step import network_pass as module
from rs_keras.trainers._step.input_gradients import prepare
from rs_keras.trainers._step.network_pass import network_pass


def network(*middle, shape=(6, 5, 3), dtype="float32"):
    """A convolution, some layers, and two logits."""
    policy = keras.config.dtype_policy()
    keras.config.set_dtype_policy(dtype)
    keras.utils.set_random_seed(1)
    try:
        model = keras.Sequential(
            [
                keras.Input(shape),
                layers.Conv2D(4, 3, name="conv"),
                *(layer() for layer in middle),
                layers.Activation("tanh"),
                layers.Flatten(),
                layers.Dense(2, dtype="float32"),
            ]
        )
    finally:
        keras.config.set_dtype_policy(policy)
    rng = np.random.default_rng(2)
    for weight in model.weights:
        weight.assign(weight + 0.3 * rng.uniform(size=weight.shape))
    return model


def images_of(rows=7, shape=(6, 5, 3)):
    return tf.random.stateless_normal([rows, *shape], [3, 4], 0.5)


def norm(**kwargs):
    return lambda: layers.BatchNormalization(momentum=0.7, **kwargs)


def pass_of(model, images, way):
    """Logits, gradients and the moving statistics of one pass."""
    before = model.get_weights()
    with tf.GradientTape() as tape:
        tape.watch(images)
        logits = way(model, images)
        total = tf.reduce_sum(tf.cast(logits, tf.float32) ** 2)
    found = tape.gradient(total, [images, *model.trainable_variables])
    moved = [value.numpy() for value in model.non_trainable_variables]
    model.set_weights(before)
    return [logits, *found, *moved]


def usual(model, images):
    return model(images, training=True)


def quick(model, images):
    return network_pass(model, images, training=True)


def operations_of(model, way, training=True):
    traced = tf.function(lambda x: way(model, x, training), autograph=False)
    graph = traced.get_concrete_function(tf.TensorSpec([None, 6, 5, 3])).graph
    return [operation.type for operation in graph.get_operations()]


def is_fused(model, training=True):
    found = operations_of(model, network_pass, training)
    return "FusedBatchNormV3" in found


@pytest.mark.parametrize(
    "kwargs",
    [
        pytest.param({}, id="default"),
        pytest.param({"scale": False}, id="no_scale"),
        pytest.param({"center": False}, id="no_center"),
        pytest.param({"axis": 3, "epsilon": 0.1}, id="axis"),
    ],
)
def test_the_pass_is_keras(kwargs):
    model = network(norm(**kwargs))
    assert is_fused(model)
    found = pass_of(model, images_of(), quick)
    expected = pass_of(model, images_of(), usual)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


def test_the_pass_is_the_formula_in_numpy():
    """A single image of two pixels, by hand.

    x = 1, 3: mean 2, variance 1 (by n; the kernel has 2, by n - 1).
    """
    model = keras.Sequential(
        [keras.Input([1, 2, 1]), layers.BatchNormalization(epsilon=3.0)]
    )
    found = quick(model, tf.constant([[[[1.0], [3.0]]]]))
    # (x - 2) / sqrt(1 + 3).
    np.testing.assert_allclose(found[0, 0, :, 0], [-0.5, 0.5], rtol=1e-6)
    # .99 * 0 + .01 * 2, and .99 * 1 + .01 * 1.
    moved = [value.numpy()[0] for value in model.non_trainable_variables]
    np.testing.assert_allclose(moved, [0.02, 1.0], rtol=1e-6)


def test_a_single_value_has_the_variance_zero():
    model = keras.Sequential(
        [keras.Input([1, 1, 1]), layers.BatchNormalization()]
    )
    found = quick(model, tf.constant([[[[5.0]]]]))
    np.testing.assert_allclose(found, [[[[0.0]]]], atol=1e-6)
    mean, variance = (v.numpy()[0] for v in model.non_trainable_variables)
    np.testing.assert_allclose([mean, variance], [0.05, 0.99], rtol=1e-6)


def is_folded(model):
    """Whether no batch of images is scaled after its convolution."""
    traced = tf.function(lambda x: network_pass(model, x, training=False))
    graph = traced.get_concrete_function(tf.TensorSpec([None, 6, 5, 3])).graph
    scaled = [op for op in graph.get_operations() if op.type == "Mul"]
    shapes = [op.outputs[0].shape for op in scaled]
    return not any(shape.rank == 4 and shape[0] is None for shape in shapes)


def test_in_inference_mode_it_is_folded():
    """The attack's pass: logits and gradients are those of the layers."""
    model, images = network(norm()), images_of()
    prepare(model)
    ways = [
        lambda model, images: model(images, training=False),
        lambda model, images: network_pass(model, images, training=False),
    ]
    expected, found = (pass_of(model, images, way) for way in ways)
    for one, other in zip(expected, found, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
    assert is_folded(model)


def test_penalties_and_accelerators_are_not_folded(monkeypatch):
    def penalised():
        return layers.BatchNormalization(activity_regularizer="l2")

    assert not is_folded(network(penalised))
    model = network(norm())
    conv = model.get_layer("conv")
    conv.activity_regularizer = keras.regularizers.L2()
    assert not is_folded(model)
    monkeypatch.setattr(module, "only_cpus", lambda: False)
    assert not is_folded(network(norm()))


def test_bfloat16_is_read_as_it_is():
    model = network(norm(), dtype="mixed_bfloat16")
    assert is_fused(model)
    found = pass_of(model, images_of(), quick)
    expected = pass_of(model, images_of(), usual)
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == other.dtype
        one, other = (np.asarray(v, "float32") for v in (one, other))
        # 2^-8 a rounding, of the largest.
        scale = np.abs(other).max()
        np.testing.assert_allclose(one, other, atol=0.05 * scale)


def by_formula(model, images):
    """The pass with the formula in place of the layer.

    Keras' own has wrong second gradients: its variance takes the mean for a
    constant, so that a bias before it, which changes nothing, gets one.
    """
    x = images
    for layer in model.layers:
        if isinstance(layer, layers.BatchNormalization):
            z = x - tf.reduce_mean(x, [0, 1, 2])
            variance = tf.reduce_mean(z * z, [0, 1, 2])
            z /= tf.sqrt(variance + layer.epsilon)
            x = z * layer.gamma.value + layer.beta.value
        else:
            x = layer(x)
    return x


def test_gradients_have_gradients():
    """Of the norm of an image's gradient, as regularisers take it."""
    model, images = network(norm()), images_of(3)
    found = []
    for way in (quick, by_formula):
        with tf.GradientTape() as outer:
            outer.watch(images)
            with tf.GradientTape() as inner:
                inner.watch(images)
                total = tf.reduce_sum(way(model, images) ** 3)
            size = tf.norm(inner.gradient(total, images))
        kernel = model.layers[0].kernel
        wanted = [images, kernel, *model.layers[1].trainable_variables]
        found.append(outer.gradient(size, wanted))
    for one, other in zip(*found, strict=True):
        scale = np.abs(other).max()
        assert scale > 0.01
        np.testing.assert_allclose(one, other, atol=1e-3 * scale)


def test_the_adversary_keeps_the_moving_statistics():
    model, images = network(norm()), images_of()
    before = model.get_weights()
    found = network_pass(model, images, training=False)
    usual = model(images, training=False)
    np.testing.assert_allclose(found, usual, rtol=1e-5)
    for one, other in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(one, other)
    assert not is_fused(model, training=False)


def test_a_frozen_layer_keeps_its_statistics():
    model = network(norm())
    model.layers[1].trainable = False
    assert not is_fused(model)


class Doubled(layers.BatchNormalization):
    """Another normalisation than Keras'."""

    def call(self, inputs, training=None, mask=None):
        return 2 * super().call(inputs, training=training, mask=mask)


RENORM = pytest.mark.skipif(
    not hasattr(layers.BatchNormalization(), "renorm"),
    reason="this release of Keras has no renorm",
)


@pytest.mark.parametrize(
    "middle",
    [
        pytest.param(Doubled, id="subclass"),
        pytest.param(norm(renorm=True), id="renorm", marks=RENORM),
        pytest.param(norm(axis=1), id="axis"),
        pytest.param(norm(dtype="float64"), id="float64"),
        pytest.param(norm(dtype="float16"), id="float16"),
        pytest.param(lambda: keras.Sequential([norm()()]), id="nested"),
    ],
)
def test_others_are_left_alone(middle):
    assert not is_fused(network(middle))


def test_keras_before_renorm_is_fused_as_well():
    """As in Keras 3.12, whose layer has no such attribute."""
    model = network(norm())
    vars(model.layers[1]).pop("renorm", None)
    assert is_fused(model)


def test_a_layer_that_is_called_twice_is_left_alone():
    images, layer = keras.Input([6, 5, 3]), norm()()
    assert not is_fused(keras.Model(images, layer(layer(images))))


def test_subclassed_models_compute_by_themselves():
    class Mine(keras.Model):
        def __init__(self):
            super().__init__()
            self.norm = norm()()

        def call(self, images, training=None):
            return self.norm(images, training=training)

    model, images = Mine(), images_of()
    np.testing.assert_array_equal(
        quick(model, images), model(images, training=True)
    )


def test_an_accelerator_keeps_its_kernels(monkeypatch):
    monkeypatch.setattr(module, "only_cpus", lambda: False)
    assert not is_fused(network(norm()))


def test_other_layers_get_what_keras_gives_them():
    """Dropout is on in training; losses that layers add are there once."""

    class Penalized(layers.Layer):
        def call(self, inputs):
            self.add_loss(tf.reduce_sum(inputs))
            return inputs

    model = network(Penalized, norm(), lambda: layers.Dropout(1 - 1e-6))
    assert is_fused(model)
    for _ in range(2):
        quick(model, images_of())
    (found,) = model.losses
    usual(model, images_of())
    (expected,) = model.losses
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    dropped = "StatelessRandomUniformV2"
    assert dropped in operations_of(model, network_pass)
    assert dropped not in operations_of(model, network_pass, training=False)


def test_xla_compiles_it():
    model, images = network(norm()), images_of()
    compiled = tf.function(lambda: quick(model, images), jit_compile=True)
    np.testing.assert_allclose(
        compiled(), usual(model, images), rtol=1e-4, atol=1e-5
    )


def test_a_trainer_takes_it():
    trainer = Gaussian(network(norm()), sigma=0.5, num_noise=2)
    images = images_of(2)
    draw = trainer.draw(images, seed=[7, 0])
    traced = tf.function(
        lambda: trainer.losses_of(images, [0, 1], draw), autograph=False
    )
    kinds = {
        operation.type
        for operation in traced.get_concrete_function().graph.get_operations()
    }
    assert "FusedBatchNormV3" in kinds
