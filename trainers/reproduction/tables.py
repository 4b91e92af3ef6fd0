"""The tables of a results folder, in Markdown, beside the papers' numbers."""

import json
import tomllib
from collections import Counter
from collections.abc import Iterable
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rs_keras._atomic_files import written_whole
from rs_keras.logs.log import CertificationLog
from rs_keras.trainers.reproduction import pairs
from rs_keras.trainers.reproduction.mnist import TEST_IMAGES
from rs_keras.trainers.reproduction.pairs import AGAINST
from rs_keras.trainers.reproduction.pairs import Pair
from rs_keras.trainers.reproduction.published import AUTHORS_N
from rs_keras.trainers.reproduction.published import AUTHORS_VOTES
from rs_keras.trainers.reproduction.published import EQUAL
from rs_keras.trainers.reproduction.published import PUBLISHED
from rs_keras.trainers.reproduction.results import Run
from rs_keras.trainers.reproduction.results import read_ablations
from rs_keras.trainers.reproduction.results import read_methods

_TEXTS = tomllib.loads(
    Path(__file__).with_name("results_page.toml").read_text(encoding="utf-8")
)
_TITLE = _TEXTS["title"]
_DIFFERENCE = "{difference:+.3f} [{low:+.3f}, {high:+.3f}]"
_RULE = _TEXTS["rule"].format(equal=EQUAL)
_HOLDS = {
    True: {True: "yes", False: "no", None: "inconclusive"},
    False: {True: "as published", False: "reversed", None: "inconclusive"},
}


def _against(run: Run) -> dict[str, Any] | None:
    """The stored comparison; None if the log has changed since."""
    path, plain = run.folder / AGAINST, run.plain
    kept = json.loads(path.read_text()) if path.is_file() else {}
    of = kept.get("examples"), kept.get("model")
    return kept if of == (len(plain), plain.settings.get("model")) else None


def table(runs: Iterable[Run]) -> str:
    """Lays runs out as Markdown, beside what the papers publish of them.

    Args:
        runs: In the order of the table.
    """
    rows = []
    for run in runs:
        images = len(range(0, TEST_IMAGES, run.plain.settings["skip"]))
        published = PUBLISHED.get(run.sigma, {}).get(run.name)
        against = _against(run)
        row = [
            run.label,
            _length(run),
            f"{len(run.plain):,} of {images:,}",
            f"{run.n:,}",
            f"{run.plain.acr():.3f} ± {_standard_error(run.plain):.3f}",
            "-" if published is None else f"{published:.3f}",
            f"{against['authors_acr']:.3f}" if against else "-",
            _DIFFERENCE.format(**against) if against else "-",
            f"{run.runner_up.acr():.3f}",
        ]
        rows.append(row)
    return _markdown(_TEXTS["run_columns"], rows)


def _markdown(columns: list[str], rows: Iterable[list[str]]) -> str:
    rule = ["---"] * len(columns)
    return "\n".join(f"| {' | '.join(r)} |" for r in (columns, rule, *rows))


def _length(run: Run) -> str:
    """The completed part of the schedule; the type unless float32."""
    first = "the first " if run.is_cut else ""
    length = f"{first}{run.recipe.epochs} of {run.full_epochs}"
    policy = run.recipe.dtype
    return length if policy == "float32" else f"{length}, {policy}"


def _standard_error(log: CertificationLog) -> float:
    """The standard error of the ACR, over the choice of images."""
    radii = log.radius * log.correct
    return float(np.std(radii) / np.sqrt(max(1, len(log) - 1)))


def pairs_table(listed: Iterable[Pair]) -> str:
    """Lays pairs of runs out as Markdown.

    Args:
        listed: Of `pairs.order` or `ablations`.
    """
    rows = []
    for pair in listed:
        both = pair.second, pair.first
        row = [
            " against ".join(run.label for run in both),
            _once(map(_length, both)),
            f"{pair.comparison.examples:,}",
            _once(f"{run.n:,}" for run in both),
            f"{pair.published:+.3f}",
            f"{pair.seeds:.3f}",
            _DIFFERENCE.format(**vars(pair.comparison)),
            f"[{pair.low:+.3f}, {pair.high:+.3f}]",
            _HOLDS[pair.is_full][pair.holds],
        ]
        rows.append(row)
    return _markdown(_TEXTS["pair_columns"], rows)


def _summary(listed: Sequence[Pair]) -> str:
    """How many pairs hold, fail and are inconclusive."""
    counts = Counter(pair.holds for pair in listed)
    words = _HOLDS[listed[0].is_full].items()
    numbers = ", ".join(f"{counts[holds]} {word}" for holds, word in words)
    return f"{len(listed)} pair{'s' * (len(listed) > 1)}: {numbers}."


def _once(words: Iterable[str]) -> str:
    """What two runs have in common, once."""
    return " and ".join(dict.fromkeys(words))


def report(root: str | Path) -> str:
    """Returns the page of a results folder, made from the files in it.

    Args:
        root: The results folder.
    """
    sections = []
    for sigma in PUBLISHED:
        parts = tables(root, sigma)
        if parts:
            sections += [f"## sigma = {sigma:.2f}", *parts]
    columns = "\n".join(f"- {column}" for column in _TEXTS["columns"])
    page = [_TITLE, _TEXTS["intro"], columns]
    # The rule is the same for all sigmas, so the page has it once.
    if _RULE in sections:
        page.append(_RULE)
    page += [part for part in sections if part != _RULE]
    return "\n\n".join(page) + "\n"


def write_report(root: str | Path) -> None:
    """Writes `report` to README.md in the results folder.

    Args:
        root: The results folder.

    Raises:
        ValueError: If there is another README.md: it is left alone.

    Example:

    >>> import tempfile
    >>> from pathlib import Path
    >>> from rs_keras.trainers.reproduction import tables
    >>> folder = Path(tempfile.mkdtemp())
    >>> tables.write_report(folder)
    >>> (folder / "README.md").read_text().splitlines()[0]
    '# Results on MNIST'
    """
    path = Path(root) / "README.md"
    check_own(root)
    with written_whole(path) as part:
        part.write_text(report(root))


def check_own(root: str | Path) -> None:
    """Raises ValueError if a folder has a README.md that `report` did not make.

    Args:
        root: The results folder.
    """
    path = Path(root) / "README.md"
    if path.is_file() and not path.read_text().startswith(f"{_TITLE}\n"):
        raise ValueError(
            "`--out` must be a results folder or a new one: its README.md is "
            f"written anew. Received: {root}, which has another README.md"
        )


def tables(root: str | Path, sigma: float) -> list[str]:
    """Returns what a results folder holds for a sigma, in Markdown.

    Args:
        root: The results folder.
        sigma: Of the noise.
    """
    runs = read_methods(root, sigma)
    order = pairs.order(runs)
    changed = pairs.ablations([*read_ablations(root, sigma), *runs])
    parts = [table(runs), *notes(runs)] if runs else []
    parts += _pairs("Order of the methods", "", order)
    parts += _pairs("Ablations", f" {_TEXTS['ablations']}", changed)
    if changed:
        compared = {
            run.name: run
            for pair in changed
            for run in (pair.first, pair.second)
        }
        parts.append(table(compared.values()))
    if order or changed:
        parts.append(_RULE)
    return parts


def notes(runs: Sequence[Run]) -> list[str]:
    """Returns notes on the rows of `table`, in Markdown.

    They name the significant differences to the authors' logs, and the soft
    labels with fewer votes than in the papers.

    Args:
        runs: Those of the table.
    """
    parts, significant = [], []
    for run in runs:
        votes = run.recipe.teacher.get("n", AUTHORS_VOTES)
        if votes != AUTHORS_VOTES:
            parts.append(
                f"The soft labels of `{run.label}` are shares of {votes:,} "
                f"votes per image; the authors used {AUTHORS_VOTES:,}."
            )
        against = _against(run)
        if against and not against["low"] <= 0 <= against["high"]:
            significant.append(f"`{run.label}`")
    if significant:
        parts.append(
            "Methods that differ significantly from the authors' logs (the "
            f"95 % interval excludes 0): {', '.join(significant)}."
        )
    return parts


def _pairs(title: str, intro: str, listed: Sequence[Pair]) -> list[str]:
    """One section for complete runs, one for partial runs."""
    in_part = f" {_TEXTS['in_part'].format(authors_n=AUTHORS_N)}"
    parts = []
    for is_full, more, note in ((True, "", ""), (False, ", in part", in_part)):
        kind = [pair for pair in listed if pair.is_full is is_full]
        if kind:
            parts += [
                f"### {title}{more}",
                f"{_summary(kind)}{intro}{note}",
                pairs_table(kind),
            ]
    return parts
