"""Writers of certification logs: row by row, or merged from shards."""

import math
import os
from collections.abc import Mapping
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from rs_keras._atomic_files import written_whole
from rs_keras._checks import check_count
from rs_keras._locks import lock
from rs_keras.certification.certificate import ABSTAIN
from rs_keras.logs import file_format
from rs_keras.logs import rules
from rs_keras.logs.file_format import CHECKSUM
from rs_keras.logs.file_format import line_checksum
from rs_keras.logs.file_format import read_settings
from rs_keras.logs.log import CertificationLog
from rs_keras.logs.rules import RowError


class LogWriter:
    """Appends rows to a log, one flushed line per example; resumes a log.

    A process that is killed loses at most the example it is working on.

    Args:
        path: The log; its folder is made if needed. An existing log is resumed:
            a last line that was cut off is dropped.
        settings: The settings of the certifier; JSON values. They are written
            beside the log.
        extra: Names of further columns.
        checksum: Whether each line ends with a checksum: see
            `rs_keras.logs.file_format`.

    Attributes:
        done: set of int, the numbers of the examples in the log.
        previous: The `CertificationLog` as it was found, possibly empty.

    Raises:
        ValueError: If there is a log of other settings (names each one that
            differs) or without settings, a file that is not a log, or a log
            with an altered line.
        OSError: If the file cannot be written, or another process writes it.

    Example:

    >>> import tempfile
    >>> from rs_keras import CertificationLog
    >>> from rs_keras.logs import LogWriter
    >>> path = tempfile.mkdtemp() + "/log.tsv"
    >>> with LogWriter(path, {"sigma": 0.5, "n": 1000}) as writer:
    ...     writer.write(0, label=7, predict=7, radius=1.23456789, time=2.0)
    >>> with LogWriter(path, {"sigma": 0.5, "n": 1000}) as writer:
    ...     print(writer.done)
    {0}
    >>> CertificationLog.read(path).radius
    array([1.234567])
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        settings: Mapping[str, Any],
        extra: Sequence[str] = (),
        checksum: bool = False,
    ) -> None:
        self.path = Path(path)
        self.settings = file_format.json_values(settings)
        self._extra = tuple(extra)
        self._header = [*file_format.COLUMNS, *self._extra]
        if checksum:
            self._header.append(CHECKSUM)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file = open(self.path, "ab")
        try:
            # Two writers would both append the same examples.
            lock(self._file.fileno(), self.path)
            self._resume()
        except BaseException:
            self._file.close()
            raise
        self.done = set(self.previous.idx.tolist())

    def _resume(self) -> None:
        columns, size = file_format.parse(self.path, recover=True)
        if columns and len(columns["idx"]):
            self._check_same(list(columns))
        else:
            file_format.check_fresh(self.path, size, self._header)
            columns, size = {}, 0
        self.previous = CertificationLog.from_columns(
            self.path, columns, self.settings
        )
        # The settings before the header: a log without settings is refused.
        file_format.write_settings(self.path, self.settings)
        self._file.truncate(size)
        if not size:
            self._append(self._header)

    def _check_same(self, header: Sequence[str]) -> None:
        old = read_settings(self.path)
        if not old:
            raise ValueError(
                f"{self.path} exists, and there are no settings beside it "
                f"({file_format.settings_path(self.path)}): it cannot be "
                "continued. Choose another name"
            )
        differing = file_format.differences(old, self.settings)
        if differing:
            raise ValueError(
                f"{self.path} was made under other settings and cannot be "
                "continued; choose another name, or the same settings. "
                f"Differing: {differing}"
            )
        if header != self._header:
            raise ValueError(
                f"{self.path} has other columns and cannot be continued: "
                f"stored {' '.join(header)}, given {' '.join(self._header)}"
            )

    def write(
        self,
        idx: int,
        label: int,
        predict: int,
        radius: float,
        time: float,
        **extra: Any,
    ) -> None:
        """Appends one example; `correct` is whether `predict` is `label`.

        Args:
            idx: Number of the example; not one that is in the log.
            label: The true label.
            predict: The certified label, or -1.
            radius: >= 0 and finite; written rounded down to six decimals.
            time: Seconds.
            **extra: The values of the further columns.

        Raises:
            ValueError: If a value is out of its range or breaks a rule of
                `CertificationLog`, `idx` was written before, or the columns are
                not those of the log.
        """
        idx = check_count("idx", idx, 0)
        label = check_count("label", label, -1)
        predict = check_count("predict", predict, -1)
        if idx in self.done:
            raise ValueError(f"`idx` must be new to the log. Received: {idx}")
        if not (math.isfinite(radius) and radius >= 0):
            raise ValueError(
                f"`radius` must be >= 0 and finite. Received: radius={radius!r}"
            )
        if set(extra) != set(self._extra):
            raise ValueError(
                f"`extra` must name the columns {list(self._extra)}. "
                f"Received: {list(extra)}"
            )
        correct = int(predict == label and predict != ABSTAIN)
        floor = file_format.rounded_down(radius)
        own: list[Any] = [idx, label, predict, float(floor), correct, time]
        self._check_row(own, extra)
        own[3:] = floor, correct, f"{time:.6f}"
        values = [str(value) for value in own]
        values += [str(extra[name]) for name in self._extra]
        if self._header[-1] == CHECKSUM:
            values.append(line_checksum(self._header)(values))
        self._append(values)
        self.done.add(idx)

    def close(self) -> None:
        """Closes the file.

        Example:

        >>> from rs_keras.logs import LogWriter
        >>> writer = LogWriter("log.tsv", {"sigma": 0.5})
        >>> writer.close()
        >>> with LogWriter("log.tsv", {"sigma": 0.5}) as writer:  # or so
        ...     len(writer.done)
        0
        """
        self._file.close()

    def __enter__(self) -> "LogWriter":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _check_row(self, own: Sequence[Any], extra: Mapping[str, Any]) -> None:
        """Raises ValueError for a row that could not be read back."""
        columns = {
            name: np.array([value])
            for name, value in zip(file_format.COLUMNS, own, strict=True)
        }
        further = {name: [value] for name, value in extra.items()}
        try:
            rules.checked(columns, self.settings, further)
        except RowError as error:
            raise ValueError(error.rule) from error

    def _append(self, values: Sequence[str]) -> None:
        self._file.write(file_format.line(values))
        self._file.flush()


def merge_files(
    paths: Sequence[str | Path], out: str | Path, examples: int | None = None
) -> CertificationLog:
    """Merges log files of shards into one, without changing their lines.

    Args:
        paths: Of the shards.
        out: The log; not there yet.
        examples: See `CertificationLog.merge`.

    Returns:
        The log.

    Raises:
        ValueError: See `CertificationLog.merge`.
        FileExistsError: If `out` exists.
        OSError: If a file cannot be read or written.
    """
    out = Path(out)
    if out.exists():
        raise FileExistsError(f"{out} exists: choose another name")
    log = CertificationLog.merge(
        [CertificationLog.read(path) for path in paths], out.stem, examples
    )
    files = [Path(path).read_bytes().splitlines(True) for path in paths]
    column = files[0][0].split(b"\t").index(b"idx")
    lines = [line for lines in files for line in lines[1:]]
    lines.sort(key=lambda line: int(line.split(b"\t")[column]))
    # The settings first: a log without settings cannot be resumed.
    out.parent.mkdir(parents=True, exist_ok=True)
    file_format.write_settings(out, log.settings)
    with written_whole(out) as temporary:
        temporary.write_bytes(files[0][0] + b"".join(lines))
    return log
