"""The papers' MNIST table, from this code: train, certify, compare.

One folder a run, which is a method or an ablation:

recipe.json, history.csv       what was trained, and how it went
plain.tsv, runner_up.tsv       both bounds, from the same counts
against_authors.json           the paired difference to the authors' own log
"""

import contextlib
import math
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from tqdm import tqdm

import rs_keras
from rs_keras import datasets
from rs_keras._checks import check_choice
from rs_keras._checks import check_positive
from rs_keras.certification.certifier import Certifier
from rs_keras.certification.spec import CertifySpec
from rs_keras.certification.spec import SmoothingSpec
from rs_keras.certification.votes_to_results import vote_certificate
from rs_keras.classifiers.checkpoints import RUN_MODEL
from rs_keras.classifiers.fingerprint import fingerprint
from rs_keras.logs.log import CertificationLog
from rs_keras.logs.writer import LogWriter
from rs_keras.noise.draws import fold_in
from rs_keras.trainers import recipes
from rs_keras.trainers.recipes.recipe import Recipe
from rs_keras.trainers.reproduction import published
from rs_keras.trainers.runs import training as runs

# The cheapest first.
_METHODS = (
    "gaussian",
    "stability",
    "consistency",
    "smoothmix_T1",
    "smoothmix",
    "macer",
    "catrs",
    "smoothadv",
    "smoothmix_onestep",
)

# How much of the papers' schedule and of their certification is done.
BUDGETS: dict[str, dict[str, Any]] = {
    "paper": {"share": 1.0, "skip": 10, "n": published.AUTHORS_N},
    "short": {"share": 0.1, "skip": 20, "n": 10_000},
}

# The method that the ablations change. Their runs are in a folder of their own,
# with one run of this method (`BASE`) of the same length.
ABLATED = "smoothmix_T1"
BASE = "base"
_ABLATION_FOLDER = "ablations/"

TEST_IMAGES = 10_000

BOUNDS = {"plain": False, "runner_up": True}

# The papers'.
N0, ALPHA, SEED = 100, 0.001, 0

# All networks are certified in this type, whatever they were trained in; it is
# also the default of trainings, as the authors'.
_DTYPE = "float32"

_ORDER = Path(rs_keras.__file__).parent / "data" / "mnist_test_order.npz"


def methods(sigma: float) -> list[str]:
    """Returns the methods that are reproduced for a sigma, each once.

    Of SmoothMix, the quick setting (T = 1) where the paper has it, and the one
    with the one-step adversary.

    Args:
        sigma: One of `published.PUBLISHED`.

    Example:

    >>> from rs_keras.trainers.reproduction import mnist as reproduction
    >>> reproduction.methods(0.5)
    ['gaussian', 'stability', 'consistency', 'smoothmix', 'macer', 'smoothadv',
     'smoothmix_onestep']
    """
    known = published.PUBLISHED[sigma]
    slower = "smoothmix" if ABLATED in known else None
    return [name for name in _METHODS if name in known and name != slower]


def folder_of(root: str | Path, sigma: float, run: str) -> Path:
    """Returns the folder of a run's results.

    Args:
        root: The results folder.
        sigma: Of the noise.
        run: A method, or of `ablation`.

    Example:

    >>> from rs_keras.trainers.reproduction import mnist as reproduction
    >>> reproduction.folder_of("results", 0.5, "gaussian").as_posix()
    'results/mnist/sigma_0.50/gaussian'
    """
    return Path(root) / "mnist" / f"sigma_{sigma:.2f}" / run


def ablation(name: str) -> str:
    """Returns the run of an ablation.

    Args:
        name: One of `published.ABLATIONS`, or "base".

    Raises:
        ValueError: If the name is unknown.

    Example:

    >>> from rs_keras.trainers.reproduction import mnist as reproduction
    >>> reproduction.ablation("eta_4")
    'ablations/eta_4'
    """
    known = (BASE, *published.ABLATIONS)
    return f"{_ABLATION_FOLDER}{check_choice('ablation', name, known)}"


def method_of(run: str) -> str:
    """Returns the recipe that a run starts from.

    Args:
        run: A method, or of `ablation`.

    Example:

    >>> from rs_keras.trainers.reproduction.mnist import method_of
    >>> method_of("macer"), method_of("ablations/eta_4")
    ('macer', 'smoothmix_T1')
    """
    return ABLATED if run.startswith(_ABLATION_FOLDER) else run


def changes_of(run: str) -> dict[str, Any]:
    """Returns the changes that a run makes to the recipe of its method.

    Args:
        run: A method, or of `ablation`.

    Example:

    >>> from rs_keras.trainers.reproduction.mnist import changes_of
    >>> changes_of("ablations/eta_4"), changes_of("ablations/base")
    ({'eta': 4.0}, {})
    """
    return published.ABLATIONS.get(run.removeprefix(_ABLATION_FOLDER), {})


def recipe_of(
    run: str,
    sigma: float,
    budget: str = "paper",
    epochs: int | None = None,
    data_dir: str | Path | None = None,
    dtype: str = "float32",
) -> Recipe:
    """Returns the recipe of a run.

    Args:
        run: A method, or of `ablation`.
        sigma: Of the noise.
        budget: One of `BUDGETS`: how much of the schedule is done.
        epochs: Instead of as many as the budget has.
        data_dir: As in `rs_keras.datasets.load`.
        dtype: As in `Recipe`. The authors' is float32.

    Raises:
        ValueError: If an argument is invalid.

    Example:

    >>> from rs_keras.trainers.reproduction import mnist as reproduction
    >>> recipe = reproduction.recipe_of("ablations/m_1", 1.0, "short")
    >>> recipe.epochs, recipe.trainer["num_noise"], recipe.batch_size
    (9, 1, 256)
    """
    check_choice("budget", budget, BUDGETS)
    recipe = recipes.get("mnist", method_of(run), sigma, data_dir)
    if epochs is None:
        epochs = max(1, round(BUDGETS[budget]["share"] * recipe.epochs))
    if epochs != recipe.epochs:
        recipe = recipe.shortened(epochs)
    return recipe.replace(dtype=dtype, **changes_of(run))


def dtype_of(folder: str | Path) -> str:
    """Returns the dtype of a folder's recipe; float32 if there is no recipe.

    Args:
        folder: Of the run.

    Example:

    >>> from rs_keras.trainers.reproduction import mnist as reproduction
    >>> reproduction.dtype_of("nothing/is/here")
    'float32'
    """
    path = Path(folder) / runs.RECIPE
    return recipes.load(path).dtype if path.is_file() else _DTYPE


def is_trained(folder: str | Path, recipe: Recipe) -> bool:
    """Returns whether a folder holds a finished run of a recipe.

    Args:
        folder: Of the run.
        recipe: What should have been trained; how many votes its teacher has
            and the sources of its numbers are not compared.

    Example:

    >>> from rs_keras.trainers import recipes
    >>> from rs_keras.trainers.reproduction import mnist as reproduction
    >>> recipe = recipes.get("mnist", "smoothmix", sigma=0.5)
    >>> reproduction.is_trained("nothing/is/here", recipe)
    False
    """
    return runs.is_finished(folder) and _holds(Path(folder), recipe)


def is_certified(folder: str | Path, recipe: Recipe, budget: str) -> bool:
    """Returns whether a folder holds the complete results of a run.

    Args:
        folder: Of the run.
        recipe: The expected recipe, as in `is_trained`.
        budget: One of `BUDGETS`.

    Raises:
        ValueError: If the folder holds a training or results of something
            else, or partial results without their model, which cannot be
            continued and must not be overwritten.

    Example:

    >>> from rs_keras.trainers.reproduction import mnist as reproduction
    >>> recipe = reproduction.recipe_of("gaussian", 1.0)
    >>> reproduction.is_certified("nothing/is/here", recipe, "paper")
    False
    """
    folder = Path(folder)
    logs = _read_logs(folder)
    begun = [log for log in logs.values() if len(log)]
    if not begun:
        _check_training(folder, recipe)
        return False
    skip, n = BUDGETS[budget]["skip"], BUDGETS[budget]["n"]
    wanted = {"skip": skip, "n": n, "dtype": _DTYPE}
    same = all(
        {"dtype": _DTYPE, **log.settings}.items() >= wanted.items()
        for log in begun
    )
    if not (same and _holds(folder, recipe)):
        raise ValueError(
            f"`--out` must be a folder without other results in {folder}: "
            f"{begun[0].settings.get('n'):,} draws in "
            f"{begun[0].settings.get('dtype', _DTYPE)} for each of "
            f"{len(begun[0])} images, {_describe_run(folder)}. Asked for: "
            f"{n:,} draws in {_DTYPE}, {_length(recipe)}"
        )
    images = len(range(0, TEST_IMAGES, skip))
    shared = _shared(logs)
    if shared and all(len(log) == images for log in shared.values()):
        return True
    if not (folder / RUN_MODEL).is_file():
        raise ValueError(
            f"`--out` must be another folder, or {folder / RUN_MODEL} must "
            "exist: the log beside it is incomplete, and only the model that "
            "began it can complete it"
        )
    return False


def _check_training(folder: Path, recipe: Recipe) -> None:
    """Raises if another recipe was trained there and not yet certified."""
    far = runs.is_finished(folder) or (folder / runs.SNAPSHOT).is_file()
    has_recipe = (folder / runs.RECIPE).is_file()
    if far and has_recipe and not _holds(folder, recipe):
        raise ValueError(
            f"`--out` must be a folder without another training in {folder}: "
            f"{_describe_run(folder)}. Asked for: {_length(recipe)}"
        )


def _holds(folder: Path, recipe: Recipe) -> bool:
    """Whether a folder's recipe is the same, up to the teacher's votes."""

    def without_votes(recipe: Recipe) -> Recipe:
        teacher = {k: v for k, v in recipe.teacher.items() if k != "n"}
        return replace(recipe, teacher=teacher, sources={})

    path = folder / runs.RECIPE
    return path.is_file() and (
        without_votes(recipes.load(path)) == without_votes(recipe)
    )


def _describe_run(folder: Path) -> str:
    path = folder / runs.RECIPE
    return _length(recipes.load(path)) if path.is_file() else "unknown epochs"


def _length(recipe: Recipe) -> str:
    return f"{recipe.epochs} epochs in {recipe.dtype}"


def logs_of(folder: str | Path) -> dict[str, CertificationLog]:
    """Returns the logs of a run by bound; empty if one is missing.

    Args:
        folder: Of the run; its logs may be ones that were stopped, of which
            one can be an image ahead: it is left out.

    Raises:
        ValueError: If a log's settings are not beside it.
    """
    return _shared(_read_logs(Path(folder)))


def _shared(logs: dict[str, CertificationLog]) -> dict[str, CertificationLog]:
    """The images that both logs hold; empty if a log is missing."""
    if len(logs) < len(BOUNDS):
        return {}
    plain, runner_up = (logs[bound].idx for bound in BOUNDS)
    both = np.intersect1d(plain, runner_up)
    return {bound: only(log, both) for bound, log in logs.items()}


def _read_logs(folder: Path) -> dict[str, CertificationLog]:
    """Reads the existing logs, without an incomplete last line."""
    logs = {}
    for bound in BOUNDS:
        path = folder / f"{bound}.tsv"
        if not path.is_file():
            continue
        logs[bound] = CertificationLog.read(path, recover=True)
        known = logs[bound].settings.keys()
        if len(logs[bound]) and not {"n", "skip"} <= known:
            raise ValueError(
                f"{path} must have its settings beside it, "
                f"{path.name}.json, with `n` and `skip`"
            )
    return logs


def only(log: CertificationLog, idx: np.ndarray) -> CertificationLog:
    """Returns the rows of a log that have these numbers.

    Args:
        log: A certification log.
        idx: Numbers of images.
    """
    kept = np.isin(log.idx, idx)
    columns = ("idx", "label", "predict", "radius", "correct", "time")
    chosen = {name: getattr(log, name)[kept] for name in columns}
    return replace(log, **chosen, extra={})


def test_images(
    skip: int, data_dir: str | Path | None = None
) -> Iterator[tuple[int, np.ndarray, int]]:
    """Yields every `skip`-th MNIST test image by its original number.

    They come spread over the file, each far from the one before: so what a
    log holds when it is stopped is a fair sample. (The first half of the file
    is harder: the authors' Gaussian has ACR 1.42 there and 1.80 on the rest.)

    Args:
        skip: Takes images 0, skip, 2 * skip, ... of the original file.
        data_dir: As in `rs_keras.datasets.load`.

    Returns:
        (idx, image [1, 28, 28, 1], label); idx is the original place.
    """
    images, labels = datasets.arrays("mnist", "test", data_dir)
    with np.load(_ORDER) as file:
        order = np.argsort(file["original"])
    chosen = range(0, len(images), skip)
    for turn in spread(len(chosen)):
        idx = chosen[turn]
        yield idx, images[order[idx]][None], int(labels[order[idx]])


def spread(count: int) -> Iterator[int]:
    """Yields 0 .. count - 1, each once, so that the first are spread evenly.

    Multiples of a step near the golden ratio of `count`, modulo `count`.

    Example:

    >>> from rs_keras.trainers.reproduction.mnist import spread
    >>> list(spread(8))
    [0, 5, 2, 7, 4, 1, 6, 3]
    """
    step = max(1, round(count * (math.sqrt(5) - 1) / 2))
    while math.gcd(step, count) != 1:
        step -= 1
    return (turn * step % count for turn in range(count))


def certify(
    model: Any,
    sigma: float,
    folder: str | Path,
    budget: str = "paper",
    data_dir: str | Path | None = None,
    progress: bool = True,
    strategy: tf.distribute.Strategy | None = None,
) -> dict[str, CertificationLog]:
    """Certifies a classifier, both bounds from the same counts; resumes.

    Args:
        model: From images to logits; certified in float32.
        sigma: Of the noise, > 0.
        folder: Where `plain.tsv` and `runner_up.tsv` go.
        budget: One of `BUDGETS`.
        data_dir: As in `rs_keras.datasets.load`.
        progress: Whether to show a bar.
        strategy: As in `Certifier`.

    Returns:
        The two logs, by bound.

    Raises:
        ValueError: If a log was made with another model or other settings.
        OSError: If a log cannot be written.
    """
    check_choice("budget", budget, BUDGETS)
    skip, n = BUDGETS[budget]["skip"], BUDGETS[budget]["n"]
    certifier = Certifier(
        model, check_positive("sigma", sigma), strategy=strategy, dtype=_DTYPE
    )
    paths = {bound: Path(folder) / f"{bound}.tsv" for bound in BOUNDS}
    origin = {
        "dataset": "mnist/test, original order",
        "skip": skip,
        "seed": SEED,
        "model": fingerprint(certifier.computing),
    }
    with contextlib.ExitStack() as stack:
        writers = {}
        for bound, runner_up in BOUNDS.items():
            settings = certifier.settings(
                n0=N0, n=n, alpha=ALPHA, runner_up=runner_up
            )
            writer = LogWriter(paths[bound], {**settings, **origin})
            writers[bound] = stack.enter_context(writer)
        examples = list(test_images(skip, data_dir))
        for example in tqdm(examples, disable=not progress):
            late = {
                k: w for k, w in writers.items() if example[0] not in w.done
            }
            if late:
                _certify_one(certifier, n, late, example)
    return {bound: CertificationLog.read(path) for bound, path in paths.items()}


def _certify_one(
    certifier: Certifier,
    n: int,
    writers: dict[str, LogWriter],
    example: tuple[int, np.ndarray, int],
) -> None:
    """Draws once, and writes the radii of each bound that has a writer."""
    idx, image, label = example
    begun = time.perf_counter()
    seed = fold_in(SEED, idx)[None]
    certificate = certifier.certify(image, N0, n, ALPHA, seed=seed)
    for bound, writer in writers.items():
        predict, radius, _ = vote_certificate(
            certificate.selection_counts,
            certificate.counts,
            CertifySpec(N0, n, ALPHA, runner_up=BOUNDS[bound]),
            SmoothingSpec(certifier.sigma),
        )
        seconds = time.perf_counter() - begun
        writer.write(idx, label, int(predict[0]), float(radius[0]), seconds)
