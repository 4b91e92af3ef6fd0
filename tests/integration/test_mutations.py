"""Tests of the tests: known mistakes, and the checks that catch them.

Each check is one that the product passes. Then a mistake that has been made in
print or in published code is put in, and the same check must fail.
"""

import numpy as np
import pytest
import scipy.signal
import scipy.stats
import tensorflow as tf
from kits.fake_servers import CLASSES
from kits.fake_servers import METADATA
from kits.fake_servers import SHAPE

from rs_keras import Certifier
from rs_keras import bounds
from rs_keras.bounds import confidence
from rs_keras.certification import sampling
from rs_keras.certification import spec
from rs_keras.certification import votes_to_results
from rs_keras.certification.sequential import boundaries
from rs_keras.certification.sequential import decision
from rs_keras.serving.server.scheduling import certifier as slicing


def slack(alpha, trials):
    """Five standard errors: what chance may add to a rate of alpha."""
    return 5 * np.sqrt(alpha * (1 - alpha) / trials)


@pytest.fixture(autouse=True)
def forget_tables():
    """Tables made under a mistake must not be kept, nor used."""
    caches = (
        boundaries.one_count,
        boundaries.two_counts,
        spec.max_decided_radius,
    )
    for cache in caches:
        cache.cache_clear()
    yield
    for cache in caches:
        cache.cache_clear()


# -- peeking without splitting alpha ------------------------------------------


def check_crossing(alpha=0.01):
    """A class just at the boundary crosses it with alpha at most, exactly."""
    tables = boundaries.one_count((1.0,), 1.0, alpha, 3_000, 100)
    p0, mass, n, crossed = scipy.stats.norm.cdf(1.0), np.ones(1), 0, 0.0
    for stage, count in zip(tables.stages, tables.upper[:, 0], strict=True):
        step = scipy.stats.binom.pmf(np.arange(stage - n + 1), stage - n, p0)
        mass, n = np.maximum(scipy.signal.fftconvolve(mass, step), 0), stage
        crossed += mass[count:].sum()
        mass[count:] = 0.0
    assert crossed <= alpha


def test_one_count_does_not_peek(monkeypatch):
    check_crossing()

    def peeking(p, q, stages, levels):
        # Each stage as if it were the only one.
        counts = scipy.stats.binom.isf(levels[-1], stages, p) + 1
        return counts.astype(np.int64)

    boundaries.one_count.cache_clear()
    monkeypatch.setattr(boundaries, "boundary", peeking)
    with pytest.raises(AssertionError):
        check_crossing()


def check_two_counts(alpha=0.05, rows=2_000):
    """Two classes at exactly the radius asked for."""
    p, rng = 0.8, np.random.default_rng(0)
    radius = scipy.stats.norm.ppf(p) + 1e-9
    tables = decision.decision_tables(
        spec.DecideSpec(radius, alpha, 5_000), spec.SmoothingSpec(1.0)
    )
    found = decision.decide_on_host(
        lambda some, first, n: rng.multinomial(n, [p, 1 - p], len(some)),
        rows,
        tables,
        1.0,
    )
    assert found["certified"].mean() <= alpha + slack(alpha, rows)


def test_two_counts_do_not_peek(monkeypatch):
    check_two_counts()

    def peeking(alpha, n_max):
        stages = boundaries.checkpoints(n_max)
        return stages, np.full(len(stages), alpha)

    boundaries.two_counts.cache_clear()
    monkeypatch.setattr(boundaries, "shares_of_stages", peeking)
    with pytest.raises(AssertionError):
        check_two_counts()


# -- the runner-up's index from the selection ---------------------------------


def check_runner_up(runner_up=None, alpha=1e-3, rows=400):
    """Close runners-up, of which the selection often takes the wrong one."""
    shares, rng = np.array([0.85, 0.06, 0.05, 0.04]), np.random.default_rng(1)
    selection = rng.multinomial(100, shares, rows)
    counts = rng.multinomial(100_000, shares, rows)
    if runner_up is not None:
        runner_up(selection)
    _, radius, _ = votes_to_results.vote_certificate(
        selection,
        counts,
        spec.CertifySpec(alpha=alpha),
        spec.SmoothingSpec(1.0),
    )
    first, second = scipy.stats.norm.ppf(shares[:2])
    true = (first - second) / 2
    assert (radius.numpy() > true).mean() <= alpha + slack(alpha, rows)


def test_the_runner_up_is_that_of_the_same_draws(monkeypatch):
    check_runner_up()

    def from_selection(selection):
        second = np.argsort(selection)[:, -2]
        monkeypatch.setattr(
            votes_to_results,
            "runner_up_count",
            lambda counts, chosen: tf.gather(counts, second, batch_dims=1),
        )

    with pytest.raises(AssertionError):
        check_runner_up(from_selection)


# -- one noise for selection and bound ----------------------------------------


def check_fresh_noise(certifier, alpha=0.05, rows=2_000):
    """Two classes that tie: whatever is certified is false."""
    images = np.full([rows, 1, 1, 2], 0.5, np.float32)
    found = certifier.certify(
        images, n0=400, n=400, alpha=alpha, runner_up=False, seed=3
    )
    assert (found.label >= 0).mean() <= alpha + slack(alpha, rows)


def check_fresh_noise_after_a_plan(certifier, alpha=0.05, rows=600):
    images = np.full([rows, 1, 1, 2], 0.5, np.float32)
    found = certifier.certify(
        images, n=1_000, alpha=alpha, runner_up=False, tolerance=0.01, seed=3
    )
    assert (found.label >= 0).mean() <= alpha + slack(alpha, rows) / 2


@pytest.mark.parametrize(
    "check",
    [check_fresh_noise, check_fresh_noise_after_a_plan],
    ids=["selection", "plan"],
)
def test_selection_and_bound_never_share_noise(check, monkeypatch):
    certifier = Certifier(lambda x: x[:, 0, 0, :], sigma=0.5, batch_size=400)
    check(certifier)
    real = sampling.SamplingLoop.draw

    def from_the_start(loop, images, seeds, first, n, beta=None):
        return real(loop, images, seeds, 0, n, beta)

    monkeypatch.setattr(sampling.SamplingLoop, "draw", from_the_start)
    with pytest.raises(AssertionError):
        check(certifier)


# -- bounds in float32 --------------------------------------------------------


def check_lower_bounds(n=100_000, alpha=1e-3):
    """No bound is above the exact one, a Beta quantile."""
    k = np.unique(np.rint(n * np.linspace(0.5, 1, 200)).astype(int))
    lower = bounds.clopper_pearson_lower(k, n, alpha).numpy()
    exact = scipy.stats.beta.ppf(alpha, k, n - k + 1)
    # SciPy's own error.
    assert (lower <= exact * (1 + 1e-11)).all()


def test_bounds_are_not_float32(monkeypatch):
    check_lower_bounds()
    real = confidence.clopper_pearson_lower

    def short(k, n, alpha):
        return tf.cast(tf.cast(real(k, n, alpha), tf.float32), tf.float64)

    monkeypatch.setattr(bounds, "clopper_pearson_lower", short)
    with pytest.raises(AssertionError):
        check_lower_bounds()


# -- slices of a server --------------------------------------------------------


def check_served_draws(size=7):
    """A served certificate looks at each of its n0 + n draws once."""
    export = slicing.CertifierExport(METADATA)
    n0, n = METADATA["n0"], METADATA["n"]
    drawn = []

    def votes(request):
        counts = np.zeros([len(request["n"]), CLASSES], np.int64)
        for rows, part in slicing.slices(request, lambda: size):
            for row, first, count in zip(
                rows, part["first"], part["n"], strict=True
            ):
                drawn.extend(range(first, first + count))
                counts[row, 0] += count
        return counts

    def ask(name, inputs, outputs):
        return [np.array([True]), np.array([[1, 2]])]

    images = {"images": np.zeros([1, *SHAPE], np.float32)}
    engine = slicing.Engine(ask, votes)
    found = export.answer("certify", images, engine)
    assert sorted(drawn) == list(range(n0 + n))
    assert found["n"].tolist() == [n]
    lower = scipy.stats.beta.ppf(0.9 * METADATA["alpha"], n, 1)
    assert found["p_lower"][0] == pytest.approx(lower, rel=1e-9)


def test_slices_draw_nothing_twice(monkeypatch):
    check_served_draws()
    real = slicing.slices

    def again(request, size):
        for rows, part in real(request, size):
            yield rows, {**part, "first": request["first"][rows]}

    monkeypatch.setattr(slicing, "slices", again)
    with pytest.raises(AssertionError):
        check_served_draws()


def test_a_served_class_is_not_selected_by_its_own_votes(monkeypatch):
    real = slicing.CertifierExport._votes

    def same(self, inputs, first, n, engine):
        return real(self, inputs, np.zeros_like(first), n, engine)

    monkeypatch.setattr(slicing.CertifierExport, "_votes", same)
    with pytest.raises(AssertionError):
        check_served_draws()


# -- rounding and floating point ----------------------------------------------


class LowBits:
    """Counts pixels near 0 that are no multiples of 2**-29.

    Image plus noise near 0 keeps the low-order bits of the noise where the
    image is 0. Where it is 8/255, the noise is near -8/255, both are multiples
    of 2**-29, and so is their sum (which is exact, by Sterbenz).
    """

    def __call__(self, images):
        near = tf.abs(images) < 2.0**-7
        scaled = images * 2.0**29
        odd = near & (scaled != tf.round(scaled))
        found = tf.reduce_sum(tf.cast(odd, tf.float32), [1, 2, 3])
        return tf.stack([0.5 - found, found - 0.5], -1)


@pytest.mark.parametrize("mode", ["float", "grid"])
def test_floating_point_cannot_hide_the_image(mode):
    zero = np.zeros([1, 28, 28, 1], np.uint8)
    near = np.full_like(zero, 8)
    distance = np.linalg.norm((near - zero) / 255)
    certifier = Certifier(LowBits(), sigma=0.5, noise=mode)
    found = certifier.certify(zero, n=2_000, seed=1)
    votes = certifier.sample(near, n=2_000, seed=1)
    within = found.radius[0] > distance
    other = votes[0].argmax() != found.label[0]
    # In floats, the certificate is false: nearly all votes differ.
    assert (within and other) == (mode == "float")
    if mode == "float":
        assert votes[0, found.label[0]] == 0
    else:
        counts = certifier.sample(zero, n=2_000, seed=2)
        difference = abs(counts[0, 1] - votes[0, 1]) / 2_000
        assert difference < 0.05
    decided = certifier.decide(zero, float(distance), n_max=2_000, seed=1)
    assert bool(decided.certified[0] and other) == (mode == "float")
