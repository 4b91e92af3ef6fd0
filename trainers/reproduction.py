"""The papers' MNIST table, from this code: train, certify, compare.

One folder a method:

recipe.json, history.csv       what was trained, and how it went
plain.tsv, runner_up.tsv       both bounds, from the same counts
"""

import time
from collections.abc import Iterator
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

import rs_keras
from rs_keras import datasets
from rs_keras.certifier import Certifier
from rs_keras.checks import check_choice
from rs_keras.checks import check_positive
from rs_keras.classifiers import fingerprint
from rs_keras.log import CertificationLog
from rs_keras.log import LogWriter
from rs_keras.noise import fold_in
from rs_keras.trainers.recipes import Recipe
from rs_keras.verdicts import vote_certificate

# ACR over the whole test set: SmoothMix, tables 2 and 7; CAT-RS: the authors'
# log. By sigma and recipe.
PUBLISHED: dict[float, dict[str, float]] = {
    0.25: {
        "gaussian": 0.911,
        "stability": 0.915,
        "smoothadv": 0.932,
        "macer": 0.920,
        "consistency": 0.928,
        "smoothmix_eta1": 0.931,
        "smoothmix_onestep_eta1": 0.933,
        "smoothmix": 0.932,
        "smoothmix_onestep": 0.933,
    },
    0.5: {
        "gaussian": 1.553,
        "stability": 1.570,
        "smoothadv": 1.687,
        "macer": 1.594,
        "consistency": 1.657,
        "smoothmix_eta1": 1.678,
        "smoothmix_onestep_eta1": 1.694,
        "smoothmix": 1.694,
        "smoothmix_onestep": 1.685,
    },
    1.0: {
        "gaussian": 1.620,
        "stability": 1.634,
        "smoothadv": 1.779,
        "macer": 1.598,
        "consistency": 1.740,
        "smoothmix_T1": 1.785,
        "smoothmix_eta1": 1.788,
        "smoothmix_onestep_eta1": 1.816,
        "smoothmix": 1.820,
        "smoothmix_onestep": 1.823,
        "catrs": 1.831,
    },
}

# The order: what takes least comes first.
METHODS = (
    "gaussian",
    "smoothmix_T1",
    "consistency",
    "stability",
    "catrs",
    "macer",
    "smoothadv",
    "smoothmix_onestep",
)

# How much of the papers' schedule and of their certification is done.
BUDGETS: dict[str, dict[str, Any]] = {
    "paper": {"share": 1.0, "skip": 10, "n": 100_000},
    "short": {"share": 0.1, "skip": 100, "n": 10_000},
}

FORMS = {"plain": False, "runner_up": True}

# The papers'.
N0, ALPHA, SEED = 100, 0.001, 0

_ORDER = Path(rs_keras.__file__).parent / "data" / "mnist_test_order.npz"


def folder_of(root: str | Path, sigma: float, method: str) -> Path:
    """Returns where the results of a method are kept."""
    return Path(root) / "mnist" / f"sigma_{sigma:.2f}" / method


def scheduled(recipe: Recipe, budget: str) -> Recipe:
    """Returns the recipe with as much of its schedule as the budget has."""
    check_choice("budget", budget, BUDGETS)
    share = BUDGETS[budget]["share"]
    if share == 1.0:
        return recipe
    return recipe.shortened(max(1, round(share * recipe.epochs)))


def test_images(
    skip: int, data_dir: str | Path | None = None
) -> Iterator[tuple[int, np.ndarray, int]]:
    """Yields every `skip`-th MNIST test image in the original file's order.

    Args:
        skip: Takes images 0, skip, 2 * skip, ... of the original file.
        data_dir: As in `rs_keras.datasets.load`.

    Returns:
        (idx, image [1, 28, 28, 1], label); idx is the original place.
    """
    images, labels = datasets.arrays("mnist", "test", data_dir)
    with np.load(_ORDER) as file:
        place = np.argsort(file["original"])
    for idx in range(0, len(images), skip):
        yield idx, images[place[idx]][None], int(labels[place[idx]])


def certify(
    model: Any,
    sigma: float,
    folder: str | Path,
    budget: str = "paper",
    data_dir: str | Path | None = None,
    progress: bool = True,
) -> dict[str, CertificationLog]:
    """Certifies a classifier, both bounds from the same counts; resumes.

    Args:
        model: From images to logits.
        sigma: Of the noise, > 0.
        folder: Where `plain.tsv` and `runner_up.tsv` go.
        budget: One of `BUDGETS`.
        data_dir: As in `rs_keras.datasets.load`.
        progress: Whether to show a bar.

    Returns:
        The two logs, by form.

    Raises:
        ValueError: If a log was made with another model or other settings.
        OSError: If a log cannot be written.
    """
    check_choice("budget", budget, BUDGETS)
    skip, n = BUDGETS[budget]["skip"], BUDGETS[budget]["n"]
    certifier = Certifier(model, check_positive("sigma", sigma))
    paths = {form: Path(folder) / f"{form}.tsv" for form in FORMS}
    origin = {
        "dataset": "mnist/test, original order",
        "skip": skip,
        "seed": SEED,
        "model": fingerprint(model),
    }
    writers = {
        form: LogWriter(
            paths[form],
            {
                **certifier.settings(N0, n, ALPHA, runner_up=runner_up),
                **origin,
            },
        )
        for form, runner_up in FORMS.items()
    }
    try:
        examples = list(test_images(skip, data_dir))
        for idx, image, label in tqdm(examples, disable=not progress):
            late = [w for w in writers.values() if idx not in w.done]
            if late:
                _certify_one(certifier, n, writers, (idx, image, label))
    finally:
        for writer in writers.values():
            writer.close()
    return {form: CertificationLog.read(path) for form, path in paths.items()}


def _certify_one(
    certifier: Certifier,
    n: int,
    writers: dict[str, LogWriter],
    example: tuple[int, np.ndarray, int],
) -> None:
    """Draws once, and writes what each form of the bound makes of it."""
    idx, image, label = example
    begun = time.perf_counter()
    seed = fold_in(SEED, idx)[None]
    found = certifier.certify(image, N0, n, ALPHA, seed=seed)
    counts = found.selection_counts, found.counts
    for form, runner_up in FORMS.items():
        if idx in writers[form].done:
            continue
        predict, radius, _ = vote_certificate(
            *counts, n, ALPHA, certifier.sigma, runner_up
        )
        writers[form].write(
            idx,
            label,
            int(predict[0]),
            float(radius[0]),
            time.perf_counter() - begun,
        )


def rows_of(root: str | Path, sigma: float) -> list[dict[str, Any]]:
    """Returns what the results folder holds for a sigma, a dict a method.

    Args:
        root: The results folder.
        sigma: Of the noise.

    Returns:
        Dicts with method, epochs, of (the recipe's epochs), examples, n, acr
        (plain), runner_up (its ACR), published (or None), in the order of
        `PUBLISHED`.
    """
    from rs_keras.trainers import recipes
    from rs_keras.trainers import runs

    rows = []
    for method in _known(sigma):
        folder = folder_of(root, sigma, method)
        if not (folder / "plain.tsv").is_file():
            continue
        logs = {
            form: CertificationLog.read(folder / f"{form}.tsv", recover=True)
            for form in FORMS
        }
        if not len(logs["plain"]):
            continue
        recipe = recipes.load(folder / runs.RECIPE)
        rows.append(
            {
                "method": method,
                "epochs": recipe.epochs,
                "of": recipes.get("mnist", method, sigma).epochs,
                "examples": len(logs["plain"]),
                "n": logs["plain"].settings["n"],
                "acr": logs["plain"].acr(),
                "runner_up": logs["runner_up"].acr(),
                "published": PUBLISHED.get(sigma, {}).get(method),
            }
        )
    return rows


def _known(sigma: float) -> Sequence[str]:
    """All methods, those of the table first."""
    table = PUBLISHED.get(sigma, {})
    return [*table, *(method for method in METHODS if method not in table)]


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Lays the rows of `rows_of` out as Markdown."""
    lines = [
        "| method | epochs | test images | n | ACR | published | difference | "
        "ACR, runner-up bound |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        published = row["published"]
        told = "-" if published is None else f"{published:.3f}"
        gap = "-" if published is None else f"{row['acr'] - published:+.3f}"
        cells = [
            row["method"],
            f"{row['epochs']} of {row['of']}",
            f"{row['examples']:,}",
            f"{row['n']:,}",
            f"{row['acr']:.3f}",
            told,
            gap,
            f"{row['runner_up']:.3f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def report(root: str | Path) -> str:
    """Returns `results/README.md`, made from the files beside it."""
    parts = [
        "# Results on MNIST",
        "Made by `rs-keras reproduce mnist --sigma SIGMA`, which prints each "
        "table. Every 10th test image in the original order, n0 = 100, "
        "alpha = 0.001, LeNet. The published values are over the whole test "
        "set; those of this package's runs are not chosen among several seeds. "
        "`plain` is the papers' bound, `runner_up` bounds the second class, "
        "too; both come from the same counts.",
    ]
    for sigma in PUBLISHED:
        rows = rows_of(root, sigma)
        if rows:
            parts += [f"## sigma = {sigma:.2f}", table(rows)]
    return "\n\n".join(parts) + "\n"
