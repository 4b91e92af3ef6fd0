"""The results folder of `rs-keras reproduce`, as tables beside the papers'."""

import json
from collections.abc import Iterable
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rs_keras.log import CertificationLog
from rs_keras.trainers import recipes
from rs_keras.trainers import reproduction_pairs as pairs
from rs_keras.trainers import runs
from rs_keras.trainers.reproduction import FORMS
from rs_keras.trainers.reproduction import METHODS
from rs_keras.trainers.reproduction import folder_of
from rs_keras.trainers.reproduction_pairs import AGAINST
from rs_keras.trainers.reproduction_published import PUBLISHED

_ORDER = (
    "Neighbours in the published order, each pair on the images that both "
    "logs hold. `holds` says whether the sign of the published difference is "
    "found; `not told`: the interval, of other images, holds 0. Runs of "
    "unequal length, and those shorter than the recipe, say less."
)
_ABLATIONS = (
    "SmoothMix with (alpha, T) = (8, 1), eta = 1 and m = 4 (`base`, or "
    "`smoothmix_T1` where the runs are as long), and one change each: eta, m, "
    "or T at alpha T = 8. The paper varies eta and m at T = 8."
)


def rows_of(root: str | Path, sigma: float) -> list[dict[str, Any]]:
    """Returns what the results folder holds for a sigma, a dict a method.

    Args:
        root: The results folder.
        sigma: Of the noise.

    Returns:
        Dicts with method, epochs, of (the recipe's epochs), examples, n, acr
        (plain), runner_up (its ACR), published (or None), against (what
        `against_authors` kept, or None), in the order of `PUBLISHED`.
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


def pairs_table(rows: Sequence[dict[str, Any]]) -> str:
    """Lays the rows of `reproduction_pairs` out as Markdown.

    Args:
        rows: Of `order` or `ablations`.
    """
    lines = [
        "| second against first | epochs | test images | n | published | "
        "difference, 95 % | holds |",
        f"|{' --- |' * 7}",
    ]
    for row in rows:
        first, second = row["runs"]
        found = row["found"]
        cells = [
            f"{second} against {first}",
            _once(map(str, reversed(row["epochs"]))),
            f"{found.examples:,}",
            _once(f"{n:,}" for n in reversed(row["n"])),
            f"{row['published']:+.3f}",
            f"{found.difference:+.3f} [{found.low:+.3f}, {found.high:+.3f}]",
            {True: "yes", False: "no", None: "not told"}[row["holds"]],
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _once(words: Iterable[str]) -> str:
    """What two runs have in common, once."""
    return " and ".join(dict.fromkeys(words))


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
        parts += _section(root, sigma)
    return "\n\n".join(parts) + "\n"


def _section(root: str | Path, sigma: float) -> list[str]:
    parts = []
    rows = rows_of(root, sigma)
    if rows:
        parts.append(table(rows))
    for title, text, found in (
        ("Order of the methods", _ORDER, pairs.order(root, sigma)),
        ("Ablations", _ABLATIONS, pairs.ablations(root, sigma)),
    ):
        if found:
            parts += [f"### {title}", text, pairs_table(found)]
    return [f"## sigma = {sigma:.2f}", *parts] if parts else []
