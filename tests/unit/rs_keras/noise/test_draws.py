import numpy as np
import pytest
import scipy.stats
import tensorflow as tf

from rs_keras import noise


@pytest.mark.parametrize("shape", [(28, 28, 1), (5, 5, 1), (3, 3, 3)], ids=str)
@pytest.mark.parametrize("dtype", [tf.float32, tf.float64], ids=str)
@pytest.mark.parametrize("make", [noise.normal, noise.uniform])
def test_any_range_is_part_of_the_whole(shape, dtype, make):
    whole = make(shape, [7, -3], 0, 23, dtype)
    cuts = [0, 1, 2, 10, 23]
    parts = [
        make(shape, [7, -3], low, high - low, dtype)
        for low, high in zip(cuts, cuts[1:], strict=False)
    ]
    np.testing.assert_array_equal(whole, np.concatenate(parts))


def test_far_draws_do_not_wrap():
    # 7.5 billion draws of an ImageNet picture still fit the stream.
    shape, far = (224, 224, 3), 7_000_000_000
    pair = noise.normal(shape, [1, 2], far, 2)
    np.testing.assert_array_equal(
        pair[1:], noise.normal(shape, [1, 2], far + 1, 1)
    )
    assert not np.array_equal(pair[0], pair[1])


@pytest.mark.parametrize(
    "other",
    [
        {"seed": [8, 3]},
        {"seed": [7, 4]},
        {"seed": [3, 7]},
        {"stream": 1},
        {"first": 1},
    ],
    ids=str,
)
def test_addresses_give_unrelated_numbers(other):
    base = {"shape": (64, 64, 1), "seed": [7, 3], "first": 0, "count": 1}
    a = noise.normal(**base).numpy().ravel()
    b = noise.normal(**{**base, **other}).numpy().ravel()
    # The correlation of 4,096 independent pairs has deviation 1/64.
    assert abs(np.corrcoef(a, b)[0, 1]) < 5 / 64


def test_numbers_are_standard_normal():
    sample = noise.normal((1000,), [11, 5], 0, 1000).numpy().ravel()
    assert scipy.stats.kstest(sample, "norm").pvalue > 1e-3
    assert abs(scipy.stats.skew(sample)) < 5 * np.sqrt(6 / sample.size)
    assert abs(scipy.stats.kurtosis(sample)) < 5 * np.sqrt(24 / sample.size)


def test_numbers_are_uniform():
    sample = noise.uniform((1000,), [11, 5], 0, 100).numpy().ravel()
    assert scipy.stats.kstest(sample, "uniform").pvalue > 1e-3
    assert sample.min() >= 0 and sample.max() < 1


def test_graph_and_eager_agree():
    make = tf.function(lambda first: noise.normal((5, 5, 1), [1, 2], first, 3))
    np.testing.assert_array_equal(
        make(tf.constant(4, tf.int64)), noise.normal((5, 5, 1), [1, 2], 4, 3)
    )


def test_xla_numbers_are_normal_and_repeat():
    make = tf.function(
        lambda: noise.normal((64, 64), [1, 2], 4, 30), jit_compile=True
    )
    np.testing.assert_array_equal(make(), make())
    assert scipy.stats.kstest(make().numpy().ravel(), "norm").pvalue > 1e-3


def test_fold_in_separates_and_repeats():
    seeds = {tuple(noise.fold_in(s, i)) for s in range(50) for i in range(50)}
    assert len(seeds) == 2500
    np.testing.assert_array_equal(noise.fold_in(3, 9), noise.fold_in([3], 9))
    assert tuple(noise.fold_in([1, 2], 3)) != tuple(noise.fold_in(12, 3))


def test_as_seeds_takes_every_form():
    np.testing.assert_array_equal(
        noise.as_seeds(7, 3), [noise.fold_in(7, row) for row in range(3)]
    )
    given = np.array([[1, 2], [3, 4]])
    np.testing.assert_array_equal(noise.as_seeds(given, 2), given)
    fresh = noise.as_seeds(None, 2)
    assert fresh.shape == (2, 2)
    assert not np.array_equal(fresh, noise.as_seeds(None, 2))


@pytest.mark.parametrize(
    "seed",
    [
        "later",
        1.5,
        True,
        2**63,
        -(2**63) - 1,
        np.zeros([2, 2]),
        np.zeros([3, 2], int),
        np.zeros([2, 2], np.uint64),
    ],
    ids=repr,
)
def test_as_seeds_refuses(seed):
    with pytest.raises(ValueError, match=r"`seed` must be .* Received: seed="):
        noise.as_seeds(seed, 2)


@pytest.mark.parametrize("seed", [2**63, -(2**63) - 1, [0, 2**64]], ids=repr)
def test_fold_in_refuses(seed):
    with pytest.raises(ValueError, match=r"`seed` must lie in .* Received: "):
        noise.fold_in(seed, 0)


def test_the_ends_of_the_range_are_seeds():
    ends = [-(2**63), 2**63 - 1]
    assert len({tuple(noise.fold_in(end, 0)) for end in ends}) == 2
    np.testing.assert_array_equal(noise.as_seeds([ends], 1), [ends])
