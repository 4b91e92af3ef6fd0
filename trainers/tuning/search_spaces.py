"""What a sweep varies: ranges of the values of a recipe, as data.

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
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import keras_tuner

from rs_keras._checks import check_positive
from rs_keras.trainers.recipes.recipe import Recipe


def _check_order(low: float, high: float) -> None:
    if not low < high:
        raise ValueError(
            f"`high` must be > low. Received: low={low!r}, high={high!r}"
        )


@dataclass(frozen=True)
class Log:
    """A number, uniform in its logarithm.

    Attributes:
        low: > 0.
        high: > low.

    Example:

    >>> from rs_keras.trainers.tuning.search_spaces import Log
    >>> {"eta": Log(0.5, 20.0)}
    {'eta': Log(low=0.5, high=20.0)}
    >>> Log(0.0, 1.0)
    Traceback (most recent call last):
    ValueError: `low` must be a finite number > 0. Received: low=0.0
    """

    low: float
    high: float

    def __post_init__(self) -> None:
        check_positive("low", self.low)
        check_positive("high", self.high)
        _check_order(self.low, self.high)


@dataclass(frozen=True)
class Uniform:
    """A number, uniform.

    Attributes:
        low: Finite.
        high: > low.

    Example:

    >>> from rs_keras.trainers.tuning.search_spaces import Uniform
    >>> {"momentum": Uniform(0.8, 0.95)}
    {'momentum': Uniform(low=0.8, high=0.95)}
    """

    low: float
    high: float

    def __post_init__(self) -> None:
        _check_order(self.low, self.high)


@dataclass(frozen=True)
class Choice:
    """One of some values.

    Attributes:
        values: At least one; all numbers, all words or all booleans.

    Example:

    >>> from rs_keras.trainers.tuning.search_spaces import Choice
    >>> {"steps": Choice((1, 2, 4, 8))}
    {'steps': Choice(values=(1, 2, 4, 8))}
    """

    values: Sequence[Any]

    def __post_init__(self) -> None:
        if not self.values:
            raise ValueError(
                "`values` must hold at least one value. Received: none"
            )


@dataclass(frozen=True)
class Per:
    """Not varied by itself: total / (the value of another name).

    Attributes:
        total: > 0.
        name: A name of the same space.

    Example:

    >>> import keras_tuner
    >>> from rs_keras.trainers import recipes
    >>> from rs_keras.trainers.tuning import search_spaces
    >>> recipe = recipes.get("mnist", "smoothmix", sigma=0.5)
    >>> space = {"steps": search_spaces.Choice((2, 4)),
    ...          "step_size": search_spaces.Per(4.0, "steps")}
    >>> hp = keras_tuner.HyperParameters()
    >>> search_spaces.sample(space, hp, recipe)
    {'steps': 4, 'step_size': 1.0}
    """

    total: float
    name: str

    def __post_init__(self) -> None:
        check_positive("total", self.total)


Varied = Log | Uniform | Choice
Range = Varied | Per
Space = (
    Mapping[str, Range]
    | Callable[[keras_tuner.HyperParameters], Mapping[str, Any]]
)


def default(recipe: Recipe) -> dict[str, Range]:
    """Returns the space of a recipe's method.

    It has the method's own hyper-parameters, around all that the papers
    tried, and the learning rate, from a third to three times that of the
    recipe. SmoothMix's number of steps varies with step_size * steps fixed to
    8 sigma: the papers' on MNIST and CIFAR-10, in proportion to sigma as they
    advise.

    Args:
        recipe: Says the method and sigma.

    Example:

    >>> from rs_keras.trainers import recipes
    >>> from rs_keras.trainers.tuning import search_spaces
    >>> search_spaces.default(recipes.get("mnist", "gaussian", sigma=0.5))
    {'num_noise': Choice(values=(1, 2, 4)),
     'learning_rate': Log(low=0.0033..., high=0.03)}

    References:
    - [Jeong et al., 2021](https://arxiv.org/abs/2111.09277), section 4 and
      appendix H
    """
    rate = recipe.optimizer["learning_rate"]
    own = _SPACES[recipe.trainer["name"]]
    space = {**own, "learning_rate": Log(rate / 3, rate * 3)}
    if recipe.trainer["name"] == "SmoothMix":
        space["step_size"] = Per(_REACH * recipe.sigma, "steps")
    return space


# step_size * steps / sigma of SmoothMix's published settings.
_REACH = 8.0

_SPACES: dict[str, dict[str, Range]] = {
    "Gaussian": {"num_noise": Choice((1, 2, 4))},
    "Stability": {"weight": Log(0.5, 8.0)},
    "SmoothAdv": {
        "epsilon": Log(0.25, 2.0),
        "steps": Choice((2, 4, 10)),
    },
    "MACER": {"weight": Log(1.0, 32.0), "gamma": Log(2.0, 16.0)},
    "Consistency": {
        "weight": Log(1.0, 40.0),
        "entropy_weight": Log(0.05, 1.0),
    },
    "SmoothMix": {
        "eta": Log(0.5, 20.0),
        "steps": Choice((1, 2, 4, 8)),
        "one_step_adversary": Choice((False, True)),
    },
    "CATRS": {
        "weight": Log(0.25, 4.0),
        "epsilon": Log(0.25, 2.0),
        "steps": Choice((2, 4, 8)),
    },
}


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
            value of a `Log` or `Uniform` is no number.

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
        name: _one(hp, name, span, recipe)
        for name, span in space.items()
        if not isinstance(span, Per)
    }
    for name, span in space.items():
        if isinstance(span, Per):
            if span.name not in values:
                raise ValueError(
                    f"`space` must vary {span.name!r}, which {name!r} follows. "
                    f"Received: {', '.join(space)}"
                )
            values[name] = span.total / values[span.name]
    return values


def _one(
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
    for one in parts:
        values = getattr(recipe, one, {})
        if key in values:
            return values[key]
    return None if part else getattr(recipe, key, None)
