"""Certification logs, in the text format that the field shares.

A log has one line per example with the tab-separated columns `idx label predict
radius correct time`, under a header line; further columns are kept. Beside
`log.tsv`, `log.tsv.json` holds the settings of the certifier. The logs that
were published with the papers can be read; they have no settings.
"""

import html
import os
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import field
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import scipy.special

from rs_keras._checks import check_probability
from rs_keras._rows import SHOWN
from rs_keras._rows import Rows
from rs_keras._rows import data_frame
from rs_keras._rows import shortened
from rs_keras.certification.certificate import ABSTAIN
from rs_keras.logs import file_format
from rs_keras.logs import rules
from rs_keras.logs.file_format import CHECKSUM
from rs_keras.logs.file_format import FIRST
from rs_keras.logs.file_format import read_settings
from rs_keras.logs.rules import RowError
from rs_keras.logs.shards import joined


@dataclass(frozen=True)
class CertificationLog(Rows):
    """Certificates of the examples of a data set.

    It has a length, and `log[0]`, a slice, a mask and a loop give logs of some
    of its examples. Notebooks show it as a table.

    Attributes:
        idx: int64 [m], numbers of the examples in the data set.
        label: int64 [m], true labels.
        predict: int64 [m], certified labels; -1 where the certifier abstained.
        radius: float64 [m], certified L2 radii.
        correct: bool [m], whether `predict` is `label`.
        time: float64 [m], seconds.
        name: Its name in tables and plots.
        settings: Of the certifier (sigma, n0, n, alpha, bound, ...); empty if
            they are not known.
        extra: Further columns: float64 [m] if all are numbers, else strings.

    Raises:
        ValueError: If a column has a wrong type or length, or a row breaks a
            rule (names both): numbers are finite and not negative, no `idx`
            is repeated, `correct` is 1 where `predict` is `label` and not -1.
            If the settings are known: each `idx` is a multiple of `skip`, no
            radius is above what `n` draws can certify, and those of a decision
            are 0 or among its `radii`.

    Example:

    >>> from rs_keras import CertificationLog
    >>> log = CertificationLog(
    ...     idx=[0, 1, 2, 3],
    ...     label=[7, 2, 1, 0],
    ...     predict=[7, 2, 8, -1],
    ...     radius=[1.5, 0.5, 0.75, 0.0],
    ...     correct=[True, True, False, False],
    ...     time=[2.0, 2.0, 2.0, 2.0],
    ... )
    >>> log.acr(), log.certified_accuracy([0.0, 1.0]), log.abstention_rate()
    (0.5, array([0.5 , 0.25]), 0.25)
    >>> log.accuracy, len(log)
    (0.5, 4)
    >>> log
    CertificationLog 'log' of 4 examples, ACR 0.500, 25.0% abstained
    >>> log[log.correct].radius, [int(one.predict[0]) for one in log[2:]]
    (array([1.5, 0.5]), [8, -1])
    """

    idx: np.ndarray
    label: np.ndarray
    predict: np.ndarray
    radius: np.ndarray
    correct: np.ndarray
    time: np.ndarray
    name: str = "log"
    settings: Mapping[str, Any] = field(default_factory=dict)
    extra: Mapping[str, np.ndarray] = field(default_factory=dict)

    def __post_init__(self) -> None:
        given = {name: getattr(self, name) for name in file_format.COLUMNS}
        checked = rules.checked(given, self.settings, self.extra)
        for column, values in checked.items():
            object.__setattr__(self, column, values)

    @classmethod
    def read(
        cls, path: str | os.PathLike[str], recover: bool = False
    ) -> "CertificationLog":
        """Reads a log, with the settings beside it, if there are any.

        Args:
            path: The log, as written by `LogWriter` or published by others
                (time in seconds or as h:mm:ss).
            recover: Drop a last line that was cut off, which is an error
                otherwise: a truncated number looks like any other.

        Raises:
            ValueError: If it is not such a log, a line does not agree with its
                checksum, or a row breaks a rule of `CertificationLog`; names
                the line and what is wrong.
            OSError: If the file does not exist.

        Example:

        >>> from rs_keras import CertificationLog
        >>> from rs_keras.logs import LogWriter
        >>> with LogWriter("mnist.tsv", {"sigma": 0.5}) as writer:
        ...     writer.write(0, label=7, predict=7, radius=0.75, time=2.0)
        >>> log = CertificationLog.read("mnist.tsv")
        >>> log.name, log.settings["sigma"], log.radius
        ('mnist', 0.5, array([0.75]))
        """
        path = Path(path)
        columns, _ = file_format.parse(path, recover)
        return cls.from_columns(path, columns, read_settings(path))

    @classmethod
    def from_columns(
        cls,
        path: Path,
        columns: Mapping[str, np.ndarray],
        settings: Mapping[str, Any],
    ) -> "CertificationLog":
        """Returns the log of the columns of a file.

        Args:
            path: Of the file; errors name it, and the log gets its name.
            columns: Arrays by name, of one length.
            settings: What is beside the file.

        Raises:
            ValueError: If a row breaks a rule; names the line.

        Example:

        >>> from pathlib import Path
        >>> import numpy as np
        >>> from rs_keras import CertificationLog
        >>> from rs_keras.logs import file_format
        >>> values = dict.fromkeys(file_format.COLUMNS, np.array([1]))
        >>> path = Path("logs/mnist.tsv")
        >>> log = CertificationLog.from_columns(path, values, {"sigma": 0.5})
        >>> log.name, log.radius
        ('mnist', array([1.]))
        """
        if columns and FIRST in settings and CHECKSUM not in columns:
            raise ValueError(
                f"{path}, line 1: must name the column {CHECKSUM}, as the "
                "settings beside it tell: the header was altered. Received: "
                f"{' '.join(columns)!r}"
            )
        extra = {k: v for k, v in columns.items() if k != CHECKSUM}
        nothing = np.zeros(0)
        own = {name: extra.pop(name, nothing) for name in file_format.COLUMNS}
        name = path.name.removesuffix(".tsv")
        try:
            return cls(**own, name=name, settings=settings, extra=extra)
        except RowError as error:
            # After the header, and counted from 1.
            where = f"{path}, line {error.row + 2}"
            raise ValueError(f"{where}: {error.rule}") from error

    @staticmethod
    def envelope(
        logs: Iterable["CertificationLog"], name: str = "envelope"
    ) -> "Envelope":
        """Returns the upper envelope of several logs' curves.

        As the papers plot it over sigma: at each radius, the certified accuracy
        of the best log at this radius. It is not the curve of one classifier.

        Example:

        >>> from rs_keras import CertificationLog
        >>> def log(radius, correct):
        ...     ones = [1, 1]
        ...     return CertificationLog(
        ...         [0, 1], ones, correct, radius, correct, ones)
        >>> small, large = log([0.5, 0.5], [1, 1]), log([1.5, 0.0], [1, 0])
        >>> best = CertificationLog.envelope([small, large], name="best sigma")
        >>> best.certified_accuracy([0.25, 1.0])
        array([1. , 0.5])
        """
        return Envelope(tuple(logs), name)

    @classmethod
    def merge(
        cls,
        logs: Iterable["CertificationLog"],
        name: str = "merged",
        examples: int | None = None,
    ) -> "CertificationLog":
        """Merges the shards that several workers wrote into one log.

        Args:
            logs: As written by `certify_dataset(..., shard=(i, m))`, all m.
            name: Of the merged log.
            examples: The expected number of examples; None if it is not known:
                examples missing at the very end are then not noticed.

        Returns:
            The examples of all, in their order.

        Raises:
            ValueError: If a shard is missing or repeated, the settings or
                example 0 of the data set differ, or the examples overlap or
                have gaps.

        Example:

        >>> from rs_keras import CertificationLog
        >>> def shard(i):
        ...     settings = {"seed": 7, "skip": 1, "shard": [i, 2]}
        ...     return CertificationLog([i, i + 2], [0, 0], [0, 0], [0.5, 0.25],
        ...                             [1, 1], [1.0, 1.0], settings=settings)
        >>> log = CertificationLog.merge([shard(1), shard(0)], examples=4)
        >>> log.idx
        array([0, 1, 2, 3])
        """
        shards = list(logs)
        columns, extra, settings = joined(shards, examples)
        return cls(**columns, name=name, settings=settings, extra=extra)

    def __len__(self) -> int:
        return len(self.idx)

    def _take(self, rows: np.ndarray) -> "CertificationLog":
        columns = {n: getattr(self, n)[rows] for n in file_format.COLUMNS}
        extra = {n: np.asarray(v)[rows] for n, v in self.extra.items()}
        return replace(self, **columns, extra=extra)

    def _summary(self) -> str:
        """Says in a line what the log holds."""
        text = f"{self.name!r} of {len(self)} examples"
        if not len(self):
            return text
        mark = "" if self.scope == "fixed_sigma" else f" ({self.scope})"
        acr = self.acr(per_input_sigma=True)
        mean = "mean norm" if self.scope == rules.ATTACK else "ACR"
        return (
            f"{text}, {mean} {acr:.3f}{mark}, {self.abstention_rate():.1%} "
            "abstained"
        )

    def __repr__(self) -> str:
        return f"CertificationLog {self._summary()}"

    def _repr_html_(self) -> str:
        """Returns the summary and the first rows, for notebooks."""
        names = ("idx", "label", "predict", "radius", "correct")
        columns = [getattr(self, name)[:SHOWN].tolist() for name in names]
        rows = zip(*columns, strict=True)
        head = "".join(f"<th>{name}</th>" for name in names)
        body = "".join(
            f"<tr>{''.join(f'<td>{value}</td>' for value in row)}</tr>"
            for row in rows
        )
        left = html.escape(shortened(len(self), "examples").strip())
        return (
            f"<p>{html.escape(self._summary())}</p><table><thead><tr>{head}"
            f"</tr></thead><tbody>{body}</tbody></table><p>{left}</p>"
        )

    def to_pandas(self) -> Any:
        """Returns a `pandas.DataFrame` with a row an example.

        Its columns are those of the file; its `attrs` are the settings.

        Raises:
            ImportError: If pandas is not installed.

        Example:

        >>> from rs_keras import CertificationLog
        >>> log = CertificationLog([0], [1], [1], [0.5], [1], [2.0])
        >>> list(log.to_pandas())
        ['idx', 'label', 'predict', 'radius', 'correct', 'time']
        """
        own = {name: getattr(self, name) for name in file_format.COLUMNS}
        return data_frame({**own, **self.extra}, self.settings)

    @property
    def accuracy(self) -> float:
        """The share of examples certified correctly, at any radius."""
        return float(self.correct.sum() / count_examples(self))

    @property
    def bound_form(self) -> str | None:
        """The confidence bound behind the radii; None if it is not known.

        Example:

        >>> from rs_keras import CertificationLog
        >>> settings = {"bound": "clopper_pearson", "runner_up": True}
        >>> log = CertificationLog([0], [1], [1], [0.5], [1], [1.0],
        ...                        settings=settings)
        >>> log.bound_form
        'clopper_pearson, runner-up'
        """
        bound = self.settings.get("bound")
        if self.scope == rules.ATTACK:
            return f"none: attack, {self.settings.get('attack')}"
        if bound and self.scope == "per_input_sigma":
            return f"{bound}, per-input sigma"
        if bound == "clopper_pearson" and self.settings.get("runner_up"):
            return "clopper_pearson, runner-up"
        return bound

    @property
    def scope(self) -> str:
        """The kind of sigma behind the radii: see `rs_keras.per_input_sigma`.

        "fixed_sigma"; "per_input_sigma", if the settings say so or a column
        `sigma` varies; "composition"; or "attack", whose radii are not
        certified (`rs_keras.attacks.attack_dataset`).

        Example:

        >>> from rs_keras import CertificationLog
        >>> ones = [1, 1]
        >>> log = CertificationLog([0, 1], ones, ones, [0.5, 0.5], ones, ones,
        ...                        extra={"sigma": [0.25, 0.5]})
        >>> log.scope
        'per_input_sigma'
        """
        sigmas = self.extra.get("sigma", ())
        varies = len(np.unique(sigmas)) > 1
        default = "per_input_sigma" if varies else "fixed_sigma"
        return str(self.settings.get("scope", default))

    def acr(self, per_input_sigma: bool = False) -> float:
        """The average certified radius: mean(correct * radius).

        Args:
            per_input_sigma: Whether to average radii at a sigma chosen for
                each image. It is not the average of one classifier.

        Raises:
            ValueError: If there are such radii and it is False.
        """
        self.check_averaged(per_input_sigma)
        return float((self.correct * self.radius).sum() / count_examples(self))

    def check_averaged(self, per_input_sigma: bool) -> None:
        """Raises ValueError where `acr` of these arguments would.

        Example:

        >>> from rs_keras import CertificationLog
        >>> ones = [1, 1]
        >>> log = CertificationLog([0, 1], ones, ones, [0.5, 0.5], ones, ones,
        ...                        extra={"sigma": [0.25, 0.5]})
        >>> log.check_averaged(per_input_sigma=True)
        >>> log.check_averaged(per_input_sigma=False)
        Traceback (most recent call last):
        ValueError: `per_input_sigma` must be True for the ACR of log: ...
        """
        if self.scope == "per_input_sigma" and not per_input_sigma:
            raise ValueError(
                f"`per_input_sigma` must be True for the ACR of {self.name}: "
                "its radii are of a different smoothed classifier for each "
                "image. Received: per_input_sigma=False"
            )

    def abstention_rate(self) -> float:
        """The share of examples on which the certifier abstained."""
        return float((self.predict == ABSTAIN).sum() / count_examples(self))

    def certified_accuracy(
        self,
        radii: Sequence[float] | np.ndarray | float,
        rho: float | None = None,
        alpha: float | None = None,
    ) -> np.ndarray:
        """The share of all examples that are correct with radius >= r.

        Each certificate holds with probability 1 - alpha, so up to about alpha
        of this share may be wrong. With `rho`, the result is a lower bound on
        the smoothed classifier's certified accuracy on these m examples that
        holds with probability 1 - rho, for all radii at once:

            share - k / m,  k the least with P[Binomial(m, alpha) > k] <= rho

        because at most k certificates are false, if they are independent: each
        with its own noise. (Cohen et al. bound the same number with
        Bernstein's inequality, which gives a larger k.)

        Args:
            radii: Radii r, >= 0.
            rho: Probability that the bound fails, in (0, 1); None for the plain
                share.
            alpha: Error probability of a certificate, in (0, 1); by default,
                the log's own.

        Returns:
            float64, the shape of `radii`.

        Raises:
            ValueError: If an argument is out of its range, or `alpha` is needed
                and not known, or the log holds no example.

        References:
        - [Cohen et al., 2019](https://arxiv.org/abs/1902.02918), appendix
        """
        radii = np.asarray(radii, np.float64)
        if not (np.isfinite(radii) & (radii >= 0)).all():
            raise ValueError(
                f"`radii` must be >= 0 and finite. Received: radii={radii}"
            )
        reached = np.sort(self.radius[self.correct])
        below = np.searchsorted(reached, radii, side="left")
        share = (len(reached) - below) / count_examples(self)
        if rho is None:
            return share
        return np.maximum(share - self._most_false(rho, alpha) / len(self), 0)

    def _most_false(self, rho: float, alpha: float | None) -> int:
        """Returns k: more certificates are false with probability <= rho."""
        alpha = self.settings.get("alpha") if alpha is None else alpha
        if alpha is None:
            raise ValueError(
                f"`alpha` must be given: {self.name} has no settings beside it"
            )
        alpha = check_probability("alpha", alpha)
        rho = check_probability("rho", rho)
        # exceeded[k] = P[Binomial(m, alpha) > k]
        m = len(self)
        exceeded = scipy.special.bdtrc(np.arange(m + 1), m, alpha)
        return int(np.argmax(exceeded <= rho))


def count_examples(log: CertificationLog) -> int:
    """Returns the number of examples of a log.

    Raises:
        ValueError: If it is empty.
    """
    if not len(log):
        raise ValueError(f"{log.name} holds no example")
    return len(log)


@dataclass(frozen=True)
class Envelope:
    """Several logs' largest certified accuracy at each radius.

    Attributes:
        logs: The logs.
        name: What to call it in tables and plots.

    Example:

    >>> from rs_keras import CertificationLog
    >>> def log(radius, correct):
    ...     ones = [1, 1]
    ...     return CertificationLog(
    ...         [0, 1], ones, correct, radius, correct, ones)
    >>> small, large = log([0.5, 0.5], [1, 1]), log([1.5, 0.0], [1, 0])
    >>> best = CertificationLog.envelope([small, large])
    >>> best.certified_accuracy([0.25, 1.0])
    array([1. , 0.5])
    >>> best.radius.max().item(), best.scope
    (1.5, 'fixed_sigma')
    """

    logs: Sequence[CertificationLog]
    name: str = "envelope"

    def __post_init__(self) -> None:
        if not self.logs:
            raise ValueError(
                "`logs` must hold at least one log. Received: none"
            )

    @property
    def scope(self) -> str:
        """That of the logs; "per_input_sigma" if any of them is of this."""
        scopes = [log.scope for log in self.logs]
        return max(scopes, key="per_input_sigma".__eq__)

    @property
    def radius(self) -> np.ndarray:
        """float64, all radii at which the curve may step."""
        return np.concatenate([log.radius for log in self.logs])

    def certified_accuracy(
        self, radii: Sequence[float] | np.ndarray | float
    ) -> np.ndarray:
        """The largest of the logs' certified accuracies, the shape of radii."""
        shares = [log.certified_accuracy(radii) for log in self.logs]
        return np.max(shares, axis=0)
