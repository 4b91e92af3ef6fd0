"""The file format of certification logs: lines, columns, settings.

`rs_keras.log` says what the columns mean.
"""

import json
import math
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

import numpy as np

COLUMNS = ("idx", "label", "predict", "radius", "correct", "time")

# To the three digits of the papers' logs, half of all radii would be rounded up
# to something that was never proved.
_RADIUS_STEP = Decimal("0.000001")

# h:mm:ss, as str(timedelta) writes it.
_CLOCK = re.compile(r"(?:(\d+) days?, )?(\d+):([0-5]\d):([0-5]\d(?:\.\d+)?)")


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
        ValueError: If it is no log; names the line and what is wrong.
        OSError: If there is no such file.
    """
    data = path.read_bytes()
    whole = data.rfind(b"\n") + 1
    try:
        lines = data[:whole].decode().splitlines()
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
    header = _header(path, lines[0])
    rows = [
        _row(f"{path}, line {number}", header, line)
        for number, line in enumerate(lines[1:], 2)
    ]
    _check_unique(path, [row["idx"] for row in rows])
    columns = {name: [row[name] for row in rows] for name in header}
    return {name: _array(name, columns[name]) for name in header}, whole


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


def _row(where: str, header: Sequence[str], line: str) -> dict[str, Any]:
    texts = line.split("\t")
    if len(texts) != len(header):
        raise ValueError(
            f"{where}: must have {len(header)} tab-separated columns. "
            f"Received: {line[:80]!r}"
        )
    row: dict[str, Any] = dict(zip(header, texts, strict=True))
    for name, (reader, rule) in _READERS.items():
        try:
            row[name] = reader(row[name])
        except ValueError as error:
            raise ValueError(
                f"{where}: `{name}` must be {rule}. Received: {row[name]!r}"
            ) from error
    if row["correct"] and row["predict"] != row["label"]:
        raise ValueError(
            f"{where}: `correct` must be 0 unless `predict` is `label`. "
            f"Received: {line[:80]!r}"
        )
    return row


def _whole_number(text: str) -> int:
    number = int(text)
    if number < -1:
        raise ValueError
    return number


def _index(text: str) -> int:
    number = int(text)
    if number < 0:
        raise ValueError
    return number


def _not_negative(text: str) -> float:
    number = float(text)
    if not (math.isfinite(number) and number >= 0):
        raise ValueError
    return number


def _seconds(text: str) -> float:
    clock = _CLOCK.fullmatch(text)
    if clock is None:
        return _not_negative(text)
    days, hours, minutes, seconds = clock.groups(default="0")
    return (
        (int(days) * 24 + int(hours)) * 3600
        + int(minutes) * 60
        + float(seconds)
    )


def _zero_or_one(text: str) -> bool:
    if text not in ("0", "1"):
        raise ValueError
    return text == "1"


_READERS: dict[str, tuple[Callable[[str], Any], str]] = {
    "idx": (_index, "a whole number >= 0"),
    "label": (_whole_number, "a class number (-1: not known)"),
    "predict": (_whole_number, "a class number (-1: abstained)"),
    "radius": (_not_negative, "a finite number >= 0"),
    "correct": (_zero_or_one, "0 or 1"),
    "time": (_seconds, "seconds, or h:mm:ss"),
}


def _check_unique(path: Path, idx: Sequence[int]) -> None:
    first: dict[int, int] = {}
    for line, number in enumerate(idx, 2):
        if first.setdefault(number, line) != line:
            raise ValueError(
                f"{path}, line {line}: example {number} was in line "
                f"{first[number]} already"
            )


def _array(name: str, values: Sequence[Any]) -> np.ndarray:
    if name in COLUMNS:
        return np.array(values)
    try:
        return np.array([float(value) for value in values])
    except ValueError:
        return np.array(values, str)


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

    >>> from rs_keras.log import LogWriter
    >>> from rs_keras.log import read_settings
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
