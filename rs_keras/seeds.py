"""Seeds that follow from the image: the same image always gets the same noise.

With fresh noise, whoever is refused a certificate may ask again, and after
1 / alpha times has one. With a keyed seed, asking again gains nothing; another
image gets unrelated noise, and nobody without the key can know it. (Over many
images, a part alpha of the certificates is still false. And whoever may choose
n0 or n chooses which part of the noise is looked at: each choice is a new try,
so let strangers choose neither. With noise="float", images whose pixels lie in
the same 255ths differ and share their noise; with "grid", they are one image.)
"""

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

ENVIRONMENT = "RS_KERAS_SEED_KEY"

# Fewer could be guessed.
_SHORTEST = 16


class SeedKey:
    """A secret, and the seeds that it gives to images.

    It never shows in `repr`, in settings or in errors.

    Args:
        secret: At least 16 bytes, from a source of true randomness.

    Raises:
        ValueError: If it is shorter.

    Example:

    >>> import numpy as np
    >>> from rs_keras.seeds import SeedKey
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
        self._digest = hashlib.blake2b(secret, person=b"rs-keras key").digest()

    def __repr__(self) -> str:
        return "SeedKey(...)"

    def seeds(self, images: np.ndarray) -> np.ndarray:
        """Returns the seed of each image: int64 [B, 2].

        A keyed hash of its shape and of its pixels in 255ths: a change too
        small to reach the next 255th is no new try.

        Args:
            images: Floats in [0, 1], [B, H, W, C].
        """
        # In float32, as noise="grid" rounds them: a pixel halfway between two
        # 255ths must not have the seed of one image and the votes of another.
        steps = np.asarray(images, np.float32) * np.float32(255)
        levels = np.rint(steps).astype(np.uint8)
        shape = repr(levels.shape[1:]).encode()
        digests = [
            hashlib.blake2b(
                shape + image.tobytes(),
                digest_size=16,
                key=self._digest,
                person=b"rs-keras seed",
            ).digest()
            for image in levels
        ]
        return np.frombuffer(b"".join(digests), np.int64).reshape(-1, 2)


def load_key(key: "Key" = None) -> SeedKey:
    """Finds the key of keyed seeds.

    Args:
        key: The secret (bytes), the name of a file that holds it, or None for
            the environment variable RS_KERAS_SEED_KEY. In these two,
            whitespace at its ends does not count.

    Raises:
        ValueError: If there is none, or it is too short.
        OSError: If the file cannot be read.

    Example:

    >>> import os
    >>> from pathlib import Path
    >>> from rs_keras.seeds import load_key
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
