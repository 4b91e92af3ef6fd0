"""The papers' hyper-parameters, read from hyperparameters.toml."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import field
from pathlib import Path
from typing import Any

# The references load batches of this size. Methods with m noises cut them
# into m parts and make one step on each.
LOADED_BATCH = 256

# For trials on one machine; no paper has it.
DEMO_EPOCHS = {"fashion_mini": 30}

# The settings that hold for every data set.
EVERYWHERE = "all"


@dataclass(frozen=True)
class Family:
    """What the methods share on similar data sets.

    Attributes:
        datasets: The names, the published ones first.
        published: How many of these names the papers report on.
        model: Name and arguments of the network.
        learning_rate: At the start.
        drop_every: Epochs between drops by a factor of ten, as in the
            commands.
        epochs: Of the whole run.
        sources: Where each value comes from, by dotted name.
    """

    datasets: list[str]
    published: int
    model: Mapping[str, Any]
    learning_rate: float
    drop_every: int
    epochs: int
    sources: Mapping[str, str]


@dataclass(frozen=True)
class Setting:
    """Arguments of a method on a family of data sets.

    Attributes:
        trainer: Name of the class.
        source: Where the arguments come from.
        arguments: For every sigma.
        by_sigma: Further arguments for each published sigma, a number in
            quotes.
        sources: Where single arguments come from, by dotted name.
        parts: Whether a step takes an m-th of the loaded batch.
        overrides: Fields that differ from the family's (`drops`, `epochs`,
            `learning_rate`, `weight_decay`, `batch_size`).
        teacher: Of the soft labels; empty for none.
    """

    trainer: str
    source: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    by_sigma: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)
    parts: bool = True
    overrides: Mapping[str, Any] = field(default_factory=dict)
    teacher: Mapping[str, Any] = field(default_factory=dict)


_TABLES = tomllib.loads(
    Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")
)
FAMILIES = {
    name: Family(**values) for name, values in _TABLES.pop("families").items()
}
# By `EVERYWHERE`, a family or a data set, then by method.
SETTINGS = {
    place: {name: Setting(**values) for name, values in methods.items()}
    for place, methods in _TABLES.items()
}
# The classes whose steps take an m-th of the loaded batch.
IN_PARTS = {
    setting.trainer
    for methods in SETTINGS.values()
    for setting in methods.values()
    if setting.parts
}
