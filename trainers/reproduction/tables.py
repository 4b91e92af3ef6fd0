"""The results folder of `rs-keras reproduce`, as tables beside the papers'."""

import json
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

_TITLE = "# Results on MNIST"

_INTRO = (
    "Made by `rs-keras reproduce mnist --sigma SIGMA`, which prints each table "
    "(a run that is done is printed, not repeated; another `--out` repeats "
    "it): LeNet, test images by their original numbers (1,000: every 10th; "
    "500: every 20th), n0 = 100, alpha = 0.001, one training seed (0), not "
    "chosen among several."
)
_COLUMNS = (
    "`method`: `smoothmix` and `smoothmix_onestep` have eta = 5, the latter "
    "with the one-step adversary, `smoothmix_T1` has (alpha, T) = (8, 1) and "
    "eta = 1; each run's `recipe.json` has all of its settings.",
    "`epochs`: of the papers' schedule. A shorter one (`--epochs`) has its "
    "learning-rate drops and its warm-up scaled to it; 'the first N of M' is a "
    "training on the whole schedule that was stopped after N. mixed_bfloat16: "
    "the training, and its teacher, computed in bfloat16 with weights in "
    "float32 (`--dtype`); without it in float32, as the authors'. Certificates "
    "are about the network in float32 everywhere.",
    "`test images`: fewer than all where certification was stopped; those done "
    "are spread over the file. Where the run's `model.keras` is there, the "
    "command above, with `--epochs` as in the row, certifies the rest.",
    "`ACR`: the average certified radius by the papers' bound (`plain.tsv`), "
    "with its standard error. The last column bounds the second class, too "
    "(`runner_up.tsv`), from the same counts.",
    "`published`: the papers' ACR over the whole test set; that of `catrs` is "
    "from the authors' log.",
    "`authors' log` and `difference`: paired, on the same images "
    "(`--references`). The interval is about the choice of images, not about "
    "training seeds.",
)
_RULE = (
    "How pairs are judged: on the images that both logs hold. `seeds` is the "
    "difference that two training seeds alone can make: twice its standard "
    "deviation, from the deviations over seeds in SmoothMix's table 5 (whole "
    "schedules). `smoothmix_T1`, its ablations and `catrs` are not in that "
    "table, and get the largest deviation of any SmoothMix there. `with seeds` "
    "is the interval about images and seeds (their variances add). A published "
    "difference larger than `seeds` holds (`yes`; in part, `as published`) if "
    "this whole interval has its sign, and does not (`no`; in part, "
    "`reversed`) if it has the other. A smaller one counts as equality: it "
    f"holds if the whole interval lies within {EQUAL} sigma of 0, and does not "
    "if all of it lies outside. All else is `not told`, and so is any pair "
    "with fewer than 100 images. Each interval is 95 % by itself."
)
_IN_PART = (
    " These runs had part of their schedule (both of a pair the same part), or "
    f"fewer draws than the papers' {AUTHORS_N:,}, which bound large radii "
    "lower. The papers publish nothing of such runs: what differs after a "
    "whole schedule need not differ after a part."
)
_WORDS = {
    True: {True: "yes", False: "no", None: "not told"},
    False: {True: "as published", False: "reversed", None: "not told"},
}
_ABLATIONS_INTRO = (
    "SmoothMix with (alpha, T) = (8, 1), eta = 1 and m = 4 (`base`; in full, "
    "`smoothmix_T1`), and one change: eta, m, or T at alpha T = 8. The paper "
    "varies eta and m at T = 8."
)


def _against(run: Run) -> dict[str, Any] | None:
    """What was kept, unless the log has grown since, or is another model's."""
    path, plain = run.folder / AGAINST, run.plain
    kept = json.loads(path.read_text()) if path.is_file() else {}
    of = kept.get("examples"), kept.get("model")
    return kept if of == (len(plain), plain.settings.get("model")) else None


def table(runs: Iterable[Run]) -> str:
    """Lays runs out as Markdown, beside what the papers publish of them.

    Args:
        runs: In the order of the table.
    """
    lines = [
        "| method | epochs | test images | n | ACR | published | "
        "authors' log, same images | difference, 95 % | "
        "ACR, runner-up bound |",
        f"|{' --- |' * 9}",
    ]
    for run in runs:
        whole = len(range(0, TEST_IMAGES, run.plain.settings["skip"]))
        published = PUBLISHED.get(run.sigma, {}).get(run.name)
        cells = [
            run.label,
            _length(run),
            f"{len(run.plain):,} of {whole:,}",
            f"{run.n:,}",
            f"{run.plain.acr():.3f} ± {_standard_error(run.plain):.3f}",
            "-" if published is None else f"{published:.3f}",
            *_against_cells(_against(run)),
            f"{run.runner_up.acr():.3f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _length(run: Run) -> str:
    """How much of its schedule it had, and in which type, if in another."""
    first = "the first " if run.is_cut else ""
    length = f"{first}{run.epochs} of {run.full_epochs}"
    policy = run.recipe.dtype
    return length if policy == "float32" else f"{length}, {policy}"


def _standard_error(log: CertificationLog) -> float:
    """Of the ACR, by the choice of images."""
    radii = log.radius * log.correct
    return float(np.std(radii) / np.sqrt(max(1, len(log) - 1)))


def _against_cells(against: dict[str, Any] | None) -> tuple[str, str]:
    if against is None:
        return "-", "-"
    return (
        f"{against['authors_acr']:.3f}",
        _difference(against["difference"], against["low"], against["high"]),
    )


def _difference(value: float, low: float, high: float) -> str:
    return f"{value:+.3f} {_interval(low, high)}"


def _interval(low: float, high: float) -> str:
    return f"[{low:+.3f}, {high:+.3f}]"


def pairs_table(found: Iterable[Pair]) -> str:
    """Lays pairs of runs out as Markdown.

    Args:
        found: Of `pairs.order` or `ablations`.
    """
    lines = [
        "| second against first | epochs | test images | n | published | "
        "seeds | difference, 95 % | with seeds, 95 % | holds |",
        f"|{' --- |' * 9}",
    ]
    for pair in found:
        both = pair.second, pair.first
        comparison = pair.found
        cells = [
            " against ".join(run.label for run in both),
            _once(map(_length, both)),
            f"{comparison.examples:,}",
            _once(f"{run.n:,}" for run in both),
            f"{pair.published:+.3f}",
            f"{pair.seeds:.3f}",
            _difference(comparison.difference, comparison.low, comparison.high),
            _interval(pair.low, pair.high),
            _WORDS[pair.is_full][pair.holds],
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _summary(found: Sequence[Pair]) -> str:
    """How many pairs hold, do not, and are not told; all full, or none."""
    counts = Counter(pair.holds for pair in found)
    words = _WORDS[found[0].is_full].items()
    told = ", ".join(f"{counts[holds]} {word}" for holds, word in words)
    return f"{len(found)} pair{'s' * (len(found) > 1)}: {told}."


def _once(words: Iterable[str]) -> str:
    """What two runs have in common, once."""
    return " and ".join(dict.fromkeys(words))


def report(root: str | Path) -> str:
    """Returns the page of a results folder, made from the files in it.

    Args:
        root: The results folder.
    """
    sections = [part for sigma in PUBLISHED for part in _section(root, sigma)]
    columns = "\n".join(f"- {column}" for column in _COLUMNS)
    parts = [_TITLE, _INTRO, columns]
    # The rule is the same of every sigma, so a page of several says it once.
    if _RULE in sections:
        parts.append(_RULE)
    parts += [part for part in sections if part != _RULE]
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


def _section(root: str | Path, sigma: float) -> list[str]:
    parts = tables(root, sigma)
    return [f"## sigma = {sigma:.2f}", *parts] if parts else []


def tables(root: str | Path, sigma: float) -> list[str]:
    """Returns what a results folder holds for a sigma, in Markdown.

    Args:
        root: The results folder.
        sigma: Of the noise.
    """
    runs = read_methods(root, sigma)
    order = pairs.order(runs)
    changed = pairs.ablations([*read_ablations(root, sigma), *runs])
    parts = []
    if runs:
        parts += [table(runs), *notes(runs)]
    parts += _pairs("Order of the methods", "", order)
    parts += _pairs("Ablations", f" {_ABLATIONS_INTRO}", changed)
    if changed:
        compared = [
            run for pair in changed for run in (pair.first, pair.second)
        ]
        parts.append(table({run.name: run for run in compared}.values()))
    if order or changed:
        parts.append(_RULE)
    return parts


def notes(runs: Iterable[Run]) -> list[str]:
    """Returns what must be known of the rows of `table`, in Markdown.

    Which differences to the authors' logs are more than other images can make,
    and which trainings had not as many votes as the papers'.

    Args:
        runs: Those of the table.
    """
    listed = list(runs)
    kept = {run.label: _against(run) for run in listed}
    apart = [
        f"`{name}`"
        for name, found in kept.items()
        if found and (found["low"] > 0 or found["high"] < 0)
    ]
    votes = {run.label: run.recipe.teacher.get("n") for run in listed}
    parts = [
        f"The soft labels of `{name}` are of {count:,} votes an image, the "
        f"authors' of {AUTHORS_VOTES:,}."
        for name, count in votes.items()
        if count not in (None, AUTHORS_VOTES)
    ]
    if apart:
        parts.append(
            "Differences to the authors' logs whose interval leaves out 0: "
            f"{', '.join(apart)}."
        )
    return parts


def _pairs(title: str, intro: str, found: Sequence[Pair]) -> list[str]:
    """A section a kind of pair: of whole runs, and of parts of them."""
    parts = []
    for is_full, more, note in (
        (True, "", ""),
        (False, ", in part", _IN_PART),
    ):
        kind = [pair for pair in found if pair.is_full is is_full]
        if kind:
            parts += [
                f"### {title}{more}",
                f"{_summary(kind)}{intro}{note}",
                pairs_table(kind),
            ]
    return parts
