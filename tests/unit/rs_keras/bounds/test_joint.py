"""Oracles: SciPy's trinomial tails on dense curves, exact enumeration."""

import functools
import time

import numpy as np
import pytest
import scipy.optimize
import scipy.stats
import tensorflow as tf

from rs_keras import bounds
from rs_keras.bounds import joint
from rs_keras.bounds import radius_curve
from rs_keras.bounds import trinomial
from rs_keras.bounds import vote_order

PHI = scipy.stats.norm.cdf
QUANTILE = scipy.stats.norm.ppf
# Of alpha, for the interval of p_a.
SHARE = 2.0**-9


def stairs(level, n, alpha):
    """The fewest votes for a beside each count for b, from the half-planes."""
    n, alpha = (tf.constant([float(value)], tf.float64) for value in (n, alpha))
    s = vote_order.thresholds(level, n, alpha)[0].numpy()
    b = np.arange(int(n[0]) + 1)
    w = vote_order.WEIGHTS
    return np.ceil((s[:, None] + w[:, None] * b) / 8).min(0)


def level_of(k, k2, n, alpha):
    values = (tf.constant([float(x)], tf.float64) for x in (k, k2, n, alpha))
    level, needed, reached = vote_order.level_of(*values)
    assert reached.numpy().all()
    n, alpha = (tf.constant([float(x)], tf.float64) for x in (n, alpha))
    same = vote_order.thresholds(level, n, alpha)
    np.testing.assert_array_equal(same, needed)
    return level


def tails(votes, p_a, p_b):
    """P[N_a >= votes[N_b]] for arrays of p_a and p_b."""
    n = len(votes) - 1
    b = np.arange(n + 1)
    q = np.minimum(p_a / (1 - p_b), 1)[:, None]
    upper = scipy.stats.binom.sf(votes - 1, n - b, q)
    return (scipy.stats.binom.pmf(b, n, p_b[:, None]) * upper).sum(1)


def interval(k, n, alpha):
    """Phi^-1 of an interval for p_a within the one that is taken."""
    side = alpha * SHARE / 2
    low = scipy.stats.beta.ppf(side, k, n - k + 1)
    high = scipy.stats.beta.isf(side, k + 1, n - k) if k < n else 1.0
    return QUANTILE(low), QUANTILE(high)


def curve(rho, k, n, alpha, points=300):
    """t of a dense grid on the curve of rho, as far as p_a may be there."""
    low, high = interval(k, n, alpha)
    nearest = max(rho - high, 0)
    furthest = max(rho - low, nearest)
    return -(np.linspace(nearest**0.5, furthest**0.5, points) ** 2)


def exact_radius(k, k2, n, alpha):
    """The radius over sigma, from the largest tail on a dense grid."""
    votes = stairs(level_of(k, k2, n, alpha), n, alpha)

    def excess(rho):
        t = curve(rho, k, n, alpha)
        largest = tails(votes, PHI(t + rho), PHI(t - rho)).max()
        return np.log(largest / alpha / (1 - SHARE))

    if excess(1e-6) > 0:
        return 0.0
    return scipy.optimize.brentq(excess, 1e-6, 6.0, xtol=1e-7)


@functools.cache
def certified(n, alpha):
    return certificates(n, alpha)


def certificates(n, alpha):
    """The radii of all votes with k > k2: k, k2, radius."""
    k, k2 = all_votes(n)
    k, k2 = k[k > k2], k2[k > k2]
    found = bounds.joint_count(k, k2, n, alpha, 1.0)
    return k, k2, np.where(found.abstain, -1.0, found.radius)


def all_votes(n):
    """Every (k, k2) that n draws can give two classes."""
    return np.array([(a, b) for a in range(n + 1) for b in range(n + 1 - a)]).T


def probability(k, k2, n, p_a, p_b):
    counts = np.stack([k, k2, n - k - k2], -1)
    p = [p_a, p_b, max(1 - p_a - p_b, 0)]
    return scipy.stats.multinomial.pmf(counts, n, p)


def largest_error(k, k2, radius, n):
    """The most probable error, and where, if the rest is split without end.

    No other class has more votes than b then: the worst there is.
    """
    grid = [0.005, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.35, 0.4, 0.45, 0.499]
    p = [(1 - b, b) for b in grid]
    tops = (0.05, 0.1, 0.2, 0.35, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
    p += [(a, b) for a in tops for b in grid if b < a and a + b <= 1]
    errors = []
    for p_a, p_b in p:
        false = radius > (QUANTILE(p_a) - QUANTILE(p_b)) / 2
        errors.append(probability(k[false], k2[false], n, p_a, p_b).sum())
    return max(zip(errors, p, strict=True))


class TestOrder:
    @pytest.mark.parametrize("n", [10, 60, 1000, 100_000])
    def test_higher_levels_need_more_votes(self, n):
        level = np.arange(-64 * 2.0**12, 480 * 2.0**12, 6073 * 3)
        # Neighbours, too.
        level = tf.reshape(level[:, None] + [0.0, 1.0], [-1])
        draws = tf.zeros_like(level) + n
        alpha = tf.zeros_like(level) + 1e-3
        needed = vote_order.thresholds(level, draws, alpha).numpy()
        assert (np.diff(needed, axis=0) >= 0).all()

    @pytest.mark.parametrize(
        ("k", "k2", "n"),
        [(40, 5, 60), (60, 0, 60), (600, 150, 1000), (53_000, 44_000, 100_000)],
    )
    def test_votes_reach_their_level_and_not_the_next(self, k, k2, n):
        level = level_of(k, k2, n, 1e-3)
        assert stairs(level, n, 1e-3)[k2] <= k
        assert stairs(level + 1, n, 1e-3)[k2] > k

    def test_is_that_of_a_likelihood_ratio(self):
        """Votes of level l: n * KL to the curve of l is z**2 / 2."""
        k, k2, n = 60_000, 15_000, 100_000
        p = np.array([k, k2, n - k - k2]) / n
        t = -np.linspace(0, 2, 4000)

        def divergence(rho):
            p_a, p_b = PHI(t + rho), PHI(t - rho)
            q = np.array([p_a, p_b, PHI(-t - rho) - p_b])
            q[2, 0] = 1e-12
            return n * (p[:, None] * np.log(p[:, None] / q)).sum(0).min()

        level = vote_order.radius_of(
            level_of(k, k2, n, 1e-3), tf.constant([float(n)], tf.float64)
        )
        wanted = scipy.optimize.brentq(
            lambda rho: divergence(rho) - QUANTILE(1e-3) ** 2 / 2, 0.5, 0.644
        )
        # A standard error is 0.004; the two votes, lattices.
        assert float(level[0]) == pytest.approx(wanted, abs=8e-4)


class TestRadius:
    @pytest.mark.parametrize(
        ("k", "k2", "n"),
        [
            (40, 5, 60),
            (30, 2, 60),
            (55, 4, 60),
            (24, 0, 24),
            (600, 150, 1000),
            (970, 10, 1000),
            (550, 420, 1000),
            (300, 20, 1000),
        ],
    )
    def test_agrees_with_a_dense_grid(self, k, k2, n):
        found = float(bounds.joint_count(k, k2, n, 1e-3, 1.0).radius)
        wanted = exact_radius(k, k2, n, 1e-3)
        # One standard error of the radius is at most 3 / sqrt(n) here.
        assert wanted - 0.15 / np.sqrt(n) < found <= wanted + 1e-6

    @pytest.mark.parametrize(
        ("p_a", "p_b", "n", "gain"),
        [
            (0.6, 0.15, 1000, 0.05),
            (0.6, 0.15, 100_000, 0.002),
            (0.97, 0.01, 1000, 0.03),
            (0.97, 0.01, 10_000, 0.01),
            (0.55, 0.42, 1000, 0.3),
        ],
    )
    def test_is_above_that_of_two_counts(self, p_a, p_b, n, gain):
        k, k2 = round(p_a * n), round(p_b * n)
        found = bounds.joint_count(k, k2, n, 1e-3, 1.0).radius
        separate = bounds.two_count(k, k2, n, 1e-3, 1.0).radius
        assert float(found) > (1 + gain) * float(separate)

    def test_is_that_of_one_count_where_all_agree(self):
        found = float(bounds.joint_count(1000, 0, 1000, 1e-3, 1.0).radius)
        assert found <= QUANTILE(1e-3 ** (1 / 1000))
        assert found == pytest.approx(QUANTILE(1e-3 ** (1 / 1000)), abs=5e-3)

    def test_grows_with_the_votes_and_alpha(self):
        k = np.arange(45, 61, 3)
        radius = bounds.joint_count(k, 0, 60, 1e-3, 1.0).radius.numpy()
        assert (np.diff(radius) > 0).all()
        k2 = np.arange(0, 11, 2)
        radius = bounds.joint_count(50, k2, 60, 1e-3, 1.0).radius.numpy()
        assert (np.diff(radius) < 0).all()
        alpha = np.logspace(-6, -1, 6)
        radius = bounds.joint_count(50, 3, 60, alpha, 1.0).radius.numpy()
        assert (np.diff(radius) > 0).all()

    def test_is_in_the_units_of_sigma(self):
        one, half = (
            float(bounds.joint_count(700, 100, 1000, 1e-3, sigma).radius)
            for sigma in (1.0, 0.5)
        )
        assert half == pytest.approx(one / 2, rel=1e-12)

    def test_noise_off_the_gaussian_takes_alpha(self):
        arguments = 700, 100, 1000
        found = bounds.joint_count(*arguments, 2e-3, 1.0, distance=1e-6)
        wanted = bounds.joint_count(*arguments, 1e-3, 1.0)
        assert float(found.radius) == pytest.approx(float(wanted.radius), 1e-9)
        found = bounds.joint_count(*arguments, 1e-3, 1.0, distance=1e-6)
        assert found.abstain


class TestSoundness:
    """False certificates, summed over all votes."""

    @pytest.mark.parametrize(("n", "alpha"), [(12, 0.1), (30, 0.05)])
    def test_the_rest_is_split_without_end(self, n, alpha):
        error, p = largest_error(*certified(n, alpha), n)
        assert error <= alpha, p

    @pytest.mark.parametrize("n", [12, 60, 5000])
    def test_the_interval_misses_as_rarely_as_it_costs(self, n):
        alpha, k = 0.05, np.arange(n + 1)
        rows = [tf.constant(x, tf.float64) for x in (k, 0 * k + n, 0 * k)]
        part = joint._part(rows[0], rows[1], rows[2] + alpha)
        low, high = PHI(part.low), PHI(part.high)
        np.testing.assert_allclose(
            np.exp(part.log_alpha), alpha * (1 - SHARE), rtol=1e-12
        )
        ends = np.concatenate([low, high])[:: n // 12]
        for p in np.concatenate([np.linspace(0.001, 0.999, 67), ends]):
            pmf = scipy.stats.binom.pmf(k, n, p)
            assert pmf[(low > p) | (high < p)].sum() <= alpha * SHARE

    @pytest.mark.parametrize("mistake", ["half", "bare", "ties"])
    def test_the_sum_finds_mistakes(self, mistake, monkeypatch):
        """Half of the curve, a bare grid on it, ties that do not count."""
        ends, bend = radius_curve._ends, radius_curve._curvature

        def half(*arguments):
            u, cut = ends(*arguments)
            middle = tf.reduce_mean(u, -1, keepdims=True)
            return tf.concat([u[:, :1], middle], -1), tf.ones_like(cut)

        def above(event, b):
            needed = (event.s[:, None] + event.w * b[..., None]) / 8
            return tf.reduce_min(tf.math.floor(needed) + 1, -1)

        target, name, wrong = {
            "half": (radius_curve, "_ends", half),
            "bare": (radius_curve, "_curvature", lambda *x: 0 * bend(*x)),
            "ties": (trinomial.Event, "votes", above),
        }[mistake]
        monkeypatch.setattr(target, name, wrong)
        traced = joint._largest_rho
        anew = tf.function(
            traced.python_function,
            input_signature=traced.input_signature,
            autograph=False,
        )
        monkeypatch.setattr(joint, "_largest_rho", anew)
        n, alpha = 12, 0.1
        assert largest_error(*certificates(n, alpha), n)[0] > alpha

    @pytest.mark.parametrize(
        "p", [(0.4, 0.3, 0.3), (0.34, 0.33, 0.33), (0.6, 0.2, 0.2)]
    )
    def test_of_three_classes_the_second_has_most_votes(self, p):
        n, alpha = 30, 0.05
        radius = np.full((n + 1, n + 1), -1.0)
        rows = certified(n, alpha)
        radius[rows[0], rows[1]] = rows[2]
        k, k2 = all_votes(n)
        true = (QUANTILE(p[0]) - QUANTILE(p[1])) / 2
        false = radius[k, np.maximum(k2, n - k - k2)] > true
        error = probability(k[false], k2[false], n, p[0], p[1]).sum()
        assert error <= alpha

    def test_the_count_of_a_class_chosen_earlier_is_unsound(self):
        """The mutation: of three classes, not the second's votes count."""
        n, alpha, p = 30, 0.05, (0.5, 0.45, 0.05)
        true = (QUANTILE(p[0]) - QUANTILE(p[1])) / 2
        k, k2, radius = certified(n, alpha)
        false = radius > true
        error = probability(k[false], k2[false], n, p[0], p[2]).sum()
        assert error > 5 * alpha

    @pytest.mark.parametrize("n", [25, 60, 400])
    def test_no_point_of_the_curve_is_above_alpha(self, n):
        """At the claimed radius, the largest tail over 2000 points."""
        k = np.array([0.7 * n, 0.8 * n, 0.95 * n]).astype(int)
        k2 = np.array([0.1 * n, 0.05 * n, 0.02 * n]).astype(int)
        found = bounds.joint_count(k, k2, n, 0.01, 1.0)
        for row in range(3):
            rho = float(found.radius[row])
            votes = stairs(level_of(k[row], k2[row], n, 0.01), n, 0.01)
            t = curve(rho, k[row], n, 0.01, points=2000)
            tail = tails(votes, PHI(t + rho), PHI(t - rho)).max()
            assert 0.85 * 0.01 < tail <= 0.01


class TestAbstention:
    @pytest.mark.parametrize(
        ("k", "k2", "n"), [(50, 50, 100), (40, 38, 100), (0, 0, 0), (5, 0, 9)]
    )
    def test_no_radius(self, k, k2, n):
        found = bounds.joint_count(k, k2, n, 1e-3, 1.0)
        assert found.abstain
        assert float(found.radius) == 0

    def test_not_where_the_fewest_votes_agree(self):
        alpha = np.array([0.05, 0.01, 1.1e-3, 1e-3, 9e-4, 1e-6])
        n = [bounds.minimum_n(a, "joint") for a in alpha]
        assert not bounds.joint_count(n, 0, n, alpha, 1.0).abstain.numpy().any()

    def test_nonsense_in_tensors_abstains(self):
        def votes(*values):
            return tf.constant(values, tf.float64)

        found = bounds.joint_count(
            votes(50, 90, 90.5, 90, np.nan),
            votes(60, -1, 3, 3, 3),
            votes(100, 100, 100, 100, 100),
            votes(1e-3, 1e-3, 1e-3, 0, 1e-3),
            1.0,
        )
        assert found.abstain.numpy().all()
        assert (found.radius.numpy() == 0).all()

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"k2": 31}, "`k2` must be <= n - k"),
            ({"k": 70.5}, "`k` must be a whole number"),
            ({"alpha": 0.0}, "`alpha` must lie in"),
            ({"sigma": -1.0}, "`sigma` must be > 0"),
            ({"distance": 1.0}, "`distance` must lie in"),
        ],
    )
    def test_errors(self, change, message):
        arguments = dict(k=70, k2=10, n=100, alpha=0.01, sigma=1.0)
        with pytest.raises(ValueError, match=message):
            bounds.joint_count(**{**arguments, **change})


class TestShapes:
    def test_rows_do_not_depend_on_each_other(self):
        k = np.array([[70], [90]])
        n = np.array([100, 200, 1000])
        found = bounds.joint_count(k, 3, n, 0.01, 0.5)
        assert found.radius.shape == found.abstain.shape == (2, 3)
        alone = bounds.joint_count(90, 3, 200, 0.01, 0.5)
        assert float(found.radius[1, 1]) == float(alone.radius)
        assert bounds.joint_count([], [], 10, 0.01, 0.5).radius.shape == 0

    def test_inside_a_function(self):
        @tf.function(input_signature=[tf.TensorSpec([None], tf.int64)] * 2)
        def certify(k, k2):
            return bounds.joint_count(k, k2, 1000, 1e-3, 1.0).radius

        found = certify([600, 700], [100, 200]).numpy()
        wanted = bounds.joint_count([600, 700], [100, 200], 1000, 1e-3, 1.0)
        np.testing.assert_allclose(found, wanted.radius, rtol=1e-12)

    def test_many_votes_take_milliseconds(self):
        votes = np.full(16, 60_000), np.full(16, 15_000), 100_000
        bounds.joint_count(*votes, 1e-3, 1.0)
        start = time.process_time()
        bounds.joint_count(*votes, 1e-3, 1.0).radius.numpy()
        # Some 4 ms each, on cores that others may be using.
        assert time.process_time() - start < 16 * 0.02
