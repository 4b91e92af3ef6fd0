"""Paired comparison of certification logs of the same examples."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rs_keras._checks import check_count
from rs_keras._checks import check_probability
from rs_keras.logs.file_format import first_few
from rs_keras.logs.log import CertificationLog
from rs_keras.logs.log import count_examples

# Resampled examples at a time: bounds the memory, not the result.
_CHUNK = 2**22

# An average certified radius depends on these settings, too. They may be what
# is compared, so differences are reported, not refused.
_NOTED = (
    "n",
    "alpha",
    "bound",
    "runner_up",
    "noise",
    "tolerance",
    "max_radius",
)


@dataclass(frozen=True)
class Comparison:
    """The difference of two logs' average certified radii.

    Attributes:
        names: Of the two logs: `difference` is the ACR of the second minus that
            of the first.
        difference: In pixel units, as radii are.
        low: Lower end of the interval.
        high: Upper end of the interval.
        confidence: Of the interval.
        examples: Number of examples in each log.
        wins: Examples on which the second log's radius is larger (an example
            that is not certified correctly counts as radius 0).
        losses: Examples on which it is smaller.
        notes: Other differences between the two, in words; may be empty.

    Example:

    >>> from rs_keras import CertificationLog
    >>> from rs_keras.logs import compare_acr
    >>> def log(name, radius):
    ...     ones = [1, 1]
    ...     return CertificationLog(
    ...         [0, 1], ones, ones, radius, ones, ones, name=name)
    >>> found = compare_acr(log("a", [1.0, 2.0]), log("b", [1.25, 2.25]))
    >>> print(found.sentence())
    b against a: ACR +0.2500, 95% interval [+0.2500, +0.2500] over 2 examples
    (2 larger radii, 0 smaller)
    """

    names: tuple[str, str]
    difference: float
    low: float
    high: float
    confidence: float
    examples: int
    wins: int
    losses: int
    notes: str

    def sentence(self) -> str:
        """Says the result in words."""
        first, second = self.names
        text = (
            f"{second} against {first}: ACR {self.difference:+.4f}, "
            f"{100 * self.confidence:.10g}% interval [{self.low:+.4f}, "
            f"{self.high:+.4f}] over {self.examples} examples "
            f"({self.wins} larger radii, {self.losses} smaller)"
        )
        return f"{text}; they differ in {self.notes}" if self.notes else text


def compare_acr(
    first: CertificationLog,
    second: CertificationLog,
    confidence: float = 0.95,
    resamples: int = 10_000,
    seed: int = 0,
) -> Comparison:
    """Compares two logs' average certified radii with a paired bootstrap.

    With R the radius of an example that is certified correctly and 0 for the
    others, the difference is mean(R2 - R1). The interval lies between the
    (1 - confidence) / 2 and (1 + confidence) / 2 quantiles of the same mean
    over `resamples` resampled sets of examples. Pairing removes the variation
    that both logs share: some images are hard for any classifier. The interval
    covers other examples of the same kind, not other training seeds.

    Args:
        first: The baseline.
        second: Another log of the same examples (in any order) and sigma.
        confidence: Of the interval, in (0, 1).
        resamples: >= 100.
        seed: Of the resampling, >= 0.

    Raises:
        ValueError: If the logs differ in sigma, data set, examples, labels,
            scope or norm (says which), hold no example or only decisions at
            given radii, or an argument is out of range.

    Example:

    >>> import numpy as np
    >>> from rs_keras import CertificationLog
    >>> from rs_keras.logs import compare_acr
    >>> def log(name, radius):
    ...     zeros = np.zeros(4)
    ...     return CertificationLog(np.arange(4), zeros, zeros, radius,
    ...                             zeros == 0, zeros, name=name)
    >>> found = compare_acr(log("a", [1., 2., 3., 4.]),
    ...                     log("b", [1.5, 2.5, 3.5, 4.5]))
    >>> found.difference, found.low, found.high, found.wins
    (0.5, 0.5, 0.5, 4)

    References:
    - [Efron, 1979](https://doi.org/10.1214/aos/1176344552)
    """
    check_probability("confidence", confidence)
    check_count("resamples", resamples, 100)
    check_count("seed", seed, 0)
    check_comparable([first, second])
    _check_measured([first, second])
    gains = _scores(second) - _scores(first)
    means = _resampled_means(gains, resamples, seed)
    tail = (1 - confidence) / 2
    low, high = np.quantile(means, [tail, 1 - tail])
    return Comparison(
        names=(first.name, second.name),
        difference=float(gains.mean()),
        low=float(low),
        high=float(high),
        confidence=float(confidence),
        examples=len(gains),
        wins=int((gains > 0).sum()),
        losses=int((gains < 0).sum()),
        notes=_differing_settings(first, second),
    )


def check_comparable(logs: Sequence[CertificationLog]) -> None:
    """Raises ValueError unless all logs have the same sigma and examples.

    They must also have the same scope (`CertificationLog.scope`) and norm. The
    sigma and the data set of a log without settings are not known: only the
    numbers and labels of its examples are compared.

    Args:
        logs: Any number of logs.

    Example:

    >>> from rs_keras import CertificationLog
    >>> from rs_keras.logs.comparison import check_comparable
    >>> def log(sigma):
    ...     return CertificationLog([0], [1], [1], [0.5], [1], [1.0],
    ...                             settings={"sigma": sigma})
    >>> check_comparable([log(0.5), log(0.5)])
    >>> check_comparable([log(0.5), log(1.0)])
    Traceback (most recent call last):
    ValueError: `logs` must be of the same sigma to be compared. Received: ...
    """
    scopes = [(log.name, log.scope) for log in logs]
    check_equal("be of the same scope to be compared", "scope", scopes)
    # Only logs in another norm than L2 record it (`rs_keras.bounds`).
    norms = [(log.name, log.settings.get("norm", "l2")) for log in logs]
    check_equal("hold radii in the same norm to be compared", "norm", norms)
    sigmas = [(log.name, log.settings.get("sigma")) for log in logs]
    check_equal("be of the same sigma to be compared", "sigma", sigmas)
    check_same_examples(logs)


def check_equal(rule: str, key: str, values: Sequence[tuple[str, Any]]) -> None:
    """Raises ValueError unless all logs have the same value, where known.

    Args:
        rule: What the logs must do, in the error.
        key: What the values are called there.
        values: (name, value) of each log; None for a value that is not known.

    Example:

    >>> from rs_keras.logs.comparison import check_equal
    >>> check_equal("be of the same sigma", "sigma", [("a", 0.5), ("b", 1.0)])
    Traceback (most recent call last):
    ValueError: `logs` must be of the same sigma. Received: sigma=0.5 (a), ...
    """
    known = dict.fromkeys(pair for pair in values if pair[1] is not None)
    if len({str(value) for _, value in known}) > 1:
        received = ", ".join(f"{value} ({name})" for name, value in known)
        raise ValueError(f"`logs` must {rule}. Received: {key}={received}")


def _check_measured(logs: Sequence[CertificationLog]) -> None:
    for log in logs:
        if "radii" in log.settings:
            raise ValueError(
                "`logs` must hold measured radii to be compared. Received: "
                f"{log.name}, decided at {log.settings['radii']} only"
            )


def check_same_examples(logs: Sequence[CertificationLog]) -> None:
    """Raises ValueError unless all logs have the same labelled examples.

    Args:
        logs: Any number of logs.

    Example:

    >>> from rs_keras import CertificationLog
    >>> from rs_keras.logs.comparison import check_same_examples
    >>> def log(label):
    ...     return CertificationLog(
    ...         [0], [label], [label], [0.5], [1], [1.0])
    >>> check_same_examples([log(1), log(1)])
    >>> check_same_examples([log(1), log(2)])
    Traceback (most recent call last):
    ValueError: ...
    """
    data = [(log.name, log.settings.get("dataset")) for log in logs]
    check_equal("be of the same data set to be compared", "dataset", data)
    for log in logs:
        count_examples(log)
        _check_examples(logs[0], log)
        _check_labels(logs[0], log)


def _check_examples(first: CertificationLog, other: CertificationLog) -> None:
    missing = np.setdiff1d(first.idx, other.idx)
    more = np.setdiff1d(other.idx, first.idx)
    if len(missing) or len(more):
        raise ValueError(
            "`logs` must hold the same examples to be compared. Received: "
            f"{first.name} with {len(first)}, {other.name} with {len(other)}; "
            f"only in {first.name}: {first_few(missing)}; "
            f"only in {other.name}: {first_few(more)}"
        )


def _check_labels(first: CertificationLog, other: CertificationLog) -> None:
    ours, theirs = np.argsort(first.idx), np.argsort(other.idx)
    differing = np.flatnonzero(first.label[ours] != other.label[theirs])
    if len(differing):
        row = int(differing[0])
        raise ValueError(
            "`logs` must give their examples the same labels to be compared. "
            f"Received: {len(differing)} labels that differ; example "
            f"{first.idx[ours][row]} is {first.label[ours][row]} in "
            f"{first.name} and {other.label[theirs][row]} in {other.name}"
        )


def _scores(log: CertificationLog) -> np.ndarray:
    """The radii that are averaged, in the order of the examples' numbers."""
    return (log.correct * log.radius)[np.argsort(log.idx)]


def _resampled_means(
    values: np.ndarray, resamples: int, seed: int
) -> np.ndarray:
    rng = np.random.Generator(np.random.Philox(seed))
    rows = max(1, _CHUNK // len(values))
    means = [
        values[rng.integers(len(values), size=(count, len(values)))].mean(1)
        for count in np.diff([*range(0, resamples, rows), resamples])
    ]
    return np.concatenate(means)


def _differing_settings(
    first: CertificationLog, second: CertificationLog
) -> str:
    pairs = (
        (key, first.settings.get(key), second.settings.get(key))
        for key in _NOTED
    )
    return ", ".join(
        f"{key} ({old} and {new})"
        for key, old, new in pairs
        if old is not None and new is not None and old != new
    )
