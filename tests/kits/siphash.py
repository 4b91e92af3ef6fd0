"""SipHash-2-4, written from the paper: the oracle of seeds.

https://eprint.iacr.org/2012/351, section 2.
"""

import hashlib

import numpy as np

_MASK = 2**64 - 1


def siphash(key, message):
    """Returns the 64-bit hash of bytes under two 64-bit words, as an int."""
    k0, k1 = (word & _MASK for word in key)
    state = [
        k0 ^ int.from_bytes(b"somepseu", "big"),
        k1 ^ int.from_bytes(b"dorandom", "big"),
        k0 ^ int.from_bytes(b"lygenera", "big"),
        k1 ^ int.from_bytes(b"tedbytes", "big"),
    ]
    padded = message + bytes(7 - len(message) % 8)
    padded += bytes([len(message) % 256])
    for start in range(0, len(padded), 8):
        word = int.from_bytes(padded[start : start + 8], "little")
        state[3] ^= word
        _rounds(state, 2)
        state[0] ^= word
    state[2] ^= 0xFF
    _rounds(state, 4)
    return state[0] ^ state[1] ^ state[2] ^ state[3]


def _rounds(v, count):
    for _ in range(count):
        v[0] = (v[0] + v[1]) & _MASK
        v[2] = (v[2] + v[3]) & _MASK
        v[1] = _rotated(v[1], 13) ^ v[0]
        v[3] = _rotated(v[3], 16) ^ v[2]
        v[0] = _rotated(v[0], 32)
        v[2] = (v[2] + v[1]) & _MASK
        v[0] = (v[0] + v[3]) & _MASK
        v[1] = _rotated(v[1], 17) ^ v[2]
        v[3] = _rotated(v[3], 21) ^ v[0]
        v[2] = _rotated(v[2], 32)


def _rotated(word, by):
    return ((word << by) | (word >> (64 - by))) & _MASK


def keys_of(secret):
    """The two keys that a secret gives to seeds."""
    digest = hashlib.blake2b(
        secret, digest_size=32, person=b"rs-keras seeds"
    ).digest()
    return np.frombuffer(digest, np.int64).reshape(2, 2).tolist()
