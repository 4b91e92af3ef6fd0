"""The papers' recipes, by data set, method and sigma.

Example:

>>> from rs_keras.trainers import recipes
>>> recipe = recipes.get("mnist", "smoothmix", sigma=1.0)
>>> recipe.trainer["name"], recipe.trainer["steps"], recipe.batch_size
('SmoothMix', 8, 64)
>>> recipe.sources["trainer"]
'command of jh-jeong/smoothmix; SmoothMix, table 2'
"""

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

from rs_keras import datasets
from rs_keras._checks import check_choice
from rs_keras._checks import check_positive
from rs_keras.trainers.recipes import hyperparameters as tables
from rs_keras.trainers.recipes import validation as checks
from rs_keras.trainers.recipes.recipe import Recipe


def get(
    dataset: str,
    method: str,
    sigma: float,
    data_dir: str | Path | None = None,
    **overrides: Any,
) -> Recipe:
    """Returns the papers' settings of a method.

    For a sigma that was not published, the settings are those of the nearest
    (by ratio) that was; for a data set that was not, those of its like
    (`npz:PATH` and `image_folder:PATH` by the size of their images). Both are
    said in `sources`.

    Args:
        dataset: As in `rs_keras.datasets.load`; one with a training split.
        method: One of `methods(dataset)`.
        sigma: Of the noise, in units of pixels in [0, 1], > 0.
        data_dir: As in `rs_keras.datasets.load`.
        **overrides: As in `Recipe.replace`.

    Raises:
        ValueError: For a data set, method or override that does not exist (the
            nearest is named), or a value out of range.

    Example:

    >>> from rs_keras.trainers import recipes
    >>> recipe = recipes.get("cifar10", "catrs", sigma=0.5, depth=20)
    >>> recipe.model, recipe.trainer["weight"], recipe.teacher["n"]
    ({'name': 'cifar_resnet', 'depth': 20}, 1.0, 10000)
    """
    check_positive("sigma", sigma)
    name = _family_of(dataset, data_dir)
    family, settings = tables.FAMILIES[name], _settings_of(name, dataset)
    chosen = settings[check_choice("method", method, settings)]
    nearest, arguments = _at(chosen, sigma)
    sources = {**family.sources, "trainer": chosen.source, **chosen.sources}
    if nearest is not None and nearest != sigma:
        sources["sigma"] = f"not published; the settings of sigma {nearest:g}"
    if dataset not in family.datasets[: family.published]:
        if method not in tables.SETTINGS.get(dataset, {}):
            like = family.datasets[0]
            sources["dataset"] = f"not published; the settings of {like}"
    recipe = Recipe(
        dataset=dataset,
        method=method,
        sigma=float(sigma),
        model=dict(family.model),
        trainer={"name": chosen.trainer, **arguments},
        sources=sources,
        **_common(family, chosen, arguments.get("num_noise", 1)),
    )
    if dataset in tables.DEMO_EPOCHS:
        recipe = recipe.shortened(tables.DEMO_EPOCHS[dataset])
    return recipe.replace(**overrides)


def is_cut(recipe: Recipe) -> bool:
    """Returns whether a recipe stops before the end of its schedule.

    One that was `shortened` has a schedule of its own.

    Args:
        recipe: Of a data set and a method that `get` knows by name.

    Example:

    >>> from rs_keras.trainers.recipes import registry as recipes
    >>> whole = recipes.get("mnist", "macer", sigma=1.0)
    >>> kinds = whole, whole.shortened(70), whole.replace(epochs=70)
    >>> [recipes.is_cut(recipe) for recipe in kinds]
    [False, False, True]
    """
    full = get(recipe.dataset, recipe.method, recipe.sigma)
    same = recipe.schedule == full.schedule
    return same and recipe.epochs < full.epochs


def methods(dataset: str, data_dir: str | Path | None = None) -> list[str]:
    """Returns the names of the methods, and variants, that `get` knows.

    Args:
        dataset: As in `rs_keras.datasets.load`.
        data_dir: As in `rs_keras.datasets.load`.

    Example:

    >>> from rs_keras.trainers import recipes
    >>> recipes.methods("imagenet2012")
    ['gaussian', 'stability', 'smoothadv', 'macer', 'consistency', 'smoothmix',
     'catrs']
    """
    return list(_settings_of(_family_of(dataset, data_dir), dataset))


def load(path: str | Path) -> Recipe:
    """Reads a recipe that `Recipe.save` wrote, or a person.

    Args:
        path: A JSON file.

    Raises:
        ValueError: If it is not a recipe; names the key.
        OSError: If the file cannot be read.

    Example:

    >>> from rs_keras.trainers import recipes
    >>> recipes.get("mnist", "gaussian", sigma=0.5).save("recipe.json")
    >>> recipes.load("recipe.json").batch_size
    256
    """
    try:
        values = json.loads(Path(path).read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not a recipe: {error}") from error
    if not isinstance(values, dict):
        raise ValueError(f"{path} is not a recipe: it must be a JSON object")
    fields = dataclasses.fields(Recipe)
    checks.check_keys("recipe", values, [f.name for f in fields])
    none = dataclasses.MISSING
    needed = [f.name for f in fields if f.default is f.default_factory is none]
    missing = [name for name in needed if name not in values]
    if missing:
        raise ValueError(
            f"{path} is not a recipe: it lacks {', '.join(missing)}"
        )
    return Recipe(**values)


def _family_of(dataset: str, data_dir: str | Path | None) -> str:
    for name, family in tables.FAMILIES.items():
        if dataset in family.datasets:
            return name
    trained = [n for f in tables.FAMILIES.values() for n in f.datasets]
    if ":" not in str(dataset):
        return check_choice("dataset", dataset, trained)
    height, width, channels = datasets.info(dataset, data_dir).image_shape
    if channels == 1 and max(height, width) <= 28:
        return "mnist"
    return "cifar" if max(height, width) <= 64 else "imagenet"


def _settings_of(family: str, dataset: str) -> dict[str, tables.Setting]:
    every, of_family = (
        tables.SETTINGS[tables.EVERYWHERE],
        tables.SETTINGS[family],
    )
    return {**every, **of_family, **tables.SETTINGS.get(dataset, {})}


def _at(
    setting: tables.Setting, sigma: float
) -> tuple[float | None, dict[str, Any]]:
    """Returns the published sigma that is nearest, and the arguments there."""
    if not setting.by_sigma:
        return None, dict(setting.arguments)
    nearest = min(
        setting.by_sigma, key=lambda known: abs(math.log(float(known) / sigma))
    )
    return float(nearest), {**setting.arguments, **setting.by_sigma[nearest]}


def _common(
    family: tables.Family, setting: tables.Setting, num_noise: int
) -> dict[str, Any]:
    """Returns the fields that say how long, how fast and on how much."""
    values = {
        "learning_rate": family.learning_rate,
        "weight_decay": 1e-4,
        "epochs": family.epochs,
        "batch_size": tables.LOADED_BATCH
        // (num_noise if setting.parts else 1),
        **setting.overrides,
    }
    epochs = values["epochs"]
    every = range(family.drop_every, epochs, family.drop_every)
    drops = values.get("drops", [epoch + 1 for epoch in every])
    teacher = {"epochs": epochs, "drops": list(drops), **setting.teacher}
    return {
        "optimizer": {
            "learning_rate": values["learning_rate"],
            "momentum": 0.9,
            "nesterov": False,
            "weight_decay": values["weight_decay"],
        },
        "schedule": {"drops": list(drops), "factor": 0.1},
        "epochs": epochs,
        "batch_size": values["batch_size"],
        "teacher": teacher if setting.teacher else {},
    }
