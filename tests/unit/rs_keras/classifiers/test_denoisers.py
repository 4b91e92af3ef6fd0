"""Denoisers: one step of a diffusion model, and networks in front."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from rs_keras import Certifier
from rs_keras.classifiers import diffusion_denoiser
from rs_keras.classifiers import with_denoiser
from rs_keras.classifiers.denoisers import noise_levels
from rs_keras.classifiers.ensembles import denoised

# The linear schedule of Ho et al., 2020: 1,000 timesteps.
SCHEDULE = np.cumprod(1 - np.linspace(1e-4, 0.02, 1000))
MEAN, DEVIATION = 0.3, 0.15


def posterior(z, sigma):
    """E[x | z] for pixels x ~ Normal(MEAN, DEVIATION**2), z = x + noise."""
    share = DEVIATION**2 / (DEVIATION**2 + sigma**2)
    return MEAN + share * (z - MEAN)


def ideal(predicts, alphas, asked):
    """The optimal network for such pixels: what it would predict, exactly.

    In units of y = 2 x - 1, y has mean 2 MEAN - 1 and deviation 2 DEVIATION.
    """
    centre, variance = 2 * MEAN - 1, (2 * DEVIATION) ** 2

    def network(x, steps):
        asked.append(steps.numpy())
        a = alphas[steps.numpy()[0]]
        gain = np.sqrt(a) * variance / (a * variance + 1 - a)
        image = centre + gain * (x.numpy() - np.sqrt(a) * centre)
        noise = (x.numpy() - np.sqrt(a) * image) / np.sqrt(1 - a)
        found = {
            "image": image,
            "noise": noise,
            "velocity": np.sqrt(a) * noise - np.sqrt(1 - a) * image,
        }[predicts]
        return tf.concat([tf.constant(found, x.dtype), tf.zeros_like(x)], -1)

    return network


@pytest.mark.parametrize("predicts", ["noise", "image", "velocity"])
@pytest.mark.parametrize("step", [40, 300, 900])
def test_an_ideal_diffusion_model_gives_the_posterior_mean(predicts, step):
    """At the noise of a timestep the one-step image is E[x | z]."""
    a = SCHEDULE[step]
    sigma = float(np.sqrt((1 - a) / a) / 2)
    asked = []
    denoiser = diffusion_denoiser(
        ideal(predicts, SCHEDULE, asked), SCHEDULE, predicts, clip=False
    )
    random = np.random.default_rng(1)
    z = MEAN + random.normal(size=[3, 4, 4, 2]) * np.hypot(DEVIATION, sigma)
    z = z.astype("float32")
    found = denoiser(tf.constant(z), sigma)
    np.testing.assert_allclose(found, posterior(z, sigma), atol=2e-4)
    assert asked[0].tolist() == [step] * 3
    assert asked[0].dtype == np.int32


@pytest.mark.parametrize("sigma", [0.25, 0.5, 1.0])
def test_the_timestep_is_the_first_with_as_much_noise(sigma):
    asked = []
    denoiser = diffusion_denoiser(ideal("noise", SCHEDULE, asked), SCHEDULE)
    denoiser(tf.zeros([1, 2, 2, 1]), sigma)
    step = int(asked[0][0])
    # Carlini et al.: noise 2 sigma in [-1, 1] is sqrt((1 - a) / a).
    ratio = np.sqrt((1 - SCHEDULE) / SCHEDULE)
    assert ratio[step - 1] < 2 * sigma <= ratio[step]


def test_images_are_clipped_to_pixels():
    denoiser = diffusion_denoiser(lambda x, t: tf.zeros_like(x), SCHEDULE)
    found = denoiser(tf.constant([-3.0, 0.25, 7.0])[:, None, None, None], 0.5)
    np.testing.assert_allclose(np.ravel(found), [0.0, 0.25, 1.0], atol=1e-6)


def test_a_diffusion_model_in_front_of_a_classifier():
    """Counted by hand, from the noise that the certifier draws."""

    def network(x, steps):
        return 0.5 * x  # in graphs, too

    denoiser = diffusion_denoiser(network, SCHEDULE)
    model = denoised(lambda x: x[:, 0, 0, :2], denoiser, sigma=0.5)
    certifier = Certifier(model, sigma=0.5)
    image = np.full([1, 2, 2, 2], 0.5, np.float32)
    image[..., 1] = 0.6
    counts = certifier.sample(image, n=300, seed=5)
    sampler = certifier.sampler((2, 2, 2))
    from rs_keras.noise import as_seeds

    z = sampler.noisy(image[0], as_seeds(5, 1)[0], 0, 300).numpy()[:, 0, 0]
    step = int(np.argmax(np.sqrt((1 - SCHEDULE) / SCHEDULE) >= 1.0))
    a = SCHEDULE[step]
    x = np.sqrt(a) * (2 * z.astype(np.float64) - 1)
    clean = np.clip((x - np.sqrt(1 - a) * 0.5 * x) / np.sqrt(a), -1, 1)
    wanted = np.bincount(clean.argmax(-1), minlength=2)
    assert np.abs(counts[0] - wanted).sum() <= 2


def test_levels_are_in_units_of_pixels():
    np.testing.assert_allclose(noise_levels([0.8, 0.5]), [0.25, 0.5])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"alphas_cumprod": [0.2, 0.5]}, "`alphas_cumprod` must be falling"),
        ({"alphas_cumprod": [1.0, 0.5]}, "`alphas_cumprod` must be falling"),
        ({"alphas_cumprod": []}, "`alphas_cumprod` must be falling"),
        ({"predicts": "score"}, "`predicts` must be one of noise, image, vel"),
        ({"clip": 1}, "`clip` must be True or False"),
    ],
)
def test_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        diffusion_denoiser(
            **{"network": len, "alphas_cumprod": SCHEDULE} | arguments
        )


def test_more_noise_than_the_last_timestep_has():
    denoiser = diffusion_denoiser(lambda x, t: x, [0.8, 0.5])
    with pytest.raises(ValueError, match="the last timestep, 0.5. Received"):
        denoiser(tf.zeros([1, 2, 2, 1]), 0.51)


def classifier():
    return keras.Sequential(
        [
            keras.Input((4, 4, 1)),
            keras.layers.Flatten(),
            keras.layers.Dense(3, activation="softmax"),
        ]
    )


def halving():
    return keras.Sequential(
        [keras.Input((4, 4, 1)), keras.layers.Rescaling(0.5, 0.1)]
    )


def test_a_denoiser_in_front_of_a_classifier(images):
    model = classifier()
    joined = with_denoiser(model, halving())
    found = keras.ops.softmax(joined(images))
    np.testing.assert_allclose(found, model(0.5 * images + 0.1), atol=1e-6)
    assert joined.trainable_variables == []
    again = with_denoiser(joined, halving())
    assert [layer.name for layer in again.layers][1:] == [
        "denoiser",
        "classifier",
    ]


def test_parts_that_cannot_be_joined():
    images = keras.Input((4, 4, 1))
    larger = keras.Model(images, keras.layers.ZeroPadding2D(1)(images))
    with pytest.raises(ValueError, match="`denoiser` must return images"):
        with_denoiser(classifier(), larger)
    with pytest.raises(ValueError, match="`denoiser` must be a Sequential"):
        with_denoiser(classifier(), len)
    with pytest.raises(ValueError, match="`classifier` must be a Sequential"):
        with_denoiser(keras.Sequential([keras.layers.Flatten()]), halving())
