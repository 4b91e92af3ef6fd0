"""Oracles: SciPy's trinomial tails on dense curves, exact enumeration."""

import time

import numpy as np
import pytest
import scipy.optimize
import scipy.stats
import tensorflow as tf

from rs_keras import bounds

PHI = scipy.stats.norm.cdf
QUANTILE = scipy.stats.norm.ppf


def tails(s, n, w, p_a, p_b):
    """P[N_a - w * N_b >= s] for arrays of p_a and p_b; s, w in eighths."""
    b = np.arange(n + 1)
    votes = np.ceil((s + w * b) / 8)
    q = np.minimum(p_a / (1 - p_b), 1)[:, None]
    upper = scipy.stats.binom.sf(votes - 1, n - b, q)
    return (scipy.stats.binom.pmf(b, n, p_b[:, None]) * upper).sum(1)


def exact_radius(k, k2, n, w, alpha, points=300):
    """The radius over sigma, from the largest tail on a dense grid."""
    s = 8 * k - 8 * w * k2
    t = -(np.linspace(0, 2, points) ** 2)

    def excess(rho):
        tail = tails(s, n, 8 * w, PHI(t + rho), PHI(t - rho))
        return np.log(tail.max() / alpha)

    if excess(1e-6) > 0:
        return 0.0
    return scipy.optimize.brentq(excess, 1e-6, 6.0, xtol=1e-7)


def all_votes(n):
    """Every (k, k2) that n draws can give two classes."""
    return np.array([(a, b) for a in range(n + 1) for b in range(n + 1 - a)]).T


def probability(k, k2, n, p_a, p_b):
    counts = np.stack([k, k2, n - k - k2], -1)
    p = [p_a, p_b, max(1 - p_a - p_b, 0)]
    return scipy.stats.multinomial.pmf(counts, n, p)


class TestRadius:
    @pytest.mark.parametrize(
        ("k", "k2", "n", "w"),
        [
            (40, 5, 60, 1.625),
            (30, 2, 60, 2.5),
            (55, 4, 60, 1.0),
            (24, 0, 24, 4.0),
            (600, 150, 1000, 1.625),
            (970, 10, 1000, 2.5),
            (550, 420, 1000, 1.0),
            (300, 20, 1000, 3.875),
        ],
    )
    def test_agrees_with_a_dense_grid(self, k, k2, n, w):
        found = float(bounds.joint_count(k, k2, n, 1e-3, 1.0, w).radius)
        wanted = exact_radius(k, k2, n, w, 1e-3)
        # One standard error of the radius is at most 3 / sqrt(n) here.
        assert wanted - 0.08 / np.sqrt(n) < found <= wanted + 1e-6

    def test_weight_0_is_the_bound_on_one_count(self):
        k = np.array([600, 900, 990, 1000])
        found = bounds.joint_count(k, 0, 1000, 1e-3, 0.5, 0.0).radius.numpy()
        wanted = bounds.certificate(k, None, 1000, 1e-3, 0.5)[1].numpy()
        assert (found <= wanted).all()
        np.testing.assert_allclose(found, wanted, atol=1e-3)

    @pytest.mark.parametrize(
        ("p_a", "p_b", "n", "gain"),
        [
            (0.6, 0.15, 1000, 0.06),
            (0.6, 0.15, 10_000, 0.015),
            (0.97, 0.01, 1000, 0.03),
            (0.97, 0.01, 10_000, 0.01),
            (0.55, 0.42, 1000, 0.4),
        ],
    )
    def test_is_above_that_of_two_counts(self, p_a, p_b, n, gain):
        k, k2 = round(p_a * n), round(p_b * n)
        w = bounds.joint_weight(k, k2, n)
        found = bounds.joint_count(k, k2, n, 1e-3, 1.0, w).radius
        separate = bounds.two_count(k, k2, n, 1e-3, 1.0).radius
        assert float(found) > (1 + gain) * float(separate)

    def test_grows_with_the_statistic_and_alpha(self):
        k = np.arange(40, 61)
        radius = bounds.joint_count(k, 0, 60, 1e-3, 1.0, 1.5).radius.numpy()
        assert (np.diff(radius) > 0).all()
        k2 = np.arange(0, 11)
        radius = bounds.joint_count(50, k2, 60, 1e-3, 1.0, 1.5).radius.numpy()
        assert (np.diff(radius) < 0).all()
        alpha = np.logspace(-6, -1, 6)
        radius = bounds.joint_count(50, 3, 60, alpha, 1.0, 1.5).radius.numpy()
        assert (np.diff(radius) > 0).all()

    def test_is_in_the_units_of_sigma(self):
        one, half = (
            float(bounds.joint_count(700, 100, 1000, 1e-3, sigma, 1.5).radius)
            for sigma in (1.0, 0.5)
        )
        assert half == pytest.approx(one / 2, rel=1e-12)

    def test_counts_of_one_statistic_get_one_radius(self):
        # 50 - 2 * 3 = 52 - 2 * 4.
        radius = bounds.joint_count([50, 52], [3, 4], 60, 1e-3, 1.0, 2.0).radius
        assert float(radius[0]) == float(radius[1]) > 0

    def test_noise_off_the_gaussian_takes_alpha(self):
        arguments = 700, 100, 1000
        found = bounds.joint_count(*arguments, 2e-3, 1.0, 1.5, distance=1e-6)
        wanted = bounds.joint_count(*arguments, 1e-3, 1.0, 1.5)
        assert float(found.radius) == pytest.approx(float(wanted.radius), 1e-9)
        found = bounds.joint_count(*arguments, 1e-3, 1.0, 1.5, distance=1e-6)
        assert found.abstain


class TestSoundness:
    """False certificates, summed over all votes."""

    @pytest.mark.parametrize("w", [0.25, 1.0, 1.375, 2.5, 4.0])
    @pytest.mark.parametrize(("n", "alpha"), [(20, 0.05), (60, 0.01)])
    def test_the_rest_is_split_without_end(self, n, alpha, w):
        """No other class has more votes than b: the worst there is."""
        k, k2 = all_votes(n)
        found = bounds.joint_count(k, k2, n, alpha, 1.0, w)
        for p_a, p_b in [
            (0.05, 0.05), (0.3, 0.05), (0.4, 0.4), (0.5, 0.5), (0.6, 0.05),
            (0.6, 0.3), (0.7, 0.15), (0.8, 0.2), (0.9, 0.05), (0.95, 0.05),
        ]:  # fmt: skip
            true = (QUANTILE(p_a) - QUANTILE(p_b)) / 2
            false = ~found.abstain.numpy() & (found.radius.numpy() > true)
            error = probability(k[false], k2[false], n, p_a, p_b).sum()
            assert error <= alpha, (p_a, p_b)

    @pytest.mark.parametrize("w", [0.5, 1.0, 2.0])
    @pytest.mark.parametrize(
        "p", [(0.4, 0.3, 0.3), (0.34, 0.33, 0.33), (0.6, 0.2, 0.2)]
    )
    def test_of_three_classes_the_second_has_most_votes(self, p, w):
        n, alpha = 30, 0.05
        k, k2 = all_votes(n)
        largest = np.maximum(k2, n - k - k2)
        found = bounds.joint_count(k, largest, n, alpha, 1.0, w)
        true = (QUANTILE(p[0]) - QUANTILE(p[1])) / 2
        false = ~found.abstain.numpy() & (found.radius.numpy() > true)
        error = probability(k[false], k2[false], n, p[0], p[1]).sum()
        assert error <= alpha

    @pytest.mark.parametrize(("n", "w"), [(25, 1.25), (60, 2.0), (400, 1.5)])
    def test_no_point_of_the_curve_is_above_alpha(self, n, w):
        """At the claimed radius, the largest tail over 2000 points."""
        k = np.array([0.7 * n, 0.8 * n, 0.95 * n]).astype(int)
        k2 = np.array([0.1 * n, 0.05 * n, 0.02 * n]).astype(int)
        found = bounds.joint_count(k, k2, n, 0.01, 1.0, w)
        t = -(np.linspace(0, 2, 2000) ** 2)
        for row in range(3):
            rho = float(found.radius[row])
            s = 8 * k[row] - 8 * w * k2[row]
            tail = tails(s, n, 8 * w, PHI(t + rho), PHI(t - rho)).max()
            assert 0.9 * 0.01 < tail <= 0.01


class TestAbstention:
    @pytest.mark.parametrize(
        ("k", "k2", "n", "w"),
        [(50, 50, 100, 1.0), (40, 20, 100, 4.0), (0, 0, 0, 1.0), (5, 0, 9, 1)],
    )
    def test_no_radius(self, k, k2, n, w):
        found = bounds.joint_count(k, k2, n, 1e-3, 1.0, w)
        assert found.abstain
        assert float(found.radius) == 0

    def test_nonsense_in_tensors_abstains(self):
        def votes(*values):
            return tf.constant(values, tf.float64)

        found = bounds.joint_count(
            votes(50, 90, 90.5, 90, 90, np.nan),
            votes(60, -1, 3, 3, 3, 3),
            votes(100, 100, 100, 100, 100, 100),
            votes(1e-3, 1e-3, 1e-3, 0, 1e-3, 1e-3),
            1.0,
            votes(1, 1, 1, 1, 1.1, 1),
        )
        assert found.abstain.numpy().all()
        assert (found.radius.numpy() == 0).all()

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"w": 1.1}, "`w` must be a multiple"),
            ({"w": 4.5}, "`w` must be a multiple"),
            ({"k2": 31}, "`k2` must be <= n - k"),
            ({"k": 70.5}, "`k` must be a whole number"),
            ({"alpha": 0.0}, "`alpha` must lie in"),
            ({"sigma": -1.0}, "`sigma` must be > 0"),
            ({"distance": 1.0}, "`distance` must lie in"),
        ],
    )
    def test_errors(self, change, message):
        arguments = dict(k=70, k2=10, n=100, alpha=0.01, sigma=1.0, w=1.0)
        with pytest.raises(ValueError, match=message):
            bounds.joint_count(**{**arguments, **change})


class TestWeight:
    def test_by_hand(self):
        density = scipy.stats.norm.pdf
        z = QUANTILE(60.5 / 101), QUANTILE(15.5 / 101)
        wanted = np.round(8 * density(z[0]) / density(z[1])) / 8
        assert float(bounds.joint_weight(60, 15, 100)) == wanted

    def test_is_1_between_two_classes(self):
        k = np.array([50, 70, 99, 100])
        found = bounds.joint_weight(k, 100 - k, 100).numpy()
        np.testing.assert_array_equal(found, 1.0)

    def test_stays_on_its_lattice(self):
        k = np.arange(1, 101)
        found = bounds.joint_weight(k, 0, 100).numpy()
        assert ((found >= 0) & (found <= 4)).all()
        np.testing.assert_array_equal(found * 8, np.round(found * 8))


class TestShapes:
    def test_broadcasts(self):
        k = np.array([[70], [90]])
        n = np.array([100, 200, 1000])
        found = bounds.joint_count(k, 3, n, 0.01, 0.5, 1.0)
        assert found.radius.shape == found.abstain.shape == (2, 3)
        alone = bounds.joint_count(90, 3, 200, 0.01, 0.5, 1.0)
        assert float(found.radius[1, 1]) == pytest.approx(
            float(alone.radius), abs=5e-3
        )
        assert bounds.joint_count([], [], 10, 0.01, 0.5, 1.0).radius.shape == 0

    def test_inside_a_function(self):
        @tf.function(input_signature=[tf.TensorSpec([None], tf.int64)] * 2)
        def certify(k, k2):
            w = bounds.joint_weight(60, 20, 100)
            return bounds.joint_count(k, k2, 1000, 1e-3, 1.0, w).radius

        found = certify([600, 700], [100, 200]).numpy()
        w = bounds.joint_weight(60, 20, 100)
        wanted = bounds.joint_count([600, 700], [100, 200], 1000, 1e-3, 1.0, w)
        np.testing.assert_allclose(found, wanted.radius, rtol=1e-12)

    def test_many_votes_take_milliseconds(self):
        votes = np.full(8, 60_000), np.full(8, 15_000), 100_000
        bounds.joint_count(*votes, 1e-3, 1.0, 1.625)
        start = time.process_time()
        bounds.joint_count(*votes, 1e-3, 1.0, 1.625).radius.numpy()
        # A few milliseconds each where nothing else runs.
        assert time.process_time() - start < 8 * 0.04
