"""The parts of the report page that need no script: HTML, all text escaped."""

import json
from collections.abc import Sequence
from html import escape
from typing import Any

import numpy as np

from rs_keras.bounds.names import SOFT_BOUNDS
from rs_keras.certification.certificate import ABSTAIN
from rs_keras.certification.certificate import Certificate
from rs_keras.logs.comparison import compare_acr
from rs_keras.logs.log import CertificationLog
from rs_keras.report.tables import certified_cells
from rs_keras.report.thumbnails import Thumbnails

# Settings without which the guarantee cannot be stated.
_NEEDED = ("sigma", "alpha", "noise")

_NO_STATEMENT = (
    "There are no settings beside this log, so the page cannot say with which "
    "noise, how many samples, which bound and what confidence its radii were "
    "made; see where it was published."
)


def summary(logs: Sequence[CertificationLog]) -> str:
    """One line: how many logs, of what."""
    parts = [f"{len(logs)} logs" if len(logs) > 1 else logs[0].name]
    parts += _distinct(log.settings.get("dataset") for log in logs)
    parts.append(" / ".join(_distinct(f"{len(log):,}" for log in logs)))
    parts[-1] += " examples"
    sigmas = _distinct(log.settings.get("sigma") for log in logs)
    if sigmas:
        parts.append(f"sigma {', '.join(sigmas)}")
    return " · ".join(parts)


def _distinct(values: Any) -> list[str]:
    return list(dict.fromkeys(str(v) for v in values if v is not None))


def certified(
    logs: Sequence[CertificationLog], radii: Sequence[float] | None
) -> str:
    """The table of `rs_keras.report.tables`."""
    header, *rows = certified_cells(logs, radii, per_input_sigma=True)
    decided = [log.name for log in logs if "radii" in log.settings]
    chosen = [log.name for log in logs if log.scope == "per_input_sigma"]
    texts = []
    if decided:
        texts.append(
            f"{', '.join(decided)}: radii were decided, not measured. The "
            "curve is right at the radii asked for, and the ACR means nothing."
        )
    if chosen:
        texts.append(
            f"{', '.join(chosen)}: radii at a sigma chosen for each image. No "
            "one classifier has this curve, or this ACR."
        )
    return _table(header, rows) + _notes(texts)


def _notes(texts: Sequence[str]) -> str:
    return "".join(f'<p class="note">{escape(text)}</p>' for text in texts)


def _scroll(label: str, table: str) -> str:
    """Makes a wide table scroll by itself."""
    return (
        '<div class="scroll" tabindex="0" role="group" '
        f'aria-label="{label}">{table}</div>'
    )


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return _grid("numbers", _heads(header), [_row(row) for row in rows])


def _grid(kind: str, heads: str, rows: Sequence[str]) -> str:
    """Returns a table of header cells and rows that are HTML already."""
    return (
        f'<table class="{kind}"><thead><tr>{heads}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table>"
    )


def _heads(texts: Sequence[str]) -> str:
    return "".join(f'<th scope="col">{escape(text)}</th>' for text in texts)


def _row(cells: Sequence[str], kind: str = "") -> str:
    first, *others = map(escape, cells)
    columns = "".join(f"<td>{cell}</td>" for cell in others)
    mark = f' class="{kind}"' if kind else ""
    return f'<tr{mark}><th scope="row">{first}</th>{columns}</tr>'


def comparison(logs: Sequence[CertificationLog]) -> str:
    """Every log against the first, example by example, where that is sound."""
    if len(logs) < 2:
        return ""
    try:
        comparisons = [compare_acr(logs[0], log) for log in logs[1:]]
    except ValueError as error:
        return _notes([f"Not compared example by example: {error}."])
    nothing = "nothing else" if logs[0].settings else "not known"
    rows = [
        [
            one.names[1],
            f"{one.difference:+.4f}",
            f"{one.low:+.4f} to {one.high:+.4f}",
            f"{one.wins:,}",
            f"{one.losses:,}",
            one.notes or (nothing if log.settings else "not known"),
        ]
        for one, log in zip(comparisons, logs[1:], strict=True)
    ]
    header = [
        "log",
        "ACR difference",
        "95% interval",
        "larger radii",
        "smaller radii",
        "also differs in",
    ]
    return (
        f"<h3>Against {escape(logs[0].name)}</h3>"
        "<p>Difference of the average certified radii on the same "
        f"{comparisons[0].examples:,} examples, with a paired bootstrap "
        "interval over examples (10,000 resamples). It does not cover how much "
        "training seeds differ.</p>"
    ) + _scroll("Comparison", _table(header, rows))


def outcomes(logs: Sequence[CertificationLog]) -> str:
    """How many examples of each log are right, wrong and abstained."""
    kinds = ("right", "wrong", "abstained")
    heads = _heads(["log"]) + "".join(
        f'<th scope="col"><span class="dotkey {kind}"></span>{kind}</th>'
        for kind in kinds
    )
    rows = []
    for log in logs:
        abstained = int((log.predict == ABSTAIN).sum())
        right = int(log.correct.sum())
        # Without a label, an example is neither right nor wrong.
        judged = (log.predict != ABSTAIN) & (log.label >= 0)
        wrong = int((judged & ~log.correct).sum())
        counts = dict(zip(kinds, (right, wrong, abstained), strict=True))
        cells = "".join(
            f"<td>{count:,} ({100 * count / len(log):.1f}%)</td>"
            for count in counts.values()
        )
        rows.append(
            f'<tr><th scope="row">{escape(log.name)}</th>{cells}'
            f'<td class="wide">{_bar(counts, len(log))}</td></tr>'
        )
    heads += '<th class="wide"><span class="hidden">bar</span></th>'
    return _scroll("Outcomes", _grid("outcomes", heads, rows))


def _bar(counts: dict[str, int], total: int) -> str:
    left = 0.0
    parts = []
    for kind, count in counts.items():
        width = 100 * count / total
        parts.append(
            f'<rect class="{kind}" x="{left:.3f}" y="0" width="{width:.3f}" '
            'height="4"/>'
        )
        left += width
    return (
        '<svg class="bar" viewBox="0 0 100 4" preserveAspectRatio="none" '
        f'aria-hidden="true">{"".join(parts)}</svg>'
    )


def gallery_note(
    logs: Sequence[CertificationLog],
    thumbnails: Thumbnails | None,
    note: str | None,
) -> str:
    """Says what the gallery does not show."""
    texts = [note] if note else []
    if thumbnails is not None:
        total = len(np.unique(np.concatenate([log.idx for log in logs])))
        if len(thumbnails.idx) < total:
            texts.append(
                f"{len(thumbnails.idx):,} of {total:,} examples have a "
                "picture: up to half of these are wrong or abstained in the "
                "first log, the others spread evenly over its radii."
            )
    return _notes(texts)


def settings(logs: Sequence[CertificationLog]) -> str:
    """All settings, a column a log; rows that differ are marked."""
    keys = list(dict.fromkeys(key for log in logs for key in log.settings))
    if not keys:
        return "<p>No settings lie beside the logs.</p>"
    rows = []
    for key in keys:
        values = [_shown(log, key) for log in logs]
        differs = "differs" if len(set(values)) > 1 else ""
        rows.append(_row([key, *values], differs))
    heads = _heads(["setting", *(log.name for log in logs)])
    return _scroll("Settings", _grid("settings", heads, rows))


def _shown(log: CertificationLog, key: str) -> str:
    if key not in log.settings:
        return "not known"
    value = log.settings[key]
    return value if isinstance(value, str) else json.dumps(value)


def guarantees(logs: Sequence[CertificationLog]) -> str:
    """The guarantee in words with its conditions, once where logs share it."""
    holders: dict[str, list[str]] = {}
    for log in logs:
        holders.setdefault(_statement(log), []).append(log.name)
    texts = []
    for statement, names in holders.items():
        if len(holders) > 1:
            texts.append(f"<h3>{escape(', '.join(names))}</h3>")
        texts.append(f"<p>{escape(statement)}</p>")
    return "".join(texts)


def _statement(log: CertificationLog) -> str:
    known = {**log.settings, "scope": log.scope}
    soft = known.get("bound") in SOFT_BOUNDS
    needed = (*_NEEDED, *(("beta",) if soft else ()))
    if any(known.get(key) is None for key in needed):
        return _NO_STATEMENT
    return Certificate(
        label=log.predict,
        radius=log.radius,
        p_lower=np.zeros(0),
        counts=np.zeros(0),
        selection_counts=np.zeros(0),
        n=np.zeros(0),
        seed=np.zeros(0),
        settings=known,
    ).statement()
