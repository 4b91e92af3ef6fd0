"""Runs against each other and against the authors' logs, image by image."""

import dataclasses
import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from rs_keras.comparison import Comparison
from rs_keras.comparison import compare_acr
from rs_keras.files import written_whole
from rs_keras.log import CertificationLog
from rs_keras.trainers import recipes
from rs_keras.trainers import runs
from rs_keras.trainers.reproduction import ABLATED
from rs_keras.trainers.reproduction import ABLATIONS
from rs_keras.trainers.reproduction import BASE
from rs_keras.trainers.reproduction import folder_of
from rs_keras.trainers.reproduction_published import ABLATIONS as CLAIMS
from rs_keras.trainers.reproduction_published import PUBLISHED
from rs_keras.trainers.reproduction_published import reference_log

AGAINST = "against_authors.json"


def against_authors(
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
    ours = plain_log(folder)
    found = compare(theirs, dataclasses.replace(ours, name="rs-keras"))
    theirs = _only(theirs, ours.idx)
    kept = {**dataclasses.asdict(found), "authors_acr": theirs.acr()}
    with written_whole(folder / AGAINST) as part:
        part.write_text(json.dumps(kept, indent=2) + "\n")
    return found


def plain_log(folder: str | Path) -> CertificationLog:
    """Returns a run's log of the papers' bound, by the run's name.

    Args:
        folder: Of the run; its log may be one that was stopped.
    """
    log = CertificationLog.read(Path(folder) / "plain.tsv", recover=True)
    return dataclasses.replace(log, name=Path(folder).name)


def compare(first: CertificationLog, second: CertificationLog) -> Comparison:
    """Compares two logs on the images that both hold.

    Args:
        first: The one to compare with.
        second: Another.

    Raises:
        ValueError: As `compare_acr`, or if they share no image.
    """
    return compare_acr(_only(first, second.idx), _only(second, first.idx))


def _only(log: CertificationLog, idx: np.ndarray) -> CertificationLog:
    """The rows of a log that have these numbers."""
    kept = np.isin(log.idx, idx)
    columns = ("idx", "label", "predict", "radius", "correct", "time")
    chosen = {name: getattr(log, name)[kept] for name in columns}
    return dataclasses.replace(log, **chosen, extra={})


def order(root: str | Path, sigma: float) -> list[dict[str, Any]]:
    """Compares the methods two by two, neighbours in the published order.

    Args:
        root: The results folder.
        sigma: Of the noise.

    Returns:
        As `pair`, the published order's first pair first.
    """
    known = PUBLISHED.get(sigma, {})
    ranked = sorted(known, key=known.__getitem__)
    here = [name for name in ranked if _has_log(folder_of(root, sigma, name))]
    return [
        pair(
            folder_of(root, sigma, low),
            folder_of(root, sigma, high),
            known[high] - known[low],
        )
        for low, high in pairwise(here)
    ]


def ablations(root: str | Path, sigma: float) -> list[dict[str, Any]]:
    """Compares each ablation with what it changes.

    Args:
        root: The results folder.
        sigma: Of the noise.

    Returns:
        As `pair`, of the runs that are as long as the one they change.
    """
    return list(_ablations(Path(root), sigma))


def _ablations(root: Path, sigma: float) -> Iterator[dict[str, Any]]:
    for name, claim in CLAIMS.items():
        run = folder_of(root, sigma, f"{ABLATIONS}/{name}")
        for base in (f"{ABLATIONS}/{BASE}", ABLATED):
            other = folder_of(root, sigma, base)
            if not (_has_log(run) and _has_log(other)):
                continue
            if _epochs(run) == _epochs(other):
                yield pair(other, run, claim.published)
                break


def pair(
    first: str | Path, second: str | Path, published: float
) -> dict[str, Any]:
    """Says whether what the papers publish of two runs holds here.

    Args:
        first: Folder of the one to compare with.
        second: Folder of the other.
        published: How much larger the second's ACR is in the papers.

    Returns:
        runs (two names), epochs (two), n (two), published, found (a
        `Comparison`), holds: True or False where the interval tells the sign
        of the difference, None where it does not.
    """
    folders = Path(first), Path(second)
    logs = [plain_log(folder) for folder in folders]
    found = compare(*logs)
    told = found.low > 0 or found.high < 0
    return {
        "runs": tuple(folder.name for folder in folders),
        "epochs": tuple(map(_epochs, folders)),
        "n": tuple(log.settings["n"] for log in logs),
        "published": published,
        "found": found,
        "holds": (found.difference > 0) == (published > 0) if told else None,
    }


def _has_log(folder: Path) -> bool:
    # A log that was stopped before its first image has a header alone.
    return (folder / "plain.tsv").is_file() and len(plain_log(folder)) > 0


def _epochs(folder: Path) -> int:
    return recipes.load(folder / runs.RECIPE).epochs
