"""Keyed seeds: a keyed hash (SipHash) of the image, here and in exports.

A keyed seed follows from the image: the same image always gets the same noise.
With fresh noise, whoever is refused a certificate may ask again, and after
1 / alpha times has one. With a keyed seed, asking again gains nothing; another
image gets unrelated noise, and nobody without the key can know it. (Over many
images, a part alpha of the certificates is still false. And whoever may choose
n0 or n chooses which part of the noise is looked at: each choice is a new try,
so let strangers choose neither. With noise="float", another last bit of a
pixel makes another image, and so a new try; with "grid", images whose pixels
round to the same 255ths are one image.)

A seed is two words of 62 bits: SipHash-2-4 under two keys, modulo 2**62, which
divides 2**64, so that no word is likelier than another. Two images share their
noise with probability 2**-124.

References:
- [Aumasson and Bernstein, 2012](https://eprint.iacr.org/2012/351)
"""

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import numpy as np
import tensorflow as tf

ENVIRONMENT = "RS_KERAS_SEED_KEY"

# Fewer could be guessed.
_SHORTEST = 16

_WORDS = 2**62

# int64 numbers of the generator in the message of a fresh seed.
_NONCE = 2


class SeedKey:
    """A secret, and the seeds that it gives to images.

    It never shows in `repr`, in settings or in errors.

    Args:
        secret: At least 16 bytes, from a source of true randomness.

    Raises:
        ValueError: If it is shorter.

    Example:

    >>> import numpy as np
    >>> from rs_keras.noise import SeedKey
    >>> key = SeedKey(b"0123456789abcdef")
    >>> image = np.full([1, 4, 4, 1], 0.2)
    >>> bool((key.seeds(image) == key.seeds(image)).all())
    True
    >>> key
    SeedKey(...)
    """

    def __init__(self, secret: bytes) -> None:
        if len(secret) < _SHORTEST:
            raise ValueError(
                f"`key` must have at least {_SHORTEST} bytes. "
                f"Received: {len(secret)} bytes"
            )
        digest = hashlib.blake2b(
            secret, digest_size=32, person=b"rs-keras seeds"
        ).digest()
        # One key of SipHash for each word of a seed.
        self._keys = np.frombuffer(digest, "<i8").reshape(2, 2).tolist()

    def __repr__(self) -> str:
        return "SeedKey(...)"

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a SeedKey cannot be pickled, which would write its secret down: "
            "make it again from the secret where it is needed"
        )

    def seeds(self, images: np.ndarray, noise: str = "float") -> np.ndarray:
        """Returns the keyed seed of each image: int64 [B, 2].

        A keyed hash of its shape and pixels, the one of exports.

        Args:
            images: Floats in [0, 1], [B, H, W, C].
            noise: The certifier's. With "float", the pixels are hashed as they
                are in float32; else in 255ths: a change too small to reach the
                next 255th is no new try.
        """
        pixels = tf.constant(np.asarray(images, np.float32))
        return self.keyed(pixels, noise).numpy()

    def keyed(self, images: tf.Tensor, noise: str) -> tf.Tensor:
        """As `seeds`, on tensors: equal images get equal seeds.

        Args:
            images: float32 [B, H, W, C], of which B may be unknown.
            noise: As in `seeds`.

        Returns:
            int64 [B, 2].

        Example:

        >>> import tensorflow as tf
        >>> from rs_keras.noise import SeedKey
        >>> key = SeedKey(b"0123456789abcdef")
        >>> first, again = key.keyed(tf.ones([2, 4, 4, 1]), "grid")
        >>> bool(tf.reduce_all(first == again))
        True
        """
        return self._hashes("keyed", _image_bytes(images, noise), images, noise)

    def fresh(self, images: tf.Tensor, noise: str) -> tf.Tensor:
        """Returns seeds that differ each time, for a graph that is served.

        TensorFlow's generator alone can be predicted from what it gave before
        (a Mersenne twister, started from 32 bits). So its numbers never leave
        the graph: they only make the hashed message another one each time. The
        image is part of it, as a generator may start twice in the same state.

        Args:
            images: float32 [B, H, W, C], of which B may be unknown.
            noise: As in `seeds`.

        Returns:
            int64 [B, 2].

        Example:

        >>> import tensorflow as tf
        >>> from rs_keras.noise import SeedKey
        >>> key = SeedKey(b"0123456789abcdef")
        >>> first, again = key.fresh(tf.ones([2, 4, 4, 1]), "grid")
        >>> bool(tf.reduce_any(first == again))
        False
        """
        pixels = _image_bytes(images, noise)
        rows = tf.shape(images)[0]
        # No random operation with a state will do: a global seed, set when
        # the graph is built, would make every server draw the same.
        nonce = tf.raw_ops.NonDeterministicInts(
            shape=tf.stack([rows, _NONCE]), dtype=tf.int64
        )
        nonce = tf.reshape(tf.bitcast(nonce, tf.uint8), [rows, 8 * _NONCE])
        message = tf.concat([nonce, pixels], 1)
        return self._hashes("fresh", message, images, noise)

    def _hashes(
        self, use: str, message: tf.Tensor, images: tf.Tensor, noise: str
    ) -> tf.Tensor:
        """Returns two words for each row of a message, uint8 [B, size]."""
        sizes = "x".join(str(size) for size in images.shape[1:])
        kind = "float32" if noise == "float" else "255ths"
        # Different uses, types and shapes never hash the same bytes.
        head = f"rs-keras {use} {kind} {sizes}:"
        size = message.shape[1]
        # A tensor's bytes stand at the end of its serialized form.
        text = tf.map_fn(
            tf.io.serialize_tensor,
            message,
            fn_output_signature=tf.TensorSpec([], tf.string),
        )
        text = tf.strings.join([head, tf.strings.substr(text, -size, size)])
        # Two words of 62 bits for each row: int64 [B, 2].
        words = [
            tf.strings.to_hash_bucket_strong(text, _WORDS, key)
            for key in self._keys
        ]
        return tf.stack(words, -1)


def _image_bytes(images: tf.Tensor, noise: str) -> tf.Tensor:
    """The bytes that stand for each image: uint8 [B, size].

    Images that share their bytes share a seed, and so must be one image to the
    classifier, whose noise they know once the seed is told. Images that are
    one to the classifier must share them, or each would be a new try.
    """
    size = int(np.prod(images.shape[1:]))
    if noise == "float":
        # -0.0 is another image in its bytes, and none to a classifier.
        exact = tf.where(images == 0.0, tf.zeros_like(images), images)
        pixels, size = tf.bitcast(exact, tf.uint8), 4 * size
    else:
        # In float32, as the noise rounds them: a pixel halfway between two
        # 255ths must not have the seed of one image and the votes of another.
        pixels = tf.cast(tf.round(images * 255.0), tf.uint8)
    return tf.reshape(pixels, [tf.shape(images)[0], size])


def load_key(key: "Key" = None) -> SeedKey:
    """Finds the key of keyed seeds.

    Args:
        key: The secret (bytes), the name of a file that holds it, or None for
            the environment variable RS_KERAS_SEED_KEY. In these two,
            whitespace at its ends does not count.

    Raises:
        ValueError: If there is no key, or it is too short.
        OSError: If the file cannot be read.

    Example:

    >>> import os
    >>> from pathlib import Path
    >>> from rs_keras.noise import load_key
    >>> size = Path("key").write_bytes(os.urandom(32))
    >>> load_key("key")
    SeedKey(...)
    >>> load_key(b"short")
    Traceback (most recent call last):
    ValueError: `key` must have at least 16 bytes. Received: 5 bytes
    """
    if isinstance(key, SeedKey):
        return key
    if isinstance(key, bytes):
        return SeedKey(key)
    if key is not None:
        return SeedKey(Path(key).read_bytes().strip())
    if ENVIRONMENT not in os.environ:
        raise ValueError(
            "`key` must be given for seed='keyed', or the environment "
            f"variable {ENVIRONMENT} set. Received: key=None"
        )
    return SeedKey(os.environ[ENVIRONMENT].strip().encode())


Key = bytes | str | os.PathLike | SeedKey | None

# None is fresh entropy, an int is for row i `fold_in(seed, i)`, an array holds
# one pair a row, "keyed" asks a `SeedKey`.
Seed = int | str | Sequence[int] | np.ndarray | None
