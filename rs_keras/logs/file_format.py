"""The file format of certification logs: columns, checksums, settings.

`rs_keras.logs` says what the columns mean.
"""

import json
import os
import re
import zlib
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from decimal import ROUND_FLOOR
from decimal import Decimal
from pathlib import Path
from typing import Any
from typing import NamedTuple

import numpy as np

from rs_keras._atomic_files import written_whole

COLUMNS = ("idx", "label", "predict", "radius", "correct", "time")

# The column of the examples' hashes, and the last column, of line checksums.
EXAMPLE = "example"
CHECKSUM = "checksum"

# The setting that holds the hash of example 0 of the data set: the same in all
# shards, and in no log without these columns.
FIRST = "first_example"

# With the three digits of the papers' logs, half of all radii would be rounded
# up to a value that was not certified.
_RADIUS_STEP = Decimal("0.000001")

# Stricter than int() and float(), which accept "1_0", " 7" and digits of other
# scripts. A number of 18 digits fits into an int64.
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
        recover: Drop a last line that was cut off.

    Returns:
        The columns by name (those that are not in `COLUMNS` as float64 if all
        their values are numbers, else as strings), and the number of bytes
        read.

    Raises:
        ValueError: If it is not a log, or a line does not agree with its
            checksum; names the line and the rule.
        OSError: If the file does not exist.
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
    # Line ends of Windows.
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
    """Splits the lines, and checks their lengths and checksums."""
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
    """Returns a column in its own type; another as numbers or text."""
    if name not in _FORMATS:
        return _numbers_or_text(name, texts)
    column = _FORMATS[name]
    for number, text in enumerate(texts, 2):
        if not column.pattern.fullmatch(text):
            raise ValueError(
                f"{path}, line {number}: `{name}` must be {column.rule}. "
                f"Received: {text!r}"
            )
    return np.array([*map(column.read, texts)], column.dtype)


def _numbers_or_text(name: str, texts: Sequence[str]) -> np.ndarray:
    # A hash that consists of digits is not a number.
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


class _Format(NamedTuple):
    """The text format of a column."""

    pattern: re.Pattern[str]
    read: Callable[[str], Any]
    dtype: type
    rule: str


_FORMATS = {
    "idx": _Format(_WHOLE, int, np.int64, "a whole number >= 0"),
    "label": _Format(_CLASS, int, np.int64, "a class number (-1: not known)"),
    "predict": _Format(_CLASS, int, np.int64, "a class number (-1: abstained)"),
    "radius": _Format(_UNSIGNED, float, np.float64, "a finite number >= 0"),
    "correct": _Format(re.compile("[01]"), "1".__eq__, bool, "0 or 1"),
    "time": _Format(_TIME, _seconds, np.float64, "seconds, or h:mm:ss"),
}


def line_checksum(header: Sequence[str]) -> Callable[[Sequence[str]], str]:
    """Returns the function from the values of a line to its checksum.

    CRC-32 (8 hexadecimal digits) of the header line, a line break, and the
    line's values but `time` and `checksum`, joined with tabs. It detects every
    burst error of up to 32 bits, in the line or in the header; it is not a
    signature.

    Args:
        header: The names of the columns; the last is `checksum`.

    Example:

    >>> from rs_keras.logs.file_format import line_checksum
    >>> checksum = line_checksum(["idx", "radius", "time", "checksum"])
    >>> checksum(["0", "0.5", "2.0"]), checksum(["0", "0.5", "3.0", "ignored"])
    ('7afd6944', '7afd6944')
    """
    start = zlib.crc32(("\t".join(header) + "\n").encode())
    time, last = header.index("time"), len(header) - 1

    def checksum(values: Sequence[str]) -> str:
        covered = "\t".join((*values[:time], *values[time + 1 : last]))
        return f"{zlib.crc32(covered.encode(), start):08x}"

    return checksum


def begun_header(path: str | os.PathLike[str]) -> list[str] | None:
    """Returns the columns of a log that holds at least one row; else None.

    Args:
        path: A log, or where there will be one.

    Example:

    >>> from rs_keras.logs.file_format import begun_header
    >>> print(begun_header("no-such-log.tsv"))
    None
    """
    if not os.path.isfile(path):
        return None
    with open(path, "rb") as file:
        header, row = file.readline(), file.readline()
    if not row.endswith(b"\n"):
        return None
    return header.decode(errors="replace").rstrip("\r\n").split("\t")


def check_fresh(path: Path, size: int, header: Sequence[str]) -> None:
    """Raises ValueError unless a new log may be written to `path`.

    Args:
        path: An existing file.
        size: Number of its bytes that are lines of a log: 0, or a header.
        header: Of the new log.
    """
    start = path.read_bytes()[size:]
    if not size and not line(header).startswith(start):
        raise ValueError(
            f"{path} exists and is not a certification log. Choose "
            f"another name. Received: {start[:80]!r}"
        )


def line(values: Sequence[Any]) -> bytes:
    """Returns one line of a log."""
    return ("\t".join(map(str, values)) + "\n").encode()


def rounded_down(radius: float) -> Decimal:
    """Returns a radius with the six decimals that a log has, never more.

    The number that is read back is never above `radius`; 0.3, which is not
    exactly a float, stays 0.3.
    """
    return Decimal(repr(float(radius))).quantize(_RADIUS_STEP, ROUND_FLOOR)


def settings_path(path: str | os.PathLike[str]) -> Path:
    """Returns the path of a log's settings: `<path>.json`."""
    return Path(f"{os.fspath(path)}.json")


def read_settings(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Returns the settings beside the log `path`; empty if there are none.

    Raises:
        ValueError: If the file is not one that `write_settings` wrote.

    Example:

    >>> from rs_keras.logs import LogWriter
    >>> from rs_keras.logs import read_settings
    >>> LogWriter("mnist.tsv", {"sigma": 0.5, "n": 1000}).close()
    >>> read_settings("mnist.tsv")
    {'sigma': 0.5, 'n': 1000}
    """
    settings_file = settings_path(path)
    if not settings_file.is_file():
        return {}
    try:
        settings = json.loads(settings_file.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ValueError(
            f"{settings_file}: not a JSON file ({error})"
        ) from error
    if not isinstance(settings, dict):
        raise ValueError(
            f"{settings_file}: must hold a JSON object of settings"
        )
    for kind, (names, is_of) in _KINDS.items():
        for name in names.split():
            value = settings.get(name)
            if value is not None and not is_of(value):
                raise ValueError(
                    f"{settings_file}: `{name}` must be {kind}. "
                    f"Received: {name}={value!r}"
                )
    return settings


def _is_number(value: Any) -> bool:
    is_real = isinstance(value, int | float) and not isinstance(value, bool)
    # Not `isfinite`, which fails on the largest whole numbers of JSON.
    return is_real and abs(value) < 1e300


def _are_numbers(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_number, value))


# What is written here under these names, and read without another look.
_KINDS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "a text": (
        "dataset bound noise dtype scope norm attack",
        lambda value: isinstance(value, str),
    ),
    "a number": ("sigma alpha max_radius", _is_number),
    "a whole number": (
        "n n0 skip",
        lambda value: type(value) is int and abs(value) < 2**63,
    ),
    "a list of numbers": (
        "radii attack_radii expert_sigmas shard",
        _are_numbers,
    ),
}


def write_settings(
    path: str | os.PathLike[str], settings: Mapping[str, Any]
) -> None:
    """Writes the settings beside the log `path`, atomically."""
    with written_whole(settings_path(path)) as temporary:
        temporary.write_text(json.dumps(settings, indent=2) + "\n")


def json_values(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Returns `settings` as they are read back from JSON.

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
    raise TypeError(f"not a setting: {type(value).__name__}")


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """Describes the settings that differ; empty if none does."""

    def shown(settings: Mapping[str, Any], key: str) -> str:
        return json.dumps(settings[key]) if key in settings else "not set"

    absent = object()
    return "; ".join(
        f"{key}: stored {shown(old, key)}, given {shown(new, key)}"
        for key in sorted({*old, *new})
        if old.get(key, absent) != new.get(key, absent)
    )


def first_few(numbers: np.ndarray) -> str:
    """Returns the first five numbers as text, and how many there are."""
    if not len(numbers):
        return "none"
    shown = ", ".join(map(str, numbers[:5].tolist()))
    return shown + (f", ... ({len(numbers)})" if len(numbers) > 5 else "")
