"""The file format of certification logs: lines, columns, settings.

`rs_keras.logs` says what the columns mean.
"""

import json
import os
import re
import tempfile
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from decimal import ROUND_FLOOR
from decimal import Decimal
from pathlib import Path
from typing import Any
from typing import NamedTuple

import numpy as np

from rs_keras.logs.hashes import CHECKSUM
from rs_keras.logs.hashes import EXAMPLE
from rs_keras.logs.hashes import line_checksum

COLUMNS = ("idx", "label", "predict", "radius", "correct", "time")

# To the three digits of the papers' logs, half of all radii would be rounded up
# to something that was never proved.
_RADIUS_STEP = Decimal("0.000001")

# Python's int() and float() also take "1_0", " 7" and other scripts' digits.
# What has 18 digits fits into an int64.
_WHOLE = re.compile(r"[0-9]{1,18}")
_CLASS = re.compile(rf"-1|{_WHOLE.pattern}")
_NUMBER = r"(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?"
_UNSIGNED = re.compile(_NUMBER)
_SIGNED = re.compile(rf"[+-]?(?:{_NUMBER}|nan|inf)", re.IGNORECASE)

# h:mm:ss, as str(timedelta) writes it.
_CLOCK = re.compile(
    r"(?:([0-9]+) days?, )?([0-9]+):([0-5][0-9]):([0-5][0-9](?:\.[0-9]+)?)"
)
_TIME = re.compile(f"{_NUMBER}|{_CLOCK.pattern}")


def parse(
    path: Path, recover: bool = False
) -> tuple[dict[str, np.ndarray], int]:
    """Reads the columns of a log.

    Args:
        path: The log.
        recover: Leaves out a last line that was cut off.

    Returns:
        The columns by name (those that are not in `COLUMNS` as float64 if all
        their values are numbers, else as strings), and how many bytes of the
        file they come from.

    Raises:
        ValueError: If it is no log, or a line does not agree with its checksum;
            names the line and what is wrong.
        OSError: If there is no such file.
    """
    data = path.read_bytes()
    whole = data.rfind(b"\n") + 1
    try:
        lines = data[:whole].decode().split("\n")[:-1]
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not a text file ({error.reason})") from error
    if whole < len(data) and not recover:
        raise ValueError(
            f"{path}, line {len(lines) + 1}: cut off, it does not end with a "
            f"line break. Received: {data[whole:][:80]!r}"
        )
    if not lines:
        if recover:
            return {}, 0
        raise ValueError(
            f"{path}, line 1: the header is missing, file is empty"
        )
    # As Windows ends lines.
    lines = [line.removesuffix("\r") for line in lines]
    header = _header(path, lines[0])
    rows = _rows(path, header, lines[1:])
    columns = {
        name: _array(path, name, [row[place] for row in rows])
        for place, name in enumerate(header)
    }
    return columns, whole


def _header(path: Path, line: str) -> list[str]:
    header = line.split("\t")
    missing = [name for name in COLUMNS if name not in header]
    if missing:
        raise ValueError(
            f"{path}, line 1: not a certification log. The header must name "
            f"the tab-separated columns {' '.join(COLUMNS)}; missing: "
            f"{' '.join(missing)}. Received: {line[:80]!r}"
        )
    if len(set(header)) < len(header):
        raise ValueError(
            f"{path}, line 1: a column is named twice. Received: {line[:80]!r}"
        )
    return header


def _rows(
    path: Path, header: Sequence[str], lines: Sequence[str]
) -> list[list[str]]:
    """Returns the values of each line, as many as columns, not altered."""
    rows = [line.split("\t") for line in lines]
    for number, row in enumerate(rows, 2):
        if len(row) != len(header):
            raise ValueError(
                f"{path}, line {number}: must have {len(header)} tab-separated "
                f"columns. Received: {lines[number - 2][:80]!r}"
            )
    if header[-1] != CHECKSUM:
        return rows
    checksum = line_checksum(header)
    for number, row in enumerate(rows, 2):
        if row[-1] != checksum(row):
            raise ValueError(
                f"{path}, line {number}: does not agree with its checksum: the "
                "line or the header was altered after it was written. Remove "
                "the line to certify the example again. Received: "
                f"{lines[number - 2][:80]!r}"
            )
    return rows


def _array(path: Path, name: str, texts: Sequence[str]) -> np.ndarray:
    """Returns a column: of the type that it has, or of numbers, or text."""
    if name not in _FORMS:
        return _numbers_or_text(name, texts)
    form = _FORMS[name]
    if not all(map(form.pattern.fullmatch, texts)):
        fits = form.pattern.fullmatch
        bad = next(i for i, text in enumerate(texts) if not fits(text))
        raise ValueError(
            f"{path}, line {bad + 2}: `{name}` must be {form.rule}. "
            f"Received: {texts[bad]!r}"
        )
    return np.array([*map(form.read, texts)], form.dtype)


def _numbers_or_text(name: str, texts: Sequence[str]) -> np.ndarray:
    # A hash of digits alone is no number.
    if name in (EXAMPLE, CHECKSUM) or not all(map(_SIGNED.fullmatch, texts)):
        return np.array(texts, str)
    return np.array([*map(float, texts)], np.float64)


def _seconds(text: str) -> float:
    clock = _CLOCK.fullmatch(text)
    if clock is None:
        return float(text)
    days, hours, minutes, seconds = clock.groups(default="0")
    return (
        (int(days) * 24 + int(hours)) * 3600
        + int(minutes) * 60
        + float(seconds)
    )


class _Form(NamedTuple):
    """How the values of a column are written."""

    pattern: re.Pattern[str]
    read: Callable[[str], Any]
    dtype: type
    rule: str


_FORMS = {
    "idx": _Form(_WHOLE, int, np.int64, "a whole number >= 0"),
    "label": _Form(_CLASS, int, np.int64, "a class number (-1: not known)"),
    "predict": _Form(_CLASS, int, np.int64, "a class number (-1: abstained)"),
    "radius": _Form(_UNSIGNED, float, np.float64, "a finite number >= 0"),
    "correct": _Form(re.compile("[01]"), "1".__eq__, bool, "0 or 1"),
    "time": _Form(_TIME, _seconds, np.float64, "seconds, or h:mm:ss"),
}


def check_fresh(path: Path, size: int, header: Sequence[str]) -> None:
    """Raises ValueError unless a log without rows may be begun at `path`.

    Args:
        path: An existing file.
        size: How many bytes of it are whole lines of a log: none, or a header.
        header: That of the log to be begun.
    """
    start = path.read_bytes()[size:]
    if not size and not line(header).startswith(start):
        raise ValueError(
            f"{path} is there already and is no certification log. Choose "
            f"another name. Received: {start[:80]!r}"
        )


def line(values: Sequence[Any]) -> bytes:
    """Returns one line of a log."""
    return ("\t".join(map(str, values)) + "\n").encode()


def rounded_down(radius: float) -> Decimal:
    """Returns a radius with the six decimals that a log has, never more.

    That is, what is read back as a float is never above `radius`; 0.3, which no
    float is exactly, stays 0.3.
    """
    return Decimal(repr(float(radius))).quantize(_RADIUS_STEP, ROUND_FLOOR)


def settings_path(path: str | os.PathLike[str]) -> Path:
    """Returns where the settings of a log lie: beside it, `<path>.json`."""
    return Path(f"{os.fspath(path)}.json")


def read_settings(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Returns the settings beside the log `path`; empty if there are none.

    Raises:
        ValueError: If the file beside it is not what `write_settings` writes.

    Example:

    >>> from rs_keras.logs import LogWriter
    >>> from rs_keras.logs import read_settings
    >>> LogWriter("mnist.tsv", {"sigma": 0.5, "n": 1000}).close()
    >>> read_settings("mnist.tsv")
    {'sigma': 0.5, 'n': 1000}
    """
    beside = settings_path(path)
    if not beside.is_file():
        return {}
    try:
        settings = json.loads(beside.read_bytes())
    except ValueError as error:
        raise ValueError(f"{beside}: not a JSON file ({error})") from error
    if not isinstance(settings, dict):
        raise ValueError(f"{beside}: must hold a JSON object of settings")
    return settings


def write_settings(
    path: str | os.PathLike[str], settings: Mapping[str, Any]
) -> None:
    """Writes the settings beside the log `path`, whole or not at all."""
    beside = settings_path(path)
    handle, temporary = tempfile.mkstemp(
        dir=beside.parent, prefix=f".{beside.name}."
    )
    try:
        with os.fdopen(handle, "w") as file:
            json.dump(settings, file, indent=2)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())
        # mkstemp lets nobody else read; a log's settings are no secret.
        os.chmod(temporary, 0o644)
        os.replace(temporary, beside)
    except BaseException:
        os.unlink(temporary)
        raise


def json_values(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Returns `settings` as they will be read back from JSON.

    Raises:
        ValueError: If a value is no JSON value, or is not finite.
    """
    try:
        text = json.dumps(dict(settings), default=_plain, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"`settings` must hold JSON values only ({error}). "
            f"Received: {dict(settings)!r}"
        ) from error
    return json.loads(text)


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    raise TypeError(f"a {type(value).__name__} is none")


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """Returns the settings that differ, in words; empty if none does."""
    absent = object()
    return "; ".join(
        f"{key}: {_shown(old, key)} there, {_shown(new, key)} now"
        for key in sorted({*old, *new})
        if old.get(key, absent) != new.get(key, absent)
    )


def _shown(settings: Mapping[str, Any], key: str) -> str:
    return json.dumps(settings[key]) if key in settings else "not set"
