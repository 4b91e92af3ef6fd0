import numpy as np
import pytest
import scipy.stats
import tensorflow as tf

from rs_keras import Certifier
from rs_keras import certify_dataset
from rs_keras import compose
from rs_keras.noise import fold_in


def threshold(level, sharpness=1.0):
    """Says 1 where the mean pixel is above `level`."""

    def model(x):
        score = tf.reduce_mean(x, [1, 2, 3]) - level
        return sharpness * tf.stack([-score, score], -1)

    return model


def band(x):
    """Says 1 where the mean pixel is between .45 and .55."""
    score = 0.05 - tf.abs(tf.reduce_mean(x, [1, 2, 3]) - 0.5)
    return tf.stack([-score, score], -1)


def grey(*levels):
    images = [np.full([8, 8, 1], level, np.float32) for level in levels]
    return np.stack(images)


def test_the_smaller_radius_and_the_routed_expert():
    images = grey(0.32, 0.7, 0.95)
    router = Certifier(threshold(0.5), 0.5)
    experts = [Certifier(threshold(0.4), 0.25), Certifier(threshold(0.8), 0.5)]
    found = compose(router, experts).certify(images, n=20_000, seed=1)
    assert found.label.tolist() == [0, 0, 1]
    # |w| = 1/8 for the mean of 64 pixels: distances are 8 x level gaps.
    truth = 8 * np.array([min(0.18, 0.08), min(0.2, 0.1), min(0.45, 0.15)])
    assert (found.radius <= truth).all()
    assert (found.radius >= 0.8 * truth).all()
    again = compose(router, experts).certify(images, n=20_000, seed=found.seed)
    np.testing.assert_array_equal(found.radius, again.radius)
    assert (found.n == 40_000).all()


def test_alpha_is_split():
    router = Certifier(threshold(0.5), 0.5)
    expert = Certifier(threshold(0.5), 0.5)
    both = compose(router, [expert, expert])
    found = both.certify(grey(1.0), n=1_000, alpha=0.01, seed=1)
    # All votes agree: lower bound (0.9 * alpha / 2) ** (1 / n).
    limit = 0.5 * scipy.stats.norm.ppf(0.0045 ** (1 / 1_000))
    assert found.radius[0] == pytest.approx(limit, rel=1e-9)
    assert found.settings["alpha"] == 0.01


def test_an_undecided_router_abstains():
    router = Certifier(threshold(0.5), 0.5)
    experts = [Certifier(threshold(0.2), 0.5), Certifier(threshold(0.8), 0.5)]
    found = compose(router, experts).certify(grey(0.5, 0.0), n=1_000, seed=1)
    assert found.label.tolist() == [-1, 0]
    assert found.radius[0] == 0 and found.counts[0].sum() == 0


def test_per_input_sigma_certifies_falsely_where_composition_does_not():
    """The answer depends on sigma, and sigma on the image.

    Under noise of deviation s the mean of 64 pixels has deviation s / 8, so
    the band is hit with probability near 1 at s = 0.05 and rarely at s = 1.
    Sigma is chosen by the image: 0.05 up to a mean of 0.5, 1 above. At a mean
    of 0.49 the small sigma certifies class 1 with a radius; 0.16 further in
    L2, at a mean of 0.51, the deployed classifier has the large one and says 0.
    """

    def deployed_sigma(image):
        return 0.05 if image.mean() <= 0.5 else 1.0

    clean, attacked = grey(0.49), grey(0.51)
    distance = np.linalg.norm(attacked - clean)
    by_sigma = {s: Certifier(band, s) for s in (0.05, 1.0)}
    here = by_sigma[deployed_sigma(clean)].certify(clean, seed=1)
    there = by_sigma[deployed_sigma(attacked)].certify(attacked, seed=2)
    assert here.label[0] == 1 and there.label[0] == 0
    assert here.radius[0] > distance

    router = Certifier(threshold(0.5), 0.25)
    both = compose(router, [by_sigma[0.05], by_sigma[1.0]])
    sound = both.certify(clean, seed=3)
    assert sound.label[0] == 1
    # The router changes its mind at a mean of 0.5, 0.08 away.
    assert 0 < sound.radius[0] <= 8 * 0.01
    assert both.certify(attacked, seed=4).label[0] == 0


def test_a_composition_takes_keyed_seeds():
    """The same image gets the same noise, with the router's key."""
    router = Certifier(threshold(0.5), 0.5, key=b"0123456789abcdef")
    both = compose(router, [Certifier(threshold(0.5), 0.5)] * 2)
    images = grey(0.7, 0.6, 0.7)
    found = both.certify(images, n=1_000, seed="keyed")
    np.testing.assert_array_equal(found.counts[0], found.counts[2])
    assert (found.seed[0] != found.seed[1]).any()
    again = both.certify(images[::-1], n=1_000, seed="keyed")
    np.testing.assert_array_equal(again.seed, found.seed[::-1])


def test_sums_of_soft_predictions_stay_sums():
    expert = Certifier(threshold(0.5, 5.0), 0.5)
    both = compose(Certifier(threshold(0.5, 50.0), 0.5), [expert, expert])
    soft = {"bound": "bernstein", "runner_up": False, "n": 1_000}
    found = both.certify(grey(0.8), seed=1, **soft)
    assert found.counts.dtype == np.float64
    # The rows of a softmax sum to one, each sum is no whole number.
    assert found.counts.sum() == pytest.approx(1_000)
    assert found.counts[0, 0] % 1 > 0


def test_bad_compositions_are_refused():
    router = Certifier(threshold(0.5), 0.5)
    with pytest.raises(ValueError, match="`experts` must"):
        compose(router, [])
    three = compose(router, [router] * 3)
    with pytest.raises(ValueError, match="2 classes, 3 experts"):
        three.certify(grey(0.2), n=100)
    grid = Certifier(threshold(0.5), 0.5, noise="grid")
    with pytest.raises(ValueError, match="`experts` must have .* noise"):
        compose(router, [router, grid])
    five = Certifier(lambda x: x[:, 0, :5, 0], 0.5)
    with pytest.raises(ValueError, match=r"the same classes.*\[2, 5\]"):
        compose(router, [router, five]).certify(grey(0.2), n=100)
    with pytest.raises(ValueError, match="`alpha` must"):
        compose(router, [router] * 2).certify(grey(0.2), alpha=2)


def test_data_sets_are_certified_by_compositions(tmp_path):
    router = Certifier(threshold(0.5), 0.5)
    experts = [Certifier(threshold(0.2), 0.5), Certifier(threshold(0.8), 0.5)]
    both = compose(router, experts)
    images = grey(0.1, 0.4, 0.95)
    log = certify_dataset(
        both,
        list(zip(images, [0, 1, 1], strict=True)),
        tmp_path / "log.tsv",
        n=500,
        seed=1,
        progress=False,
    )
    assert log.scope == "composition"
    for row, image in enumerate(images):
        seed = fold_in(1, row)[None]
        alone = both.certify(image[None], n=500, seed=seed)
        assert log.predict[row] == alone.label[0]
    assert ((log.extra["p_top"] > 0.5) & (log.extra["p_top"] <= 1)).all()
