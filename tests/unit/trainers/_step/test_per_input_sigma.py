import keras
import numpy as np
import pytest
import tensorflow as tf

from rs_keras import noise
from rs_keras.losses import cross_entropy
from rs_keras.per_input_sigma import ascend
from rs_keras.trainers import MACER
from rs_keras.trainers import SGD
from rs_keras.trainers import Gaussian
from rs_keras.trainers import PerExampleSigma
from rs_keras.trainers import SmoothAdv
from rs_keras.trainers._step.noisy_model import MOST_COPIES
from rs_keras.trainers._step.per_input_sigma import SIGMA_STREAM

SHAPE = (4, 4, 1)
EXAMPLES = 6


def network():
    keras.utils.set_random_seed(2)
    return keras.Sequential(
        [keras.Input(SHAPE), keras.layers.Flatten(), keras.layers.Dense(3)]
    )


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(3)
    images = rng.uniform(size=(EXAMPLES, *SHAPE)).astype(np.float32)
    return images, rng.integers(0, 3, EXAMPLES)


def dataset(data, batch=EXAMPLES):
    ids = np.arange(EXAMPLES)[::-1].copy()
    targets = {"label": data[1], "example_id": ids}
    return tf.data.Dataset.from_tensor_slices((data[0], targets)).batch(batch)


def trained(method=Gaussian, epochs=1, batch=EXAMPLES, data=None, **sigma):
    sigma = {"learning_rate": 0.05, **sigma}
    trainer = method(
        network(), PerExampleSigma(0.25, EXAMPLES, **sigma), seed=5
    )
    trainer.compile(SGD(0.1))
    history = trainer.fit(
        dataset(data, batch), epochs=epochs, verbose=0, shuffle=False
    )
    return trainer, history.history


def by_hand(model, images, sigma, steps, num_noise, step=0):
    """The sigmas after one training step, from its addressed noise."""

    def draws(k):
        eps = noise.normal(
            SHAPE,
            [5, step],
            int(k) * 2**24,
            len(images) * num_noise,
            stream=SIGMA_STREAM,
        )
        return tf.reshape(eps, [-1, num_noise, *SHAPE])

    start = tf.fill([len(images)], sigma)
    return ascend(model, tf.constant(images), start, draws, steps, 0.05)


@pytest.mark.parametrize(("steps", "num_noise"), [(1, 1), (3, 2)])
def test_a_step_moves_each_sigma_and_trains_with_it(data, steps, num_noise):
    trainer, history = trained(data=data, steps=steps, num_noise=num_noise)
    start = network()
    sigma = by_hand(start, data[0], 0.25, steps, num_noise)
    assert np.abs(sigma - 0.25).min() > 0
    # Example i of the batch has the id EXAMPLES - 1 - i.
    np.testing.assert_allclose(
        trainer.sigma.values[::-1], sigma, rtol=1e-5, atol=1e-7
    )
    eps = noise.normal(SHAPE, [5, 0], 0, EXAMPLES).numpy()
    noisy = data[0] + sigma.numpy()[:, None, None, None] * eps
    loss = cross_entropy(tf.constant(data[1]), start(noisy))
    assert history["loss"][0] == pytest.approx(
        float(tf.reduce_mean(loss)), rel=1e-5
    )


def test_macer_weighs_its_margin_by_the_examples_sigma(data):
    trainer = MACER(network(), PerExampleSigma(0.25, EXAMPLES), num_noise=4)
    draw = trainer.draw(data[0], [0, 0])
    plain = trainer.losses_of(*data, draw)["robustness"]
    sigma = tf.linspace(0.25, 1.0, EXAMPLES)
    varied = trainer.losses_of(*data, {**draw, "sigma": sigma})["robustness"]
    np.testing.assert_allclose(varied, plain * sigma / 0.25, rtol=1e-5)
    assert float(tf.reduce_max(plain)) > 0


@pytest.mark.parametrize("method", [Gaussian, SmoothAdv, MACER])
def test_sigmas_start_to_move_after_an_epoch(data, method):
    trainer, _ = trained(method, epochs=1, data=data, after_epoch=1)
    np.testing.assert_array_equal(trainer.sigma.values, 0.25)
    again = {"initial_epoch": 1, "epochs": 2, "verbose": 0, "shuffle": False}
    trainer.fit(dataset(data), **again)
    assert (np.abs(trainer.sigma.values - 0.25) > 0).all()


def test_a_partial_batch_moves_its_own_examples_only(data):
    trainer = Gaussian(
        network(), PerExampleSigma(0.25, EXAMPLES, learning_rate=0.05)
    )
    trainer.compile(SGD(0.1))
    trainer.fit(dataset(data, 4).take(1), verbose=0, shuffle=False)
    moved = np.asarray(trainer.sigma.values) != 0.25
    assert moved.tolist() == [False, False, True, True, True, True]


def test_the_sigmas_are_part_of_the_file(data, tmp_path):
    trainer, _ = trained(data=data, epochs=2)
    trainer.save(tmp_path / "trainer.keras")
    loaded = keras.saving.load_model(tmp_path / "trainer.keras")
    assert isinstance(loaded.sigma, PerExampleSigma)
    assert loaded.sigma.get_config() == trainer.sigma.get_config()
    np.testing.assert_array_equal(loaded.sigma.values, trainer.sigma.values)
    for one in (trainer, loaded):
        one.fit(
            dataset(data), initial_epoch=2, epochs=3, verbose=0, shuffle=False
        )
    np.testing.assert_array_equal(loaded.sigma.values, trainer.sigma.values)


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        (lambda y: y, "`example_id` must be among"),
        (lambda y: {"label": y}, "`example_id` must be among"),
        (lambda y: {"label": y, "example_id": y + 9}, "must lie in"),
    ],
    ids=["labels", "no id", "far id"],
)
def test_targets_without_example_ids_are_refused(data, targets, message):
    trainer = Gaussian(network(), PerExampleSigma(0.25, EXAMPLES))
    trainer.compile(SGD(0.1))
    with pytest.raises(ValueError, match=message):
        trainer.fit(data[0], targets(data[1]), verbose=0)


@pytest.mark.parametrize(
    "bad",
    [
        {"sigma0": 0},
        {"num_examples": 0},
        {"after_epoch": -1},
        {"steps": 0},
        {"steps": 257},
        {"num_noise": 0},
        {"learning_rate": -1},
    ],
    ids=str,
)
def test_bad_arguments_of_per_example_sigma_are_refused(bad):
    arguments = {"sigma0": 0.25, "num_examples": 3, **bad}
    with pytest.raises(ValueError, match=f"`{next(iter(bad))}` must"):
        PerExampleSigma(**arguments)


def test_its_noise_has_a_stream_of_its_own():
    # Copies have the streams below, a method has two.
    assert SIGMA_STREAM == MOST_COPIES + 2
