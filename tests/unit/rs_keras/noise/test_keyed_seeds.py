import pickle

import numpy as np
import pytest
import scipy.stats
import tensorflow as tf
from kits.siphash import keys_of
from kits.siphash import siphash

from rs_keras import Certifier
from rs_keras import noise
from rs_keras.certification.sampling import Sampler
from rs_keras.noise import keyed_seeds

SECRET = b"sixteen bytes or more"


@pytest.fixture
def certifier(linear):
    return Certifier(linear, sigma=0.5, key=SECRET)


def hashed(message, secret=SECRET):
    """The seed of a message: 62 bits of SipHash under each key."""
    return [siphash(key, message) % 2**62 for key in keys_of(secret)]


# The authors' own vectors: key 00 01 .. 0f, messages 00 01 02 ...
@pytest.mark.parametrize(
    ("size", "wanted"),
    [
        (0, "310e0edd47db6f72"),
        (1, "fd67dc93c539f874"),
        (7, "37d1018bf50002ab"),
        (8, "6224939a79f5f593"),
        (15, "e545be4961ca29a1"),
    ],
)
def test_the_oracle_is_siphash(size, wanted):
    key = [int.from_bytes(bytes(range(b, b + 8)), "little") for b in (0, 8)]
    found = siphash(key, bytes(range(size)))
    assert found.to_bytes(8, "little").hex() == wanted


@pytest.mark.parametrize("shape", [(4, 4, 1), (2, 8, 1), (3, 3, 3)], ids=str)
def test_the_seed_is_a_keyed_hash_of_the_pixels(shape):
    levels = np.random.default_rng(3).integers(0, 256, (3, *shape))
    images = levels.astype(np.float32) / np.float32(255)
    sizes = "x".join(map(str, shape)).encode()
    found = keyed_seeds.SeedKey(SECRET).seeds(images, "grid")
    assert found.dtype == np.int64
    assert found.tolist() == [
        hashed(b"rs-keras keyed 255ths " + sizes + b":" + level.tobytes())
        for level in levels.astype(np.uint8)
    ]
    found = keyed_seeds.SeedKey(SECRET).seeds(images, "float")
    assert found.tolist() == [
        hashed(b"rs-keras keyed float32 " + sizes + b":" + image.tobytes())
        for image in images
    ]


@pytest.mark.parametrize("mode", ["float", "grid"])
def test_a_fresh_seed_is_a_hash_of_numbers_and_pixels(mode, monkeypatch):
    """Even where the generator repeats itself, another image gets others."""
    numbers = np.array([[7, -1], [7, -1], [2**62, 5]])
    monkeypatch.setattr(
        tf.raw_ops,
        "NonDeterministicInts",
        lambda shape, dtype: tf.constant(numbers, dtype),
    )
    levels = np.uint8([[0, 3], [0, 4], [0, 3]]).reshape(3, 1, 2, 1)
    images = levels.astype(np.float32) / np.float32(255)
    key = keyed_seeds.SeedKey(SECRET)
    found = key.fresh(tf.constant(images), mode).numpy()
    head = {"float": b"float32", "grid": b"255ths"}[mode]
    pixels = images if mode == "float" else levels
    assert found.tolist() == [
        hashed(b"rs-keras fresh " + head + b" 1x2x1:" + nonce.tobytes() + image)
        for nonce, image in zip(
            numbers, [one.tobytes() for one in pixels], strict=True
        )
    ]
    assert len(np.unique(found, axis=0)) == 3


@pytest.mark.parametrize("mode", ["float", "grid"])
def test_graphs_and_eager_calls_give_one_seed(mode, images):
    key = keyed_seeds.SeedKey(SECRET)
    spec = [tf.TensorSpec([None, 4, 4, 1], tf.float32)]
    graph = tf.function(lambda x: key.keyed(x, mode), spec)
    for rows in (0, 1, 5):
        np.testing.assert_array_equal(
            graph(images[:rows]), key.seeds(images[:rows], mode)
        )


def test_the_same_image_gets_the_same_noise(certifier, images):
    first = certifier.certify(images, n=500, seed="keyed")
    again = certifier.certify(images[::-1], n=500, seed="keyed")
    np.testing.assert_array_equal(first.seed, again.seed[::-1])
    np.testing.assert_array_equal(first.counts, again.counts[::-1])
    # The array replays it without the key.
    replayed = certifier.certify(images, n=500, seed=first.seed)
    np.testing.assert_array_equal(first.radius, replayed.radius)


def test_every_method_takes_it(certifier, images):
    wanted = certifier.sample(images, n=30, seed="keyed")
    found = certifier.predict(images, n=30, seed="keyed")
    np.testing.assert_array_equal(found.counts, wanted)
    decision = certifier.decide(images, 0.1, n_max=400, seed="keyed")
    np.testing.assert_array_equal(found.seed, decision.seed)


def test_another_image_gets_other_noise(images):
    key = keyed_seeds.SeedKey(SECRET)
    changed = images.copy()
    changed[:, 0, 0, 0] = (changed[:, 0, 0, 0] + 1 / 255) % 1
    shaped = images.reshape(5, 2, 8, 1)
    for mode in ("float", "grid"):
        kinds = (images, changed, shaped)
        everything = [key.seeds(some, mode) for some in kinds]
        assert len(np.unique(np.concatenate(everything), axis=0)) == 15
        other = keyed_seeds.SeedKey(SECRET + b"!").seeds(images, mode)
        assert (other != key.seeds(images, mode)).all()
    assert (key.seeds(images, "float") != key.seeds(images, "grid")).all()


def test_an_ulp_is_another_image_in_float_mode_alone(linear, images):
    """Where two images differ to the classifier, one seed must not serve both:
    it is told with the first answer.
    """
    on_grid = np.round(images * 255) / np.float32(255)
    nudged = np.nextafter(on_grid, np.float32(0.5))
    assert (nudged != on_grid).any((1, 2, 3)).all()
    for mode, shared in (("grid", True), ("float", False)):
        certifier = Certifier(linear, noise=mode, key=SECRET)
        first, second = (
            certifier.predict(some, n=20, seed="keyed").seed
            for some in (on_grid, nudged)
        )
        assert (first == second).all() == shared
        assert (first == second).any() == shared


@pytest.mark.parametrize("mode", ["float", "grid"])
def test_a_zero_with_a_sign_is_no_new_try(mode):
    black = np.zeros([1, 2, 2, 1], np.float32)
    key = keyed_seeds.SeedKey(SECRET)
    np.testing.assert_array_equal(
        key.seeds(-black, mode), key.seeds(black, mode)
    )


def test_halfway_pixels_have_the_seed_of_the_image_that_is_smoothed():
    # The floats around (k + 1/2) / 255, where rounding is decided by an ulp.
    middle = ((np.arange(255) + 0.5) / 255).astype(np.float32)
    ends = [np.nextafter(middle, np.float32(end)) for end in (0, 1)]
    pixels = np.stack([*ends, middle])
    images = np.repeat(pixels.reshape(-1, 1, 1, 1), 2, axis=2)
    # Noise that rounds to none leaves the image that the classifier sees.
    sampler = Sampler(lambda z: z, 1e-6, 2, (1, 2, 1), 1, "grid")
    zero, one = tf.zeros([2], tf.int64), tf.constant(1, tf.int64)
    seen = sampler.noisy(tf.constant(images), zero, zero[0], one).numpy()
    key = keyed_seeds.SeedKey(SECRET)
    np.testing.assert_array_equal(
        key.seeds(images, "grid"), key.seeds(seen, "grid")
    )


def test_seeds_are_spread_evenly():
    images = np.zeros([2_000, 1, 2, 1])
    images[:, 0, :, 0] = np.stack(np.divmod(np.arange(2_000), 256), 1) / 255
    words = keyed_seeds.SeedKey(SECRET).seeds(images).astype(float).ravel()
    uniform = words / 2**62
    assert scipy.stats.kstest(uniform, "uniform").pvalue > 1e-4


def test_the_key_may_be_in_a_file_or_the_environment(tmp_path, monkeypatch):
    image = np.zeros([1, 2, 2, 1])
    expected = keyed_seeds.SeedKey(SECRET).seeds(image)
    file = tmp_path / "key"
    file.write_bytes(SECRET + b"\n")
    for source in (file, str(file), SECRET, keyed_seeds.SeedKey(SECRET)):
        found = keyed_seeds.load_key(source).seeds(image)
        np.testing.assert_array_equal(found, expected)
    monkeypatch.setenv("RS_KERAS_SEED_KEY", SECRET.decode())
    found = noise.as_seeds("keyed", 1, image)
    np.testing.assert_array_equal(found, expected)


def test_the_key_does_not_show(certifier, images):
    found = certifier.certify(images, n=20, seed="keyed")
    key = keyed_seeds.SeedKey(SECRET)
    shown = [repr(key), str(key), repr(found), found.statement()]
    shown += [repr(certifier), str(vars(certifier))]
    for text in shown:
        assert "sixteen" not in text
    # Its hash is as secret: it makes the same seeds.
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(key)


def test_a_key_that_is_missing(linear, images, monkeypatch):
    monkeypatch.delenv("RS_KERAS_SEED_KEY", raising=False)
    with pytest.raises(ValueError, match="`key` must be given for seed"):
        Certifier(linear).certify(images, seed="keyed")
    with pytest.raises(ValueError, match="`seed` must be None, 'keyed'"):
        noise.as_seeds("keyed", 5)
    with pytest.raises(OSError):
        Certifier(linear, key="/no/such/file")


def test_a_short_key_is_refused_and_not_repeated(linear):
    with pytest.raises(ValueError, match="at least 16 bytes") as error:
        Certifier(linear, key=b"hunter2")
    assert "hunter2" not in str(error.value)
