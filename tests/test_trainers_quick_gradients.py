"""Quick gradients against TensorFlow's own kernels, SciPy, and the trainers."""

import threading

import keras
import numpy as np
import pytest
import scipy.signal
import tensorflow as tf
from keras import layers

from rs_keras import models
from rs_keras.trainers import SmoothAdv
from rs_keras.trainers import quick_gradients as module
from rs_keras.trainers.quick_gradients import quick_gradients


def network(shape, **kwargs):
    kwargs = {"filters": 3, "kernel_size": 3} | kwargs
    return keras.Sequential([keras.Input(shape), layers.Conv2D(**kwargs)])


def is_quick(layer):
    return "convolution_op" in vars(layer)


def gradients_of(model, images, quick):
    rng = np.random.default_rng(1)
    with tf.GradientTape() as tape:
        tape.watch(images)
        if quick:
            with quick_gradients(model):
                out = model(images)
                assert any(map(is_quick, model._flatten_layers()))
        else:
            out = model(images)
        weights = rng.normal(size=out.shape)
        total = tf.reduce_sum(out * tf.cast(weights, out.dtype))
    return out, tape.gradient(total, [images, *model.trainable_variables])


@pytest.mark.parametrize("channels", [1, 2, 3, 4], ids="channels{}".format)
@pytest.mark.parametrize("padding", ["valid", "same"])
@pytest.mark.parametrize(
    ("side", "kernel"),
    [
        pytest.param((28, 28), (5, 5), id="mnist"),
        pytest.param((8, 8), (1, 1), id="kernel1"),
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
    images = tf.random.stateless_normal([2, *side, channels], [3, 4])
    usual, expected = gradients_of(model, images, quick=False)
    quick, found = gradients_of(model, images, quick=True)
    np.testing.assert_array_equal(quick, usual)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


def test_the_gradient_is_scipys_convolution():
    model = network((6, 7, 1), filters=1)
    kernel = model.layers[0].kernel.numpy()[:, :, 0, 0]
    image = tf.random.stateless_normal([1, 6, 7, 1], [5, 6])
    upstream = np.random.default_rng(0).normal(size=(4, 5)).astype("float32")
    with tf.GradientTape() as tape, quick_gradients(model):
        tape.watch(image)
        out = model(image)
    found = tape.gradient(out, image, upstream[None, ..., None])
    expected = scipy.signal.convolve2d(upstream, kernel, "full")
    np.testing.assert_allclose(found[0, ..., 0], expected, atol=1e-5)


def test_a_model_may_take_images_of_any_size():
    model = network((None, None, 1))
    for side in (7, 12):
        images = tf.random.stateless_normal([2, side, side + 1, 1], [7, 8])
        _, (expected, *_) = gradients_of(model, images, quick=False)
        _, (found, *_) = gradients_of(model, images, quick=True)
        np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize(
    ("shape", "kwargs"),
    [
        pytest.param((8, 8, 5), {}, id="five_channels"),
        pytest.param((8, 8, 1), {"strides": 2}, id="strided"),
        pytest.param((8, 8, 1), {"dilation_rate": 2}, id="dilated"),
        pytest.param((8, 8, 2), {"groups": 2, "filters": 4}, id="grouped"),
    ],
)
def test_other_convolutions_are_left_alone(shape, kwargs):
    model = network(shape, **kwargs)
    with quick_gradients(model):
        assert not is_quick(model.layers[0])


def test_subclasses_are_left_alone():
    class Doubled(layers.Conv2D):
        def convolution_op(self, inputs, kernel):
            return 2 * super().convolution_op(inputs, kernel)

    model = keras.Sequential([keras.Input([8, 8, 1]), Doubled(3, 3)])
    with quick_gradients(model):
        assert not is_quick(model.layers[0])


def test_an_accelerator_keeps_its_kernels(monkeypatch):
    devices = [
        tf.config.PhysicalDevice(f"/physical_device:{kind}:0", kind)
        for kind in ("CPU", "GPU")
    ]
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda: devices)
    model = network((8, 8, 1))
    with quick_gradients(model):
        assert not is_quick(model.layers[0])


def test_a_convolution_inside_a_nested_model_is_found():
    inner = models.lenet()
    model = keras.Sequential([keras.Input([28, 28, 1]), inner])
    with quick_gradients(model):
        assert is_quick(inner.get_layer("conv1"))
        assert not is_quick(inner.get_layer("conv2"))


def test_the_model_is_as_before_once_all_have_left():
    model = network((8, 8, 1))
    config = model.get_config()
    entered, leave = threading.Event(), threading.Event()

    def other():
        with quick_gradients(model):
            entered.set()
            leave.wait(60)

    thread = threading.Thread(target=other)
    with pytest.raises(ArithmeticError), quick_gradients(model):
        thread.start()
        assert entered.wait(60)
        raise ArithmeticError
    assert is_quick(model.layers[0])
    leave.set()
    thread.join()
    assert not is_quick(model.layers[0])
    assert not module._users
    assert model.get_config() == config


def test_mixed_precision_keeps_its_types():
    model = network((8, 8, 1), dtype="mixed_bfloat16")
    images = tf.random.stateless_normal([2, 8, 8, 1], [9, 10])
    with tf.GradientTape() as tape:
        tape.watch(images)
        with quick_gradients(model):
            out = model(images)
    assert out.dtype == tf.bfloat16
    wanted = [images, *model.trainable_variables]
    found = tape.gradient(out, wanted)
    assert {gradient.dtype for gradient in found} == {tf.float32}
    _, expected = gradients_of(model, images, quick=False)
    assert [gradient.shape for gradient in found] == [
        gradient.shape for gradient in expected
    ]


def test_an_attack_within_a_training_step_is_quick(monkeypatch):
    asked = []

    def noticed(images, kernel, upstream, padding):
        asked.append(tuple(images.shape[1:]))
        return tf.zeros_like(images)

    monkeypatch.setattr(module, "_for_images", noticed)
    trainer = SmoothAdv(models.lenet(), sigma=0.5, num_noise=2, steps=2)
    trainer.compile("sgd")
    trainer.fit(np.zeros([4, 28, 28, 1]), np.arange(4), batch_size=4, verbose=0)
    assert set(asked) == {(28, 28, 1)}
    assert not is_quick(trainer.model.get_layer("conv1"))
