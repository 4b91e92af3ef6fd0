"""The report page: data, texts and tables, put into the template."""

import base64
import hashlib
import json
import os
import re
from collections.abc import Mapping
from collections.abc import Sequence
from functools import cache
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

import rs_keras
from rs_keras._atomic_files import written_whole
from rs_keras.logs.comparison import check_comparable
from rs_keras.logs.log import CertificationLog
from rs_keras.logs.log import count_examples
from rs_keras.logs.robustness import is_attack
from rs_keras.report import robustness
from rs_keras.report import sections
from rs_keras.report.thumbnails import Thumbnails

_FOLDER = Path(__file__).parent
_PLACEHOLDER = re.compile(r"\{\{(\w+)\}\}")

# Radii are millionths on the page, as many digits as a log has.
_UNIT = 1e6


def write_report(
    logs: Sequence[CertificationLog],
    path: str | os.PathLike[str],
    title: str | None = None,
    thumbnails: Thumbnails | None = None,
    radii: Sequence[float] | None = None,
    side_by_side: bool = False,
    note: str | None = None,
) -> int:
    """Writes `report_page` to a file, atomically.

    Args:
        logs: See `report_page`; so are the further arguments.
        path: The page, an .html file.
        title: See `report_page`.
        thumbnails: See `report_page`.
        radii: See `report_page`.
        side_by_side: See `report_page`.
        note: See `report_page`.

    Returns:
        The size of the page in bytes.

    Raises:
        ValueError: As `report_page`.
        OSError: If the file cannot be written.

    Example:

    >>> from pathlib import Path
    >>> from rs_keras import CertificationLog
    >>> from rs_keras.report import write_report
    >>> log = CertificationLog(
    ...     idx=[0, 1], label=[7, 2], predict=[7, -1], radius=[0.6, 0.0],
    ...     correct=[True, False], time=[2.0, 2.0], name="gaussian")
    >>> size = write_report([log], "report.html", title="MNIST")
    >>> size == Path("report.html").stat().st_size
    True
    >>> "<title>MNIST</title>" in Path("report.html").read_text()
    True
    """
    page = report_page(
        logs,
        title,
        thumbnails,
        radii=radii,
        side_by_side=side_by_side,
        note=note,
    )
    with written_whole(path) as temporary:
        return temporary.write_bytes(page.encode())


def report_page(
    logs: Sequence[CertificationLog],
    title: str | None = None,
    thumbnails: Thumbnails | None = None,
    radii: Sequence[float] | None = None,
    side_by_side: bool = False,
    note: str | None = None,
) -> str:
    """Returns one page about certification logs: curves, table, gallery.

    The page is self-contained: it loads nothing, and its content security
    policy blocks all requests and all scripts but its own. The same logs give
    the same page.

    Args:
        logs: At least one; the others are compared with the first. Logs of
            attacks stand beside the certificates of the same images, in a
            figure and a table of their own.
        title: Of the page; by default, the names of the logs.
        thumbnails: Pictures of the examples, for the gallery.
        radii: Columns of the table, >= 0; see `rs_keras.report.tables`.
        side_by_side: Allow logs of different sigma or different examples, which
            are not compared example by example.
        note: Text above the gallery, such as why it has no pictures.

    Returns:
        HTML.

    Raises:
        ValueError: If there is no log, a log holds no example, two have one
            name, they are not comparable and `side_by_side` is not set, or the
            pictures are not those of the logs.

    Example:

    >>> from rs_keras import CertificationLog
    >>> from rs_keras.report import report_page
    >>> log = CertificationLog(
    ...     idx=[0, 1], label=[7, 2], predict=[7, -1], radius=[0.6, 0.0],
    ...     correct=[True, False], time=[2.0, 2.0], name="gaussian")
    >>> "<title>gaussian</title>" in report_page([log])
    True
    """
    given = list(logs)
    logs = [log for log in given if not is_attack(log)]
    _check_names(given)
    _check(logs, side_by_side)
    if thumbnails is not None:
        for log in logs:
            thumbnails.check_labels(log)
    style, script = _asset("style.css"), _asset("script.js")
    parts = {
        "title": escape(title or ", ".join(log.name for log in logs)),
        "policy": escape(_policy(style, script)),
        "style": style,
        "script": script,
        "summary": escape(sections.summary(logs)),
        "table": sections.certified(logs, radii),
        "comparison": sections.comparison(logs),
        "attacks": robustness.section(given, radii),
        "outcomes": sections.outcomes(logs),
        "gallery_note": sections.gallery_note(logs, thumbnails, note),
        "settings": sections.settings(given),
        "guarantee": sections.guarantees(logs),
        "footer": f"Made with rs-keras {escape(rs_keras.__version__)}.",
        "data": _json(_data(logs, thumbnails)),
    }
    # In one pass: text that is filled in is not searched for placeholders.
    template = _asset("template.html")
    return _PLACEHOLDER.sub(lambda match: parts[match[1]], template)


def _check_names(logs: Sequence[CertificationLog]) -> None:
    names = [log.name for log in logs]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(
                f"`logs` must have different names. Received: {name!r} twice"
            )
    for log in logs:
        count_examples(log)


def _check(logs: Sequence[CertificationLog], side_by_side: bool) -> None:
    if not logs:
        raise ValueError(
            "`logs` must hold at least one log of certificates. Received: none"
        )
    if not side_by_side:
        try:
            check_comparable(logs)
        except ValueError as error:
            raise ValueError(
                f"{error}. To show them beside one another all the same, set "
                "side_by_side (--side-by-side)"
            ) from error


@cache
def _asset(name: str) -> str:
    return (_FOLDER / name).read_text(encoding="utf-8")


def _policy(style: str, script: str) -> str:
    """A security policy: only this style, this script and inline images."""
    return (
        "default-src 'none'; img-src data:; "
        f"style-src '{_hash(style)}'; script-src '{_hash(script)}'; "
        "base-uri 'none'; form-action 'none'"
    )


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode('ascii')}"


def _data(
    logs: Sequence[CertificationLog], thumbnails: Thumbnails | None
) -> Mapping[str, Any]:
    data: dict[str, Any] = {"logs": [_columns(log) for log in logs]}
    if thumbnails is not None:
        data["classes"] = thumbnails.class_names
        data["dimension"] = int(np.prod(thumbnails.image_shape))
        if len(thumbnails.idx):
            data["sheet"] = thumbnails.sheet()
    return data


def _columns(log: CertificationLog) -> Mapping[str, Any]:
    return {
        "name": log.name,
        "idx": log.idx.tolist(),
        "label": log.label.tolist(),
        "predict": log.predict.tolist(),
        "radius": millionths(log.radius).tolist(),
        "correct": log.correct.astype(int).tolist(),
    }


def millionths(radius: np.ndarray) -> np.ndarray:
    """Returns radii in millionths: exact for those with six decimals, else
    rounded down."""
    nearest = np.rint(radius * _UNIT)
    return (nearest - (nearest / _UNIT > radius)).astype(np.int64)


def _json(data: Mapping[str, Any]) -> str:
    """Returns JSON in which no text can close the surrounding element."""
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=True)
    return text.replace("<", "\\u003c").replace(">", "\\u003e")
