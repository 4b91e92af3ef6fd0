"""Gaussian noise that depends on seed, example and draw index alone."""

from rs_keras.noise.draws import as_seeds
from rs_keras.noise.draws import example_seed
from rs_keras.noise.draws import fold_in
from rs_keras.noise.draws import fresh_seeds
from rs_keras.noise.draws import normal
from rs_keras.noise.draws import uniform
from rs_keras.noise.keyed_seeds import SeedKey
from rs_keras.noise.keyed_seeds import load_key

__all__ = [
    "SeedKey",
    "as_seeds",
    "example_seed",
    "fold_in",
    "fresh_seeds",
    "load_key",
    "normal",
    "uniform",
]
