"""The losses of a denoiser in front of a frozen classifier."""

import keras
import numpy as np
import pytest
import scipy.special
import tensorflow as tf

from rs_keras import Certifier
from rs_keras import models
from rs_keras.classifiers import with_denoiser
from rs_keras.trainers import SGD
from rs_keras.trainers import Denoising

SHAPE = (4, 4, 1)
LABELS = np.array([0, 1, 2, 1, 0])


def parts():
    """A denoiser of two numbers, and a linear classifier."""
    keras.utils.set_random_seed(2)
    images = keras.Input(SHAPE)
    x = keras.layers.Conv2D(1, 1)(images)
    denoiser = keras.Model(images, x)
    denoiser.set_weights([np.full([1, 1, 1, 1], 0.7), np.array([0.1])])
    classifier = keras.Sequential(
        [keras.Input(SHAPE), keras.layers.Flatten(), keras.layers.Dense(3)]
    )
    return classifier, denoiser


def test_losses_are_those_of_the_paper(images):
    """D(z) = 0.7 z + 0.1, written out; labels of the data do not matter."""
    classifier, denoiser = parts()
    trainer = Denoising(
        with_denoiser(classifier, denoiser),
        sigma=0.5,
        mse_weight=2.0,
        stability_weight=3.0,
        num_noise=2,
    )
    noise = np.random.default_rng(3).normal(size=[2, *images.shape]) / 2
    losses = trainer.losses_of(images, LABELS, {"noise": noise})
    kernel, bias = classifier.get_weights()

    def log_softmax(x):
        logits = x.reshape(-1, 16) @ kernel + bias
        return scipy.special.log_softmax(logits, axis=-1)

    clean = 0.7 * (images + noise) + 0.1
    mse = ((clean - images) ** 2).mean((0, 2, 3, 4))
    own = log_softmax(images).argmax(-1)
    rows = np.arange(len(images))
    follow = [-log_softmax(copy)[rows, own] for copy in clean]
    assert (own != LABELS).any()
    np.testing.assert_allclose(losses["mse"], 2 * mse, rtol=1e-5)
    np.testing.assert_allclose(
        losses["stability"], 3 * np.mean(follow, 0), rtol=1e-5
    )


@pytest.mark.parametrize("weights", [(1.0, 0.0), (0.0, 1.0)])
def test_only_the_denoiser_learns(weights, images, tmp_path):
    classifier, denoiser = parts()
    model = with_denoiser(classifier, denoiser)
    before = [weight.copy() for weight in classifier.get_weights()]
    own = [weight.copy() for weight in denoiser.get_weights()]
    trainer = Denoising(model, 0.5, *weights)
    trainer.compile(optimizer=SGD(0.01), metrics=["accuracy"])
    draw = trainer.draw(images, seed=[7, 1000])

    def loss():
        losses = trainer.losses_of(images, LABELS, draw)
        return float(sum(losses.values()).numpy().mean())

    # A small step down the gradient of the same draw lowers the loss.
    first = loss()
    with tf.GradientTape() as tape:
        losses = trainer.losses_of(images, LABELS, draw)
        total = tf.reduce_mean(tf.add_n(list(losses.values())))
    variables = trainer.trainable_variables
    gradients = tape.gradient(total, variables)
    for variable, gradient in zip(variables, gradients, strict=True):
        variable.assign_sub(0.01 * gradient)
    assert loss() < first
    trainer.fit(images, LABELS, epochs=2, verbose=0)
    np.testing.assert_array_equal(classifier.get_weights()[0], before[0])
    assert (denoiser.get_weights()[0] != own[0]).any()
    trainer.save(tmp_path / "trainer.keras")
    loaded = keras.saving.load_model(tmp_path / "trainer.keras")
    np.testing.assert_array_equal(loaded(images), trainer(images))
    assert loaded.stability_weight == trainer.stability_weight
    assert len(loaded.trainable_variables) == 2
    counts = Certifier(trainer).sample(images, n=50)
    np.testing.assert_array_equal(Certifier(loaded).sample(images, 50), counts)


def test_the_classifiers_batch_statistics_stay():
    """In training, too, it is the classifier that is certified."""
    keras.utils.set_random_seed(1)
    classifier = models.cifar_resnet(8, (8, 8, 3))
    model = with_denoiser(classifier, models.dncnn((8, 8, 3), 3, 4))
    trainer = Denoising(model, 0.5, stability_weight=1.0)
    trainer.compile(optimizer=SGD(0.01))
    images = np.random.default_rng(1).uniform(size=[4, 8, 8, 3])
    before = [weight.copy() for weight in classifier.get_weights()]
    trainer.fit(images.astype("float32"), np.arange(4), verbose=0)
    for now, then in zip(classifier.get_weights(), before, strict=True):
        np.testing.assert_array_equal(now, then)


def test_dncnn_is_the_published_network():
    """17 layers: 64*9*(3 + 3) kernels at the ends, 15 of 64*64*9, biases."""
    model = models.dncnn((32, 32, 3))
    kernels = 64 * 9 * 3 + 15 * 64 * 64 * 9 + 64 * 9 * 3
    assert model.count_params() == kernels + 64 + 15 * 4 * 64
    layers = [layer.name for layer in model.layers]
    model.get_layer("conv17").kernel.assign(np.zeros([3, 3, 64, 3]))
    images = np.random.default_rng(1).uniform(size=[1, 32, 32, 3])
    # Without noise to subtract it gives the images back.
    np.testing.assert_allclose(model(images), images, rtol=1e-6)
    assert layers[-1] == "clean"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"mse_weight": -1}, "`mse_weight` must be a finite number >= 0"),
        ({"mse_weight": 0.0}, "`mse_weight` or `stability_weight` must be"),
        ({"stability_weight": np.nan}, "`stability_weight` must be"),
    ],
)
def test_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        Denoising(with_denoiser(*parts()), 0.5, **arguments)


def test_a_model_without_a_denoiser():
    with pytest.raises(ValueError, match="with_denoiser.classifier, denoiser"):
        Denoising(parts()[0], 0.5)
