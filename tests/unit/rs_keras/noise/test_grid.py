"""Noise on the grid against exact probabilities, and against adversaries."""

import math

import mpmath
import numpy as np
import pytest
import scipy.stats
import tensorflow as tf

from rs_keras import Certifier
from rs_keras.noise import draws as noise
from rs_keras.noise.grid import grid_distance
from rs_keras.noise.grid import grid_noise
from rs_keras.noise.grid import grid_steps

SIGMAS = [0.12, 0.25, 0.5, 1.0]
WORD = 2**64


def drawn_words(sigma):
    """How many of the 2**64 words give each k, read off the table by hand."""
    table = grid_noise(sigma)
    columns = 2**table.bits
    size = WORD // columns
    words = {}
    for column, entry in enumerate(table.entries.tolist()):
        other, own = divmod(entry, size)
        k = column - columns // 2
        words[k] = words.get(k, 0) + own
        words[other] = words.get(other, 0) + size - own
    return words


def exact_words(k, sigma):
    """2**64 * P[round(255 sigma z) = k], to 60 digits, for k >= 0."""
    scale = 255 * mpmath.mpf(sigma)
    half = mpmath.mpf("0.5")
    # Upper tails, which keep their digits where the cdf is near 1.
    above = mpmath.ncdf((half - k) / scale)
    return WORD * (above - mpmath.ncdf(-(k + half) / scale))


def cell_masses(sigma, last):
    """P[k] for k = 0 .. last by SciPy: 14 digits, in the tails, too."""
    edges = (np.arange(last + 2) - 0.5) / (255 * sigma)
    tails = scipy.stats.norm.sf(edges)
    masses = tails[:-1] - tails[1:]
    masses[0] = 1 - 2 * tails[1]
    return masses


@pytest.mark.parametrize("sigma", SIGMAS)
def test_the_table_gives_out_each_word_once(sigma):
    words = drawn_words(sigma)
    assert sum(words.values()) == WORD
    assert all(words[k] == words.get(-k, 0) for k in words)


@pytest.mark.parametrize("sigma", SIGMAS)
def test_each_probability_is_exact_to_a_word(sigma):
    words = drawn_words(sigma)
    reach = round(9 * 255 * sigma)
    rng = np.random.default_rng(0)
    some = {0, 1, 2, reach // 2, reach - 1, reach}
    some |= set(rng.integers(0, reach, 60).tolist())
    with mpmath.workdps(60):
        for k in some:
            error = abs(words[k] - exact_words(k, sigma))
            # The middle gets what rounding left over: half a word a cell.
            assert error <= (0.5 if k else reach + 1), k


@pytest.mark.parametrize("sigma", SIGMAS)
def test_the_tails_are_those_of_scipy(sigma):
    words = drawn_words(sigma)
    last = round(7 * 255 * sigma)
    masses = cell_masses(sigma, last)
    found = np.array([words[k] / WORD for k in range(last + 1)])
    # At 7 sigma a cell has 1e-14 of the mass: still 1e5 words.
    np.testing.assert_allclose(found, masses, rtol=2e-4)
    near = round(5 * 255 * sigma)
    np.testing.assert_allclose(found[:near], masses[:near], rtol=1e-9)


@pytest.mark.parametrize("sigma", SIGMAS)
def test_the_distance_bounds_the_total_variation(sigma):
    words = drawn_words(sigma)
    with mpmath.workdps(60):
        exact = {k: exact_words(k, sigma) for k in words if k >= 0}
        total = WORD - (2 * sum(exact.values()) - exact[0])
        for k, mass in exact.items():
            total += abs(words[k] - mass) * (2 if k else 1)
        wanted = float(total / WORD / 2)
    one = grid_distance(sigma, [1, 1, 1])
    assert wanted <= one <= 6 * wanted
    six = grid_distance(sigma, [2, 3, 1])
    assert 6 * wanted <= six == pytest.approx(6 * one, rel=1e-9)
    assert grid_distance(sigma, [224, 224, 3]) < 1e-9


@pytest.mark.parametrize("sigma", [1e-6, 1e-3, 4.0])
def test_any_sigma_has_its_table(sigma):
    words = drawn_words(sigma)
    assert sum(words.values()) == WORD
    masses = cell_masses(sigma, 3)
    found = [words.get(k, 0) / WORD for k in range(4)]
    np.testing.assert_allclose(found, masses, rtol=1e-9, atol=1e-15)
    assert grid_distance(sigma, [224, 224, 3]) < 1e-9


def test_a_word_chooses_as_the_table_says():
    table = grid_noise(0.01)
    columns, size = 2**table.bits, WORD // 2**table.bits
    words, wanted = [], []
    for column, entry in enumerate(table.entries.tolist()):
        other, own = divmod(entry, size)
        k = column - columns // 2
        for rest in {0, max(own - 1, 0), min(own, size - 1), size - 1}:
            words.append(k * size + rest)
            wanted.append(k if rest < own else other)
    found = grid_steps(
        tf.constant(words, tf.int64), table.entries, table.bits
    ).numpy()
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("sigma", [0.12, 1.0])
def test_draws_have_the_distribution(sigma):
    draws = 1_500
    sampler = Certifier(lambda x: x[:, 0, 0, :2], sigma, noise="grid").sampler(
        (32, 32, 2)
    )
    image = tf.fill([32, 32, 2], np.float32(0.2))
    noisy = sampler.noisy(image, [3, 4], 0, draws).numpy().astype(np.float64)
    steps = np.rint(noisy * 255 - 51)
    np.testing.assert_allclose(noisy * 255 - 51, steps, atol=1e-3)
    size = steps.size
    last = round(4.5 * 255 * sigma)
    masses = cell_masses(sigma, last)
    both = np.concatenate([masses[:0:-1], masses])
    counts = np.histogram(steps, np.arange(-last, last + 2) - 0.5)[0]
    common = both * size > 20
    observed = np.append(counts[common], size - counts[common].sum())
    expected = size * np.append(both[common], 1 - both[common].sum())
    p = scipy.stats.chisquare(observed, expected, sum_check=False).pvalue
    assert p > 1e-4
    far = np.abs(steps) > 4 * 255 * sigma
    mean = (
        size
        * 2
        * scipy.stats.norm.sf(
            (math.floor(4 * 255 * sigma) + 0.5) / (255 * sigma)
        )
    )
    assert abs(far.sum() - mean) < 5 * math.sqrt(mean)


def test_chunks_are_the_whole():
    sampler = Certifier(lambda x: x[:, 0, 0, :2], noise="grid").sampler(
        (5, 3, 2)
    )
    image = tf.zeros([5, 3, 2])
    whole = sampler.noisy(image, [7, 8], 0, 9)
    part = sampler.noisy(image, [7, 8], 4, 5)
    np.testing.assert_array_equal(whole[4:], part)
    words = noise.words([5, 3, 2], [7, 8], 0, 4).numpy()
    assert len(np.unique(words)) == words.size
    # All bits are used: a half of the words has each.
    ones = [(words >> bit & 1).mean() for bit in range(64)]
    assert 0.1 < min(ones) <= max(ones) < 0.9


def holes_of_box_muller(scale):
    """Cells of the grid that float32 Box-Muller cannot reach, for one pair.

    Its radii are sqrt(-2 log(j / 2**23)) with whole j: beyond 4.6 these rings
    are wider apart than a cell. (A cell counts as reached if a point within
    one angle step of a ring lies in it.)
    """
    inner = 4.6
    side = int(5.7 * scale) + 3
    reached = np.zeros([side, side], bool)
    angles = (np.arange(2**16) + 0.5) / 2**16 * np.pi / 2
    x, y = np.cos(angles), np.sin(angles)
    for j in range(int(2**23 * math.exp(-(inner**2) / 2)) + 2):
        u = max(j * 2.0**-23, 1e-7)
        radius = scale * math.sqrt(-2 * math.log(u))
        at = np.rint(radius * x).astype(int), np.rint(radius * y).astype(int)
        reached[at] = True
    cell = np.arange(side)
    radius = np.hypot(cell[:, None], cell[None]) / scale
    return ~reached & (radius > inner + 4 / scale)


# The classifiers below tell no plain image from another.
quiet = pytest.mark.filterwarnings("ignore:the logits of `model` barely change")


def certified_by(outside, shape, n, p):
    """Certifies a classifier that answers 1 where any pair is `outside`.

    Args:
        outside: From |k| of the first and the second pixels of all pairs to
            whether a pair is; tensors int32 [m, pairs].
        shape: Of the image.
        n: Draws.
        p: Probability of answer 1 under the rounded Gaussian.
    """

    def model(z):
        steps = tf.abs(tf.cast(tf.round(z * 255 - 128), tf.int32))
        pairs = tf.reshape(steps, [-1, math.prod(shape) // 2, 2])
        found = tf.reduce_any(outside(pairs[..., 0], pairs[..., 1]), -1)
        score = tf.cast(found, tf.float32)
        return tf.stack([1 - 2 * score, 2 * score - 1], -1)

    image = np.full([1, *shape], 128, np.uint8)
    certifier = Certifier(model, sigma=1.0, noise="grid", batch_size=50)
    found = certifier.certify(
        image, n0=1, n=n, alpha=0.001, runner_up=False, seed=5
    )
    # A sound bound is above the truth in one of a thousand seeds.
    assert found.p_lower[0] <= 1 - p
    spread = math.sqrt(n * p * (1 - p))
    assert abs(found.counts[0, 1] - n * p) < 4.5 * spread


@quiet
def test_no_pair_of_pixels_is_out_of_reach():
    """Float32 normals rounded to the grid got .99885 here; .99634 is true."""
    scale = 255.0
    holes = holes_of_box_muller(scale)
    side = len(holes)
    masses = 2 * cell_masses(1.0, side - 1)
    masses[0] /= 2
    pair = (np.outer(masses, masses) * holes).sum()
    p = 1 - (1 - pair) ** 1_536
    table = tf.constant(np.pad(holes, ((0, 1), (0, 1))).ravel())

    def outside(first, second):
        first, second = tf.minimum(first, side), tf.minimum(second, side)
        return tf.gather(table, first * (side + 1) + second)

    assert 0.002 < p < 0.006
    certified_by(outside, (32, 32, 3), 6_000, p)


@quiet
def test_no_radius_is_out_of_reach():
    """Both float32 and float64 normals end at a radius of 5.6777 a pair."""
    scale = 255.0
    most = math.ceil((5.6777 * scale + 1.5) ** 2)
    last = round(9 * scale)
    masses = 2 * cell_masses(1.0, last)
    masses[0] /= 2
    inside = np.cumsum(masses)
    pair = 0.0
    for k, mass in enumerate(masses):
        if k * k > most:
            pair += mass
            continue
        reach = math.isqrt(most - k * k)
        pair += mass * (1 - inside[min(reach, last)])
    p = 1 - (1 - pair) ** 75_264

    def outside(first, second):
        return first * first + second * second > most

    assert 0.006 < p < 0.009
    certified_by(outside, (224, 224, 3), 1_200, p)
