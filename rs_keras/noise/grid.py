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
between the two values that share this column. Nothing else is approximated, and
the total variation between P and what is drawn is computed: about 1e-16 a
pixel.

References:
- [Walker, 1977](https://doi.org/10.1145/355744.355749), the alias method
- [Vose, 1991](https://doi.org/10.1109/32.92917), its tables
"""

import decimal
import math
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache

import numpy as np
import tensorflow as tf

# Steps of the grid in the range of pixels, [0, 1].
LEVELS = 255

_WORD = 64
_TOTAL = 2**_WORD

# Beyond so many standard deviations lies a mass of less than 2**-64, which is
# not drawn (and counted as error).
_REACH = 9.2

# Digits of the exact probabilities; 64 bits have 20.
_PRECISION = 45


@dataclass(frozen=True, eq=False)
class GridNoise:
    """Noise on the grid for one sigma, as a table to look up.

    Attributes:
        entries: int64 [2**bits]. Entry number k + 2**(bits - 1) has in its
            upper `bits` the value that shares k's column, in the others the
            smallest remainder of a word that gives this value.
        bits: Of a word, how many choose the column.
        pixel_distance: The total variation between the distribution drawn and
            that of round(255 * sigma * z), for one pixel.
    """

    entries: np.ndarray
    bits: int
    pixel_distance: float

    def distance(self, shape: Sequence[int]) -> float:
        """Bounds the total variation for all pixels of one draw together.

        Pixels are independent in both distributions, so theirs add up.

        Example:

        >>> from rs_keras.noise.grid import grid_noise
        >>> grid_noise(1.0).distance([224, 224, 3]) < 1e-10
        True
        """
        pixels = math.prod(shape)
        return float(np.nextafter(pixels * self.pixel_distance, np.inf))


@lru_cache(maxsize=32)
def grid_noise(sigma: float) -> GridNoise:
    """Returns the exact noise of standard deviation `sigma` on the grid.

    Args:
        sigma: > 0, in units of pixels in [0, 1].

    Example:

    >>> from rs_keras.noise.grid import grid_noise
    >>> noise = grid_noise(0.25)
    >>> len(noise.entries), noise.pixel_distance < 2**-52
    (2048, True)
    """
    masses = _masses(sigma)
    with decimal.localcontext(prec=_PRECISION):
        counts = [round(mass * _TOTAL) for mass in masses]
        # The words must all be given out: what rounding left is the middle's.
        counts[0] = _TOTAL - 2 * sum(counts[1:])
        errors = [
            abs(count - mass * _TOTAL)
            for count, mass in zip(counts, masses, strict=True)
        ]
        beyond = 1 - (masses[0] + 2 * sum(masses[1:]))
        both = errors[0] + 2 * sum(errors[1:]) + abs(beyond) * _TOTAL
        distance = float(both / _TOTAL / 2)
    bits = (2 * len(counts)).bit_length()
    entries = _alias_table(counts, bits)
    return GridNoise(entries, bits, float(np.nextafter(distance, 1.0)))


def _masses(sigma: float) -> list[Decimal]:
    """P[k] for k = 0, 1, ..., as far as it matters; P[-k] is the same."""
    with decimal.localcontext(prec=_PRECISION):
        scale = LEVELS * Decimal(sigma)
        last = math.ceil(_REACH * float(scale))
        half = Decimal("0.5")
        above = [_half_cdf((k + half) / scale) for k in range(last + 1)]
        inner = zip(above[1:], above[:-1], strict=True)
        return [2 * above[0], *(high - low for high, low in inner)]


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
    while odd < square or term > total * Decimal(10) ** -_PRECISION:
        odd += 2
        term = term * square / odd
        total += term
    return total * (-square / 2).exp() / (2 * _PI).sqrt()


# The tail beyond is 4e-51: none of the digits.
_ALL = 15
_PI = Decimal(
    "3.14159265358979323846264338327950288419716939937510582097494459230781640"
)


def _alias_table(counts: list[int], bits: int) -> np.ndarray:
    """Gives out 2**64 words in columns of equal size, two values a column.

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
    >>> noise = grid_noise(0.01)  # s = 2.55
    >>> grid_steps(tf.constant([0, 2**62]), noise.entries, noise.bits).numpy()
    array([0., 3.], dtype=float32)
    """
    lower = _WORD - tf.cast(bits, tf.int64)
    remainder = tf.bitwise.left_shift(tf.ones_like(lower), lower) - 1
    half = tf.bitwise.left_shift(1, tf.cast(bits, tf.int32) - 1)

    def split(word: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        # An arithmetic shift: the upper bits are a signed number.
        upper = tf.bitwise.right_shift(word, lower)
        return tf.cast(upper, tf.int32), tf.bitwise.bitwise_and(word, remainder)

    value, rest = split(words)
    other, own = split(tf.gather(entries, value + half))
    return tf.cast(tf.where(rest < own, value, other), tf.float32)
