"""The results folder of `rs-keras reproduce`, as tables beside the papers'."""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rs_keras.comparison import Comparison
from rs_keras.comparison import compare_acr
from rs_keras.files import written_whole
from rs_keras.log import CertificationLog
from rs_keras.trainers import recipes
from rs_keras.trainers import runs
from rs_keras.trainers.reproduction import FORMS
from rs_keras.trainers.reproduction import METHODS
from rs_keras.trainers.reproduction import folder_of

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

# The logs that the authors published, by sigma and recipe: names as in
# `rs-keras reproduce --references`.
_AUTHORS = {
    "smoothmix": "smoothmix_eta5",
    "smoothmix_onestep": "smoothmix_onestep_eta5",
}
AGAINST = "against_authors.json"


def reference_log(
    folder: str | Path, sigma: float, method: str
) -> CertificationLog | None:
    """Returns the authors' own log of a method, where `folder` has one.

    Args:
        folder: Of files `mnist_METHOD_sigmaSIGMA.tsv`.
        sigma: Of the noise.
        method: A recipe.
    """
    name = _AUTHORS.get(method, method)
    path = Path(folder) / f"mnist_{name}_sigma{sigma}.tsv"
    return CertificationLog.read(path) if path.is_file() else None


def compare(
    root: str | Path, sigma: float, method: str, references: str | Path
) -> Comparison | None:
    """Compares a method's plain log with the authors', image by image.

    The result is kept in the method's folder, for the tables.

    Args:
        root: The results folder.
        sigma: Of the noise.
        method: A recipe.
        references: As `folder` in `reference_log`.

    Returns:
        None where there is no log of the authors'.
    """
    theirs = reference_log(references, sigma, method)
    if theirs is None:
        return None
    folder = folder_of(root, sigma, method)
    ours = CertificationLog.read(folder / "plain.tsv")
    theirs = _only(theirs, ours.idx)
    found = compare_acr(theirs, dataclasses.replace(ours, name="rs-keras"))
    kept = {**dataclasses.asdict(found), "authors_acr": theirs.acr()}
    with written_whole(folder / AGAINST) as part:
        part.write_text(json.dumps(kept, indent=2) + "\n")
    return found


def _only(log: CertificationLog, idx: np.ndarray) -> CertificationLog:
    """The rows of a log that have these numbers."""
    kept = np.isin(log.idx, idx)
    columns = ("idx", "label", "predict", "radius", "correct", "time")
    chosen = {name: getattr(log, name)[kept] for name in columns}
    return dataclasses.replace(log, **chosen, extra={})


def rows_of(root: str | Path, sigma: float) -> list[dict[str, Any]]:
    """Returns what the results folder holds for a sigma, a dict a method.

    Args:
        root: The results folder.
        sigma: Of the noise.

    Returns:
        Dicts with method, epochs, of (the recipe's epochs), examples, n, acr
        (plain), runner_up (its ACR), published (or None), against (what
        `compare` kept, or None), in the order of `PUBLISHED`.
    """
    rows = []
    for method in _known(sigma):
        folder = folder_of(root, sigma, method)
        if not (folder / "plain.tsv").is_file():
            continue
        logs = {
            form: CertificationLog.read(folder / f"{form}.tsv", recover=True)
            for form in FORMS
        }
        if len(logs["plain"]):
            rows.append(_row(folder, sigma, method, logs))
    return rows


def _row(
    folder: Path, sigma: float, method: str, logs: dict[str, CertificationLog]
) -> dict[str, Any]:
    against = folder / AGAINST
    return {
        "method": method,
        "epochs": recipes.load(folder / runs.RECIPE).epochs,
        "of": recipes.get("mnist", method, sigma).epochs,
        "examples": len(logs["plain"]),
        "n": logs["plain"].settings["n"],
        "acr": logs["plain"].acr(),
        "runner_up": logs["runner_up"].acr(),
        "published": PUBLISHED.get(sigma, {}).get(method),
        "against": (
            json.loads(against.read_text()) if against.is_file() else None
        ),
    }


def _known(sigma: float) -> Sequence[str]:
    """All methods, those of the table first."""
    listed = PUBLISHED.get(sigma, {})
    return [*listed, *(method for method in METHODS if method not in listed)]


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Lays the rows of `rows_of` out as Markdown.

    Example:

    >>> from rs_keras.trainers.reproduction_table import table
    >>> print(table([{"method": "gaussian", "epochs": 90, "of": 90,
    ...               "examples": 1000, "n": 100_000, "acr": 1.625,
    ...               "runner_up": 1.631, "published": 1.62,
    ...               "against": None}]).splitlines()[2])
    | gaussian | 90 of 90 | 1,000 | 100,000 | 1.625 | 1.620 | - | - | 1.631 |
    """
    lines = [
        "| method | epochs | test images | n | ACR | published | "
        "authors' log, same images | difference, 95 % | "
        "ACR, runner-up bound |",
        f"|{' --- |' * 9}",
    ]
    for row in rows:
        cells = [
            row["method"],
            f"{row['epochs']} of {row['of']}",
            f"{row['examples']:,}",
            f"{row['n']:,}",
            f"{row['acr']:.3f}",
            "-" if row["published"] is None else f"{row['published']:.3f}",
            *_against_cells(row["against"]),
            f"{row['runner_up']:.3f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _against_cells(against: dict[str, Any] | None) -> tuple[str, str]:
    if against is None:
        return "-", "-"
    return (
        f"{against['authors_acr']:.3f}",
        f"{against['difference']:+.3f} "
        f"[{against['low']:+.3f}, {against['high']:+.3f}]",
    )


def report(root: str | Path) -> str:
    """Returns `results/README.md`, made from the files beside it."""
    parts = [
        "# Results on MNIST",
        "Made by `rs-keras reproduce mnist --sigma SIGMA`, which prints each "
        "table: LeNet, every 10th test image in the original order, n0 = 100, "
        "alpha = 0.001, one training seed (0), not chosen among several. "
        "`published` is the paper's average certified radius (ACR) over the "
        "whole test set. The difference to the authors' own log is paired, on "
        "the same images (`--references`); its interval is about the choice of "
        "images, not about training seeds, which differ by .002 to .009. ACR "
        "is from the papers' bound (`plain.tsv`); the last column bounds the "
        "second class, too (`runner_up.tsv`), from the same counts. Fewer "
        "than 1,000 test images, spread over the file, are a log that was "
        "stopped: the same command goes on.",
    ]
    for sigma in PUBLISHED:
        rows = rows_of(root, sigma)
        if rows:
            parts += [f"## sigma = {sigma:.2f}", table(rows)]
    return "\n\n".join(parts) + "\n"
