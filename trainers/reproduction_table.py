"""The results folder of `rs-keras reproduce`, as tables beside the papers'."""

import json
from collections.abc import Iterable
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rs_keras.files import written_whole
from rs_keras.log import CertificationLog
from rs_keras.trainers import reproduction_pairs as pairs
from rs_keras.trainers.reproduction import TEST_IMAGES
from rs_keras.trainers.reproduction_pairs import AGAINST
from rs_keras.trainers.reproduction_published import AUTHORS_VOTES
from rs_keras.trainers.reproduction_published import EQUAL
from rs_keras.trainers.reproduction_published import PUBLISHED
from rs_keras.trainers.reproduction_runs import Run
from rs_keras.trainers.reproduction_runs import ablations
from rs_keras.trainers.reproduction_runs import methods

_TITLE = "# Results on MNIST"

_RULE = (
    "How pairs are judged: on the images that both logs hold. `seeds` is what "
    "two training seeds can make (twice a difference's standard deviation, "
    "from those of SmoothMix's table 5). A published difference above that "
    "holds (`yes`, in part `as published`) if the one found has the same sign, "
    "is above that, too, and its whole interval has that sign; it does not "
    "(`no`, in part `reversed`) if all this is so of the other sign. A smaller "
    f"one holds if the whole interval lies within {EQUAL} sigma of 0, and does "
    "not if it lies outside. All else is not told, nor anything of fewer than "
    "100 images. One training seed each; the intervals, about other images, "
    "are 95 % each by itself."
)
_IN_PART = (
    " Runs that had a part of their schedules, each pair the same part, or "
    "fewer draws than the papers' 100,000, which bound large radii lower. The "
    "papers publish nothing of such runs: what differs in full may not yet."
)
_WORDS = {
    True: {True: "yes", False: "no", None: "not told"},
    False: {True: "as published", False: "reversed", None: "not told"},
}
_ABLATIONS = (
    "SmoothMix with (alpha, T) = (8, 1), eta = 1 and m = 4 (`base`; in full, "
    "`smoothmix_T1`), and one change: eta, m, or T at alpha T = 8. The paper "
    "varies eta and m at T = 8."
)


def row_of(run: Run) -> dict[str, Any]:
    """Returns what the table shows of a run.

    Args:
        run: That was read.

    Returns:
        method, epochs, of (the recipe's epochs), examples, whole (as many as
        a log has in the end), n, acr (plain), error (its standard error),
        runner_up (its ACR), published (or None), against (what
        `against_authors` kept, or None).
    """
    plain = run.plain
    radii = plain.radius * plain.correct
    return {
        "method": run.label,
        "epochs": run.epochs,
        "of": run.of,
        "examples": len(plain),
        "whole": len(range(0, TEST_IMAGES, plain.settings["skip"])),
        "n": run.n,
        "acr": plain.acr(),
        "error": float(np.std(radii) / np.sqrt(max(1, len(plain) - 1))),
        "runner_up": run.runner_up.acr(),
        "published": PUBLISHED.get(run.sigma, {}).get(run.name),
        "against": _against(run.folder / AGAINST, plain),
    }


def _against(path: Path, plain: CertificationLog) -> dict[str, Any] | None:
    """What was kept, unless the log has grown since, or is another model's."""
    kept = json.loads(path.read_text()) if path.is_file() else {}
    of = kept.get("examples"), kept.get("model")
    return kept if of == (len(plain), plain.settings.get("model")) else None


def table(rows: Iterable[dict[str, Any]]) -> str:
    """Lays rows, each of `row_of`, out as Markdown.

    Args:
        rows: In the order of the table.

    Example:

    >>> from rs_keras.trainers.reproduction_table import table
    >>> print(table([{"method": "gaussian", "epochs": 90, "of": 90,
    ...               "examples": 640, "whole": 1000, "n": 100_000,
    ...               "acr": 1.625, "error": 0.028, "runner_up": 1.631,
    ...               "published": 1.62,
    ...               "against": None}]).splitlines()[2][:60])
    | gaussian | 90 of 90 | 640 of 1,000 | 100,000 | 1.625 ± 0.0
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
            f"{row['examples']:,} of {row['whole']:,}",
            f"{row['n']:,}",
            f"{row['acr']:.3f} ± {row['error']:.3f}",
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
        _difference(against["difference"], against["low"], against["high"]),
    )


def _difference(value: float, low: float, high: float) -> str:
    return f"{value:+.3f} [{low:+.3f}, {high:+.3f}]"


def pairs_table(rows: Sequence[dict[str, Any]]) -> str:
    """Lays the rows of `reproduction_pairs` out as Markdown.

    Args:
        rows: Of `order` or `ablations`.
    """
    lines = [
        "| second against first | epochs | test images | n | published | "
        "seeds | difference, 95 % | holds |",
        f"|{' --- |' * 8}",
    ]
    for row in rows:
        first, second = row["runs"]
        found = row["found"]
        cells = [
            f"{second.label} against {first.label}",
            _once(f"{run.epochs} of {run.of}" for run in (second, first)),
            f"{found.examples:,}",
            _once(f"{run.n:,}" for run in (second, first)),
            f"{row['published']:+.3f}",
            f"{row['seeds']:.3f}",
            _difference(found.difference, found.low, found.high),
            _word(row),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _word(row: dict[str, Any]) -> str:
    return _WORDS[_is_full(row)][row["holds"]]


def _is_full(row: dict[str, Any]) -> bool:
    return all(run.is_full for run in row["runs"])


def _summary(rows: Sequence[dict[str, Any]]) -> str:
    """How many pairs hold, do not, and are not told."""
    counts = {word: 0 for word in _WORDS[_is_full(rows[0])].values()}
    for row in rows:
        counts[_word(row)] += 1
    told = ", ".join(f"{count} {word}" for word, count in counts.items())
    return f"{len(rows)} pair{'s' * (len(rows) > 1)}: {told}."


def _once(words: Iterable[str]) -> str:
    """What two runs have in common, once."""
    return " and ".join(dict.fromkeys(words))


def report(root: str | Path) -> str:
    """Returns the page of a results folder, made from the files in it.

    Args:
        root: The results folder.
    """
    parts = [
        _TITLE,
        "Made by `rs-keras reproduce mnist --sigma SIGMA`, which prints each "
        "table: LeNet, test images by their original numbers (1,000: every "
        "10th), n0 = 100, alpha = 0.001, one training seed (0), not chosen "
        "among several. `published` is the papers' average certified radius "
        "(ACR) over the whole test set; that of `catrs` is from the authors' "
        "log. ACR is from the papers' bound (`plain.tsv`), with its standard "
        "error; the last column bounds the second class, too "
        "(`runner_up.tsv`), from the same counts. The difference to the "
        "authors' own log is paired, on the same images (`--references`); its "
        "interval is about the choice of images, not about training seeds. "
        "Where not all test images are there, the log was stopped; they are "
        "spread over the file, and the same command goes on.",
    ]
    for sigma in PUBLISHED:
        parts += _section(root, sigma)
    return "\n\n".join(parts) + "\n"


def write_report(root: str | Path) -> None:
    """Writes `report` to README.md in the results folder.

    Args:
        root: The results folder.

    Raises:
        ValueError: If there is another README.md: it is left alone.

    Example:

    >>> import tempfile
    >>> from pathlib import Path
    >>> from rs_keras.trainers import reproduction_table
    >>> folder = Path(tempfile.mkdtemp())
    >>> reproduction_table.write_report(folder)
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


def _section(root: str | Path, sigma: float) -> list[str]:
    parts = tables(root, sigma)
    return [f"## sigma = {sigma:.2f}", *parts] if parts else []


def tables(root: str | Path, sigma: float) -> list[str]:
    """Returns what a results folder holds for a sigma, in Markdown.

    Args:
        root: The results folder.
        sigma: Of the noise.
    """
    runs = methods(root, sigma)
    order = pairs.order(runs)
    changed = pairs.ablations([*ablations(root, sigma), *runs])
    parts = []
    if runs:
        parts += [table([row_of(run) for run in runs]), *_votes(runs)]
    parts += _pairs("Order of the methods", "", order)
    parts += _pairs("Ablations", f" {_ABLATIONS}", changed)
    compared = {run.name: run for row in changed for run in row["runs"]}
    if compared:
        parts.append(table([row_of(run) for run in compared.values()]))
    if order or changed:
        parts.append(_RULE)
    return parts


def _votes(runs: Iterable[Run]) -> list[str]:
    """What a training had fewer of than the papers'."""
    votes = {run.label: run.recipe.teacher.get("n") for run in runs}
    return [
        f"The soft labels of `{name}` are of {count:,} votes an image, the "
        f"authors' of {AUTHORS_VOTES:,}."
        for name, count in votes.items()
        if count not in (None, AUTHORS_VOTES)
    ]


def _pairs(title: str, intro: str, rows: list[dict[str, Any]]) -> list[str]:
    """A section a kind of pair: of whole runs, and of parts of them."""
    parts = []
    for is_full, more, note in (
        (True, "", ""),
        (False, ", in part", _IN_PART),
    ):
        found = [row for row in rows if _is_full(row) is is_full]
        if found:
            parts += [
                f"### {title}{more}",
                f"{_summary(found)}{intro}{note}",
                pairs_table(found),
            ]
    return parts
