"""What the distance of the noise from the Gaussian takes off a certificate."""

import numpy as np
import pytest
import scipy.stats
import tensorflow as tf

from rs_keras import Certifier
from rs_keras import bounds
from rs_keras.certification import smoothing
from rs_keras.certification.sequential import boundaries
from rs_keras.certification.sequential.decision import decision_tables
from rs_keras.certification.spec import CertifySpec
from rs_keras.certification.spec import DecideSpec
from rs_keras.certification.spec import SmoothingSpec
from rs_keras.certification.votes_to_results import decide_label
from rs_keras.certification.votes_to_results import soft_certificate
from rs_keras.certification.votes_to_results import vote_certificate

DISTANCE = 0.02
ALPHA = 0.001
PLAIN = SmoothingSpec(0.5)
FAR = SmoothingSpec(0.5, distance=DISTANCE)


def lower(k, n, alpha):
    return scipy.stats.beta.ppf(alpha, k, n - k + 1)


def upper(k, n, alpha):
    return scipy.stats.beta.ppf(1 - alpha, k + 1, n - k)


def test_the_distance_moves_both_bounds_of_two_counts():
    found = bounds.two_count(700, 100, 1000, ALPHA, 0.5, DISTANCE)
    p = lower(700, 1000, 0.9 * ALPHA) - DISTANCE
    q = upper(100, 1000, 0.1 * ALPHA) + DISTANCE
    radius = 0.25 * (scipy.stats.norm.ppf(p) - scipy.stats.norm.ppf(q))
    assert float(found.lower) == pytest.approx(p, rel=1e-9)
    assert float(found.upper) == pytest.approx(q, rel=1e-9)
    assert float(found.radius) == pytest.approx(radius, rel=1e-9)


def test_the_rest_is_what_the_lowered_top_leaves():
    """U = 1 - L binds where a single class has all the rest."""
    found = bounds.two_count(700, 300, 1000, ALPHA, 0.5, DISTANCE)
    p = lower(700, 1000, 0.9 * ALPHA) - DISTANCE
    assert float(found.upper) == pytest.approx(1 - p, rel=1e-9)


def test_the_distance_lowers_the_bound_of_one_count():
    p, radius, certified = bounds.certificate(
        99, None, 100, ALPHA, 0.5, DISTANCE
    )
    wanted = lower(99, 100, ALPHA) - DISTANCE
    assert float(p) == pytest.approx(wanted, rel=1e-9)
    exact = 0.5 * scipy.stats.norm.ppf(wanted)
    assert float(radius) == pytest.approx(exact, rel=1e-9)
    assert bool(certified)


def test_a_bound_above_one_half_by_less_than_the_distance_abstains():
    k = next(k for k in range(1000) if lower(k, 1000, ALPHA) > 0.5)
    assert bool(bounds.certificate(k, None, 1000, ALPHA, 0.5)[2])
    found = bounds.certificate(k, None, 1000, ALPHA, 0.5, DISTANCE)
    assert not bool(found[2])
    assert float(found[1]) == 0


def test_no_distance_changes_no_bit():
    k, n = np.arange(500, 1001), 1000
    plain = bounds.certificate(k, 1000 - k, n, ALPHA, 0.5)
    zero = bounds.certificate(k, 1000 - k, n, ALPHA, 0.5, 0.0)
    for one, other in zip(plain, zero, strict=True):
        np.testing.assert_array_equal(one, other)


def test_bounds_are_rounded_away_from_the_distance():
    """Both results are exact in binary, so rounding would show."""
    assert float(bounds.lowered(0.75, 0.25)) < 0.5
    assert float(bounds.raised(0.25, 0.25)) > 0.5
    assert float(bounds.lowered(0.1, 0.5)) == 0
    assert float(bounds.raised(0.9, 0.5)) == 1


@pytest.mark.parametrize("distance", [-0.1, 1.0, np.nan])
def test_a_distance_lies_between_0_and_1(distance):
    with pytest.raises(ValueError, match=r"`distance` must lie in \[0, 1\)"):
        bounds.lowered(0.5, distance)


def test_the_distance_lowers_the_largest_radius():
    found = bounds.max_radius(1000, ALPHA, 0.5, distance=DISTANCE)
    p = (0.9 * ALPHA) ** (1 / 1000) - DISTANCE
    assert found == pytest.approx(0.5 * scipy.stats.norm.ppf(p), rel=1e-9)


def test_predict_adds_it_once_a_draw():
    counts = np.array([[70, 30, 0]])
    plain = scipy.stats.binomtest(70, 100, 0.5).pvalue
    label, p_value = decide_label(counts, 1.0, 120, 1e-3)
    assert float(p_value[0]) == pytest.approx(plain + 0.12, rel=1e-9)
    assert int(decide_label(counts, 0.12, 120, 1e-3)[0][0]) == -1
    assert int(label[0]) == 0


def test_verdicts_of_both_kinds():
    votes = np.array([[990, 10]])
    spec = CertifySpec(n=1000, alpha=ALPHA, runner_up=False)
    found = vote_certificate(votes, votes, spec, FAR)
    wanted = lower(990, 1000, ALPHA) - DISTANCE
    assert float(found[2][0]) == pytest.approx(wanted, rel=1e-9)
    sums = np.array([[[990.0, 10.0], [980.0, 20.0], [970.0, 5.0]]])
    for bound, one in (
        ("hoeffding", bounds.hoeffding_lower(980.0, 1000, ALPHA)),
        ("bernstein", bounds.bernstein_lower(980.0, 970.0, 1000, ALPHA)),
    ):
        spec = CertifySpec(n=1000, alpha=ALPHA, bound=bound, runner_up=False)
        soft = soft_certificate(votes.astype(float), sums, spec, FAR)
        assert float(soft[2][0]) == pytest.approx(float(one) - DISTANCE)


@pytest.mark.parametrize("radius", [0.0, 0.25, 0.5])
def test_decide_raises_the_probability_to_be_refuted(radius):
    """At p0 = cdf(r / sigma) + distance the boundary is crossed too rarely."""
    spec = DecideSpec(radius, ALPHA, 2_000, runner_up=False)
    tables = decision_tables(spec, FAR)
    p0 = scipy.stats.norm.cdf(radius / 0.5) + DISTANCE
    looks, counts = tables.stages, tables.upper[:, 0]
    crossed = boundaries.crossing_probability(p0, 1 - p0, looks, counts)
    assert 0.5 * ALPHA < crossed <= ALPHA * (1 + 1e-5)
    plain = decision_tables(spec, PLAIN)
    first = min(len(looks), len(plain.stages))
    assert (counts[:first] >= plain.upper[:first, 0]).all()


def test_decide_on_two_counts_bounds_both():
    spec = DecideSpec(0.25, ALPHA, 2_000)
    assert decision_tables(spec, FAR).distance == DISTANCE
    most, less = spec.max_radius(PLAIN), spec.max_radius(FAR)
    assert less < most
    with pytest.raises(ValueError, match="`radius`"):
        decision_tables(DecideSpec(most, ALPHA, 2_000), FAR)


class AllOne:
    """Answers class 1, whatever the noise."""

    def __call__(self, x):
        score = x[:, 0, 0, 0] * 1e-3
        return tf.stack([score, score + 100.0], -1)


@pytest.fixture
def far(monkeypatch):
    """A certifier whose noise is far from the Gaussian, as it is told."""
    monkeypatch.setattr(
        smoothing, "noise_distance", lambda noise, sigma, shape: DISTANCE
    )
    return Certifier(AllOne(), sigma=0.5, noise="grid")


IMAGE = np.full([1, 4, 4, 1], 0.4)


@pytest.mark.parametrize("runner_up", [True, False])
def test_a_certifier_allows_for_it(far, runner_up):
    found = far.certify(IMAGE, n=1_000, runner_up=runner_up, seed=1)
    level = 0.9 * ALPHA if runner_up else ALPHA
    wanted = level ** (1 / 1000) - DISTANCE
    assert found.p_lower[0] == pytest.approx(wanted, rel=1e-9)
    assert found.settings["total_variation"] == DISTANCE
    assert "total variation of 2.0e-02" in found.statement()


def test_soft_predictions_allow_for_it(far):
    found = far.certify(
        IMAGE, n=1_000, bound="hoeffding", runner_up=False, seed=1
    )
    wanted = 1 - np.sqrt(np.log(1000) / 2000) - DISTANCE
    assert found.p_lower[0] == pytest.approx(wanted, rel=1e-6)


def test_predictions_and_decisions_allow_for_it(far):
    # 1,000 draws that are 0.02 away say nothing at all.
    assert far.predict(IMAGE, n=1_000, seed=1).label.tolist() == [-1]
    for runner_up in (True, False):
        spec = DecideSpec(0.0, ALPHA, 2_000, runner_up)
        most, less = spec.max_radius(PLAIN), spec.max_radius(FAR)
        arguments = dict(n_max=2_000, runner_up=runner_up, seed=1)
        found = far.decide(IMAGE, less * (1 - 1e-9), **arguments)
        assert found.certified.tolist() == [True]
        assert found.settings["total_variation"] == DISTANCE
        with pytest.raises(ValueError, match="`radius`"):
            far.decide(IMAGE, most, **arguments)


def test_it_stands_in_the_settings():
    certifier = Certifier(AllOne(), noise="grid")
    shape = (32, 32, 3)
    told = certifier.settings(image_shape=shape)["total_variation"]
    decided = certifier.decision_settings(0.25, image_shape=shape)
    assert told == decided["total_variation"]
    assert 0 < told < 1e-12
    assert "total_variation" not in certifier.settings()
    plain = Certifier(AllOne()).settings(image_shape=shape)
    assert "total_variation" not in plain
