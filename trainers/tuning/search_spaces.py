"""Search spaces of sweeps: ranges of the values of a recipe, as data.

A space maps names, as in `Recipe.replace`, to ranges. Each method has one
that surrounds what the papers tried.

Example:

>>> from rs_keras.trainers import recipes
>>> from rs_keras.trainers.tuning import search_spaces
>>> recipe = recipes.get("mnist", "smoothmix", sigma=0.5)
>>> space = search_spaces.default(recipe)
>>> space["eta"], space["steps"], space["step_size"]
(Log(low=0.5, high=20.0), Choice(values=(1, 2, 4, 8)), Per(total=4.0, \
name='steps'))
"""

from collections.abc import Callable
from collections.abc import Mapping
from typing import Any

import keras_tuner

from rs_keras.trainers.recipes.recipe import Recipe
from rs_keras.trainers.recipes.validation import classes
from rs_keras.trainers.tuning.ranges import Choice
from rs_keras.trainers.tuning.ranges import Log
from rs_keras.trainers.tuning.ranges import Per
from rs_keras.trainers.tuning.ranges import Range
from rs_keras.trainers.tuning.ranges import Uniform
from rs_keras.trainers.tuning.ranges import Varied

__all__ = ["Choice", "Log", "Per", "Uniform", "default", "sample"]

Space = (
    Mapping[str, Range]
    | Callable[[keras_tuner.HyperParameters], Mapping[str, Any]]
)


def default(recipe: Recipe) -> dict[str, Range]:
    """Returns the space of a recipe's method.

    It has the method's own hyper-parameters (see
    `SmoothTrainer.search_space`), around all that the papers tried, and the
    learning rate, from a third to three times that of the recipe.

    Args:
        recipe: Says the method and sigma.

    Example:

    >>> from rs_keras.trainers import recipes
    >>> from rs_keras.trainers.tuning import search_spaces
    >>> search_spaces.default(recipes.get("mnist", "gaussian", sigma=0.5))
    {'num_noise': Choice(values=(1, 2, 4)),
     'learning_rate': Log(low=0.0033..., high=0.03)}
    """
    rate = recipe.optimizer["learning_rate"]
    own = classes()[recipe.trainer["name"]].search_space(recipe.sigma)
    return {**own, "learning_rate": Log(rate / 3, rate * 3)}


def sample(
    space: Space, hp: keras_tuner.HyperParameters, recipe: Recipe
) -> dict[str, Any]:
    """Returns the values of a trial, by name.

    Args:
        space: The ranges; or a function that asks `hp` itself.
        hp: Keras Tuner's. The default of each is the recipe's own value, where
            that is in the range.
        recipe: That the values go into.

    Raises:
        ValueError: If a `Per` names nothing of the space, or the recipe's
            value of a `Log` or `Uniform` is not a number.

    Example:

    >>> import keras_tuner
    >>> from rs_keras.trainers import recipes
    >>> from rs_keras.trainers.tuning import search_spaces
    >>> recipe = recipes.get("mnist", "smoothmix", sigma=0.5)
    >>> space = {"eta": search_spaces.Log(0.5, 20.0)}
    >>> hp = keras_tuner.HyperParameters()
    >>> search_spaces.sample(space, hp, recipe)  # before a tuner chooses
    {'eta': 5.0}
    >>> hp.values["eta"] = 2.5
    >>> search_spaces.sample(space, hp, recipe)
    {'eta': 2.5}
    """
    if callable(space):
        return dict(space(hp))
    values = {
        name: _value(hp, name, span, recipe)
        for name, span in space.items()
        if not isinstance(span, Per)
    }
    for name, span in space.items():
        if not isinstance(span, Per):
            continue
        if span.name not in values:
            raise ValueError(
                f"`space` must vary {span.name!r}, which {name!r} follows. "
                f"Received: {', '.join(space)}"
            )
        values[name] = span.total / values[span.name]
    return values


def _value(
    hp: keras_tuner.HyperParameters, name: str, span: Varied, recipe: Recipe
) -> Any:
    known = _known(recipe, name)
    if isinstance(span, Choice):
        values = list(span.values)
        default = known if known in values else values[0]
        chosen = hp.Choice(name, values, default=default)
        # Keras Tuner makes numbers of them.
        return bool(chosen) if isinstance(values[0], bool) else chosen
    is_number = isinstance(known, int | float)
    if known is not None and not is_number:
        raise ValueError(
            f"`{name}` must be a number to be varied. "
            f"Received: {name}={known!r}"
        )
    inside = is_number and span.low <= known <= span.high
    return hp.Float(
        name,
        float(span.low),
        float(span.high),
        sampling="log" if isinstance(span, Log) else "linear",
        default=float(known) if inside else None,
    )


def _known(recipe: Recipe, name: str) -> Any:
    """Returns the recipe's own value, or None where it has none."""
    part, _, key = name.rpartition(".")
    parts = (part,) if part else ("trainer", "optimizer", "schedule", "model")
    for values in (getattr(recipe, part, {}) for part in parts):
        if key in values:
            return values[key]
    return None if part else getattr(recipe, key, None)
