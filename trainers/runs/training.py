"""A training run in a folder: recipe in, classifier and history out.

recipe.json    what is trained, and where each number comes from
snapshot.npz   the run's last moment; see `rs_keras.trainers.runs`
history.csv    one line per epoch
model.keras    the trainer, with the classifier in it, after each epoch
"""

import contextlib
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from rs_keras import datasets
from rs_keras import distribution
from rs_keras._atomic_files import written_whole
from rs_keras._checks import check_count
from rs_keras._checks import check_distributions
from rs_keras._locks import only_writer
from rs_keras.classifiers.checkpoints import RUN_MODEL
from rs_keras.logs.selection import selected
from rs_keras.teacher import digest
from rs_keras.trainers import recipes
from rs_keras.trainers.base import SmoothTrainer
from rs_keras.trainers.callbacks import CertifyCallback
from rs_keras.trainers.callbacks import SaveModel
from rs_keras.trainers.recipes.recipe import Recipe
from rs_keras.trainers.runs import snapshots

RECIPE = "recipe.json"
SNAPSHOT = "snapshot.npz"
HISTORY = "history.csv"

# The defaults of `Recipe.certify`.
CERTIFY = {"every": 1, "examples": 200, "n": 1_000}

# Evaluation keeps no activations: any size that fills the device is fine.
_VALIDATION_BATCH = 500


def train(
    recipe: Recipe,
    folder: str | Path,
    *,
    resume: bool = False,
    data_dir: str | Path | None = None,
    soft_labels: np.ndarray | None = None,
    steps_per_execution: int = 1,
    every_seconds: float = 60.0,
    callbacks: Sequence[keras.callbacks.Callback] = (),
    strategy: tf.distribute.Strategy | None = None,
    verbose: Any = "auto",
) -> SmoothTrainer:
    """Trains a recipe into a folder; resumes bit for bit.

    Args:
        recipe: What to train.
        folder: Of the run; made if it is not there.
        resume: Whether to go on from the run that the folder holds. A folder
            without one begins it.
        data_dir: As in `rs_keras.datasets.load`.
        soft_labels: Distributions [N, num_classes], row i for example i of the
            training split, for CATRS; see `rs_keras.smoothed_labels`.
        steps_per_execution: As in `keras.Model.compile`.
        every_seconds: Between two snapshots within an epoch, >= 0.
        callbacks: Further callbacks.
        strategy: Trains under this strategy, as from
            `rs_keras.distribution.strategy_of`. Of several workers, the chief
            alone writes and shows anything; the others need not see the folder.
        verbose: As in `keras.Model.fit`.

    Returns:
        The trainer; its `model` is the classifier.

    Raises:
        ValueError: If an argument is out of range, or the folder holds a run
            of other settings (names each).
        FileExistsError: If the folder holds a run and `resume` is False, or a
            finished run without its snapshot (several workers: ValueError).
        OSError: If data or folder cannot be read or written.
        FloatingPointError: If the loss is not finite any more. The folder then
            holds the last epoch that was.

    Example:

    >>> import tempfile
    >>> from pathlib import Path
    >>> from rs_keras.trainers import recipes
    >>> from rs_keras.trainers import runs
    >>> recipe = recipes.get("fashion_mini", "gaussian", 0.5, limit=500)
    >>> folder = tempfile.mkdtemp()
    >>> trainer = runs.train(recipe.shortened(1), folder, verbose=0)
    >>> sorted(path.name for path in Path(folder).iterdir())
    ['history.csv', 'model.keras', 'recipe.json', 'snapshot.npz']
    """

    is_chief = distribution.member_of(strategy).is_chief
    run_folder = Path(folder)

    def prepared() -> Passes:
        if (
            is_chief
            and is_finished(run_folder)
            and not (run_folder / SNAPSHOT).exists()
        ):
            raise FileExistsError(
                f"{run_folder} holds a finished run without its snapshot, "
                "which cannot be continued: choose another folder"
            )
        return Passes(recipe, data_dir, soft_labels)

    passes = distribution.everywhere(strategy, prepared)
    settings = _settings(recipe, soft_labels)
    distribution.agree(strategy, {"recipe": settings})
    with distribution.scope_of(strategy):
        trainer = recipe.build(
            data_dir, steps_per_execution=steps_per_execution
        )
    # All workers save, because saving may need them all; one of them is read.
    with contextlib.ExitStack() as stack:
        if not is_chief:
            temporary = tempfile.TemporaryDirectory()
            run_folder = Path(stack.enter_context(temporary))

        def begun() -> None:
            run_folder.mkdir(parents=True, exist_ok=True)
            stack.enter_context(only_writer(run_folder))

        distribution.everywhere(strategy, begun)
        snapshots.fit(
            trainer,
            passes,
            recipe.epochs,
            run_folder / SNAPSHOT,
            callbacks=[*_prepare(run_folder, recipe, data_dir), *callbacks],
            validation_data=_test_split(recipe, data_dir),
            settings=settings,
            steps=passes.steps,
            every_seconds=every_seconds,
            resume=resume,
            verbose=verbose if is_chief else 0,
        )
    return trainer


def is_finished(folder: str | Path) -> bool:
    """Returns whether the run in a folder is finished.

    A finished run can be certified without its data and its snapshot.

    Args:
        folder: Of the run.

    Example:

    >>> from rs_keras.trainers.runs import training as runs
    >>> runs.is_finished("nothing/is/here")
    False
    """
    folder = Path(folder)
    needed = (RECIPE, HISTORY, RUN_MODEL)
    if not all((folder / name).is_file() for name in needed):
        return False
    # One line per epoch, and the header.
    lines = len((folder / HISTORY).read_text().splitlines())
    return lines == recipes.load(folder / RECIPE).epochs + 1


def _prepare(
    folder: Path, recipe: Recipe, data_dir: str | Path | None
) -> list[keras.callbacks.Callback]:
    """Begins the folder of a run, and returns the callbacks that fill it."""
    own = [*recipe.callbacks(), SaveModel(folder / RUN_MODEL)]
    if recipe.certify:
        own.append(_certify(recipe, data_dir))
    if not (folder / SNAPSHOT).exists():
        # Opened for appending, a log that is resumed is not emptied before it
        # is put back; left over from before the first snapshot, it goes, and
        # first: beside another recipe it would make a finished run.
        (folder / HISTORY).unlink(missing_ok=True)
        with written_whole(folder / RECIPE) as temporary:
            recipe.save(temporary)
    return [*own, keras.callbacks.CSVLogger(folder / HISTORY, append=True)]


class Passes:
    """The training batches of a recipe: a function of (epoch, first step).

    Args:
        recipe: Says which data, how many, in which order.
        data_dir: As in `rs_keras.datasets.load`.
        soft_labels: As in `train`.

    Attributes:
        steps: Batches an epoch.

    Raises:
        ValueError: If there is not one soft label an example, or one is no
            distribution over the classes.

    Example:

    >>> from rs_keras.trainers import recipes
    >>> from rs_keras.trainers.runs import training as runs
    >>> recipe = recipes.get("fashion_mini", "gaussian", 0.5, limit=600)
    >>> passes = runs.Passes(recipe)
    >>> passes.steps, len(passes(epoch=0)), len(passes(epoch=0, first_step=2))
    (3, 3, 1)
    """

    def __init__(
        self,
        recipe: Recipe,
        data_dir: str | Path | None = None,
        soft_labels: np.ndarray | None = None,
    ) -> None:
        self.soft_labels = soft_labels
        self._epochs = datasets.Epochs(
            recipe.dataset,
            recipe.batch_size,
            data_dir,
            recipe.seed,
            example_id=soft_labels is not None,
            limit=recipe.limit,
        )
        self.steps = self._epochs.steps
        if soft_labels is not None:
            examples = self._epochs.source.size
            if len(soft_labels) < examples:
                raise ValueError(
                    "`soft_labels` must have a row for each of the "
                    f"{examples} training examples. "
                    f"Received: {len(soft_labels)} rows"
                )
            classes = datasets.info(recipe.dataset, data_dir).num_classes
            check_distributions(soft_labels, len(soft_labels), classes)

    def __call__(self, epoch: int, first_step: int = 0) -> tf.data.Dataset:
        """Returns the batches of an epoch, from a step on."""
        data = self._epochs.epoch(epoch, first_step)
        if self.soft_labels is None:
            return data
        return datasets.attach(data, soft_label=self.soft_labels)


def _test_split(
    recipe: Recipe, data_dir: str | Path | None
) -> tf.data.Dataset | None:
    if "test" not in datasets.info(recipe.dataset, data_dir).splits:
        return None
    return datasets.load(recipe.dataset, "test", _VALIDATION_BATCH, data_dir)


def _certify(recipe: Recipe, data_dir: str | Path | None) -> CertifyCallback:
    """Returns a callback that certifies test images at equal distances."""
    if "test" not in datasets.info(recipe.dataset, data_dir).splits:
        raise ValueError(
            "`certify` needs a data set with a test split. "
            f"Received: {recipe.dataset}"
        )
    settings = {**CERTIFY, **recipe.certify}
    count = check_count("certify.examples", settings["examples"])
    size = datasets.steps(recipe.dataset, 1, data_dir, split="test")
    data = datasets.load(recipe.dataset, "test", data_dir=data_dir)
    chosen = selected(data, max(1, size // count), count)
    images = [(image[0], label) for _, image, label in chosen]
    return CertifyCallback(images, settings["every"], settings["n"])


def _settings(recipe: Recipe, soft_labels: np.ndarray | None) -> dict[str, Any]:
    """Returns the settings that must not change when a run is resumed."""
    settings = recipe.to_json()
    del settings["sources"]
    labels = None if soft_labels is None else digest(soft_labels)
    return {**settings, "soft_labels": labels}
