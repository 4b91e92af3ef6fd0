"""Functions of NumPy arrays vote as the same network in TensorFlow does."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from rs_keras import Certifier
from rs_keras.classifiers import from_numpy
from rs_keras.export import export_certifier

SHAPE = (6, 5, 2)
CLASSES = 4


@pytest.fixture
def network():
    """A Keras network, and the same in NumPy with channels first."""
    keras.utils.set_random_seed(3)
    model = keras.Sequential(
        [
            keras.Input(SHAPE),
            keras.layers.Conv2D(8, 3, activation="relu"),
            keras.layers.GlobalAveragePooling2D(),
            keras.layers.Dense(CLASSES),
        ]
    )
    kernel, bias, dense, offset = model.get_weights()
    offset = offset + np.float32([0.0, 0.02, 0.01, 0.0])
    model.layers[-1].bias.assign(offset)

    def by_hand(images):
        assert images.shape[1:] == (2, 6, 5)
        windows = np.lib.stride_tricks.sliding_window_view(
            images, (3, 3), axis=(2, 3)
        )
        maps = np.einsum("mchwij,ijco->mohw", windows, kernel)
        maps = np.maximum(maps + bias[:, None, None], 0)
        return maps.mean((2, 3)) @ dense + offset

    return model, by_hand


@pytest.fixture
def pictures():
    return np.random.default_rng(2).uniform(size=[3, *SHAPE]).astype("float32")


@pytest.mark.parametrize("noise", ["float", "grid"])
def test_counts_are_those_of_the_same_network_in_keras(
    network, pictures, noise
):
    model, by_hand = network
    classifier = from_numpy(by_hand, CLASSES, channels_first=True)
    counts, wanted = (
        Certifier(each, sigma=0.5, noise=noise).sample(pictures, n=700, seed=5)
        for each in (classifier, model)
    )
    assert (wanted > 0).sum(-1).min() >= 2  # not all of one class
    # Draw for draw: a draw moves only where two logits tie in float32.
    assert np.abs(counts - wanted).sum() <= 2


def test_the_function_may_reuse_its_memory_and_write_into_its_argument(
    pictures,
):
    """As interpreters do. The logits of a pass must outlive the next one."""
    buffer = np.zeros([4096, 2], np.float32)

    def careless(images):
        out = buffer[: len(images)]
        out[:, 0] = images[:, 0, 0, 0]
        out[:, 1] = 0.5
        images[:] = -1e9
        return out

    def careful(images):
        first = images[:, 0, 0, 0]
        return tf.stack([first, tf.fill(tf.shape(first), 0.5)], -1)

    counts, wanted = (
        Certifier(each, sigma=0.5, batch_size=64).sample(pictures, n=500)
        for each in (from_numpy(careless, 2), careful)
    )
    np.testing.assert_array_equal(counts, wanted)


def test_a_function_may_remember_its_calls(pictures):
    sizes = []

    def first_two(images):
        sizes.append(len(images))
        return images[:, 0, 0, :].tolist()

    certifier = Certifier(from_numpy(first_two, 2), sigma=0.5, batch_size=50)
    first = certifier.certify(pictures, n0=10, n=120, seed=1)
    again = certifier.certify(pictures, n0=10, n=120, seed=1)
    np.testing.assert_array_equal(first.counts, again.counts)
    assert max(sizes) <= 50


@pytest.mark.parametrize(
    ("function", "told"),
    [
        (lambda x: x[:, 0, 0, 0], r"`function`.*shape \[8, 2\].*shape=\[8\]"),
        (lambda x: [x[:, 0, 0, :]], r"Received: shape=\[1, 8, 2\]"),
        (lambda x: {}["logits"], "On 8 images it failed: KeyError: 'logits'"),
    ],
    ids=["labels", "in a list", "raises"],
)
def test_what_a_function_does_wrong_is_told_in_a_line(function, told, pictures):
    certifier = Certifier(from_numpy(function, 2), sigma=0.5)
    with pytest.raises(ValueError, match=told) as caught:
        certifier.predict(pictures)
    assert "\n" not in str(caught.value)


def test_a_random_function_is_refused(pictures):
    """A number that all rows of a pass share."""
    random = np.random.default_rng(1)
    certifier = Certifier(
        from_numpy(lambda x: x[:, 0, 0, :] + random.normal(size=2), 2),
        sigma=0.5,
    )
    with pytest.raises(ValueError, match="answer each image by itself"):
        certifier.predict(pictures)


def test_a_bare_function_of_arrays_is_sent_here(pictures):
    certifier = Certifier(lambda x: np.asarray(x)[:, 0, 0, :], sigma=0.5)
    with pytest.raises(ValueError, match="from_numpy") as caught:
        certifier.predict(pictures)
    assert "\n" not in str(caught.value)


def test_arguments(pictures):
    with pytest.raises(ValueError, match="`function` must be callable"):
        from_numpy(3, 2)
    with pytest.raises(ValueError, match="`num_classes`.*Received: num_.*=1"):
        from_numpy(len, 1)
    with pytest.raises(ValueError, match="`channels_first`"):
        from_numpy(len, 2, "yes")


def test_gradients_and_exports_are_refused(pictures, tmp_path):
    certifier = Certifier(from_numpy(lambda x: x[:, 0, 0, :], 2), sigma=0.5)
    soft = certifier.soft_predict(pictures, n=20, seed=1)
    assert soft.shape == (3, 2)
    images = tf.constant(pictures)
    with (
        pytest.raises(ValueError, match="made of TensorFlow operations"),
        tf.GradientTape() as tape,
    ):
        tape.watch(images)
        tape.gradient(certifier.soft_predict(images, n=20), images)
    with pytest.raises(ValueError, match="Python code .PyFunc"):
        export_certifier(certifier, tmp_path, image_shape=SHAPE)
