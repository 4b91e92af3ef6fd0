"""Recipes: everything that a training run is made of, as data.

Example:

>>> from rs_keras.trainers import recipes
>>> recipe = recipes.get("mnist", "smoothmix", sigma=1.0)
>>> recipe.trainer["name"], recipe.trainer["steps"], recipe.batch_size
('SmoothMix', 8, 64)
>>> recipe.sources["trainer"]
'command of jh-jeong/smoothmix; SmoothMix, appendix D, table 2'
"""

import contextlib
import dataclasses
import json
import math
import random
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import field
from pathlib import Path
from typing import Any

import keras

from rs_keras import datasets
from rs_keras import models
from rs_keras import trainers
from rs_keras.ascent import Adversary
from rs_keras.checks import check_choice
from rs_keras.checks import check_count
from rs_keras.checks import check_flag
from rs_keras.checks import check_not_negative
from rs_keras.checks import check_positive
from rs_keras.configs import argument_names
from rs_keras.datasets.registry import check_name
from rs_keras.trainers import recipe_tables as tables
from rs_keras.trainers.batch_norm import synchronized
from rs_keras.trainers.noisy import NoisyModel

DTYPES = ("float32", "mixed_bfloat16", "mixed_float16", "float64")

# Plain names of overrides are looked for in these, in this order.
_PARTS = ("trainer", "optimizer", "schedule", "model", "teacher", "certify")


@dataclass(frozen=True)
class Recipe:
    """One training run. Data only: `build` makes the objects.

    Attributes:
        dataset: As in `rs_keras.datasets.load`.
        method: Its name in this module.
        sigma: Of the noise, > 0.
        model: Name of the network and its arguments.
        trainer: Name of the trainer's class and its arguments.
        optimizer: `learning_rate`, `momentum`, `nesterov`, `weight_decay`.
        schedule: `drops`, the epochs (counted from 0) from which on the rate
            is multiplied by `factor` once more.
        epochs: Of the whole run.
        batch_size: Images a step: the references' 256 divided by m, for the
            methods that make m steps on a loaded batch.
        teacher: Of the soft labels: `sigma`, `n` votes, and `epochs` and
            `drops` of its own training. Empty for none.
        seed: Of the initial weights, the order of the examples and the noise.
        dtype: "float32", "mixed_bfloat16", "mixed_float16" or "float64".
        jit_compile: Whether the step is compiled with XLA.
        sync_batch_norm: Whether batch normalisation takes the batch of all
            replicas together; see `rs_keras.trainers.batch_norm`.
        limit: Trains on the first so many examples; None for all.
        certify: Certifies `examples` test images, spread over the split, with
            `n` draws each, after every `every` epochs, for the run's history.
            Empty for never.
        sources: Where each number comes from, by field or dotted name.

    Example:

    >>> from rs_keras.trainers import recipes
    >>> recipe = recipes.get("fashion_mini", "smoothmix", sigma=0.5)
    >>> recipe.augmentation is None, recipe.build_model().output_shape
    (True, (None, 10))
    >>> recipe.build_optimizer().momentum
    0.9
    >>> [type(callback).__name__ for callback in recipe.callbacks()]
    ['LearningRateScheduler']
    >>> recipe.to_json()["trainer"]["eta"]
    5.0
    >>> recipe.save("recipe.json")
    >>> recipes.load("recipe.json") == recipe
    True
    """

    dataset: str
    method: str
    sigma: float
    model: Mapping[str, Any]
    trainer: Mapping[str, Any]
    optimizer: Mapping[str, Any]
    schedule: Mapping[str, Any]
    epochs: int
    batch_size: int
    teacher: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0
    dtype: str = "float32"
    jit_compile: bool = False
    sync_batch_norm: bool = False
    limit: int | None = None
    certify: Mapping[str, Any] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for part in (*_PARTS, "sources"):
            _check_mapping(part, getattr(self, part))
        check_name(self.dataset)
        check_positive("sigma", self.sigma)
        check_count("epochs", self.epochs)
        check_count("batch_size", self.batch_size)
        check_count("seed", self.seed, 0)
        check_choice("dtype", self.dtype, DTYPES)
        if self.limit is not None:
            check_count("limit", self.limit)
        check_choice("model.name", self.model.get("name"), models.names())
        check_choice("trainer.name", self.trainer.get("name"), _classes())
        check_flag("jit_compile", self.jit_compile)
        check_flag("sync_batch_norm", self.sync_batch_norm)
        rate, both = ("learning_rate",), ("drops", "factor")
        _check_part("optimizer", self.optimizer, _OPTIMIZER, rate)
        _check_part("schedule", self.schedule, _SCHEDULE, both)
        _check_part("teacher", self.teacher, _TEACHER)
        _check_part("certify", self.certify, _CERTIFY)
        known = ("name", *_arguments(self.trainer["name"]))
        _check_keys("trainer", self.trainer, known)

    @property
    def augmentation(self) -> str | None:
        """What the data set's training passes do to the images."""
        return datasets.info(self.dataset).augmentation

    def learning_rate(self, epoch: int) -> float:
        """Returns the rate of an epoch, counted from 0.

        Example:

        >>> from rs_keras.trainers import recipes
        >>> recipe = recipes.get("mnist", "gaussian", sigma=0.5)
        >>> [recipe.learning_rate(epoch) for epoch in (0, 30, 31)]
        [0.01, 0.01, 0.001]
        """
        drops = sum(epoch >= drop for drop in self.schedule["drops"])
        # One rounding only: 0.01 * 0.1 is not the float that 0.001 is.
        rate = self.optimizer["learning_rate"] / (
            (1 / self.schedule["factor"]) ** drops
        )
        return float(rate)

    def replace(self, **overrides: Any) -> "Recipe":
        """Returns a recipe that differs in some values.

        Args:
            **overrides: By dotted name ("trainer.eta"; pass a dict with **) or
                by plain name ("eta"), which means the first of `trainer`,
                `optimizer`, `schedule`, `model`, `teacher` and `certify` that
                has it.
                `model` and `trainer` with a name choose another network or
                class, without the arguments of the old one. With another
                `num_noise` the batch size stays an m-th of what the references
                load, where it is one and is not given.

        Raises:
            ValueError: For a name that nothing has (the nearest is named), or
                a value out of range.

        Example:

        >>> from rs_keras.trainers import recipes
        >>> recipe = recipes.get("mnist", "smoothmix", sigma=1.0)
        >>> recipe.replace(eta=1.0).trainer["eta"]
        1.0
        """
        follows = self._changed(self._batch_for(overrides), "256 / num_noise")
        return follows._changed(overrides, "given")

    def _changed(self, values: Mapping[str, Any], source: str) -> "Recipe":
        fields = {f.name: getattr(self, f.name) for f in _fields()}
        for name, value in values.items():
            place = self._place_of(name)
            part, _, key = place.partition(".")
            if key:
                fields[part] = {**fields[part], key: value}
            elif part in _PARTS and isinstance(value, str):
                fields[part] = {"name": value}
            else:
                fields[part] = value
            fields["sources"] = {**fields["sources"], place: source}
        return Recipe(**fields)

    def _batch_for(self, overrides: Mapping[str, Any]) -> dict[str, int]:
        """Returns the batch size that goes with another number of noises."""
        placed = {self._place_of(name): v for name, v in overrides.items()}
        known = self.trainer.get("num_noise")
        wanted = placed.get("trainer.num_noise")
        if known is None or wanted is None:
            return {}
        if {"batch_size", "trainer"} & placed.keys():
            return {}
        size, new = (
            max(1, tables.LOADED_BATCH // check_count("num_noise", number))
            for number in (known, wanted)
        )
        in_parts = self.trainer["name"] in tables.IN_PARTS
        return (
            {"batch_size": new} if in_parts and self.batch_size == size else {}
        )

    def _place_of(self, name: str) -> str:
        """Returns the field or the dotted name that an override means."""
        fixed = ("dataset", "method", "sources")
        known = [f.name for f in _fields() if f.name not in fixed]
        if name in known:
            return name
        dotted = [f"{part}.{key}" for part, key in self._keys()]
        if name in dotted:
            return name
        for place in dotted:
            if place.partition(".")[2] == name:
                return place
        plain = [place.partition(".")[2] for place in dotted]
        choices = dotted if "." in name else [*known, *dict.fromkeys(plain)]
        return check_choice("override", name, choices)

    def _keys(self) -> Iterator[tuple[str, str]]:
        """Yields every (part, key) that an override may set."""
        known = {
            "trainer": _arguments(self.trainer["name"]),
            "optimizer": _OPTIMIZER,
            "schedule": _SCHEDULE,
            "model": tuple(key for key in self.model if key != "name"),
            "teacher": _TEACHER if self.teacher else (),
            "certify": _CERTIFY,
        }
        for part in _PARTS:
            yield from ((part, key) for key in known[part])

    def shortened(self, epochs: int) -> "Recipe":
        """Returns the recipe for a run of another length.

        Drops of the rate, warm-ups and deferrals keep their share of the run,
        and a teacher is trained for as much longer or shorter.

        Args:
            epochs: Of the run, >= 1.

        Example:

        >>> from rs_keras.trainers import recipes
        >>> recipe = recipes.get("mnist", "smoothmix", sigma=1.0)
        >>> short = recipe.shortened(9)
        >>> short.schedule["drops"], short.trainer["warmup_epochs"]
        ([3, 6], 1)
        """
        share = check_count("epochs", epochs) / self.epochs
        scaled: dict[str, Any] = {"epochs": epochs}
        scaled["schedule.drops"] = _scaled(self.schedule["drops"], share)
        for key in ("warmup_epochs", "deferred_epochs", "doubled_from"):
            if self.trainer.get(key):
                scaled[f"trainer.{key}"] = round(self.trainer[key] * share)
        if "epochs" in self.teacher:
            longer = self.teacher["epochs"] * share
            scaled["teacher.epochs"] = max(1, round(longer))
        if "drops" in self.teacher:
            scaled["teacher.drops"] = _scaled(self.teacher["drops"], share)
        return self._changed(scaled, f"scaled from {self.epochs} epochs")

    def build_model(self, data_dir: str | Path | None = None) -> keras.Model:
        """Returns the network; its initial weights follow from the seed.

        Args:
            data_dir: As in `rs_keras.datasets.load`.
        """
        found = datasets.info(self.dataset, data_dir)
        arguments = {
            "input_shape": found.image_shape,
            "num_classes": found.num_classes,
            "mean": found.mean,
            "std": found.std,
            **self.model,
        }
        with _dtype_policy(self.dtype), _seeded(self.seed):
            model = models.get(arguments.pop("name"), **arguments)
            return synchronized(model) if self.sync_batch_norm else model

    def build_optimizer(self) -> keras.optimizers.Optimizer:
        """Returns PyTorch's SGD, with the rate of the first epoch."""
        # JSON writes 1.0 as 1, which Keras refuses.
        settings: dict[str, Any] = {
            name: value if isinstance(value, bool) else float(value)
            for name, value in self.optimizer.items()
        }
        return trainers.SGD(**settings)

    def build(
        self,
        data_dir: str | Path | None = None,
        model: keras.Model | None = None,
        **compile_arguments: Any,
    ) -> trainers.SmoothTrainer:
        """Returns the trainer, compiled.

        Args:
            data_dir: As in `rs_keras.datasets.load`.
            model: Trains this network instead of a new one.
            **compile_arguments: As in `keras.Model.compile`.

        Returns:
            A trainer for `fit(..., epochs=recipe.epochs,
            callbacks=recipe.callbacks())`.

        Example:

        >>> from rs_keras.trainers import recipes
        >>> recipe = recipes.get("fashion_mini", "gaussian", sigma=0.5)
        >>> type(recipe.build()).__name__
        'Gaussian'
        """
        arguments = {
            key: _object(value)
            for key, value in self.trainer.items()
            if key != "name"
        }
        trainer = _classes()[self.trainer["name"]](
            model or self.build_model(data_dir),
            sigma=self.sigma,
            seed=self.seed,
            **arguments,
        )
        settings = {"metrics": ["accuracy"], "jit_compile": self.jit_compile}
        trainer.compile(self.build_optimizer(), **settings | compile_arguments)
        return trainer

    def callbacks(self) -> list[keras.callbacks.Callback]:
        """Returns what `fit` needs to follow the schedule."""
        return [keras.callbacks.LearningRateScheduler(self.learning_rate)]

    def to_json(self) -> dict[str, Any]:
        """Returns the recipe as values that JSON has."""
        return json.loads(json.dumps(dataclasses.asdict(self)))

    def save(self, path: str | Path) -> None:
        """Writes the recipe to a JSON file."""
        text = json.dumps(self.to_json(), indent=2) + "\n"
        Path(path).write_text(text, encoding="utf-8")


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
        if method not in tables.OWN_SETTINGS.get(dataset, {}):
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
        ValueError: If it is none; names the key.
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
        raise ValueError(f"{path} is no recipe: {error}") from error
    if not isinstance(values, dict):
        raise ValueError(f"{path} is no recipe: it must be a JSON object")
    _check_keys("recipe", values, [f.name for f in _fields()])
    needed = [f.name for f in _fields() if _is_needed(f)]
    missing = [name for name in needed if name not in values]
    if missing:
        raise ValueError(f"{path} is no recipe: it lacks {', '.join(missing)}")
    return Recipe(**values)


def _check_drops(name: str, value: Any) -> None:
    """Raises unless `value` is a list of epochs."""
    if not isinstance(value, list | tuple):
        raise ValueError(
            f"`{name}` must be a list of epochs. Received: {name}={value!r}"
        )
    for drop in value:
        check_count(name, drop, 0)


# What the parts are made of, and what each value has to be.
_OPTIMIZER = {
    "learning_rate": check_positive,
    "momentum": check_not_negative,
    "nesterov": check_flag,
    "weight_decay": check_not_negative,
}
_SCHEDULE = {"drops": _check_drops, "factor": check_positive}
_TEACHER = {
    "sigma": check_positive,
    "n": check_count,
    "epochs": check_count,
    "drops": _check_drops,
}
_CERTIFY = dict.fromkeys(("every", "examples", "n"), check_count)


def _fields() -> tuple[dataclasses.Field, ...]:
    return dataclasses.fields(Recipe)


def _is_needed(f: dataclasses.Field) -> bool:
    missing = dataclasses.MISSING
    return f.default is missing and f.default_factory is missing


def _check_mapping(part: str, values: Any) -> None:
    if not isinstance(values, Mapping):
        raise ValueError(
            f"`{part}` must be names with values. Received: {part}={values!r}"
        )


def _check_part(
    part: str,
    values: Mapping[str, Any],
    checks: Mapping[str, Callable[[str, Any], Any]],
    needed: Iterable[str] = (),
) -> None:
    """Checks the names of a part and their values."""
    _check_keys(part, values, checks)
    for key in needed:
        if key not in values:
            raise ValueError(f"`{part}.{key}` must be given")
    for key, value in values.items():
        checks[key](f"{part}.{key}", value)


def _check_keys(part: str, values: Mapping[str, Any], known: Any) -> None:
    for key in values:
        check_choice(part, key, known)


def _classes() -> dict[str, type[trainers.SmoothTrainer]]:
    """Returns the trainers of this package by name."""
    found = {name: getattr(trainers, name) for name in trainers.__all__}
    return {
        name: value
        for name, value in found.items()
        if isinstance(value, type)
        and issubclass(value, trainers.SmoothTrainer)
        and value is not trainers.SmoothTrainer
    }


def _arguments(name: str) -> tuple[str, ...]:
    """Returns what a recipe may set of a trainer's arguments."""
    elsewhere = ("model", "sigma", "seed")
    names = argument_names(_classes()[name], NoisyModel)
    return tuple(key for key in names if key not in elsewhere)


def _scaled(drops: list[int], share: float) -> list[int]:
    """Returns epochs times `share`; never two drops at once, none at first."""
    scaled: list[int] = []
    for drop in drops:
        earliest = scaled[-1] + 1 if scaled else 1
        scaled.append(max(earliest, round(drop * share)))
    return scaled


def _object(value: Any) -> Any:
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
    _check_mapping("adversary.config", config)
    _check_keys("adversary.config", config, argument_names(kind, Adversary))
    return kind.from_config(dict(config))


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
    own = tables.OWN_SETTINGS.get(dataset, {})
    return {**tables.SETTINGS[family], **own}


def _at(
    setting: tables.Setting, sigma: float
) -> tuple[float | None, dict[str, Any]]:
    """Returns the published sigma that is nearest, and the arguments there."""
    if not setting.by_sigma:
        return None, dict(setting.common)
    nearest = min(
        setting.by_sigma, key=lambda known: abs(math.log(known / sigma))
    )
    return nearest, {**setting.common, **setting.by_sigma[nearest]}


def _common(
    family: tables.Family, setting: tables.Setting, num_noise: int
) -> dict[str, Any]:
    """Returns the fields that say how long, how fast and on how much."""
    other = setting.other
    epochs = other.get("epochs", family.epochs)
    every = range(family.drop_every, epochs, family.drop_every)
    drops = other.get("drops", [epoch + 1 for epoch in every])
    teacher = {"epochs": epochs, "drops": list(drops), **setting.teacher}
    return {
        "optimizer": {
            "learning_rate": other.get("learning_rate", family.learning_rate),
            "momentum": 0.9,
            "nesterov": False,
            "weight_decay": other.get("weight_decay", 1e-4),
        },
        "schedule": {"drops": list(drops), "factor": 0.1},
        "epochs": epochs,
        "batch_size": other.get(
            "batch_size",
            tables.LOADED_BATCH // (num_noise if setting.parts else 1),
        ),
        "teacher": teacher if setting.teacher else {},
    }


@contextlib.contextmanager
def _dtype_policy(name: str) -> Iterator[None]:
    """Lets the layers that are made inside compute in `name`."""
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(name)
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)


@contextlib.contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Fixes the initial weights made inside, and nothing else.

    Keras draws the seeds of its initialisers from Python's generator.
    """
    before = random.getstate()
    random.seed(seed)
    try:
        yield
    finally:
        random.setstate(before)
