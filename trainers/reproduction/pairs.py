"""Paired comparisons of runs, among themselves and with the authors' logs."""

import dataclasses
import json
import math
from collections.abc import Iterable
from itertools import combinations
from pathlib import Path

from rs_keras._atomic_files import written_whole
from rs_keras.logs.comparison import Comparison
from rs_keras.logs.comparison import compare_acr
from rs_keras.logs.log import CertificationLog
from rs_keras.trainers.reproduction import mnist
from rs_keras.trainers.reproduction import published as papers
from rs_keras.trainers.reproduction.results import Run

# Below this many images a bootstrap interval is too narrow to trust.
_FEWEST = 100

AGAINST = "against_authors.json"


@dataclasses.dataclass(frozen=True)
class Pair:
    """Two runs, and their published difference.

    Attributes:
        first: The run to compare with.
        second: The other.
        published: The second's ACR minus the first's, in the papers.
        seeds: The difference that two training seeds can cause.
        comparison: The second against the first; its interval is about images.
        low: Lower end of the interval that is about seeds, too.
        high: Upper end of it.
        holds: True, False, or None if inconclusive; see `pair`.
    """

    first: Run
    second: Run
    published: float
    seeds: float
    comparison: Comparison
    low: float
    high: float
    holds: bool | None

    @property
    def is_full(self) -> bool:
        """Whether both runs' schedules and n are the papers'."""
        return self.first.is_full and self.second.is_full


def against_authors(run: Run, references: str | Path) -> Comparison | None:
    """Compares a run's plain log with the authors', image by image.

    The result is kept in the run's folder, for the tables.

    Args:
        run: The authors have logs of methods.
        references: As `folder` in `reference_log`.

    Returns:
        None where there is no log of the authors', or ours is of another n,
        which bounds the radii otherwise.
    """
    theirs = papers.reference_log(references, run.sigma, run.name)
    if theirs is None or run.n != papers.AUTHORS_N:
        return None
    theirs = mnist.only(theirs, run.plain.idx)
    comparison = compare(
        theirs, dataclasses.replace(run.plain, name="rs-keras")
    )
    kept = {
        **dataclasses.asdict(comparison),
        "authors_acr": theirs.acr(),
        "model": run.plain.settings.get("model"),
    }
    with written_whole(run.folder / AGAINST) as part:
        part.write_text(json.dumps(kept, indent=2) + "\n")
    return comparison


def compare(first: CertificationLog, second: CertificationLog) -> Comparison:
    """Compares two logs on the images that both hold.

    Args:
        first: The one to compare with.
        second: Another.

    Raises:
        ValueError: As `compare_acr`; sharing no image is holding none.
    """
    return compare_acr(
        mnist.only(first, second.idx), mnist.only(second, first.idx)
    )


def order(runs: Iterable[Run]) -> list[Pair]:
    """Compares the methods, two by two.

    Args:
        runs: Of methods, of one sigma.

    Returns:
        Those of all that have a published ACR, have as much of their
        schedules behind them, and the same n; the lower one first.
    """
    listed = [
        run for run in runs if run.name in papers.PUBLISHED.get(run.sigma, {})
    ]
    return [
        pair(low, high, _published(high) - _published(low))
        for low, high in combinations(sorted(listed, key=_published), 2)
        if low.extent == high.extent
    ]


def _published(run: Run) -> float:
    return papers.PUBLISHED[run.sigma][run.name]


def ablations(runs: Iterable[Run]) -> list[Pair]:
    """Compares the ablations, where two are there that are equally long.

    Args:
        runs: Ablations, and the method that they change.
    """
    by_name = {run.name: run for run in runs}
    listed = []
    for claim in papers.CLAIMS:
        second = by_name.get(mnist.ablation(claim["second"]))
        names = [mnist.ablation(claim["first"])]
        # In full, the base is a method of the table.
        names += [mnist.ABLATED] if claim["first"] == mnist.BASE else []
        for first in map(by_name.get, names):
            if first and second and first.extent == second.extent:
                published = claim["acr"][1] - claim["acr"][0]
                listed.append(pair(first, second, published))
                break
    return listed


def pair(first: Run, second: Run, published: float) -> Pair:
    """Tests whether the published difference of two runs holds here.

    Other images and other training seeds err independently of each other, so
    the interval that both leave is

        difference -+ sqrt(half**2 + seeds**2),

    with `half` the distance to that end of the interval about images. A
    published difference of more than two seeds can make (`seeds`) holds if
    this interval lies on its side of 0, and does not if it lies on the other.
    A smaller one says that the two are about equal: that holds if the whole
    interval is within `EQUAL` sigma, and does not if it is all outside.
    Nothing is told by fewer than 100 images, by logs of unequal n, or by runs
    of which one has more of its schedule.

    Args:
        first: The run to compare with.
        second: The other.
        published: How much larger the second's ACR is in the papers.
    """
    comparison = compare(first.plain, second.plain)
    enough = comparison.examples >= _FEWEST
    conclusive = first.extent == second.extent and enough
    by_seeds = papers.seeds(
        first.sigma, mnist.method_of(first.name), mnist.method_of(second.name)
    )
    middle = comparison.difference
    low = middle - math.hypot(middle - comparison.low, by_seeds)
    high = middle + math.hypot(comparison.high - middle, by_seeds)
    if abs(published) > by_seeds:
        holds = None if low <= 0 <= high else (low > 0) == (published > 0)
    else:
        holds = _within(low, high, papers.EQUAL * first.sigma)
    return Pair(
        first=first,
        second=second,
        published=published,
        seeds=by_seeds,
        comparison=comparison,
        low=low,
        high=high,
        holds=holds if conclusive else None,
    )


def _within(low: float, high: float, equal: float) -> bool | None:
    if max(abs(low), abs(high)) <= equal:
        return True
    return False if low > equal or high < -equal else None
