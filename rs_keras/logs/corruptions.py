"""Certified accuracy and radii on corrupted images, as in the papers."""

from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import replace

import numpy as np

from rs_keras._checks import check_choice
from rs_keras._checks import check_count
from rs_keras.logs.comparison import check_equal
from rs_keras.logs.file_format import COLUMNS
from rs_keras.logs.log import CertificationLog

# Images per severity where one log holds all of them, one after the other, as
# in the files of CIFAR-10-C.
SEVERITY_SIZE = 10_000

Logs = CertificationLog | Sequence[CertificationLog]


@dataclass(frozen=True)
class CorruptionResult:
    """Results of a classifier under one corruption.

    Attributes:
        corruption: Its name.
        accuracy: The share of images certified correctly at radius 0, averaged
            over severities.
        acr: The average certified radius, averaged over severities.
        severities: How many there are.
        examples: How many images, of all severities.

    Example:

    >>> from rs_keras import CertificationLog
    >>> from rs_keras.logs import summarize
    >>> log = CertificationLog(
    ...     idx=[0, 1, 2, 3], label=[1, 1, 1, 1], predict=[1, 1, 1, 0],
    ...     radius=[0.5, 0.5, 0.5, 0.5], correct=[1, 1, 1, 0], time=[1.0] * 4)
    >>> summarize({"fog": log}, severity_size=2).results[0]
    CorruptionResult(corruption='fog', accuracy=0.75, acr=0.375, severities=2,
                     examples=4)
    """

    corruption: str
    accuracy: float
    acr: float
    severities: int
    examples: int


@dataclass(frozen=True)
class CorruptionSummary:
    """Results of a classifier under several corruptions.

    Attributes:
        results: One a corruption.

    Example:

    >>> from rs_keras.logs import CorruptionResult
    >>> from rs_keras.logs import CorruptionSummary
    >>> summary = CorruptionSummary([
    ...     CorruptionResult("fog", 0.75, 0.5, severities=5, examples=50_000),
    ...     CorruptionResult("snow", 0.25, 0.25, 5, 50_000)])
    >>> summary.mean_accuracy, summary.mean_acr
    (0.5, 0.375)
    """

    results: Sequence[CorruptionResult]

    @property
    def mean_accuracy(self) -> float:
        """mAcc: the mean of the corruptions' accuracies."""
        return float(np.mean([result.accuracy for result in self.results]))

    @property
    def mean_acr(self) -> float:
        """mACR: the mean of the corruptions' average certified radii."""
        return float(np.mean([result.acr for result in self.results]))


def summarize(
    logs: Mapping[str, Logs], severity_size: int = SEVERITY_SIZE
) -> CorruptionSummary:
    """Averages logs over severities, and these over corruptions.

    Args:
        logs: By corruption: one log of all severities one after the other
            (CIFAR-10-C's files), or one log per severity; see `grouped`.
        severity_size: Images per severity in the former case: example idx has
            severity idx // severity_size + 1.

    Returns:
        The corruptions in the order of `logs`.

    Raises:
        ValueError: If there is no log, a log holds no example, corruptions
            have other severities, examples or sigmas than the first, or the
            radii are of a sigma chosen for each image.

    Example:

    >>> from rs_keras import CertificationLog
    >>> from rs_keras.logs import summarize
    >>> def log(radius):
    ...     return CertificationLog(
    ...         idx=[0, 10_000], label=[1, 1], predict=[1, 1], radius=radius,
    ...         correct=[True, True], time=[1.0, 1.0])
    >>> found = summarize({"fog": log([0.5, 0.25]), "snow": log([0.25, 0.0])})
    >>> found.mean_acr, found.results[0].severities
    (0.25, 2)

    References:
    - [Hendrycks and Dietterich, 2019](https://arxiv.org/abs/1903.12261)
    - [Jeong et al., 2023](https://arxiv.org/abs/2212.09000), table 3
    """
    check_count("severity_size", severity_size)
    if not logs:
        raise ValueError("`logs` must hold at least one log. Received: none")
    parts = {
        name: _severities(name, group, severity_size)
        for name, group in logs.items()
    }
    sigmas = [
        (log.name, log.settings.get("sigma"))
        for severities in parts.values()
        for log in severities
    ]
    check_equal("be of the same sigma", "sigma", sigmas)
    _check_alike(parts)
    return CorruptionSummary([_result(*item) for item in parts.items()])


def grouped(
    logs: Sequence[CertificationLog],
) -> dict[str, list[CertificationLog]]:
    """Sorts logs into corruptions and severities by their settings.

    Args:
        logs: Of data sets called KIND_corrupted/CORRUPTION or
            KIND_corrupted/CORRUPTION_SEVERITY, with or without a split.

    Returns:
        By corruption, the logs in the order of their severities.

    Raises:
        ValueError: If a log is of another data set, or of the same one as
            another log.

    Example:

    >>> from rs_keras import CertificationLog
    >>> from rs_keras.logs import grouped
    >>> log = CertificationLog([], [], [], [], [], [], settings={
    ...     "dataset": "cifar10_corrupted/motion_blur_2/test"})
    >>> list(grouped([log]))
    ['motion_blur']
    """
    by_corruption: dict[str, dict[int, CertificationLog]] = {}
    for log in logs:
        corruption, severity = _variant(log)
        others = by_corruption.setdefault(corruption, {})
        if severity in others:
            raise ValueError(
                "`logs` must be of different data sets. Received: "
                f"{others[severity].name} and {log.name}, both of "
                f"{log.settings['dataset']}"
            )
        others[severity] = log
    return {
        name: [others[severity] for severity in sorted(others)]
        for name, others in by_corruption.items()
    }


def corruption_table(
    summaries: Mapping[str, CorruptionSummary], measure: str = "accuracy"
) -> str:
    """Returns a row a classifier, a column a corruption, the mean at the end.

    Args:
        summaries: By the classifier's name, all of the same corruptions.
        measure: "accuracy" (in percent) or "acr".

    Returns:
        Text, without a final line break.

    Raises:
        ValueError: If there is none, they differ in their corruptions or in
            the number of examples (says which), or there is no such measure.

    Example:

    >>> from rs_keras.logs import CorruptionResult
    >>> from rs_keras.logs import CorruptionSummary
    >>> from rs_keras.logs import corruption_table
    >>> summary = CorruptionSummary([
    ...     CorruptionResult("fog", 0.75, 0.5, severities=5, examples=50_000),
    ...     CorruptionResult("snow", 0.25, 0.25, 5, 50_000)])
    >>> print(corruption_table({"gaussian": summary}))
               fog  snow  mean
    gaussian  75.0  25.0  50.0
    """
    check_choice("measure", measure, ("accuracy", "acr"))
    if not summaries:
        raise ValueError("`summaries` must hold at least one. Received: none")
    _check_same_corruptions(summaries)
    digits, factor = (1, 100) if measure == "accuracy" else (3, 1)
    first = next(iter(summaries.values()))
    cells = [["", *(result.corruption for result in first.results), "mean"]]
    for name, summary in summaries.items():
        values = [getattr(result, measure) for result in summary.results]
        values.append(getattr(summary, f"mean_{measure}"))
        cells.append([name, *(f"{factor * x:.{digits}f}" for x in values)])
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = [
        [row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]
        for row in cells
    ]
    return "\n".join(map("  ".join, lines))


def _check_same_corruptions(
    summaries: Mapping[str, CorruptionSummary],
) -> None:
    (first, wanted), *others = summaries.items()
    expected = {r.corruption: r.examples for r in wanted.results}
    for name, summary in others:
        counts = {r.corruption: r.examples for r in summary.results}
        if counts != expected:
            differing = ", ".join(
                f"{key} ({expected.get(key, 0)} examples in {first}, "
                f"{counts.get(key, 0)} in {name})"
                for key in dict.fromkeys([*expected, *counts])
                if expected.get(key) != counts.get(key)
            )
            raise ValueError(
                "`summaries` must be of the same corruptions and examples. "
                f"Received: {differing}"
            )
        if list(counts) != list(expected):
            raise ValueError(
                "`summaries` must have their corruptions in the same order. "
                f"Received: {', '.join(expected)} in {first}, "
                f"{', '.join(counts)} in {name}"
            )


def _variant(log: CertificationLog) -> tuple[str, int]:
    """Returns a log's corruption and severity; 0 where there is but one."""
    name = str(log.settings.get("dataset", ""))
    kind, _, variant = name.partition("/")
    variant = variant.partition("/")[0]
    if not (kind.endswith("_corrupted") and variant):
        raise ValueError(
            "`logs` must be of corrupted data sets. Received: "
            f"{log.name} of {name or 'unknown data'}"
        )
    corruption, _, severity = variant.rpartition("_")
    if corruption and severity.isdigit():
        return corruption, int(severity)
    return variant, 0


def _severities(
    name: str, logs: Logs, severity_size: int
) -> list[CertificationLog]:
    """Returns one log a severity."""
    if not isinstance(logs, CertificationLog):
        parts = list(logs)
    else:
        severity = logs.idx // severity_size
        parts = [_rows(logs, severity == s) for s in np.unique(severity)]
    if not parts or not all(len(part) for part in parts):
        raise ValueError(f"`logs` must hold examples of {name}. Received: none")
    return parts


def _rows(log: CertificationLog, rows: np.ndarray) -> CertificationLog:
    extra = {name: values[rows] for name, values in log.extra.items()}
    own = {name: getattr(log, name)[rows] for name in COLUMNS}
    return replace(log, extra=extra, **own)


def _check_alike(parts: Mapping[str, Sequence[CertificationLog]]) -> None:
    """Checks that all corruptions are of the same images."""
    (first, wanted), *others = parts.items()
    expected = [sorted(part.idx.tolist()) for part in wanted]
    for name, group in others:
        if [sorted(part.idx.tolist()) for part in group] != expected:
            raise ValueError(
                "`logs` must hold the same severities and examples of every "
                f"corruption. Received: {first} with "
                f"{[len(part) for part in wanted]} examples a severity, {name} "
                f"with {[len(part) for part in group]}, or other examples"
            )


def _result(name: str, parts: Sequence[CertificationLog]) -> CorruptionResult:
    return CorruptionResult(
        corruption=name,
        accuracy=float(np.mean([part.accuracy for part in parts])),
        acr=float(np.mean([part.acr() for part in parts])),
        severities=len(parts),
        examples=sum(len(part) for part in parts),
    )
