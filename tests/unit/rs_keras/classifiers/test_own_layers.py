"""Layers of one's own keep their own code: nothing is computed in its place."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from rs_keras.classifiers.adapters import as_logits
from rs_keras.classifiers.outputs import with_logits
from rs_keras.classifiers.precision import computing_in

IMAGES = np.random.default_rng(0).random((16, 6, 6, 2), np.float32)


class Standardised(keras.layers.Conv2D):
    """Weight standardisation, by the method that Keras documents for it."""

    def convolution_op(self, inputs, kernel):
        kernel = keras.ops.convert_to_tensor(kernel)
        mean, variance = tf.nn.moments(kernel, [0, 1, 2])
        return super().convolution_op(
            inputs, (kernel - mean) / tf.sqrt(variance + 1e-5)
        )


class Cosine(keras.layers.Dense):
    """A cosine classifier: the product of unit vectors."""

    def call(self, inputs):
        rows = tf.math.l2_normalize(inputs, -1)
        columns = tf.math.l2_normalize(self.kernel, 0)
        return self.activation(10 * (rows @ columns))


def test_an_own_convolution_is_not_folded():
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [
            keras.Input((6, 6, 2)),
            Standardised(4, 3),
            keras.layers.BatchNormalization(),
            keras.layers.Flatten(),
            keras.layers.Dense(3),
        ]
    )
    norm = model.layers[1]
    rng = np.random.default_rng(1)
    norm.set_weights([rng.uniform(0.5, 3, 4) for _ in norm.get_weights()])
    np.testing.assert_allclose(
        as_logits(model)(IMAGES), model(IMAGES, training=False), rtol=1e-4
    )


def test_an_own_dense_layer_keeps_its_softmax():
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [keras.Input((6, 6, 2)), keras.layers.Flatten(), Cosine(3, "softmax")]
    )
    np.testing.assert_allclose(
        as_logits(model)(IMAGES), model(IMAGES), rtol=1e-5
    )


def test_a_masked_softmax_keeps_its_mask():
    images = keras.Input((6, 6, 2))
    logits = keras.layers.Dense(3)(keras.layers.Flatten()(images))
    mask = np.array([True, False, False])
    model = keras.Model(images, keras.layers.Softmax()(logits, mask=mask))
    votes = np.argmax(as_logits(model)(IMAGES), -1)
    np.testing.assert_array_equal(votes, 0)


def test_a_softmax_of_one_number_is_no_probability():
    model = keras.Sequential(
        [
            keras.Input((6, 6, 2)),
            keras.layers.Flatten(),
            keras.layers.Dense(1, "softmax"),
        ]
    )
    with pytest.raises(ValueError, match="`num_classes=2` must be given"):
        with_logits(model)


def test_an_adapted_normalization_is_copied_with_its_statistics():
    normalization = keras.layers.Normalization()
    normalization.adapt(10 * IMAGES + 40)
    model = keras.Sequential(
        [
            keras.Input((6, 6, 2)),
            normalization,
            keras.layers.Flatten(),
            keras.layers.Dense(3),
        ]
    )
    copy = computing_in(model, "bfloat16")
    np.testing.assert_allclose(copy(IMAGES), model(IMAGES), rtol=0.05, atol=0.5)
