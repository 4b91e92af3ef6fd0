"""Errors and warnings that say what was probably meant."""

import numpy as np
import pytest
import tensorflow as tf
from kits import golden_cases as golden

from rs_keras import Certifier
from rs_keras._checks import check_images
from rs_keras.trainers import Gaussian


@pytest.mark.parametrize(
    "shape, wanted, hint",
    [
        ([8, 28, 28], (28, 28, 1), r"images\[..., None\]"),
        ([28, 28, 1], (28, 28, 1), r"images\[None\]"),
        ([8, 28, 28], None, r"images\[..., None\]"),
        ([32, 32, 3], None, r"images\[None\]"),
        ([32, 32, 3], (32, 32, 3), r"images\[None\]"),
        ([28, 28], (28, 28, 1), r"images\[None, ..., None\]"),
        ([3, 28, 28], (None, None, 1), r"images\[..., None\]"),
    ],
    ids=str,
)
def test_the_missing_axis_is_the_one_that_is_named(shape, wanted, hint):
    with pytest.raises(ValueError, match=f"must have shape .*{hint}"):
        check_images(np.zeros(shape), wanted)


def first_pixels(x):
    return x[:, 0, 0, :2]


def test_an_alpha_that_is_a_confidence_is_asked_about():
    certifier = Certifier(first_pixels, sigma=0.5)
    image = np.zeros([1, 2, 2, 2])
    with pytest.warns(UserWarning, match=r"Did you mean alpha=0.05\?"):
        certifier.certify(image, n=100, alpha=0.95, seed=7)
    with pytest.warns(UserWarning, match=r"Did you mean alpha=0.05\?"):
        certifier.predict(image, n=100, alpha=0.95, seed=7)
    certifier.certify(image, n=100, alpha=0.5, seed=7)


def test_a_sigma_of_bytes_is_asked_about():
    with pytest.warns(UserWarning, match=r"sigma=64/255 = 0.251\?"):
        Certifier(first_pixels, sigma=64)
    with pytest.warns(UserWarning, match=r"sigma=64/255 = 0.251\?"):
        Gaussian(golden.tiny(), sigma=64)


def test_a_function_of_arrays_is_sent_to_from_numpy():
    """In one line, without TensorFlow's advice on NumPy's names."""
    certifier = Certifier(lambda x: x.reshape(len(x), -1), sigma=0.5)
    with pytest.raises(ValueError, match="from_numpy.*It failed") as caught:
        certifier.certify(np.zeros([1, 2, 2, 2]), n=100)
    assert "\n" not in str(caught.value)


def test_a_lost_shape_is_told():
    def lost(x):
        return tf.numpy_function(lambda a: a[:, 0, 0, :2], [x], tf.float32)

    with pytest.raises(ValueError, match="unknown rank .*set_shape"):
        Certifier(lost, sigma=0.5).certify(np.zeros([1, 2, 2, 2]), n=100)
