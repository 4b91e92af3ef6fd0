import keras
import numpy as np
import pytest
import scipy.special
import tensorflow as tf
from kits.linear import Linear

from rs_keras import Certifier
from rs_keras import noise
from rs_keras.classifiers.ensembles import denoised
from rs_keras.classifiers.ensembles import ensemble


def network(seed, classes=3):
    keras.utils.set_random_seed(seed)
    layers = [keras.layers.Flatten(), keras.layers.Dense(classes)]
    return keras.Sequential([keras.Input((4, 4, 1)), *layers])


def test_an_ensemble_is_the_mean_of_its_logits(images):
    models = [network(seed) for seed in (1, 2, 3)]
    expected = np.mean([model(images).numpy() for model in models], 0)
    joined = ensemble(models)
    np.testing.assert_allclose(joined(images), expected, rtol=1e-5, atol=1e-6)
    assert len(joined.variables) == 6


def test_an_ensemble_is_certified_as_one(images):
    # Two linear classifiers: the mean of their scores is linear, too.
    parts = [Linear(seed=1), Linear(seed=2)]
    mean = Linear()
    mean.weights = (parts[0].weights + parts[1].weights) / 2
    mean.bias = (parts[0].bias + parts[1].bias) / 2
    certifier = Certifier(ensemble(parts), sigma=0.5)
    found = certifier.certify(images, n=2_000, seed=1)
    assert (found.radius <= mean.radius(images)).all()
    certified = found.label >= 0
    assert certified.any()
    expected = mean.label(images)[certified]
    np.testing.assert_array_equal(found.label[certified], expected)


@pytest.mark.parametrize("models", [[], [network(1)]], ids=["none", "one"])
def test_an_ensemble_needs_two(models):
    with pytest.raises(ValueError, match="`models` must be at least two"):
        ensemble(models)


def test_a_denoiser_sees_the_noise_and_its_sigma(images):
    seen = []

    def denoiser(z, sigma):
        seen.append(sigma)
        return z / (1 + sigma**2)

    model = network(1)
    joined = denoised(model, denoiser, 0.5)
    counts = Certifier(joined, sigma=0.5).sample(images, n=50, seed=3)
    assert set(seen) == {0.5}
    for row, seed in enumerate(noise.as_seeds(3, len(images))):
        eps = noise.normal((4, 4, 1), seed, 0, 50)
        logits = model((images[row] + np.float32(0.5) * eps) / 1.25)
        expected = np.bincount(logits.numpy().argmax(-1), minlength=3)
        np.testing.assert_array_equal(counts[row], expected)


def test_a_denoiser_needs_noise():
    with pytest.raises(ValueError, match="`sigma` must be .* > 0.*sigma=0"):
        denoised(network(1), lambda z, sigma: z, 0)


def test_a_denoiser_must_keep_the_shape(images):
    joined = denoised(network(1), lambda z, sigma: z[:, :2], 0.5)
    with pytest.raises(ValueError, match="`denoiser` must return images"):
        joined(tf.constant(images))


def plain_soft_predict(model, images, seeds, n, beta):
    kernel, bias = (weight.astype(float) for weight in model.get_weights())
    means = []
    for image, seed in zip(images, seeds, strict=True):
        eps = noise.normal((4, 4, 1), seed, 0, n).numpy()
        z = (image + np.float32(0.5) * eps).reshape(n, -1)
        soft = scipy.special.softmax(beta * (z @ kernel + bias), axis=-1)
        means.append(soft.mean(0))
    return np.array(means)


@pytest.mark.parametrize("mode", ["float", "grid"])
def test_soft_predictions_and_their_gradients(images, mode):
    model, beta, n = network(1), 2.0, 30
    certifier = Certifier(model, sigma=0.5, batch_size=8, noise=mode)
    seeds = noise.as_seeds(4, len(images))
    expected = plain_soft_predict(model, images, seeds, n, beta)
    variable = tf.constant(images)
    with tf.GradientTape() as tape:
        tape.watch(variable)
        found = certifier.soft_predict(variable, n, beta, seed=4)
        first = tf.reduce_sum(found[:, 0])
    weights = model.trainable_variables
    gradients = tape.gradient(first, [variable, *[w.value for w in weights]])
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)
    # One pixel and one weight, moved a little.
    step = 1e-2
    moved = images.copy()
    moved[1, 2, 3, 0] += step
    after = plain_soft_predict(model, moved, seeds, n, beta)[:, 0].sum()
    slope = (after - expected[:, 0].sum()) / step
    assert float(gradients[0][1, 2, 3, 0]) == pytest.approx(slope, rel=0.05)
    kernel = model.get_weights()[0]
    kernel[5, 0] += step
    model.set_weights([kernel, model.get_weights()[1]])
    after = plain_soft_predict(model, images, seeds, n, beta)[:, 0].sum()
    slope = (after - expected[:, 0].sum()) / step
    assert float(gradients[1][5, 0]) == pytest.approx(slope, rel=0.05)
