"""Comparing logs: the paired bootstrap against SciPy's, and refusals."""

import numpy as np
import pytest
from scipy import stats

from rs_keras import CertificationLog
from rs_keras.logs import compare_acr
from rs_keras.logs.comparison import check_comparable
from rs_keras.logs.comparison import check_same_examples


def log_of(name="a", radius=(1.0, 2.0, 3.0), idx=None, label=None, **settings):
    size = len(radius)
    label = np.zeros(size) if label is None else np.asarray(label)
    return CertificationLog(
        idx=np.arange(size) if idx is None else idx,
        label=label,
        predict=label,
        radius=radius,
        correct=np.ones(size, bool),
        time=np.ones(size),
        name=name,
        settings=settings,
    )


@pytest.mark.parametrize("confidence", [0.9, 0.99])
def test_interval_is_that_of_scipy(confidence):
    rng = np.random.default_rng(0)
    first = rng.gamma(2, 0.4, 200)
    second = np.abs(first + rng.normal(0.03, 0.1, 200))
    found = compare_acr(log_of("a", first), log_of("b", second), confidence)
    expected = stats.bootstrap(
        (second - first,),
        np.mean,
        n_resamples=10_000,
        confidence_level=confidence,
        method="percentile",
        rng=np.random.default_rng(1),
    )
    # Quantiles of 10,000 resamples are within a few hundredths of the
    # standard error of the mean.
    error = np.std(second - first) / np.sqrt(200)
    assert found.difference == pytest.approx(np.mean(second - first))
    low, high = expected.confidence_interval
    assert found.low == pytest.approx(low, abs=0.15 * error)
    assert found.high == pytest.approx(high, abs=0.15 * error)


def test_interval_covers_as_often_as_it_says():
    rng = np.random.default_rng(2)
    inside = 0
    for trial in range(200):
        gain = rng.normal(0.05, 0.1, 100)
        first = np.full(100, 5.0)
        found = compare_acr(
            log_of("a", first),
            log_of("b", first + gain),
            confidence=0.8,
            resamples=400,
            seed=trial,
        )
        inside += found.low <= 0.05 <= found.high
    # 160 of 200 expected, standard deviation 5.7; a bootstrap of 100 is a
    # little short.
    assert 138 <= inside <= 180


def test_pairing_takes_away_what_is_shared():
    rng = np.random.default_rng(3)
    hard = rng.gamma(2, 1.0, 300)
    found = compare_acr(log_of("a", hard), log_of("b", hard + 0.01))
    assert (found.low, found.high) == pytest.approx((0.01, 0.01))


def test_radii_count_only_where_correct():
    # Wrong and abstained examples have radius 0: (1, 0, 0) and (2, 0, 0).
    one = CertificationLog(
        [0, 1, 2], [0, 1, 1], [0, 0, -1], [1, 9, 0], [1, 0, 0], [1, 1, 1], "a"
    )
    two = CertificationLog(
        [2, 0, 1], [1, 0, 1], [-1, 0, 0], [0, 2, 1], [0, 1, 0], [1, 1, 1], "b"
    )
    found = compare_acr(one, two)
    assert found.difference == pytest.approx(1 / 3)
    assert (found.wins, found.losses, found.examples) == (1, 0, 3)


def test_same_seed_same_interval():
    rng = np.random.default_rng(4)
    logs = [log_of(n, rng.gamma(2, 1, 50)) for n in "ab"]
    assert compare_acr(*logs, seed=5) == compare_acr(*logs, seed=5)
    assert compare_acr(*logs, seed=5) != compare_acr(*logs, seed=6)


def test_sentence_says_what_else_differs():
    found = compare_acr(
        log_of("a", n=1000, sigma=0.5),
        log_of("b", (1.5, 2.5, 3.5), n=100_000, sigma=0.5),
    )
    assert found.sentence() == (
        "b against a: ACR +0.5000, 95% interval [+0.5000, +0.5000] over 3 "
        "examples (3 larger radii, 0 smaller); they differ in n (1000 and "
        "100000)"
    )


@pytest.mark.parametrize(
    "other, message",
    [
        (
            log_of("b", sigma=0.25),
            r"same sigma to be compared. Received: sigma=0.5 \(a\), 0.25 \(b\)",
        ),
        (
            log_of("b", sigma=0.5, dataset="mnist/test"),
            r"dataset=cifar10/test \(a\), mnist/test \(b\)",
        ),
        (
            log_of("b", idx=[0, 1, 7]),
            "a with 3, b with 3; only in a: 2; only in b: 7",
        ),
        (
            log_of("b", np.ones(20)),
            r"only in a: none; only in b: 3, 4, 5, 6, 7, ... \(17\)",
        ),
        (
            log_of("b", label=[0, 4, 0]),
            "1 labels that differ; example 1 is 0 in a and 4 in b",
        ),
        (log_of("b", ()), "b holds no example"),
    ],
    ids=["sigma", "data-set", "examples", "more", "labels", "empty"],
)
def test_what_is_not_comparable(other, message):
    first = log_of("a", sigma=0.5, dataset="cifar10/test")
    with pytest.raises(ValueError, match=message):
        compare_acr(first, other)
    with pytest.raises(ValueError, match=message):
        check_comparable([first, other])


@pytest.mark.parametrize(
    "first, second, message",
    [
        (
            log_of("a"),
            log_of("b", scope="per_input_sigma"),
            r"same scope .* scope=fixed_sigma \(a\), per_input_sigma \(b\)",
        ),
        (
            log_of("a"),
            log_of("b", norm="linf"),
            r"same norm .* norm=l2 \(a\), linf \(b\)",
        ),
        (
            log_of("a", [0.5, 0.5], radii=[0.5]),
            log_of("b", [0.5, 0.5], radii=[0.5]),
            r"measured radii .* a, decided at \[0.5\] only",
        ),
    ],
    ids=["scope", "norm", "decisions"],
)
def test_radii_that_do_not_compare(first, second, message):
    with pytest.raises(ValueError, match=message):
        compare_acr(first, second)


def test_logs_of_two_sigmas_may_be_of_the_same_examples():
    check_same_examples([log_of("a", sigma=0.5), log_of("b", sigma=0.25)])


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"confidence": 1.0}, "`confidence` must be in"),
        ({"resamples": 10}, "`resamples` must be a whole number >= 100"),
        ({"seed": -1}, "`seed`"),
    ],
)
def test_bad_arguments_of_a_comparison_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        compare_acr(log_of("a"), log_of("b"), **arguments)


def test_published_logs_differ_as_published(shared):
    read = CertificationLog.read
    folder = shared / "reference_logs"
    first = read(folder / "mnist_gaussian_sigma1.0.tsv")
    second = read(folder / "mnist_smoothmix_eta5_sigma1.0.tsv")
    found = compare_acr(first, second, resamples=1000)
    assert found.difference == pytest.approx(second.acr() - first.acr())
    # Far more than what training seeds make: .002 to .009.
    assert 0.1 < found.low < found.high < 0.3
