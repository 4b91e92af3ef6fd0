"""MT19937-64 as an attacker uses it: its future from 312 words of it.

Nishimura, "Tables of 64-bit Mersenne twisters" (2000); TensorFlow's
NonDeterministicInts is one.
"""

WORDS = 312
_HALF = 156
_MASK = 2**64 - 1
_LOWER = 2**31 - 1
_TWIST = 0xB5026F5AA96619E9


def future(words, count):
    """Returns the `count` words that follow these 312."""
    state = [_untempered(int(word) & _MASK) for word in words]
    found = []
    for _ in range(count):
        mixed = (state[0] & ~_LOWER) | (state[1] & _LOWER)
        new = state[_HALF] ^ (mixed >> 1) ^ (_TWIST if mixed & 1 else 0)
        state = [*state[1:], new & _MASK]
        found.append(_tempered(new & _MASK))
    return found


def _tempered(x):
    x ^= (x >> 29) & 0x5555555555555555
    x ^= (x << 17) & 0x71D67FFFEDA60000
    x ^= (x << 37) & 0xFFF7EEE000000000
    return x ^ (x >> 43)


def _untempered(y):
    """Undoes each step from its known end of the word."""
    y ^= y >> 43
    y ^= (y << 37) & 0xFFF7EEE000000000
    y = _solved(y, lambda x: (x << 17) & 0x71D67FFFEDA60000)
    return _solved(y, lambda x: (x >> 29) & 0x5555555555555555)


def _solved(y, step):
    """x with x ^ step(x) = y, where a step moves bits by 17 at least."""
    x = y
    for _ in range(4):
        x = y ^ step(x)
    return x
