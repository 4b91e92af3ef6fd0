"""Gaussian noise that depends on seed, example and draw index alone."""

from typing import TYPE_CHECKING

from rs_keras._lazy import attach

if TYPE_CHECKING:
    from rs_keras.noise.draws import as_seeds as as_seeds
    from rs_keras.noise.draws import example_seed as example_seed
    from rs_keras.noise.draws import fold_in as fold_in
    from rs_keras.noise.draws import fresh_seeds as fresh_seeds
    from rs_keras.noise.draws import normal as normal
    from rs_keras.noise.draws import uniform as uniform
    from rs_keras.noise.keyed_seeds import SeedKey as SeedKey
    from rs_keras.noise.keyed_seeds import load_key as load_key

__all__, __getattr__, __dir__ = attach(__name__)
