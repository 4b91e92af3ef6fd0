"""The runs of a results folder, each read once."""

from collections.abc import Iterable
from collections.abc import Iterator
from dataclasses import dataclass
from dataclasses import replace
from pathlib import Path

from rs_keras.logs.log import CertificationLog
from rs_keras.trainers.recipes import registry as recipes
from rs_keras.trainers.recipes.recipe import Recipe
from rs_keras.trainers.reproduction.mnist import BASE
from rs_keras.trainers.reproduction.mnist import ablation
from rs_keras.trainers.reproduction.mnist import folder_of
from rs_keras.trainers.reproduction.mnist import logs_of
from rs_keras.trainers.reproduction.mnist import recipe_of
from rs_keras.trainers.reproduction.published import ABLATIONS
from rs_keras.trainers.reproduction.published import AUTHORS_N
from rs_keras.trainers.reproduction.published import PUBLISHED
from rs_keras.trainers.runs import training as runs


@dataclass(frozen=True)
class Run:
    """A run that has results.

    Attributes:
        name: A method, or of `reproduction.ablation`.
        sigma: Of the noise.
        folder: Where it is.
        recipe: What was trained.
        full_epochs: Of the papers' schedule.
        plain: The log of the papers' bound; it may be one that was stopped.
        runner_up: The log that bounds the second class, too, of the same
            images. Both logs have the run's name.
    """

    name: str
    sigma: float
    folder: Path
    recipe: Recipe
    full_epochs: int
    plain: CertificationLog
    runner_up: CertificationLog

    @property
    def label(self) -> str:
        """The name, without that of the folder of ablations."""
        return Path(self.name).name

    @property
    def epochs(self) -> int:
        """Those of its recipe."""
        return self.recipe.epochs

    @property
    def n(self) -> int:
        """Draws an image."""
        return self.plain.settings["n"]

    @property
    def is_cut(self) -> bool:
        """Whether it is the first part of a schedule, not a shorter one."""
        return recipes.is_cut(self.recipe)

    @property
    def extent(self) -> tuple[float, bool, int]:
        """How much of which schedule, and n: runs alike in it compare."""
        return self.epochs / self.full_epochs, self.is_cut, self.n

    @property
    def is_full(self) -> bool:
        """Whether schedule and n are the papers'."""
        return self.extent == (1.0, False, AUTHORS_N)


def read(root: str | Path, sigma: float, name: str) -> Run | None:
    """Reads a run; None if it lacks its recipe, or either log an image.

    Args:
        root: The results folder.
        sigma: Of the noise.
        name: A method, or of `reproduction.ablation`.
    """
    folder = folder_of(root, sigma, name)
    logs = logs_of(folder)
    path = folder / runs.RECIPE
    if not (path.is_file() and logs and all(map(len, logs.values()))):
        return None
    return Run(
        name=name,
        sigma=sigma,
        folder=folder,
        recipe=recipes.load(path),
        full_epochs=recipe_of(name, sigma).epochs,
        **{form: replace(log, name=folder.name) for form, log in logs.items()},
    )


def read_methods(root: str | Path, sigma: float) -> list[Run]:
    """Reads the runs of methods, in the papers' order, then all others.

    Args:
        root: The results folder.
        sigma: Of the noise.
    """
    listed = list(PUBLISHED.get(sigma, {}))
    known = set(recipes.methods("mnist")).difference(listed)
    found = sorted(path.name for path in folder_of(root, sigma, "").glob("*"))
    names = [*listed, *(name for name in found if name in known)]
    return list(_read(root, sigma, names))


def read_ablations(root: str | Path, sigma: float) -> list[Run]:
    """Reads the ablations, and `BASE`; the paper's are at sigma 1.0.

    Args:
        root: The results folder.
        sigma: Of the noise.
    """
    if sigma != 1.0:
        return []
    return list(_read(root, sigma, map(ablation, (BASE, *ABLATIONS))))


def _read(
    root: str | Path, sigma: float, names: Iterable[str]
) -> Iterator[Run]:
    for name in names:
        run = read(root, sigma, name)
        if run is not None:
            yield run
