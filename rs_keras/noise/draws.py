"""Counter-based noise: any range of draws, from a seed and a number.

Draw number j under a seed is a pure function of (seed, j): Philox turns a key
and a counter into random bits, the seed fills the key and the upper half of the
counter, and the draw's number fills the lower half. So any range of draws can
be made anywhere, in any order and in pieces of any size, and the pieces are
the whole, bit for bit. (Under `jit_compile` the numbers of one call are spread
differently over its elements: still a function of the address, but pieces are
then not the whole. The certifier never compiles with XLA.)

References:
- [Salmon et al., 2011](https://doi.org/10.1145/2063384.2063405)
"""

import hashlib
import math
import os
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from rs_keras.noise.keyed_seeds import Key
from rs_keras.noise.keyed_seeds import Seed
from rs_keras.noise.keyed_seeds import load_key

# The algorithm is always named: "auto" gives other numbers under XLA.
PHILOX = 1

# One Philox call makes 128 random bits: four float32, two float64 or int64.
_BYTES_PER_COUNTER = 16

# The lower counter word is (stream, position): 15 bits and 48 bits.
POSITION_BITS = 48


def fresh_seeds(count: int) -> np.ndarray:
    """Returns `count` seeds, int64 [count, 2], from the system's entropy.

    Example:

    >>> from rs_keras.noise import fresh_seeds
    >>> seeds = fresh_seeds(3)
    >>> seeds.shape, bool((seeds == fresh_seeds(3)).any())
    ((3, 2), False)
    """
    return np.frombuffer(os.urandom(16 * count), np.int64).reshape(count, 2)


def fold_in(seed: int | Sequence[int] | np.ndarray, data: int) -> np.ndarray:
    """Returns the seed, int64 [2], that belongs to number `data` under `seed`.

    A hash of both, so the seeds of different rows, images or uses never meet.

    Args:
        seed: An int, or some of them, in [-2**63, 2**63).
        data: Any int.

    Returns:
        int64 [2].

    Raises:
        ValueError: If `seed` does not fit into 64 bits.

    Example:

    >>> from rs_keras.noise import fold_in
    >>> bool((fold_in(7, 0) == fold_in(7, 1)).any())
    False
    """
    try:
        array = np.asarray(seed, np.int64)
    except OverflowError as error:
        raise ValueError(
            f"`seed` must lie in [-2**63, 2**63). Received: seed={seed!r}"
        ) from error
    words = [*np.atleast_1d(array).tolist(), int(data)]
    text = ",".join(str(word) for word in words).encode()
    digest = hashlib.blake2b(text, digest_size=16, person=b"rs-keras fold_in")
    return np.frombuffer(digest.digest(), np.int64)


def as_seeds(
    seed: Seed,
    count: int,
    images: np.ndarray | None = None,
    key: Key = None,
    noise: str = "float",
) -> np.ndarray:
    """Returns one seed per row, int64 [count, 2].

    Args:
        seed: None (fresh entropy), an int (row i gets `fold_in(seed, i)`), an
            integer array [count, 2], taken as it is, or "keyed" (the same
            image always gets the same noise; see `rs_keras.noise`). Note that
            one int given to several calls gives the first row of each the
            same noise: their errors are then not independent.
        count: The number of rows.
        images: The rows, for "keyed" only.
        key: See `rs_keras.noise.load_key`.
        noise: The certifier's, for "keyed" only: with "float", images are the
            same if every bit is, else if they round to the same 255ths.

    Raises:
        ValueError: If `seed` is none of these, or there is no key.

    Example:

    >>> from rs_keras.noise import as_seeds
    >>> from rs_keras.noise import fold_in
    >>> rows = as_seeds(7, count=3)
    >>> rows.shape, bool((rows[2] == fold_in(7, 2)).all())
    ((3, 2), True)
    >>> bool((as_seeds(rows, count=3) == rows).all())
    True
    """
    if seed is None:
        return fresh_seeds(count)
    if isinstance(seed, str) and seed == "keyed" and images is not None:
        return load_key(key).seeds(images, noise)
    array = np.asarray(seed)
    # Not uint64, whose upper half would turn into other seeds.
    signed = array.dtype.kind in "iu" and np.can_cast(array.dtype, np.int64)
    if array.ndim == 0 and signed:
        rows = [fold_in(int(array), row) for row in range(count)]
        return np.stack(rows) if rows else np.zeros((0, 2), np.int64)
    if array.shape == (count, 2) and signed:
        return array.astype(np.int64)
    raise ValueError(
        "`seed` must be None, 'keyed' (where there are images), an int in "
        f"[-2**63, 2**63), or such an array of shape [{count}, 2] (one pair a "
        f"row). Received: seed={seed!r}"
    )


def example_seed(root: Any, idx: int) -> Any:
    """Returns the seed of one example of a run, as certifiers take it.

    Args:
        root: The run's seed; "keyed" leaves it to the image.
        idx: Place of the example in its data set.

    Example:

    >>> from rs_keras.noise import example_seed
    >>> example_seed(7, idx=0).shape, example_seed("keyed", idx=0)
    ((1, 2), 'keyed')
    """
    return root if root == "keyed" else fold_in(root, idx)[None]


def addressed_draws(shape: Sequence[int]) -> int:
    """Returns how many draws of this shape a seed can tell apart.

    A draw takes at most one position for each number in it. Beyond, draws
    would be those of another use of the seed, or the first ones again.

    Example:

    >>> from rs_keras.noise.draws import addressed_draws
    >>> addressed_draws([224, 224, 3])
    1869917734
    """
    return int(2**POSITION_BITS // math.prod(shape))


def _draws(
    operation: Callable[..., tf.Tensor],
    shape: Sequence[int],
    dtype: tf.DType,
    *,
    seed: tf.Tensor,
    first: tf.Tensor | int,
    count: tf.Tensor | int,
    stream: int,
) -> tf.Tensor:
    """Returns draws first .. first+count-1 of a stateless operation."""
    size = math.prod(shape)
    # A counter makes 16 bytes; each draw begins with a counter of its own.
    per_counter = _BYTES_PER_COUNTER // dtype.size
    counters = -(-size // per_counter)
    position = tf.cast(first, tf.int64) * counters
    seed = tf.convert_to_tensor(seed, tf.int64)
    counter = tf.stack([position + (stream << POSITION_BITS), seed[1]])
    flat = operation(
        shape=tf.stack([tf.cast(count, tf.int32), counters * per_counter]),
        key=tf.bitcast(seed[:1], tf.uint64),
        counter=tf.bitcast(counter, tf.uint64),
        alg=PHILOX,
        dtype=dtype,
    )
    return tf.reshape(flat[:, :size], [-1, *shape])


def normal(
    shape: Sequence[int],
    seed: tf.Tensor,
    first: tf.Tensor | int,
    count: tf.Tensor | int,
    dtype: tf.DType = tf.float32,
    stream: int = 0,
) -> tf.Tensor:
    """Standard normal draws number `first` .. `first + count - 1`.

    Args:
        shape: Of one draw; static.
        seed: int64 [2].
        first: Number of the first draw, >= 0.
        count: How many; may be a tensor.
        dtype: float32 or float64 (their numbers are unrelated).
        stream: Separates uses under one seed, 0 .. 2**15 - 1.

    Returns:
        A tensor [count, *shape].

    Example:

    >>> from rs_keras import noise
    >>> whole = noise.normal([28, 28, 1], [7, 0], 0, 5)
    >>> part = noise.normal([28, 28, 1], [7, 0], 3, 2)
    >>> bool((whole[3:] == part).numpy().all())
    True
    """
    address = {"seed": seed, "first": first, "count": count, "stream": stream}
    operation = tf.raw_ops.StatelessRandomNormalV2
    return _draws(operation, shape, dtype, **address)


def uniform(
    shape: Sequence[int],
    seed: tf.Tensor,
    first: tf.Tensor | int,
    count: tf.Tensor | int,
    dtype: tf.DType = tf.float32,
    stream: int = 0,
) -> tf.Tensor:
    """Uniform draws in [0, 1), addressed as in `normal`.

    Example:

    >>> from rs_keras import noise
    >>> whole = noise.uniform([4], [7, 0], 0, 5)
    >>> bool((whole[3:] == noise.uniform([4], [7, 0], 3, 2)).numpy().all())
    True
    >>> bool(whole.numpy().min() >= 0), bool(whole.numpy().max() < 1)
    (True, True)
    """
    address = {"seed": seed, "first": first, "count": count, "stream": stream}
    operation = tf.raw_ops.StatelessRandomUniformV2
    return _draws(operation, shape, dtype, **address)


def words(
    shape: Sequence[int],
    seed: tf.Tensor,
    first: tf.Tensor | int,
    count: tf.Tensor | int,
    stream: int = 0,
) -> tf.Tensor:
    """Random words, int64, uniform over all 2**64, addressed as in `normal`.

    Example:

    >>> from rs_keras.noise import draws as noise
    >>> whole = noise.words([4], [7, 0], 0, 5)
    >>> bool((whole[3:] == noise.words([4], [7, 0], 3, 2)).numpy().all())
    True
    """
    address = {"seed": seed, "first": first, "count": count, "stream": stream}
    operation = tf.raw_ops.StatelessRandomUniformFullIntV2
    return _draws(operation, shape, tf.int64, **address)
