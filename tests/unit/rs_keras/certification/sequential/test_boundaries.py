import numpy as np
import pytest
import scipy.signal
import scipy.stats

from rs_keras.certification.sequential import boundaries


def walked(p, stages, counts):
    """P[the count reaches counts[k] at a stage], by a plain loop on SciPy."""
    mass, n, crossed = np.ones(1), 0, []
    for stage, count in zip(stages, counts, strict=True):
        step = scipy.stats.binom.pmf(np.arange(stage - n + 1), stage - n, p)
        # Errors of 1e-16, against tails of 1e-6 and more.
        mass, n = np.maximum(scipy.signal.fftconvolve(mass, step), 0), stage
        crossed.append(mass[count:].sum())
        mass[count:] = 0.0
    return np.array(crossed)


def boundary_of(radius, stages, alpha):
    p, q = scipy.stats.norm.cdf(radius), scipy.stats.norm.sf(radius)
    levels = boundaries.spending(alpha, len(stages), 2.0)
    return p, boundaries.boundary(p, q, stages, levels), levels


@pytest.mark.parametrize("n_max", [50, 1_000, 8_000])
@pytest.mark.parametrize("alpha", [0.05, 1e-3, 1e-6])
@pytest.mark.parametrize("radius", [0.0, 0.1, 1.0, 2.0])
def test_crossing_at_the_boundary_spends_alpha_at_most(radius, alpha, n_max):
    stages = boundaries.checkpoints(n_max)
    p, counts, levels = boundary_of(radius, stages, alpha)
    crossed = walked(p, stages, counts)
    assert (np.cumsum(crossed) <= levels).all()
    # One vote less at the last stage and it would be too much.
    counts[-1] -= 1
    assert walked(p, stages, counts).sum() > levels[-1] * (1 - 1e-5)


@pytest.mark.parametrize("radius", [0.05, 1.0, 3.0])
def test_crossing_at_n_max_100_000(radius):
    stages = boundaries.checkpoints(100_000)
    p, counts, _ = boundary_of(radius, stages, 1e-3)
    crossed = walked(p, stages, counts).sum()
    assert 0.9e-3 < crossed <= 1e-3
    found = boundaries.crossing_probability(p, 1 - p, stages, counts)
    assert crossed <= found == pytest.approx(crossed, rel=1e-5)


@pytest.mark.parametrize("p", [1e-4, 0.3, 0.5, 0.84, 0.999])
def test_crossing_probability_is_that_of_a_plain_loop(p):
    stages, counts = (20, 50, 90), (19, 40, 60)
    expected = walked(p, stages, counts).sum()
    found = boundaries.crossing_probability(p, 1 - p, stages, counts)
    assert expected <= found <= expected * (1 + 1e-5) + 1e-11


def test_one_look_is_clopper_pearson():
    # The smallest k whose lower bound, a Beta quantile, passes p.
    n, alpha, p = 300, 0.01, 0.7
    (count,) = boundaries.boundary(p, 1 - p, [n], np.array([alpha]))
    bounds = scipy.stats.beta.ppf(alpha, np.arange(1, n + 1), n - np.arange(n))
    assert count == 1 + np.argmax(bounds >= p)


def test_larger_radii_are_never_certified_sooner():
    radii = tuple(np.linspace(0.02, 3.6, 40))
    tables = boundaries.one_count(radii, 1.0, 1e-3, 100_000, 100)
    assert (np.diff(tables.upper, axis=1) >= 0).all()
    assert (np.diff(tables.lower, axis=1) >= 0).all()
    assert (tables.lower < tables.upper)[:-1].all()


@pytest.mark.parametrize("radius", [0.1, 1.0, 2.0])
def test_the_boundary_itself_is_rarely_given_up_early(radius):
    tables = boundaries.one_count((radius,), 1.0, 1e-3, 8_000, 100)
    stages = tables.stages[:-1]
    # Few successes are many failures.
    fails = stages - tables.lower[:-1, 0]
    q = scipy.stats.norm.sf(radius)
    assert 0.02 < walked(q, stages, fails).sum() <= 0.05


@pytest.mark.parametrize("radius", [0.05, 0.5, 2.0])
def test_the_top_class_may_run(radius):
    tables = boundaries.one_count((radius,), 1.0, 1e-3, 8_000, 100)
    if radius > 0.1:
        assert tables.selection == 0
    if tables.selection:
        return
    # Two classes share everything: both may cross.
    p0 = scipy.stats.norm.cdf(radius)
    counts = tables.upper[:, 0]
    for p in np.linspace(0.5, p0, 7):
        both = [walked(x, tables.stages, counts).sum() for x in (p, 1 - p)]
        assert sum(both) <= 1e-3


def test_at_radius_0_the_class_is_fixed_beforehand():
    # Two classes of 1/2 each would cross with nearly 2 * alpha.
    tables = boundaries.one_count((0.0,), 1.0, 1e-3, 8_000, 100)
    crossed = walked(0.5, tables.stages, tables.upper[:, 0]).sum()
    assert 2 * crossed > 1e-3
    assert tables.selection == 100
    assert tables.stages[-1] == 7_900


@pytest.mark.parametrize("n_max", [101, 1_000, 100_000])
def test_the_shares_of_all_looks_are_alpha(n_max):
    tables = boundaries.two_counts((0.5,), 1e-3, n_max, 100)
    # One percent is for classes other than the most probable one.
    assert tables.levels.sum() <= 0.99e-3
    assert tables.levels.sum() == pytest.approx(0.99e-3, rel=1e-9)
    assert (tables.levels > 0).all()
    assert tables.stages[-1] == n_max
    assert tables.selection == 0


def test_noise_far_from_the_gaussian_fixes_the_class_beforehand():
    near = boundaries.two_counts((0.5,), 1e-3, 1_000, 100, distance=1e-9)
    assert near.selection == 0
    # 1,000 draws of this noise differ by 1e-6 from those of the Gaussian.
    assert near.levels.sum() == pytest.approx(0.99 * (1e-3 - 1e-6), rel=1e-9)
    far = boundaries.two_counts((0.5,), 1e-3, 1_000, 100, distance=1e-7)
    assert far.selection == 100
    assert far.levels.sum() == pytest.approx(0.99e-3, rel=1e-9)
    assert far.stages[-1] == 900


def test_the_last_stage_has_a_reserve():
    spent = boundaries.spending(0.5, 4, 2.0, reserve=0.5)
    # 0.25 * (1, 4, 9) / 16, and all at the end.
    assert spent.tolist() == [0.015625, 0.0625, 0.140625, 0.5]


@pytest.mark.parametrize("n_max", [130, 1_000, 100_000])
def test_no_stage_is_a_pass_of_few_draws(n_max):
    steps = np.diff(boundaries.checkpoints(n_max))
    assert (steps[:-1] >= 64).all()


def test_tables_are_kept_and_cannot_be_changed():
    first = boundaries.one_count((0.5,), 1.0, 1e-3, 5_000, 100)
    assert boundaries.one_count((0.5,), 1.0, 1e-3, 5_000, 100) is first
    with pytest.raises(ValueError, match="read-only"):
        first.upper[0, 0] = 0


@pytest.mark.parametrize("n_max", [1, 128, 129, 5_000, 1_000_000])
def test_looks_end_at_n_max(n_max):
    stages = boundaries.checkpoints(n_max)
    assert stages[-1] == n_max
    assert (np.diff(stages) > 0).all()
