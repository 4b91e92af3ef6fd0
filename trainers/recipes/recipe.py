"""A recipe: one training run, as data."""

import contextlib
import dataclasses
import json
import random
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
from rs_keras._checks import check_choice
from rs_keras._checks import check_count
from rs_keras._checks import check_flag
from rs_keras._checks import check_positive
from rs_keras.datasets.registry import check_name
from rs_keras.trainers._distributed.batch_norm import synchronized
from rs_keras.trainers.recipes import hyperparameters as tables
from rs_keras.trainers.recipes import validation as checks

DTYPES = ("float32", "mixed_bfloat16", "mixed_float16", "float64")


@dataclass(frozen=True)
class Recipe:
    """One training run. Data only: `build` makes the objects.

    Attributes:
        dataset: As in `rs_keras.datasets.load`.
        method: Its name in `rs_keras.trainers.recipes`.
        sigma: Of the noise, > 0.
        model: Name of the network and its arguments.
        trainer: Name of the trainer's class and its arguments.
        optimizer: `learning_rate`, `momentum`, `nesterov`, `weight_decay`.
        schedule: `drops`, the epochs (counted from 0) from which on the rate
            is multiplied by `factor` once more.
        epochs: Of the whole run.
        batch_size: Images per step: the references' 256 divided by m, for the
            methods that make m steps on a loaded batch.
        teacher: Of the soft labels: `sigma`, `n` votes, and `epochs` and
            `drops` of its own training. Empty for none.
        seed: Of the initial weights, the order of the examples and the noise.
        dtype: "float32", "mixed_bfloat16", "mixed_float16" or "float64".
        jit_compile: Whether the step is compiled with XLA.
        sync_batch_norm: Whether batch normalisation takes the batch of all
            replicas together; see `rs_keras.trainers._distributed.batch_norm`.
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
        for part in (*checks.PARTS, "sources"):
            checks.check_mapping(part, getattr(self, part))
        check_name(self.dataset)
        check_positive("sigma", self.sigma)
        check_count("epochs", self.epochs)
        check_count("batch_size", self.batch_size)
        check_count("seed", self.seed, 0)
        check_choice("dtype", self.dtype, DTYPES)
        if self.limit is not None:
            check_count("limit", self.limit)
        check_choice("model.name", self.model.get("name"), models.names())
        check_choice("trainer.name", self.trainer.get("name"), checks.classes())
        check_flag("jit_compile", self.jit_compile)
        check_flag("sync_batch_norm", self.sync_batch_norm)
        rate, both = ("learning_rate",), ("drops", "factor")
        checks.check_part("optimizer", self.optimizer, checks.OPTIMIZER, rate)
        checks.check_part("schedule", self.schedule, checks.SCHEDULE, both)
        checks.check_part("teacher", self.teacher, checks.TEACHER)
        checks.check_part("certify", self.certify, checks.CERTIFY)
        known = ("name", *checks.arguments(self.trainer["name"]))
        checks.check_keys("trainer", self.trainer, known)

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
        fields = {
            f.name: getattr(self, f.name) for f in dataclasses.fields(self)
        }
        for name, value in values.items():
            place = self._place_of(name)
            part, _, key = place.partition(".")
            if key:
                fields[part] = {**fields[part], key: value}
            elif part in checks.PARTS and isinstance(value, str):
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
        given = {"batch_size", "trainer"} & placed.keys()
        in_parts = self.trainer["name"] in tables.IN_PARTS
        if known is None or wanted is None or given or not in_parts:
            return {}
        size, new = (
            max(1, tables.LOADED_BATCH // check_count("num_noise", number))
            for number in (known, wanted)
        )
        return {"batch_size": new} if self.batch_size == size else {}

    def _place_of(self, name: str) -> str:
        """Returns the field or the dotted name that an override means."""
        fixed = ("dataset", "method", "sources")
        known = [
            f.name for f in dataclasses.fields(self) if f.name not in fixed
        ]
        keys = {
            "trainer": checks.arguments(self.trainer["name"]),
            "optimizer": checks.OPTIMIZER,
            "schedule": checks.SCHEDULE,
            "model": [key for key in self.model if key != "name"],
            "teacher": checks.TEACHER if self.teacher else (),
            "certify": checks.CERTIFY,
        }
        dotted = [
            f"{part}.{key}" for part in checks.PARTS for key in keys[part]
        ]
        if name in known or name in dotted:
            return name
        # A plain name means the first of the parts that has it.
        plain: dict[str, str] = {}
        for place in dotted:
            plain.setdefault(place.partition(".")[2], place)
        if name in plain:
            return plain[name]
        choices = dotted if "." in name else [*known, *plain]
        return check_choice("override", name, choices)

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
        info = datasets.info(self.dataset, data_dir)
        arguments = {
            "input_shape": info.image_shape,
            "num_classes": info.num_classes,
            "mean": info.mean,
            "std": info.std,
            **self.model,
        }
        with _layers_of(self.dtype, self.seed):
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
            key: checks.adversary_of(value)
            for key, value in self.trainer.items()
            if key != "name"
        }
        trainer = checks.classes()[self.trainer["name"]](
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


def _scaled(drops: list[int], share: float) -> list[int]:
    """Returns epochs times `share`; never two drops at once, none at first."""
    scaled: list[int] = []
    for drop in drops:
        earliest = scaled[-1] + 1 if scaled else 1
        scaled.append(max(earliest, round(drop * share)))
    return scaled


@contextlib.contextmanager
def _layers_of(dtype: str, seed: int) -> Iterator[None]:
    """Layers that are made inside compute in `dtype`; `seed` initialises them.

    Keras draws the seeds of its initialisers from Python's generator.
    """
    policy, state = keras.config.dtype_policy(), random.getstate()
    keras.config.set_dtype_policy(dtype)
    random.seed(seed)
    try:
        yield
    finally:
        keras.config.set_dtype_policy(policy)
        random.setstate(state)
