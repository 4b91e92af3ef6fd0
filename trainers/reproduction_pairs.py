"""Runs against each other and against the authors' logs, image by image."""

import dataclasses
import json
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

from rs_keras.comparison import Comparison
from rs_keras.comparison import compare_acr
from rs_keras.files import written_whole
from rs_keras.log import CertificationLog
from rs_keras.trainers.reproduction import ABLATED
from rs_keras.trainers.reproduction import BASE
from rs_keras.trainers.reproduction import ablation
from rs_keras.trainers.reproduction import epochs_of
from rs_keras.trainers.reproduction import folder_of
from rs_keras.trainers.reproduction import logs_of
from rs_keras.trainers.reproduction import method_of
from rs_keras.trainers.reproduction import only
from rs_keras.trainers.reproduction import recipe_of
from rs_keras.trainers.reproduction_published import CLAIMS
from rs_keras.trainers.reproduction_published import EQUAL
from rs_keras.trainers.reproduction_published import PUBLISHED
from rs_keras.trainers.reproduction_published import Claim
from rs_keras.trainers.reproduction_published import reference_log
from rs_keras.trainers.reproduction_published import seeds
from rs_keras.trainers.runs import RECIPE

# Below this many images a bootstrap interval is too narrow to trust.
_FEWEST = 100

# Of the authors' logs.
AUTHORS_N = 100_000

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
        None where there is no log of the authors', or ours is of another n,
        which bounds the radii otherwise.
    """
    theirs = reference_log(references, sigma, method)
    if theirs is None:
        return None
    folder = folder_of(root, sigma, method)
    ours = plain_log(folder)
    if ours.settings["n"] != AUTHORS_N:
        return None
    theirs = only(theirs, ours.idx)
    found = compare(theirs, dataclasses.replace(ours, name="rs-keras"))
    kept = {
        **dataclasses.asdict(found),
        "authors_acr": theirs.acr(),
        "model": ours.settings.get("model"),
    }
    with written_whole(folder / AGAINST) as part:
        part.write_text(json.dumps(kept, indent=2) + "\n")
    return found


def plain_log(folder: str | Path) -> CertificationLog:
    """Returns a run's log of the papers' bound, by the run's name.

    Args:
        folder: Of the run; its log may be one that was stopped.
    """
    return dataclasses.replace(logs_of(folder)["plain"], name=Path(folder).name)


def compare(first: CertificationLog, second: CertificationLog) -> Comparison:
    """Compares two logs on the images that both hold.

    Args:
        first: The one to compare with.
        second: Another.

    Raises:
        ValueError: As `compare_acr`; sharing no image is holding none.
    """
    return compare_acr(only(first, second.idx), only(second, first.idx))


def order(root: str | Path, sigma: float) -> list[dict[str, Any]]:
    """Compares the methods, two by two.

    Args:
        root: The results folder.
        sigma: Of the noise.

    Returns:
        As `pair`, of all methods with a published ACR that have results, as
        much of their schedules behind them, and the same n; the lower one
        first.
    """
    known = PUBLISHED.get(sigma, {})
    ranked = sorted(known, key=known.__getitem__)
    here = [run for run in ranked if has_results(folder_of(root, sigma, run))]
    done = {run: _done(folder_of(root, sigma, run), sigma, run) for run in here}
    return [
        pair(root, sigma, low, high, known[high] - known[low])
        for low, high in combinations(here, 2)
        if done[low] == done[high]
    ]


def _done(folder: Path, sigma: float, run: str) -> tuple[float, int]:
    """Returns how much of its schedule a run has, and its n."""
    share = epochs_of(folder) / recipe_of(run, sigma).epochs
    return share, plain_log(folder).settings["n"]


def ablations(root: str | Path, sigma: float) -> list[dict[str, Any]]:
    """Compares the ablations, where two are there that are equally long.

    Args:
        root: The results folder.
        sigma: Of the noise; the paper's are at 1.0.

    Returns:
        As `pair`.
    """
    if sigma != 1.0:
        return []
    return [
        pair(root, sigma, first, second, claim.published)
        for claim in CLAIMS
        for first, second in _runs_of(Path(root), sigma, claim)
    ]


def _runs_of(
    root: Path, sigma: float, claim: Claim
) -> Iterator[tuple[str, str]]:
    """The two runs of a claim; what is changed may be a method's."""
    second = ablation(claim.second)
    firsts = [ablation(claim.first)]
    firsts += [ABLATED] if claim.first == BASE else []
    for first in firsts:
        folders = [folder_of(root, sigma, run) for run in (first, second)]
        if all(map(has_results, folders)):
            lengths = {epochs_of(folder) for folder in folders}
            if len(lengths) == 1:
                yield first, second
                return


def pair(
    root: str | Path, sigma: float, first: str, second: str, published: float
) -> dict[str, Any]:
    """Says whether what the papers publish of two runs holds here.

    A difference of more than two training seeds can make (`seeds`) holds if
    the one that is found is as large, and of the same sign over its whole
    interval; it does not if all this is so of the other sign. A smaller one
    says that the two are about equal: that holds if the whole interval is
    within `EQUAL` sigma, and does not if it is all outside. Nothing is told by
    fewer than 100 images, by logs of unequal n, or by runs of which one has
    more of its schedule.

    Args:
        root: The results folder.
        sigma: Of the noise.
        first: The run to compare with.
        second: The other.
        published: How much larger the second's ACR is in the papers.

    Returns:
        runs (two), epochs (two), of (as many as the recipes have), n (two),
        is_full (whether schedules and n are the papers'), published, seeds
        (what they can make), found (a `Comparison`), holds (True, False, or
        None where it is not told).
    """
    names = first, second
    folders = [folder_of(root, sigma, run) for run in names]
    logs = [plain_log(folder) for folder in folders]
    found = compare(*logs)
    epochs = tuple(map(epochs_of, folders))
    of = tuple(recipe_of(run, sigma).epochs for run in names)
    n = tuple(log.settings["n"] for log in logs)
    done = {
        (trained / full, draws)
        for trained, full, draws in zip(epochs, of, n, strict=True)
    }
    told = len(done) == 1 and found.examples >= _FEWEST
    by_seeds = seeds(sigma, *map(method_of, names))
    return {
        "runs": names,
        "epochs": epochs,
        "of": of,
        "n": n,
        "is_full": done == {(1.0, AUTHORS_N)},
        "published": published,
        "seeds": by_seeds,
        "found": found,
        "holds": (
            _verdict(found, published, by_seeds, EQUAL * sigma)
            if told
            else None
        ),
    }


def _verdict(
    found: Comparison, published: float, by_seeds: float, equal: float
) -> bool | None:
    low, high = found.low, found.high
    if abs(published) <= by_seeds:
        if max(abs(low), abs(high)) <= equal:
            return True
        return False if low > equal or high < -equal else None
    if abs(found.difference) <= by_seeds or low <= 0 <= high:
        return None
    return (found.difference > 0) == (published > 0)


def has_results(folder: str | Path) -> bool:
    """Tells whether a folder has a recipe, and both its logs an image.

    Args:
        folder: Of the run.
    """
    logs = logs_of(folder)
    told = (Path(folder) / RECIPE).is_file()
    return told and bool(logs) and all(map(len, logs.values()))
