"""The runs of a results folder, each read once."""

from collections.abc import Iterable
from dataclasses import dataclass
from dataclasses import replace
from pathlib import Path

from rs_keras.logs.log import CertificationLog
from rs_keras.trainers.recipes import registry as recipes
from rs_keras.trainers.recipes.recipe import Recipe
from rs_keras.trainers.reproduction import mnist
from rs_keras.trainers.reproduction import published
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
    def n(self) -> int:
        """Draws per image."""
        return self.plain.settings["n"]

    @property
    def is_cut(self) -> bool:
        """Whether it is the first part of a schedule, not a shorter one."""
        return recipes.is_cut(self.recipe)

    @property
    def extent(self) -> tuple[float, bool, int]:
        """How much of which schedule, and n: runs alike in it compare."""
        return self.recipe.epochs / self.full_epochs, self.is_cut, self.n

    @property
    def is_full(self) -> bool:
        """Whether schedule and n are the papers'."""
        return self.extent == (1.0, False, published.AUTHORS_N)


def read(root: str | Path, sigma: float, name: str) -> Run | None:
    """Reads a run; None if it lacks its recipe, or either log an image.

    Args:
        root: The results folder.
        sigma: Of the noise.
        name: A method, or of `reproduction.ablation`.
    """
    folder = mnist.folder_of(root, sigma, name)
    logs = mnist.logs_of(folder)
    path = folder / runs.RECIPE
    if not (path.is_file() and logs and all(map(len, logs.values()))):
        return None
    return Run(
        name=name,
        sigma=sigma,
        folder=folder,
        recipe=recipes.load(path),
        full_epochs=mnist.recipe_of(name, sigma).epochs,
        **{
            bound: replace(log, name=folder.name) for bound, log in logs.items()
        },
    )


def read_methods(root: str | Path, sigma: float) -> list[Run]:
    """Reads the runs of methods, in the papers' order, then all others.

    Args:
        root: The results folder.
        sigma: Of the noise.
    """
    listed = list(published.PUBLISHED.get(sigma, {}))
    known = set(recipes.methods("mnist")).difference(listed)
    folders = sorted(mnist.folder_of(root, sigma, "").glob("*"))
    names = [*listed, *(p.name for p in folders if p.name in known)]
    return _read_all(root, sigma, names)


def read_ablations(root: str | Path, sigma: float) -> list[Run]:
    """Reads the ablations, and `BASE`; the paper's are at sigma 1.0.

    Args:
        root: The results folder.
        sigma: Of the noise.
    """
    if sigma != 1.0:
        return []
    names = map(mnist.ablation, (mnist.BASE, *published.ABLATIONS))
    return _read_all(root, sigma, names)


def _read_all(
    root: str | Path, sigma: float, names: Iterable[str]
) -> list[Run]:
    return [run for name in names if (run := read(root, sigma, name))]
