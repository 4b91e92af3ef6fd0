"""Checks of the parts of a recipe: their names, and their values."""

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
from typing import Any

import keras

from rs_keras._checks import check_choice
from rs_keras._checks import check_count
from rs_keras._checks import check_flag
from rs_keras._checks import check_not_negative
from rs_keras._checks import check_positive
from rs_keras._config import argument_names
from rs_keras.adversaries.base import Adversary
from rs_keras.trainers import methods
from rs_keras.trainers._step.noisy_model import NoisyModel
from rs_keras.trainers.base import SmoothTrainer

# Plain names of overrides are looked for in these, in this order.
PARTS = ("trainer", "optimizer", "schedule", "model", "teacher", "certify")


def _check_drops(name: str, value: Any) -> None:
    """Raises unless `value` is a list of epochs."""
    if not isinstance(value, list | tuple):
        raise ValueError(
            f"`{name}` must be a list of epochs. Received: {name}={value!r}"
        )
    for drop in value:
        check_count(name, drop, 0)


# What the parts are made of, and what each value has to be.
OPTIMIZER = {
    "learning_rate": check_positive,
    "momentum": check_not_negative,
    "nesterov": check_flag,
    "weight_decay": check_not_negative,
}
SCHEDULE = {"drops": _check_drops, "factor": check_positive}
TEACHER = {
    "sigma": check_positive,
    "n": check_count,
    "epochs": check_count,
    "drops": _check_drops,
}
CERTIFY = dict.fromkeys(("every", "examples", "n"), check_count)


def check_mapping(part: str, values: Any) -> None:
    if not isinstance(values, Mapping):
        raise ValueError(
            f"`{part}` must be names with values. Received: {part}={values!r}"
        )


def check_part(
    part: str,
    values: Mapping[str, Any],
    checks: Mapping[str, Callable[[str, Any], Any]],
    needed: Iterable[str] = (),
) -> None:
    """Checks the names of a part and their values."""
    check_keys(part, values, checks)
    for key in needed:
        if key not in values:
            raise ValueError(f"`{part}.{key}` must be given")
    for key, value in values.items():
        checks[key](f"{part}.{key}", value)


def check_keys(part: str, values: Mapping[str, Any], known: Any) -> None:
    for key in values:
        check_choice(part, key, known)


def classes() -> dict[str, type[SmoothTrainer]]:
    """Returns the methods of `rs_keras.trainers.methods` by class name."""
    return {
        name: value
        for name, value in vars(methods).items()
        if isinstance(value, type)
    }


def arguments(name: str) -> tuple[str, ...]:
    """Returns what a recipe may set of a trainer's arguments."""
    elsewhere = ("model", "sigma", "seed")
    names = argument_names(classes()[name], NoisyModel)
    return tuple(key for key in names if key not in elsewhere)


def adversary_of(value: Any) -> Any:
    """Returns an adversary that stands in the recipe as its configuration.

    Nothing else is made: a recipe is data, whoever wrote it.
    """
    if not isinstance(value, Mapping):
        return value
    name = value.get("class_name")
    kind = keras.saving.get_registered_object(
        value.get("registered_name") or f"rs_keras>{name}"
    )
    if not (isinstance(kind, type) and issubclass(kind, Adversary)):
        raise ValueError(
            "`adversary` must have the `class_name` of an adversary, such as "
            "PGD, and its arguments as `config`. "
            f"Received: adversary={dict(value)}"
        )
    config = value.get("config", {})
    check_mapping("adversary.config", config)
    check_keys("adversary.config", config, argument_names(kind, Adversary))
    return kind.from_config(dict(config))
