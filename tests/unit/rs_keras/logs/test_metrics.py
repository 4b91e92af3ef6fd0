import numpy as np
import pytest
import scipy.stats

from rs_keras import CertificationLog
from rs_keras.logs import metrics


def make(count=200, seed=0, **given):
    rng = np.random.default_rng(seed)
    label = rng.integers(0, 4, count)
    # Class 3 is often wrong.
    predict = np.where(
        rng.uniform(size=count) < 0.2 + 0.5 * (label == 3), 9, label
    )
    radius = rng.uniform(0, 2, count)
    return CertificationLog(
        idx=np.arange(count),
        label=label,
        predict=predict,
        radius=radius,
        correct=predict == label,
        time=np.ones(count),
        **given,
    )


@pytest.fixture
def log():
    return make()


@pytest.mark.parametrize("level", [0.5, 0.95, 0.999])
def test_interval_is_scipys(log, level):
    radii = [0.0, 0.5, 1.5, 3.0]
    lower, upper = metrics.accuracy_interval(log, radii, level)
    for row, radius in enumerate(radii):
        k = int((log.correct & (log.radius >= radius)).sum())
        wanted = scipy.stats.binomtest(k, 200).proportion_ci(level, "exact")
        assert lower[row] == pytest.approx(wanted.low, rel=1e-9)
        assert upper[row] == pytest.approx(wanted.high, rel=1e-9)


def test_interval_of_one_radius(log):
    lower, upper = metrics.accuracy_interval(log, 0.5)
    assert lower.shape == upper.shape == ()
    assert lower < log.certified_accuracy(0.5) < upper


def test_capped_acr_is_the_area_under_the_curve_up_to_the_cap(log):
    # ACR is the integral of the certified accuracy over the radius.
    radii = np.linspace(0, 1.2, 20_001)
    area = 1.2 * log.certified_accuracy(radii).mean()
    assert metrics.capped_acr(log, 1.2) == pytest.approx(area, abs=1e-3)
    assert metrics.capped_acr(log, 5.0) == pytest.approx(log.acr())


def test_median_radius(log):
    middle = metrics.median_radius(log)
    reached = (log.correct & (log.radius >= middle)).mean()
    assert reached == pytest.approx(0.5, abs=0.01)


def test_the_worst_class_comes_first(log):
    found = metrics.class_accuracy(log, 0.5)
    assert next(iter(found)) == 3
    rows = log.label == 2
    wanted = (log.correct[rows] & (log.radius[rows] >= 0.5)).mean()
    assert found[2] == pytest.approx(wanted)
    assert list(found.values()) == sorted(found.values())


def test_top_probabilities_are_shares_of_votes():
    share = np.linspace(0.3, 1.0, 200)
    log = make(extra={"p_top": share})
    wanted = np.sort(share * log.correct)
    np.testing.assert_array_equal(metrics.top_probabilities(log), wanted)
    found = metrics.top_probability_ecdf(log, [0.2, 0.5, 1.0])
    assert found[0] == pytest.approx(1 - log.correct.mean())
    assert found[1] == pytest.approx((wanted <= 0.5).mean())
    assert found[2] == 1.0


def test_top_probabilities_of_a_log_with_radii_only():
    settings = {"sigma": 0.5, "runner_up": False}
    log = make(settings=settings)
    wanted = scipy.stats.norm.cdf(log.radius / 0.5) * log.correct
    np.testing.assert_allclose(metrics.top_probabilities(log), np.sort(wanted))


def test_mean_samples():
    log = make(extra={"n": np.arange(200.0)})
    assert metrics.mean_samples(log) == 99.5
    fixed = make(settings={"n": 1_000, "n0": 100})
    assert metrics.mean_samples(fixed) == 1_100


EMPTY = np.zeros(0)
REFUSED = {
    "level": (lambda log: metrics.accuracy_interval(log, 0, 1.0), "level"),
    "cap": (lambda log: metrics.capped_acr(log, 0.0), "max_radius"),
    "class": (lambda log: metrics.class_accuracy(log, -1.0), "radius"),
    "no shares": (metrics.top_probabilities, "column p_top"),
    "no n": (metrics.mean_samples, "column n"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_bad_arguments_of_metrics_are_refused(log, name):
    ask, message = REFUSED[name]
    with pytest.raises(ValueError, match=message):
        ask(log)


@pytest.mark.parametrize(
    "settings",
    [
        {"n": 1_000, "tolerance": 0.1},
        {"n": 1_000, "radii": make().radius.tolist()},
    ],
    ids=["planned", "decided"],
)
def test_planned_logs_do_not_tell_n_in_their_settings(settings):
    with pytest.raises(ValueError, match="column n"):
        metrics.mean_samples(make(settings=settings))


@pytest.mark.parametrize(
    "ask",
    [
        lambda log: metrics.accuracy_interval(log, 0.0),
        lambda log: metrics.capped_acr(log, 1.0),
        metrics.median_radius,
        metrics.class_accuracy,
        metrics.top_probabilities,
        metrics.mean_samples,
    ],
    ids=["interval", "capped", "median", "classes", "top", "samples"],
)
def test_an_empty_log_is_refused(ask):
    with pytest.raises(ValueError, match="holds no example"):
        ask(make(0))


def test_metrics_of_a_published_log(shared):
    path = shared / "reference_logs" / "mnist_gaussian_sigma1.0.tsv"
    log = CertificationLog.read(path)
    rows = [line.split("\t") for line in path.read_text().splitlines()]
    column = {name: i for i, name in enumerate(rows[0])}
    radius = np.array([float(row[column["radius"]]) for row in rows[1:]])
    correct = np.array([row[column["correct"]] == "1" for row in rows[1:]])
    own = radius * correct
    assert metrics.median_radius(log) == pytest.approx(np.median(own))
    wanted = np.minimum(own, 1.0).mean()
    assert metrics.capped_acr(log, 1.0) == pytest.approx(wanted)
    k, n = int((own >= 1.0).sum()), len(own)
    wanted = scipy.stats.binomtest(k, n).proportion_ci(0.95, "exact")
    lower, upper = metrics.accuracy_interval(log, 1.0)
    assert (float(lower), float(upper)) == pytest.approx(
        (wanted.low, wanted.high)
    )
