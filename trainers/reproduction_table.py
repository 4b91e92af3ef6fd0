"""The results folder of `rs-keras reproduce`, as tables beside the papers'."""

import json
from collections.abc import Iterable
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rs_keras.files import written_whole
from rs_keras.trainers import recipes
from rs_keras.trainers import reproduction_pairs as pairs
from rs_keras.trainers.reproduction import METHODS
from rs_keras.trainers.reproduction import epochs_of
from rs_keras.trainers.reproduction import folder_of
from rs_keras.trainers.reproduction import logs_of
from rs_keras.trainers.reproduction_pairs import AGAINST
from rs_keras.trainers.reproduction_published import EQUAL
from rs_keras.trainers.reproduction_published import PUBLISHED
from rs_keras.trainers.reproduction_published import SEEDS

_TITLE = "# Results on MNIST"

_VERDICT = (
    "Each pair on the images that both logs hold. Two seeds of one method can "
    f"differ by {SEEDS:.3f}: a published difference above that `holds` if it "
    "is found with the same sign, above that, too, and over the whole "
    f"interval; one below, if the whole interval lies within {EQUAL:.2f} of "
    "0. It is `not told` where the interval does not decide, one run has more "
    "of its schedule or another n, or fewer than 100 images are in both. One "
    "seed each; the intervals, about other images, are 95 % each by itself."
)
_ABLATIONS = (
    "SmoothMix with (alpha, T) = (8, 1), eta = 1 and m = 4 (`base`; in full, "
    "`smoothmix_T1`), and one change: eta, m, or T at alpha T = 8. The paper "
    "varies eta and m at T = 8."
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
    return [
        _row(folder_of(root, sigma, method), sigma, method)
        for method in _known(sigma)
        if pairs.has_results(folder_of(root, sigma, method))
    ]


def _row(folder: Path, sigma: float, method: str) -> dict[str, Any]:
    logs = logs_of(folder)
    plain, runner_up = logs["plain"], logs["runner_up"]
    return {
        "method": method,
        "epochs": epochs_of(folder),
        "of": recipes.get("mnist", method, sigma).epochs,
        "examples": len(plain),
        "n": plain.settings["n"],
        "acr": plain.acr(),
        "runner_up": runner_up.acr(),
        "published": PUBLISHED.get(sigma, {}).get(method),
        "against": _against(folder / AGAINST, len(plain)),
    }


def _against(path: Path, examples: int) -> dict[str, Any] | None:
    """What was kept, unless the log has grown since."""
    kept = json.loads(path.read_text()) if path.is_file() else None
    return kept if kept and kept["examples"] == examples else None


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
        "difference, 95 % | holds |",
        f"|{' --- |' * 7}",
    ]
    for row in rows:
        first, second = (run.rpartition("/")[2] for run in row["runs"])
        found = row["found"]
        lengths = zip(row["epochs"], row["of"], strict=True)
        cells = [
            f"{second} against {first}",
            _once(f"{epochs} of {of}" for epochs, of in [*lengths][::-1]),
            f"{found.examples:,}",
            _once(f"{n:,}" for n in reversed(row["n"])),
            f"{row['published']:+.3f}",
            _difference(found.difference, found.low, found.high),
            _VERDICTS[row["holds"]],
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


_VERDICTS = {True: "yes", False: "no", None: "not told"}


def _summary(rows: Sequence[dict[str, Any]]) -> str:
    """How many pairs hold, do not, and are not told."""
    counts = {word: 0 for word in _VERDICTS.values()}
    for row in rows:
        counts[_VERDICTS[row["holds"]]] += 1
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
        "log. The difference to the authors' own log is paired, on the same "
        "images (`--references`); its interval is about the choice of images, "
        "not about training seeds, which differ by .002 to .009. ACR is from "
        "the papers' bound (`plain.tsv`); the last column bounds the second "
        "class, too (`runner_up.tsv`), from the same counts. Fewer test "
        "images, spread over the file, are a log that was stopped: the same "
        "command goes on. The soft labels of `catrs` are of 1,000 votes an "
        "image, the authors' of 10,000.",
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
    parts = []
    rows = rows_of(root, sigma)
    if rows:
        parts.append(table(rows))
    for title, found, text in (
        ("Order of the methods", pairs.order(root, sigma), _VERDICT),
        ("Ablations", pairs.ablations(root, sigma), f"{_ABLATIONS} {_VERDICT}"),
    ):
        if found:
            parts += [
                f"### {title}",
                f"{_summary(found)} {text}",
                pairs_table(found),
            ]
    return parts
