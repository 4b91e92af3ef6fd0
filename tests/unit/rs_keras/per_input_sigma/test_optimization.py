import numpy as np
import pytest
import scipy.stats
import tensorflow as tf
from kits.golden_cases import load
from kits.golden_cases import names
from kits.golden_cases import network

from rs_keras.per_input_sigma import ascend
from rs_keras.per_input_sigma import optimize_sigma
from rs_keras.per_input_sigma import search_sigma


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("name", names("optimize_sigma"))
def test_the_ascent_for_sigma_gives_the_authors_numbers(name, dtype):
    case = load("optimize_sigma", name)
    model = network(case, dtype)
    training = case["hparams"]["bn_mode"] == "train"
    eps = tf.constant(case["eps"], dtype)
    path = [tf.constant(case["sigma0"], dtype)]
    tolerance = 1e-9 if dtype == "float64" else 1e-5
    for step in range(len(eps)):
        sigma = ascend(
            lambda x: model(x, training=training),
            tf.constant(case["x"], dtype),
            path[-1],
            lambda k, step=step: eps[step + int(k)],
            1,
            case["hparams"]["lr"],
        )
        path.append(sigma)
    np.testing.assert_allclose(path, case["sigma_path"], rtol=0, atol=tolerance)
    gradients = np.diff(np.asarray(path), axis=0) / case["hparams"]["lr"]
    np.testing.assert_allclose(
        gradients, case["grad_path"], rtol=0, atol=tolerance * 100
    )


def linear(scale):
    """P[class 1] near a step: softmax of a steep linear score."""

    def model(x):
        score = tf.reduce_sum(x, [1, 2, 3]) - 8.0
        return scale * tf.stack([-score, score], -1)

    return model


def objective(sigma, distance):
    """sigma / 2 * (icdf(p) - icdf(1 - p)), p = clip(cdf(distance / sigma)).

    The noise moves the score by Normal(0, sigma * |w|), |w| = 4.
    """
    p = np.clip(scipy.stats.norm.cdf(distance / sigma), 0.02, 0.98)
    return sigma * scipy.stats.norm.ppf(p)


def test_the_ascent_reaches_the_optimum():
    """On a steep linear classifier the objective is known.

    While p > .98 it is sigma * icdf(.98): it grows with sigma, up to the sigma
    at which p falls to .98; beyond, sigma * icdf(cdf(d / sigma)) = d is flat.
    """
    image = np.full([1, 4, 4, 1], 0.75, np.float32)
    distance = 4.0 / 4.0
    knee = distance / scipy.stats.norm.ppf(0.98)
    grid = np.linspace(0.01, 2, 2000)
    best = objective(grid, distance).max()
    found = optimize_sigma(linear(50.0), image, 0.2, 200, 200, 0.01, seed=3)
    assert found[0] >= 0.9 * knee
    assert objective(found[0], distance) >= 0.98 * best
    tried = search_sigma(linear(50.0), image, 2_000, 100, 1.0, seed=3)
    assert objective(tried[0], distance) >= 0.9 * best


def test_rows_are_independent_and_repeat():
    rng = np.random.default_rng(0)
    images = rng.uniform(size=(3, 4, 4, 1)).astype(np.float32)
    model = linear(2.0)
    together = optimize_sigma(model, images, 0.3, 20, 2, 0.05, seed=4)
    again = optimize_sigma(model, images, [0.3] * 3, 20, 2, 0.05, seed=4)
    np.testing.assert_array_equal(together, again)
    from rs_keras.noise import as_seeds

    seeds = as_seeds(4, 3)
    for row in range(3):
        alone = optimize_sigma(
            model, images[row][None], 0.3, 20, 2, 0.05, seed=seeds[row][None]
        )
        np.testing.assert_allclose(alone[0], together[row], rtol=1e-5)
    assert len(set(together)) == 3
    none = optimize_sigma(model, images, 0.3, 0, seed=4)
    np.testing.assert_allclose(none, 0.3, rtol=1e-6)


def test_sigma_stays_positive():
    def torn(x):
        # The promise shrinks with sigma so fast that a step would overshoot.
        return 1e3 * tf.stack([x[:, 0, 0, 0], 1 - x[:, 0, 0, 0]], -1)

    image = np.full([1, 4, 4, 1], 0.52, np.float32)
    found = optimize_sigma(torn, image, 0.3, 50, 1, 10.0, seed=1)
    assert 0 < found[0] < np.inf


@pytest.mark.parametrize(
    "bad",
    [
        {"sigma0": 0.0},
        {"sigma0": [0.1, 0.2]},
        {"sigma0": float("nan")},
        {"steps": -1},
        {"num_noise": 0},
        {"learning_rate": 0},
        {"images": np.zeros([4, 4, 1])},
    ],
    ids=lambda value: next(iter(value)),
)
def test_bad_arguments_of_optimize_sigma_are_refused(bad):
    image = np.zeros([1, 4, 4, 1], np.float32)
    arguments = {"images": image, "sigma0": 0.25, **bad}
    name = next(iter(bad))
    with pytest.raises(ValueError, match=f"`{name}` must"):
        optimize_sigma(linear(1.0), **arguments)


def test_bad_arguments_of_search_sigma_are_refused():
    image = np.zeros([1, 4, 4, 1], np.float32)
    with pytest.raises(ValueError, match="`evaluations` must"):
        search_sigma(linear(1.0), image, evaluations=3, num_noise=4)
    with pytest.raises(ValueError, match="`largest` must"):
        search_sigma(linear(1.0), image, largest=0)
