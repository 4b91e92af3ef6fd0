"""Tables of certification logs, as the papers print them."""

from collections.abc import Callable
from collections.abc import Sequence
from typing import Literal

import numpy as np

from rs_keras._checks import check_choice
from rs_keras.logs.log import CertificationLog
from rs_keras.logs.log import Envelope

# Shown for a value that the log does not have.
_UNKNOWN = "-"

Cells = Sequence[Sequence[str]]


def certified_table(
    logs: Sequence[CertificationLog | Envelope],
    radii: Sequence[float] | None = None,
    format: Literal["text", "markdown", "latex"] = "text",
    per_input_sigma: bool = False,
) -> str:
    """Returns one row a log: ACR, certified accuracy at radii, abstentions.

    An average certified radius depends on the number of draws and on the bound,
    so each row also shows the number of examples, n, and the confidence bound
    ("-" without settings).

    Args:
        logs: The logs, or envelopes, in the order of the rows; at least one.
        radii: Radii >= 0; by default, steps of 0.25 (0.5 if that is more than
            twelve) to the largest that is certified.
        format: "text", "markdown" or "latex" (for the package booktabs).
        per_input_sigma: Whether to include logs whose sigma varies from image
            to image, and envelopes of such (marked in the last column): each
            image has another classifier.

    Returns:
        The table, without a final line break; accuracies in percent.

    Raises:
        ValueError: If there is no log, a log holds no example, or an argument
            is out of its range.

    Example:

    >>> from rs_keras import CertificationLog
    >>> from rs_keras.report.tables import certified_table
    >>> log = CertificationLog(
    ...     idx=[0, 1], label=[7, 2], predict=[7, -1], radius=[0.6, 0.0],
    ...     correct=[True, False], time=[2.0, 2.0], name="gaussian",
    ...     settings={"n": 1000, "bound": "clopper_pearson"})
    >>> print(certified_table([log], radii=[0.0, 0.5, 1.0]))
    log         ACR  0.00  0.50  1.00  abstain  examples     n  bound
    gaussian  0.300  50.0  50.0   0.0     50.0         2  1000  clopper_pearson
    """
    return formatted(certified_cells(logs, radii, per_input_sigma), format)


def formatted(cells: Cells, format: str) -> str:
    """Returns cells as a table; the first and the last column are text.

    Args:
        cells: The header and the rows.
        format: "text", "markdown" or "latex".

    Raises:
        ValueError: For another format.

    Example:

    >>> from rs_keras.report.tables import formatted
    >>> print(formatted([["log", "ACR", "bound"], ["a", "0.5", "-"]], "text"))
    log  ACR  bound
    a    0.5  -
    """
    check_choice("format", format, _FORMATS)
    return _FORMATS[format](cells)


def certified_cells(
    logs: Sequence[CertificationLog | Envelope],
    radii: Sequence[float] | None = None,
    per_input_sigma: bool = False,
) -> list[Sequence[str]]:
    """Returns the header and the rows of `certified_table` as cells.

    Arguments and errors are those of `certified_table`.

    Example:

    >>> from rs_keras import CertificationLog
    >>> from rs_keras.report.tables import certified_cells
    >>> log = CertificationLog(
    ...     idx=[0, 1], label=[7, 2], predict=[7, -1], radius=[0.6, 0.0],
    ...     correct=[True, False], time=[2.0, 2.0], name="gaussian")
    >>> header, row = certified_cells([log], radii=[0.5])
    >>> dict(zip(header, row))
    {'log': 'gaussian', 'ACR': '0.300', '0.50': '50.0', 'abstain': '50.0',
     'examples': '2', 'n': '-', 'bound': '-'}
    """
    kept = [log for log in logs if per_input_sigma or not _varies(log)]
    if not kept:
        raise ValueError(
            "`logs` must hold at least one log"
            + (
                " of fixed sigma, or `per_input_sigma` must be True. Received: "
                f"{', '.join(log.name for log in logs)}"
                if logs
                else ". Received: none"
            )
        )
    logs = kept
    chosen = _default_radii(logs) if radii is None else list(radii)
    header = ["log", "ACR", *(radius_name(radius) for radius in chosen)]
    header += ["abstain", "examples", "n", "bound"]
    return [header, *(_row(log, chosen) for log in logs)]


def _varies(log: CertificationLog | Envelope) -> bool:
    return log.scope == "per_input_sigma"


def _default_radii(logs: Sequence[CertificationLog | Envelope]) -> list[float]:
    largest = max(float(np.max(log.radius, initial=0)) for log in logs)
    step = 0.25 if largest < 3 else 0.5
    return [step * i for i in range(int(largest / step) + 1)]


def radius_name(radius: float) -> str:
    """Returns a radius with two decimals, and more only where it needs them.

    Example:

    >>> from rs_keras.report.tables import radius_name
    >>> radius_name(0.5), radius_name(0.125)
    ('0.50', '0.125')
    """
    return max(f"{radius:.2f}", f"{radius:g}", key=len)


def _row(
    log: CertificationLog | Envelope, radii: Sequence[float]
) -> Sequence[str]:
    shares = [f"{share:.1%}"[:-1] for share in log.certified_accuracy(radii)]
    if isinstance(log, Envelope):
        mark = "per-input sigma" if _varies(log) else _UNKNOWN
        return [log.name, _UNKNOWN, *shares, *[_UNKNOWN] * 3, mark]
    return [
        log.name,
        f"{log.acr(per_input_sigma=True):.3f}",
        *shares,
        f"{log.abstention_rate():.1%}"[:-1],
        str(len(log)),
        str(log.settings.get("n", _UNKNOWN)),
        log.bound_form or _UNKNOWN,
    ]


def _is_text(column: int, cells: Cells) -> bool:
    """Whether a column is aligned to the left: names and bounds."""
    return column in (0, len(cells[0]) - 1)


def _aligned(cells: Cells) -> list[list[str]]:
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return [
        [
            cell.ljust(width) if _is_text(i, cells) else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        for row in cells
    ]


def _text(cells: Cells) -> str:
    return "\n".join("  ".join(row).rstrip() for row in _aligned(cells))


def _markdown(cells: Cells) -> str:
    safe = [[cell.replace("|", "\\|") for cell in row] for row in cells]
    # The shortest rules that Markdown accepts; aligned with the cells below.
    columns = range(len(cells[0]))
    rule = [":--" if _is_text(i, cells) else "--:" for i in columns]
    header, middle, *rows = _aligned([safe[0], rule, *safe[1:]])
    middle = [cell.replace(" ", "-") for cell in middle]
    return "\n".join(
        f"| {' | '.join(row)} |" for row in [header, middle, *rows]
    )


def _latex(cells: Cells) -> str:
    safe = [[_latex_escaped(cell) for cell in row] for row in cells]
    header, *rows = (f"{' & '.join(row)} \\\\" for row in _aligned(safe))
    columns = range(len(cells[0]))
    kinds = "".join("l" if _is_text(i, cells) else "r" for i in columns)
    return "\n".join(
        [
            f"\\begin{{tabular}}{{{kinds}}}",
            "\\toprule",
            header,
            "\\midrule",
            *rows,
            "\\bottomrule",
            "\\end{tabular}",
        ]
    )


def _latex_escaped(text: str) -> str:
    words = {"\\": "\\textbackslash{}", "~": "\\textasciitilde{}"}
    words["^"] = "\\textasciicircum{}"
    words.update({character: f"\\{character}" for character in "&%$#_{}"})
    return "".join(words.get(character, character) for character in text)


_FORMATS: dict[str, Callable[[Cells], str]] = {
    "text": _text,
    "markdown": _markdown,
    "latex": _latex,
}
