"""Ranges of the values that a sweep varies, as data.

They need no Keras Tuner, so that each method can say its own.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rs_keras._checks import check_positive


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
