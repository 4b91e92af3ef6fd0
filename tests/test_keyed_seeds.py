import hashlib
import pickle

import numpy as np
import pytest
import scipy.stats
import tensorflow as tf

from rs_keras import Certifier
from rs_keras import noise
from rs_keras import seeds
from rs_keras.sampling import Sampler

SECRET = b"sixteen bytes or more"


@pytest.fixture
def certifier(linear):
    return Certifier(linear, sigma=0.5, key=SECRET)


def test_the_seed_is_a_keyed_hash_of_the_pixels():
    image = np.arange(16, dtype=np.float32).reshape(1, 4, 4, 1) / 255
    key = hashlib.blake2b(SECRET, person=b"rs-keras key").digest()
    digest = hashlib.blake2b(
        b"(4, 4, 1)" + bytes(range(16)),
        digest_size=16,
        key=key,
        person=b"rs-keras seed",
    ).digest()
    expected = np.frombuffer(digest, np.int64)[None]
    np.testing.assert_array_equal(seeds.SeedKey(SECRET).seeds(image), expected)


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
    key = seeds.SeedKey(SECRET)
    changed = images.copy()
    changed[:, 0, 0, 0] = (changed[:, 0, 0, 0] + 1 / 255) % 1
    shaped = images.reshape(5, 2, 8, 1)
    everything = [key.seeds(some) for some in (images, changed, shaped)]
    assert len(np.unique(np.concatenate(everything), axis=0)) == 15
    other = seeds.SeedKey(SECRET + b"!").seeds(images)
    assert (other != key.seeds(images)).all()


def test_one_ulp_is_no_new_try(images):
    key = seeds.SeedKey(SECRET)
    on_grid = np.round(images * 255) / np.float32(255)
    nudged = np.nextafter(on_grid, np.float32(0.5))
    assert (nudged != on_grid).any()
    np.testing.assert_array_equal(key.seeds(on_grid), key.seeds(nudged))


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
    key = seeds.SeedKey(SECRET)
    np.testing.assert_array_equal(key.seeds(images), key.seeds(seen))


def test_seeds_are_spread_evenly():
    images = np.zeros([2_000, 1, 2, 1])
    images[:, 0, :, 0] = np.stack(np.divmod(np.arange(2_000), 256), 1) / 255
    words = seeds.SeedKey(SECRET).seeds(images).astype(float).ravel()
    uniform = words / 2**64 + 0.5
    assert scipy.stats.kstest(uniform, "uniform").pvalue > 1e-4


def test_the_key_may_be_in_a_file_or_the_environment(tmp_path, monkeypatch):
    image = np.zeros([1, 2, 2, 1])
    expected = seeds.SeedKey(SECRET).seeds(image)
    file = tmp_path / "key"
    file.write_bytes(SECRET + b"\n")
    for source in (file, str(file), SECRET, seeds.SeedKey(SECRET)):
        found = seeds.load_key(source).seeds(image)
        np.testing.assert_array_equal(found, expected)
    monkeypatch.setenv("RS_KERAS_SEED_KEY", SECRET.decode())
    found = noise.as_seeds("keyed", 1, image)
    np.testing.assert_array_equal(found, expected)


def test_the_key_does_not_show(certifier, images):
    found = certifier.certify(images, n=20, seed="keyed")
    key = seeds.SeedKey(SECRET)
    shown = [repr(key), str(key), repr(found), found.statement()]
    shown += [repr(certifier), str(vars(certifier))]
    for text in shown:
        assert "sixteen" not in text
    # Nor in a copy for another process, which holds only its hash.
    assert SECRET not in pickle.dumps(key)


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
