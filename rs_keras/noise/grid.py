"""The Gaussian on the grid of 8-bit images, drawn exactly.

On images whose pixels are multiples of 1/255, a pixel of image plus noise,
rounded to that grid, is 255 * x + k with k = round(255 * sigma * z), z
~ Normal(0, 1). So only the distribution of the whole number k matters,

    P[k] = cdf((k + 1/2) / s) - cdf((k - 1/2) / s),    s = 255 * sigma,

and here it is drawn as it is, in whole numbers: no normal deviate is computed
and rounded. (TensorFlow's float32 and float64 normals leave cells of the grid
in their tails that are never hit; a base classifier that looks for those gets a
certificate that is false.)

P is rounded to multiples of 2**-64, and an alias table turns one random word of
64 bits into one draw: its upper bits choose a column, its lower bits decide
between the two values that share this column. Nothing else is approximated:
see `grid_distance`.

References:
- [Walker, 1977](https://doi.org/10.1145/355744.355749), the alias method
- [Vose, 1991](https://doi.org/10.1109/32.92917), its tables
"""

import decimal
import math
from collections.abc import Iterator
from collections.abc import Sequence
from decimal import Decimal
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import tensorflow as tf

# Steps of the grid in the range of pixels, [0, 1].
LEVELS = 255

_WORD = 64
_TOTAL = 2**_WORD

# Standard deviations beyond which nothing is drawn: a mass of 0.7 words.
_REACH = 9.2

# Digits of the exact probabilities; 64 bits have 20.
_PRECISION = 32


class GridNoise(NamedTuple):
    """Noise on the grid for one sigma, as a table to look up.

    Attributes:
        entries: int64 [2**bits]. Entry number k + 2**(bits - 1) has in its
            upper `bits` the value that shares k's column, in the others the
            smallest remainder of a word that gives this value.
        bits: Of a word, how many choose the column.

    Example:

    >>> from rs_keras.noise.grid import grid_noise
    >>> noise = grid_noise(0.25)
    >>> len(noise.entries), noise.bits
    (2048, 11)
    """

    entries: np.ndarray
    bits: int


def grid_distance(sigma: float, shape: Sequence[int]) -> float:
    """Bounds the total variation between one draw and the rounded Gaussian.

    For all pixels together: they are independent in both distributions, so
    that their distances add up. Of one pixel it is at most (K + 1) words, K
    the largest value that is drawn:

    - 2 * K values were rounded, by half a word each;
    - the middle gets what this left over, at most K words, and the mass beyond
      K, which is below a word and not drawn;
    - the total variation is half of the sum.

    Args:
        sigma: Standard deviation of the noise, > 0.
        shape: Of one draw.

    Example:

    >>> from rs_keras.noise.grid import grid_distance
    >>> grid_distance(1.0, [224, 224, 3]) < 2e-11
    True
    """
    words = math.prod(shape) * (_largest(sigma) + 1)
    return float(np.nextafter(words / _TOTAL, 1.0))


@lru_cache(maxsize=32)
def grid_noise(sigma: float) -> GridNoise:
    """Returns the exact noise of standard deviation `sigma` on the grid.

    Args:
        sigma: > 0, in units of pixels in [0, 1].

    Example:

    >>> from rs_keras.noise.grid import grid_noise
    >>> grid_noise(1.0).bits
    13
    """
    with decimal.localcontext(prec=_PRECISION):
        counts = [round(mass * _TOTAL) for mass in _masses(sigma)]
    # The words must all be given out: what rounding left is the middle's.
    counts.insert(0, _TOTAL - 2 * sum(counts))
    bits = (2 * len(counts)).bit_length()
    return GridNoise(_alias_table(counts, bits), bits)


def _largest(sigma: float) -> int:
    """The largest value that is drawn, K."""
    return math.ceil(_REACH * LEVELS * sigma)


def _masses(sigma: float) -> Iterator[Decimal]:
    """Yields P[k] for k = 1 .. K; P[-k] is the same."""
    scale = LEVELS * Decimal(sigma)
    half = Decimal("0.5")
    below = _half_cdf(half / scale)
    for k in range(1, _largest(sigma) + 1):
        above = _half_cdf((k + half) / scale)
        yield above - below
        below = above


def _half_cdf(x: Decimal) -> Decimal:
    """cdf(x) - 1/2 of the standard normal distribution, for x >= 0.

    pdf(x) * (x + x**3 / 3 + x**5 / (3 * 5) + ...): all terms are positive, so
    no digit is lost.
    """
    if x > _ALL:
        return Decimal("0.5")
    square = x * x
    term = total = x
    odd = 1
    # The terms rise up to odd = x**2 and then fall ever faster.
    while odd < square or term > total * _SMALL:
        odd += 2
        term = term * square / odd
        total += term
    return total * (-square / 2).exp() / _ROOT


# The tail beyond is 4e-51: none of the digits.
_ALL = 15
_SMALL = Decimal(10) ** -_PRECISION
# sqrt(2 * pi)
_ROOT = Decimal("2.50662827463100050241576528481104525300698674060993831663")


def _alias_table(counts: list[int], bits: int) -> np.ndarray:
    """Gives out 2**64 words in columns of equal size, two values per column.

    Args:
        counts: counts[k] words for the values k and -k; they add up to 2**64.
        bits: 2**bits columns; column number c is that of the value
            c - 2**(bits - 1).
    """
    half, size = 2 ** (bits - 1), _TOTAL >> bits
    left = [0] * (2 * half)
    for k, count in enumerate(counts):
        left[half + k] = left[half - k] = count
    full = [(column, size - 1) for column in range(2 * half)]
    short = [column for column, count in enumerate(left) if count < size]
    long = [column for column, count in enumerate(left) if count >= size]
    while short:
        column = short.pop()
        other = long[-1]
        # The values below are the column's own, the others the long one's.
        full[column] = other, left[column]
        left[other] -= size - left[column]
        if left[other] < size:
            short.append(long.pop())
    entries = [((value - half) << (_WORD - bits)) | own for value, own in full]
    return np.array(entries, np.int64)


def grid_steps(
    words: tf.Tensor, entries: tf.Tensor, bits: tf.Tensor | int
) -> tf.Tensor:
    """Turns random words into draws of round(255 * sigma * z).

    Args:
        words: int64, uniform over all 2**64 values; any shape.
        entries: As of `GridNoise`.
        bits: As of `GridNoise`.

    Returns:
        float32 whole numbers, the shape of `words`.

    Example:

    >>> import tensorflow as tf
    >>> from rs_keras.noise.grid import grid_noise, grid_steps
    >>> entries, bits = grid_noise(0.01)
    >>> grid_steps(tf.constant([0, -1, 2**62 - 1]), entries, bits).numpy()
    array([ 0., -2.,  1.], dtype=float32)
    """
    lower = _WORD - tf.cast(bits, tf.int64)
    remainder = tf.bitwise.left_shift(tf.ones_like(lower), lower) - 1
    half = tf.bitwise.left_shift(1, tf.cast(bits, tf.int32) - 1)

    def split(word: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        # An arithmetic shift: the upper bits are a signed number.
        upper = tf.bitwise.right_shift(word, lower)
        return tf.cast(upper, tf.int32), tf.bitwise.bitwise_and(word, remainder)

    # The column's own value if the remainder is below its bound, else the
    # value that shares the column.
    value, remaining = split(words)
    other, own = split(tf.gather(entries, value + half))
    return tf.cast(tf.where(remaining < own, value, other), tf.float32)
