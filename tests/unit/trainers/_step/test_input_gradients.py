"""Quick gradients against TensorFlow's own kernels, SciPy, and the trainers."""

import contextlib
import copy
import threading

import keras
import numpy as np
import pytest
import scipy.signal
import tensorflow as tf
from keras import layers

from rs_keras import models
from rs_keras.trainers import Gaussian
from rs_keras.trainers import SmoothAdv
from rs_keras.trainers._step.input_gradients import prepare
from rs_keras.trainers._step.input_gradients import quick_gradients


def network(shape, **kwargs):
    kwargs = {"filters": 3, "kernel_size": 3} | kwargs
    model = keras.Sequential([keras.Input(shape), layers.Conv2D(**kwargs)])
    prepare(model)
    return model


def is_quick(model, within=quick_gradients):
    """Whether a gradient of the model's images is computed by blocks."""

    @tf.function
    def gradient(images):
        with tf.GradientTape() as tape, within():
            tape.watch(images)
            out = model(images)
        return tape.gradient(out, images)

    spec = tf.TensorSpec(model.input_shape)
    operations = gradient.get_concrete_function(spec).graph.get_operations()
    return "DepthToSpace" in {operation.type for operation in operations}


def gradients_of(model, images, quick):
    rng = np.random.default_rng(1)
    with tf.GradientTape() as tape:
        tape.watch(images)
        with quick_gradients() if quick else contextlib.nullcontext():
            out = model(images)
        weights = rng.normal(size=out.shape)
        total = tf.reduce_sum(out * tf.cast(weights, out.dtype))
    return out, tape.gradient(total, [images, *model.trainable_variables])


def check_alike(model, images, tolerance=1e-5):
    assert is_quick(model)
    assert not is_quick(model, contextlib.nullcontext)
    usual, expected = gradients_of(model, images, quick=False)
    quick, found = gradients_of(model, images, quick=True)
    np.testing.assert_array_equal(quick, usual)
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("channels", [1, 2, 3, 4], ids="channels{}".format)
@pytest.mark.parametrize("padding", ["valid", "same"])
@pytest.mark.parametrize(
    ("side", "kernel"),
    [
        pytest.param((28, 28), (5, 5), id="mnist"),
        # What no block divides, and a kernel that is even, and not square.
        pytest.param((9, 11), (4, 3), id="odd"),
        pytest.param((5, 6), (5, 6), id="one_output"),
    ],
)
def test_gradients_are_those_of_tensorflow(channels, padding, side, kernel):
    keras.utils.set_random_seed(2)
    model = network(
        (*side, channels), kernel_size=kernel, padding=padding, activation="elu"
    )
    check_alike(model, tf.random.stateless_normal([2, *side, channels], [3, 4]))


def test_the_gradient_is_scipys_convolution():
    model = network((6, 7, 1), filters=1)
    kernel = model.layers[0].kernel.numpy()[:, :, 0, 0]
    image = tf.random.stateless_normal([1, 6, 7, 1], [5, 6])
    upstream = np.random.default_rng(0).normal(size=(4, 5)).astype("float32")
    with tf.GradientTape() as tape, quick_gradients():
        tape.watch(image)
        out = model(image)
    found = tape.gradient(out, image, upstream[None, ..., None])
    expected = scipy.signal.convolve2d(upstream, kernel, "full")
    np.testing.assert_allclose(found[0, ..., 0], expected, atol=1e-5)


def test_gradients_have_gradients():
    """Of the norm of an image's gradient, as regularisers take it."""
    keras.utils.set_random_seed(3)
    model = network((6, 7, 1), activation="tanh")
    images = tf.random.stateless_normal([2, 6, 7, 1], [7, 8])
    found = []
    for way in (quick_gradients, contextlib.nullcontext):
        with tf.GradientTape() as outer:
            outer.watch(images)
            with tf.GradientTape() as inner, way():
                inner.watch(images)
                total = tf.reduce_sum(model(images) ** 2)
            norm = tf.norm(inner.gradient(total, images))
        found.append(outer.gradient(norm, [images, model.layers[0].kernel]))
    for quick, usual in zip(*found, strict=True):
        assert np.abs(usual).max() > 0.1
        np.testing.assert_allclose(quick, usual, rtol=1e-4, atol=1e-5)


def test_xla_compiles_them():
    keras.utils.set_random_seed(4)
    model = network((9, 8, 2), activation="elu")
    images = tf.random.stateless_normal([2, 9, 8, 2], [9, 10])

    @tf.function(jit_compile=True)
    def compiled():
        return gradients_of(model, images, quick=True)[1]

    _, usual = gradients_of(model, images, quick=False)
    for one, other in zip(compiled(), usual, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


def test_a_model_may_take_images_of_any_size():
    model = network((None, None, 1))
    for side in (7, 12):
        images = tf.random.stateless_normal([2, side, side + 1, 1], [7, 8])
        check_alike(model, images)


@pytest.mark.parametrize("shape", [(None, 9, 7, 1), (None, None, 7, 1)])
def test_a_loop_may_carry_the_gradient(shape):
    """Its shape is known as far as the image's is."""
    model = network(shape[1:])

    def ascent(images):
        def step(total):
            with tf.GradientTape() as tape, quick_gradients():
                tape.watch(images)
                out = model(images)
            return [total + tape.gradient(out, images)]

        start = [tf.zeros_like(images)]
        return tf.while_loop(lambda _: True, step, start, maximum_iterations=2)

    images = tf.random.stateless_normal([2, 9, 7, 1], [7, 8])
    (found,) = tf.function(ascent, [tf.TensorSpec(shape)])(images)
    with tf.GradientTape() as tape:
        tape.watch(images)
        out = model(images)
    expected = 2 * tape.gradient(out, images)
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_a_layer_that_is_called_twice_adds_its_gradients_up():
    layer = layers.Conv2D(1, 3, padding="same", activation="tanh")
    images = keras.Input((8, 8, 1))
    model = keras.Model(images, layer(layer(images)))
    prepare(model)
    check_alike(model, tf.random.stateless_normal([2, 8, 8, 1], [1, 2]))


@pytest.mark.parametrize(
    ("shape", "kwargs"),
    [
        pytest.param((8, 8, 5), {}, id="five_channels"),
        pytest.param((8, 8, 1), {"strides": 2}, id="strided"),
        pytest.param((8, 8, 1), {"dilation_rate": 2}, id="dilated"),
        pytest.param((8, 8, 2), {"groups": 2, "filters": 4}, id="grouped"),
        pytest.param((8, 8, 1), {"kernel_size": (1, 3)}, id="small"),
        pytest.param(
            (1, 8, 8), {"data_format": "channels_first"}, id="channels_first"
        ),
    ],
)
def test_other_convolutions_are_left_alone(shape, kwargs):
    assert not is_quick(network(shape, **kwargs))


def test_subclasses_are_left_alone():
    class Doubled(layers.Conv2D):
        def convolution_op(self, inputs, kernel):
            return 2 * super().convolution_op(inputs, kernel)

    model = keras.Sequential([keras.Input([8, 8, 1]), Doubled(3, 3)])
    prepare(model)
    assert not is_quick(model)


def test_what_hides_the_method_already_stays():
    model = keras.Sequential([keras.Input((8, 8, 1)), layers.Conv2D(3, 3)])
    layer = model.layers[0]
    usual = layer.convolution_op
    layer.convolution_op = lambda *inputs: 2 * usual(*inputs)
    mine, before = layer.convolution_op, model(np.ones([1, 8, 8, 1]))
    prepare(model)
    assert layer.convolution_op is mine
    np.testing.assert_array_equal(model(np.ones([1, 8, 8, 1])), before)


def test_a_model_that_is_built_later_is_quick_then():
    model = keras.Sequential([layers.Conv2D(3, 3)])
    prepare(model)
    model.build((None, 8, 8, 1))
    assert is_quick(model)


@pytest.mark.parametrize("kind", ["GPU", "TPU"])
def test_an_accelerator_keeps_its_kernels(kind, monkeypatch):
    devices = [
        tf.config.LogicalDevice(f"/device:{name}:0", name)
        for name in ("CPU", kind)
    ]
    monkeypatch.setattr(tf.config, "list_logical_devices", lambda: devices)
    assert not is_quick(network((8, 8, 1)))


def test_a_convolution_inside_a_nested_model_is_found():
    model = keras.Sequential([keras.Input([28, 28, 1]), models.lenet()])
    assert not is_quick(model)
    prepare(model)
    assert is_quick(model)


def test_other_threads_have_the_layers_own_gradients():
    model = network((8, 8, 1))
    found = []

    def other():
        found.append(is_quick(model, contextlib.nullcontext))

    with quick_gradients():
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
    assert found == [False]


def test_passes_within_passes_end_one_by_one():
    model = network((8, 8, 1))
    with quick_gradients():
        with pytest.raises(ArithmeticError), quick_gradients():
            raise ArithmeticError
        assert is_quick(model, contextlib.nullcontext)
    assert not is_quick(model, contextlib.nullcontext)


def test_a_trainers_model_is_of_keras_layers(tmp_path):
    """Saved, copied and called by others, it is what it was."""
    model = keras.Sequential([keras.Input((8, 8, 1)), layers.Conv2D(3, 3)])
    config = model.get_config()
    Gaussian(model, sigma=0.5)
    Gaussian(model, sigma=0.25)
    assert is_quick(model)
    assert not is_quick(model, contextlib.nullcontext)
    assert model.get_config() == config
    model.save(tmp_path / "model.keras")
    copies = [
        keras.saving.load_model(tmp_path / "model.keras"),
        keras.models.clone_model(model),
        copy.deepcopy(model),
    ]
    assert not any(map(is_quick, copies))


@pytest.mark.parametrize(
    ("policy", "tolerance"),
    [("mixed_bfloat16", 0.1), ("mixed_float16", 0.01), ("float64", 1e-12)],
)
def test_the_type_is_the_models(policy, tolerance):
    keras.utils.set_random_seed(2)
    model = network((8, 8, 1), dtype=policy)
    seed = [9, 10]
    dtype = "float64" if policy == "float64" else "float32"
    images = tf.random.stateless_normal([2, 8, 8, 1], seed, dtype=dtype)
    assert model(images).dtype == policy.removeprefix("mixed_")
    check_alike(model, images, tolerance)


def test_an_attack_within_a_training_step_is_quick(monkeypatch):
    """The step's own pass traces the gradient, too, but does not need it."""
    asked, from_blocks = [], tf.nn.depth_to_space

    def noticed(blocks, size):
        asked.append(blocks)
        return from_blocks(blocks, size)

    # Nothing else of a training step takes blocks of pixels apart.
    monkeypatch.setattr(tf.nn, "depth_to_space", noticed)
    counts = []
    for trainer in (
        Gaussian(models.lenet(), sigma=0.5),
        SmoothAdv(models.lenet(), sigma=0.5, steps=1),
    ):
        asked.clear()
        trainer.compile("sgd")
        images, labels = np.zeros([4, 28, 28, 1]), np.arange(4)
        trainer.fit(images, labels, batch_size=4, verbose=0)
        counts.append(len(asked))
    assert counts[1] > counts[0]
