"""Recipes: all settings of a training run, as data."""

from rs_keras.trainers.recipes.recipe import Recipe
from rs_keras.trainers.recipes.registry import get
from rs_keras.trainers.recipes.registry import load
from rs_keras.trainers.recipes.registry import methods

__all__ = [
    "Recipe",
    "get",
    "load",
    "methods",
]
