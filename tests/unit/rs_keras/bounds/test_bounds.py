"""Oracles: SciPy, 40-digit sums by mpmath, golden tables, exact coverage."""

import json
from pathlib import Path

import mpmath
import numpy as np
import pytest
import scipy.special
import scipy.stats
import tensorflow as tf
import tensorflow_probability as tfp

from rs_keras import bounds

GOLDEN = Path(__file__).parents[3] / "golden"


def golden(topic):
    with np.load(GOLDEN / f"certification__{topic}.npz") as file:
        return dict(file)


def exact(numbers):
    with mpmath.workdps(50):
        return [mpmath.mpf(str(number)) for number in numbers]


def relative_shortfall(found, wanted):
    """(wanted - found) / wanted, in 50 digits; 0 where both are 0."""
    with mpmath.workdps(50):
        return np.array(
            [
                float((w - mpmath.mpf(float(f))) / (w or 1))
                for f, w in zip(found, wanted, strict=True)
            ]
        )


def exact_log_tail(k, n, p):
    """log P[Binomial(n, p) >= k] from the continued fraction, in 40 digits."""
    with mpmath.workdps(40):
        p, a, b = mpmath.mpf(p), mpmath.mpf(int(k)), int(n - k + 1)
        c, d = mpmath.mpf(1), 1 / (1 - (a + b) * p / (a + 1))
        fraction = d
        for m in range(1, 30_000):
            step = m * (b - m) * p / ((a + 2 * m - 1) * (a + 2 * m))
            d, c = 1 / (1 + step * d), 1 + step / c
            fraction *= d * c
            step = -(a + m) * (a + b + m) * p
            step /= (a + 2 * m) * (a + 2 * m + 1)
            d, c = 1 / (1 + step * d), 1 + step / c
            fraction *= d * c
            if abs(d * c - 1) < mpmath.mpf(10) ** -35:
                break
        log_beta = mpmath.loggamma(a) + mpmath.loggamma(b)
        log_beta -= mpmath.loggamma(a + b)
        power = a * mpmath.log(p) + b * mpmath.log1p(-p)
        return power - log_beta + mpmath.log(fraction / a)


def grid(sizes, alphas):
    shares = [0, 1e-6, 0.001, 0.1, 0.3, 0.5, 0.7, 0.9, 0.999, 1 - 1e-6, 1]
    rows = {
        (k, n, alpha)
        for n in sizes
        for share in shares
        for k in (round(share * n), round(share * n) + 2)
        for alpha in alphas
        if 0 <= k <= n
    }
    k, n, alpha = np.array(sorted(rows)).T
    return k.astype(np.int64), n.astype(np.int64), alpha


SIZES = [1, 2, 3, 7, 10, 15, 16, 17, 100, 1000, 10**5, 10**6, 10**7]


class TestClopperPearson:
    def test_golden_table(self):
        table = golden("clopper_pearson")
        found = bounds.clopper_pearson_lower(
            table["k"], table["n"], table["alpha"]
        ).numpy()
        shortfall = relative_shortfall(found, exact(table["lower_50"]))
        assert shortfall.min() >= 0
        assert shortfall.max() < 1e-9
        np.testing.assert_allclose(found, table["lower_statsmodels"], 1e-9)

    def test_agrees_with_scipy(self):
        k, n, alpha = grid(SIZES, [1e-6, 1e-3, 0.05, 0.5])
        inner = (k > 0) & (k < n)
        k, n, alpha = k[inner], n[inner], alpha[inner]
        np.testing.assert_allclose(
            bounds.clopper_pearson_lower(k, n, alpha),
            scipy.stats.beta.ppf(alpha, k, n - k + 1),
            rtol=1e-9,
        )
        np.testing.assert_allclose(
            bounds.clopper_pearson_upper(k, n, alpha),
            scipy.stats.beta.isf(alpha, k + 1, n - k),
            rtol=1e-9,
        )

    @pytest.mark.parametrize("side", ["lower", "upper"])
    def test_never_on_the_wrong_side(self, side):
        """The exact tail at the bound is at most alpha, and hardly less."""
        k, n, alpha = grid(SIZES, [1e-15, 1e-3, 0.3, 0.5])
        k, n, alpha = k[k > 0], n[k > 0], alpha[k > 0]
        with mpmath.workdps(40):
            if side == "lower":
                p = map(float, bounds.clopper_pearson_lower(k, n, alpha))
            else:
                # n - k successes or fewer are k failures or more.
                q = bounds.clopper_pearson_upper(n - k, n, alpha)
                p = [1 - mpmath.mpf(float(x)) for x in q]
            excess = [
                exact_log_tail(*row) - mpmath.log(a)
                for *row, a in zip(k, n, p, alpha, strict=True)
            ]
        assert max(excess) <= 0
        # A part in 1e6 of alpha moves no bound by a part in 1e9. (An upper
        # bound close to 1 has fewer digits to say how close.)
        assert side == "upper" or min(excess) > -1e-6

    @pytest.mark.parametrize("n", [1, 10, 100_000, 10_000_000])
    @pytest.mark.parametrize("alpha", [1e-15, 1e-3, 0.5])
    def test_closed_forms(self, n, alpha):
        ends = [0, n]
        with mpmath.workdps(50):
            root = mpmath.mpf(alpha) ** (mpmath.mpf(1) / n)
            rest = 1 - root
        none, every = bounds.clopper_pearson_lower(ends, n, alpha).numpy()
        assert none == 0
        assert 0 <= relative_shortfall([every], [root])[0] < 1e-12
        none, every = bounds.clopper_pearson_upper(ends, n, alpha).numpy()
        assert -1e-12 < relative_shortfall([none], [rest])[0] <= 0
        assert every == 1

    def test_large_n_keeps_its_digits(self):
        # 1e12 trials: the normal approximation is good to about 1 / n.
        lower = float(bounds.clopper_pearson_lower(6e11, 1e12, 1e-3))
        z = scipy.stats.norm.isf(1e-3)
        assert lower == pytest.approx(0.6 - z * (0.24 / 1e12) ** 0.5, abs=1e-9)

    @pytest.mark.parametrize("n", [1, 2, 10, 60])
    @pytest.mark.parametrize("alpha", [0.001, 0.05, 0.5])
    def test_coverage_summed_exactly(self, n, alpha):
        k = np.arange(n + 1)
        lower = bounds.clopper_pearson_lower(k, n, alpha).numpy()
        upper = bounds.clopper_pearson_upper(k, n, alpha).numpy()
        # The worst p are the bounds themselves: one step beyond each.
        p = np.unique(
            np.concatenate(
                [
                    np.linspace(0.001, 0.999, 97),
                    np.nextafter(lower, 0),
                    np.nextafter(upper, 1),
                ]
            )
        )
        probability = scipy.stats.binom.pmf(k, n, p[:, None])
        too_high = (probability * (lower > p[:, None])).sum(1)
        too_low = (probability * (upper < p[:, None])).sum(1)
        assert too_high.max() <= alpha * (1 + 1e-12)
        assert too_low.max() <= alpha * (1 + 1e-12)

    def test_alpha_is_not_rounded_to_float32(self):
        found = float(bounds.clopper_pearson_lower(1, 1, 1e-3))
        assert found == pytest.approx(1e-3, rel=1e-12)

    def test_above_the_median_it_stops_at_the_share(self):
        assert float(bounds.clopper_pearson_lower(60, 100, 0.99)) <= 0.6
        assert float(bounds.clopper_pearson_upper(60, 100, 0.99)) >= 0.6


class TestPvalue:
    def test_golden_table(self):
        table = golden("predict_pvalue")
        found = bounds.binomial_pvalue(table["c1"], table["c2"]).numpy()
        np.testing.assert_allclose(found, table["pvalue"], 1e-9, 1e-300)
        assert (found >= table["pvalue"]).all()
        abstain = found[:, None] > table["alphas"]
        np.testing.assert_array_equal(abstain, table["abstain"])

    def test_agrees_with_scipy_in_any_order(self):
        pairs = [(0, 1), (3, 3), (7, 2), (2, 7), (55, 45), (0, 40), (600, 500)]
        c1, c2 = np.array(pairs).T
        wanted = [scipy.stats.binomtest(a, a + b).pvalue for a, b in pairs]
        found = bounds.binomial_pvalue(c1, c2)
        np.testing.assert_allclose(found, wanted, rtol=1e-9)


class TestSoftBounds:
    @pytest.mark.parametrize("name", ["hoeffding", "bernstein"])
    def test_golden_table(self, name):
        table = golden("soft_rs")
        total, n, alpha = table["sum_z"], table["n"], table["alpha"]
        found = (
            bounds.hoeffding_lower(total, n, alpha)
            if name == "hoeffding"
            else bounds.bernstein_lower(total, table["sum_z2"], n, alpha)
        ).numpy()
        wanted = exact(table[f"{name}_50"])
        assert all(f <= w for f, w in zip(found, wanted, strict=True))
        np.testing.assert_allclose(found, table[name], rtol=1e-9)

    @pytest.mark.parametrize("alpha", [0.001, 0.05, 0.5])
    def test_coverage_summed_exactly(self, alpha):
        """Of a variable that is 0.2 or 0.9: its n-sample sums are binomial."""
        n = 40
        ones = np.arange(n + 1)
        total = 0.2 * (n - ones) + 0.9 * ones
        squares = 0.04 * (n - ones) + 0.81 * ones
        share = np.linspace(0, 1, 201)
        mean = 0.2 + 0.7 * share[:, None]
        probability = scipy.stats.binom.pmf(ones, n, share[:, None])
        for lower in (
            bounds.hoeffding_lower(total, n, alpha).numpy(),
            bounds.bernstein_lower(total, squares, n, alpha).numpy(),
        ):
            assert (probability * (lower > mean)).sum(1).max() <= alpha

    def test_variance_survives_cancellation(self):
        # n - 2 samples of 1 - e and two of 1, both sums exact in float64. By
        # hand, n * squares - total**2 = 2 * (n - 2) * e**2 = 3e-5, while the
        # rounding error of either product is 2e-6.
        n, e = 2**17, 2.0**-17
        total = n - (n - 2) * e
        squares = (n - 2) * (1 - e) ** 2 + 2
        lower = float(bounds.bernstein_lower(total, squares, n, 0.001))
        variance = 2 * (n - 2) * e**2 / (n * (n - 1))
        log_term = np.log(2000)
        width = np.sqrt(2 * variance * log_term / n)
        width += 7 * log_term / (3 * (n - 1))
        assert lower == pytest.approx(total / n - width, abs=1e-14)


class TestRadius:
    def test_golden_table(self):
        table = golden("radius")
        found = bounds.radius(table["p"], table["sigma"]).numpy()
        wanted = np.where(table["abstain"], 0, table["radius"])
        np.testing.assert_allclose(found, wanted, rtol=1e-9)
        assert (found <= wanted).all()

    def test_never_above_the_exact_one(self):
        p = np.concatenate(
            [
                0.5 + np.logspace(-15.5, -0.31, 60),
                1 - np.logspace(-15.9, -1, 60),
            ]
        )
        found = bounds.radius(p, 1.0).numpy()
        with mpmath.workdps(40):
            wanted = [
                mpmath.sqrt(2) * mpmath.erfinv(2 * mpmath.mpf(float(x)) - 1)
                for x in p
            ]
        shortfall = relative_shortfall(found, wanted)
        assert shortfall.min() >= 0
        assert shortfall.max() < 1e-12

    def test_edges(self):
        found = bounds.radius([0.0, 0.3, 0.5, 1.0], 2.0).numpy()
        np.testing.assert_array_equal(found, [0, 0, 0, np.inf])


class TestCertificate:
    def test_golden_counts(self):
        table = golden("counts")
        hparams = json.loads(str(table["hparams"]))
        n, alpha = hparams["n"], hparams["alpha"]
        chosen = table["counts0"].argmax(1)
        k = np.take_along_axis(table["counts"], chosen[:, None], 1)[:, 0]
        p, radius, certified = bounds.certificate(
            k, None, n, alpha, table["sigma"]
        )
        np.testing.assert_allclose(p, table["certify_pABar"], rtol=1e-9)
        np.testing.assert_allclose(
            radius, table["certify_radius"], rtol=1e-9, atol=1e-12
        )
        np.testing.assert_array_equal(
            np.where(certified, chosen, -1), table["certify_class"]
        )

    def test_two_counts_by_hand(self):
        k, k2, n, alpha = 700, 100, 1000, 1e-3
        lower = scipy.stats.beta.ppf(0.9 * alpha, k, n - k + 1)
        upper = scipy.stats.beta.isf(0.1 * alpha, k2 + 1, n - k2)
        quantile = scipy.stats.norm.ppf
        found = bounds.two_count(k, k2, n, alpha, 0.5)
        assert float(found.lower) == pytest.approx(lower, rel=1e-9)
        assert float(found.upper) == pytest.approx(upper, rel=1e-9)
        assert float(found.radius) == pytest.approx(
            0.25 * (quantile(lower) - quantile(upper)), rel=1e-9
        )
        assert not found.abstain

    def test_two_counts_with_one_rival_pay_for_the_split_only(self):
        # All the rest on one class: 1 - lower is the smaller upper bound.
        found = bounds.two_count(990, 10, 1000, 1e-3, 1.0)
        lower = scipy.stats.beta.ppf(0.9e-3, 990, 11)
        wanted = scipy.stats.norm.ppf(lower)
        assert float(found.upper) == pytest.approx(1 - lower, rel=1e-9)
        assert float(found.radius) == pytest.approx(wanted, rel=1e-9)
        assert float(found.radius) <= wanted

    def test_two_counts_certify_below_one_half(self):
        found = bounds.two_count(400, 100, 1000, 1e-3, 1.0)
        assert float(found.lower) < 0.5
        assert not found.abstain
        assert float(found.radius) > 0.3

    @pytest.mark.parametrize(
        ("k", "k2", "n"), [(50, 50, 100), (40, 60, 100), (0, 0, 0), (5, 0, 10)]
    )
    def test_abstains(self, k, k2, n):
        found = bounds.two_count(k, k2, n, 1e-3, 1.0)
        assert found.abstain
        assert float(found.radius) == 0

    @pytest.mark.parametrize("alpha", [0.05, 0.5])
    @pytest.mark.parametrize(
        "p", [(0.6, 0.3, 0.1), (0.4, 0.4, 0.2), (0.5, 0.5, 0.0), (0.34, 0.33)]
    )
    def test_two_counts_cover_summed_exactly(self, p, alpha):
        """Over the multinomial of three classes, the first one chosen."""
        n = 24
        p = np.array([*p, 1 - sum(p)])[:3]
        counts = np.array(
            [(a, b, n - a - b) for a in range(n + 1) for b in range(n + 1 - a)]
        )
        probability = scipy.stats.multinomial.pmf(counts, n, p)
        found = bounds.two_count(
            counts[:, 0], counts[:, 1:].max(1), n, alpha, 1.0
        )
        quantile = scipy.stats.norm.ppf
        true = (quantile(p[0]) - quantile(p[1:].max())) / 2
        false = ~found.abstain.numpy() & (found.radius.numpy() > true)
        assert probability[false].sum() <= alpha


class TestFeasibility:
    @pytest.mark.parametrize(
        ("rule", "runner_up", "wanted"),
        [
            ("clopper_pearson", False, 10),  # 0.001**(1/10) = 0.501
            ("clopper_pearson", True, 11),  # 0.0009**(1/10) = 0.496
            ("predict", False, 11),  # 2 * 0.5**11 = 0.00098
            ("hoeffding", False, 14),  # sqrt(6.91 / 28) = 0.497
            ("bernstein", False, 37),  # 7 * 7.6 / (3 * 36) = 0.493
        ],
    )
    def test_minimum_n(self, rule, runner_up, wanted):
        assert bounds.minimum_n(1e-3, rule, runner_up) == wanted

    @pytest.mark.parametrize("alpha", [0.5, 0.3, 0.05, 1e-6])
    def test_minimum_n_is_where_the_bounds_begin_to_certify(self, alpha):
        def certifies(rule, n):
            if rule == "predict":
                return float(bounds.binomial_pvalue(n, 0)) <= alpha
            if rule in ("hoeffding", "bernstein"):
                return bounds.max_radius(n, alpha, 1.0, rule) > 0
            k2 = 0 if rule == "runner_up" else None
            found = bounds.certificate(n, k2, n, alpha, 1.0)
            return bool(found[2]) and float(found[1]) > 0

        for rule in (
            "predict", "hoeffding", "bernstein", "clopper_pearson", "runner_up"
        ):  # fmt: skip
            name = "clopper_pearson" if rule == "runner_up" else rule
            n = bounds.minimum_n(alpha, name, rule == "runner_up")
            assert certifies(rule, n), rule
            assert n == 1 or not certifies(rule, n - 1), rule

    def test_max_radius(self):
        wanted = 0.5 * scipy.special.ndtri(1e-3 ** (1 / 100_000))
        found = bounds.max_radius(100_000, 1e-3, 0.5, runner_up=False)
        assert found == pytest.approx(wanted, rel=1e-9)
        found = bounds.max_radius(1000, 1e-3, 0.5)
        votes = bounds.two_count(1000, 0, 1000, 1e-3, 0.5)
        assert found == pytest.approx(float(votes.radius), rel=1e-12)
        assert bounds.max_radius(9, 1e-3, 0.5, runner_up=False) == 0
        assert bounds.max_radius(1, 1e-3, 0.5, "bernstein") == 0


class TestShapesAndNonsense:
    def test_broadcasts(self):
        k = np.array([[50], [90]])
        n = np.array([100, 200, 1000])
        found = bounds.two_count(k, 3, n, 1e-3, 0.5)
        assert found.radius.shape == (2, 3)
        alone = bounds.two_count(90, 3, 1000, 1e-3, 0.5)
        assert float(found.radius[1, 2]) == pytest.approx(
            float(alone.radius), rel=1e-12
        )
        assert bounds.clopper_pearson_lower(k, 100, 1e-3).shape == (2, 1)
        assert bounds.clopper_pearson_lower(5, 10, 1e-3).shape == ()
        assert bounds.clopper_pearson_upper(np.zeros(0), 9, 0.1).shape == (0,)

    def test_symbolic_rows_without_sense_get_what_is_always_true(self):
        nan = float("nan")
        rows = np.array(
            [[0, 0], [5, 0], [5, -1], [11, 10], [-1, 10], [nan, 10], [5, nan]]
        )
        one = tf.constant(1.0, tf.float64)

        @tf.function(input_signature=[tf.TensorSpec([None, None], tf.float64)])
        def everything(rows):
            k, n = rows[:, 0], rows[:, 1]
            found = bounds.two_count(k, k, n, 1e-3 * one, one)
            return {
                "lower": bounds.clopper_pearson_lower(k, n, 1e-3 * one),
                "upper": bounds.clopper_pearson_upper(k, n, 1e-3 * one),
                "hoeffding": bounds.hoeffding_lower(k, n, 1e-3 * one),
                "bernstein": bounds.bernstein_lower(k, k, n, 1e-3 * one),
                "radius": found.radius,
                "certified": tf.logical_not(found.abstain),
                "no_alpha": bounds.clopper_pearson_lower(4, 9, nan * one),
                "no_p": bounds.radius(nan * k, one),
                "pvalue": bounds.binomial_pvalue(k * nan, k),
            }

        for name, value in everything(tf.constant(rows)).items():
            wanted = 1 if name in ("upper", "pvalue") else 0
            assert (value.numpy() == wanted).all(), (name, value)

    def test_symbolic_votes_that_cannot_be_certify_nothing(self):
        # More votes than draws, parts of votes; and one that can be.
        rows = [[9, 9, 10], [99.5, 0, 100], [99, 0.5, 100], [99, 0, 99.5]]
        rows = tf.constant([*rows, [99, 1, 100]], tf.float64)

        @tf.function(input_signature=[tf.TensorSpec([None, 3], tf.float64)])
        def everything(rows):
            k, k2, n = tf.unstack(rows, axis=1)
            found = bounds.two_count(k, k2, n, 0.05, 1.0)
            return {
                "radius": found.radius,
                "certified": tf.logical_not(found.abstain),
                "lower": found.lower,
                "certificate": bounds.certificate(k, k2, n, 0.05, 1.0)[1],
            }

        for name, value in everything(rows).items():
            found = value.numpy()
            assert found[-1] > 0, name
            assert (found[:-1] == 0).all(), name
        counts = tf.constant([9.5, 9.0], tf.float64)
        p_values = bounds.binomial_pvalue(counts, 0).numpy()
        assert p_values[0] == 1 and p_values[1] < 0.01

    def test_soft_sums_need_not_be_whole(self):
        assert float(bounds.hoeffding_lower(99.5, 100, 0.05)) > 0
        assert float(bounds.bernstein_lower(99.5, 99.1, 100, 0.05)) > 0

    def test_runs_in_a_session_from_a_saved_model(self, tmp_path):
        class Module(tf.Module):
            @tf.function(
                input_signature=[
                    tf.TensorSpec([None], tf.int64, "k"),
                    tf.TensorSpec([None], tf.int64, "n"),
                ]
            )
            def serve(self, k, n):
                return {"p": bounds.clopper_pearson_lower(k, n, 1e-3)}

        module = Module()
        tf.saved_model.save(module, tmp_path, {"serve": module.serve})
        graph = tf.Graph()
        with tf.compat.v1.Session(graph=graph) as session:
            meta = tf.compat.v1.saved_model.load(
                session, ["serve"], str(tmp_path)
            )
            signature = meta.signature_def["serve"]
            feed = {
                signature.inputs["k"].name: [90, 0],
                signature.inputs["n"].name: [100, 0],
            }
            found = session.run(signature.outputs["p"].name, feed)
        wanted = scipy.stats.beta.ppf(1e-3, 90, 11)
        np.testing.assert_allclose(found, [wanted, 0], rtol=1e-9)

    @pytest.mark.parametrize(
        ("call", "message"),
        [
            (lambda: bounds.clopper_pearson_lower(5, 10, 0.0), "`alpha` must"),
            (lambda: bounds.clopper_pearson_lower(5, 10, 1.0), "alpha=1.0"),
            (lambda: bounds.clopper_pearson_lower(5, 10, np.nan), "`alpha`"),
            (lambda: bounds.clopper_pearson_upper(-1, 10, 0.1), "`k` must"),
            (lambda: bounds.clopper_pearson_upper(11, 10, 0.1), "<= n=10"),
            (lambda: bounds.hoeffding_lower(11.0, 10, 0.1), "`total` must"),
            (lambda: bounds.binomial_pvalue(3, -1), "`c2` must be >= 0"),
            (lambda: bounds.binomial_pvalue(0.5, 3), "`c1` must be a whole"),
            (lambda: bounds.binomial_pvalue(3, [1, 2.5]), "`c2` must be a w"),
            (lambda: bounds.clopper_pearson_lower(0.5, 9, 0.1), "k=0.5"),
            (lambda: bounds.clopper_pearson_upper(5, 9.5, 0.1), "n=9.5"),
            (lambda: bounds.clopper_pearson_upper(np.nan, 9, 0.1), "k=nan"),
            (lambda: bounds.two_count(9, 0.5, 10, 0.1, 1.0), "`k2` must be a"),
            (lambda: bounds.two_count(9.5, 0, 10, 0.1, 1.0), "`k` must be a"),
            (lambda: bounds.two_count(9, 9, 10, 0.1, 1.0), "k=9, k2=9, n=10"),
            (
                lambda: bounds.two_count([5, 9], 2, 10, 0.1, 1.0),
                r"`k2` must be <= n - k.* k=\[5, 9\], k2=2",
            ),
            (
                lambda: bounds.certificate(9, 2, 10, 0.1, 1.0),
                "`k2` must be <= n - k",
            ),
            (
                lambda: bounds.certificate(9.5, None, 10, 0.1, 1.0),
                "`k` must be a whole",
            ),
            (lambda: bounds.radius(1.5, 1.0), "`p` must lie in"),
            (lambda: bounds.radius(0.9, 0.0), "`sigma` must be > 0"),
            (lambda: bounds.two_count(9, 0, 10, 0.1, -1.0), "sigma=-1.0"),
            (lambda: bounds.certificate(9, None, 10, 0.1, np.inf), "`sigma`"),
            (lambda: bounds.minimum_n(2.0), "alpha=2.0"),
            (lambda: bounds.minimum_n(0.1, "bernstien"), "'bernstein'"),
            (lambda: bounds.max_radius(0, 0.1, 1.0), "`n` must be >= 1"),
        ],
    )
    def test_wrong_arguments_are_named(self, call, message):
        with pytest.raises(ValueError, match=message):
            call()


def test_lower_bounds_are_tfps_beta_quantiles_where_those_are_right():
    n, alpha = 100_000, 0.001
    k = np.unique(np.geomspace(1, n - 1, 200).astype(int)).astype(float)
    one = np.ones_like(k)
    beta = tfp.distributions.Beta(k, n - k + one)
    quantile = beta.quantile(np.float64(alpha)).numpy()
    lower = bounds.clopper_pearson_lower(k, n, alpha).numpy()
    np.testing.assert_allclose(lower, quantile, rtol=1e-9)


@pytest.mark.parametrize("rule", ["hoeffding", "bernstein"])
def test_a_mean_certificate_is_its_bound_less_the_distance(rule):
    total, squares = np.array([990.0, 600.0]), np.array([985.0, 400.0])
    lower = {
        "hoeffding": bounds.hoeffding_lower(total, 1000, 1e-3),
        "bernstein": bounds.bernstein_lower(total, squares, 1000, 1e-3),
    }[rule].numpy()
    p, radius, certified = bounds.mean_certificate(
        rule, total, squares, n=1000, alpha=1e-3, sigma=0.5, distance=0.1
    )
    np.testing.assert_allclose(p, lower - 0.1, rtol=1e-12)
    assert certified.numpy().tolist() == [True, False]
    expected = 0.5 * scipy.stats.norm.ppf(lower[0] - 0.1)
    np.testing.assert_allclose(radius, [expected, 0.0], rtol=1e-9)
