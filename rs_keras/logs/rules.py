"""Validation of the rows of a certification log, in a file or in memory.

Numbers must be of the right type and finite, `correct` must agree with
`predict` and `label`, and the rows with the settings: every `skip`-th example,
no radius above what n draws can certify, of a decision its radii only, and of
an attack none above those that it tried.
"""

import math
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import numpy as np
import scipy.special

from rs_keras._checks import check_choice
from rs_keras._checks import check_count
from rs_keras._checks import check_flag
from rs_keras._checks import check_not_negative
from rs_keras._checks import check_positive
from rs_keras._checks import check_probability
from rs_keras.certification.certificate import ABSTAIN
from rs_keras.logs.file_format import rounded_down

# The share of alpha that bounds the top class where the runner-up is bounded,
# too. Not imported from `rs_keras.bounds`, which imports TensorFlow: a table of
# logs does not need it.
_TOP_SHARE = 0.9

# The scope of logs of attacks: their radii are norms of perturbations.
ATTACK = "attack"

# Tolerance for rounding: the limit is computed in another way than the radii.
_ROUNDING = 1e-6

# The largest float64 up to which all whole numbers are exact.
_EXACT = 2.0**53


class RowError(ValueError):
    """A row that breaks a rule.

    Attributes:
        row: Which one, counted from 0.
        rule: The argument, the rule, and the value.

    Example:

    >>> from rs_keras import CertificationLog
    >>> CertificationLog([0, 1], [7, 7], [7, 7], [0.5, -1.0], [1, 1], [2, 2])
    Traceback (most recent call last):
    rs_keras.logs.rules.RowError: row 1: `radius` must be a finite number ...
    """

    def __init__(self, row: int, rule: str) -> None:
        super().__init__(f"row {row}: {rule}")
        self.row = row
        self.rule = rule


def checked(
    columns: Mapping[str, Any],
    settings: Mapping[str, Any],
    extra: Mapping[str, Any],
) -> dict[str, np.ndarray]:
    """Returns the columns of a log as arrays, checked.

    Args:
        columns: `idx`, `label`, `predict`, `radius`, `correct` and `time`.
        settings: Those of the log; empty if they are not known.
        extra: Its further columns.

    Raises:
        RowError: If a row breaks a rule.
        ValueError: If a column is of a wrong type or length, or a setting that
            limits the radii is out of its range.
    """
    kinds: dict[str, Callable[[str, Any], np.ndarray]] = {
        "idx": _whole,
        "label": _whole,
        "predict": _whole,
        "radius": _numbers,
        "correct": _flags,
        "time": _numbers,
    }
    arrays = {name: kind(name, columns[name]) for name, kind in kinds.items()}
    for name, values in arrays.items():
        if values.shape != arrays["idx"].shape or values.ndim != 1:
            raise ValueError(
                f"`{name}` must be a vector as long as `idx`. Received: "
                f"shape={list(values.shape)}, idx {list(arrays['idx'].shape)}"
            )
    _check_values(arrays)
    _check_grid(arrays["idx"], settings)
    # Limits, and the radii of decisions, are in L2.
    if settings.get("norm", "l2") == "l2":
        _check_largest(arrays["radius"], settings, extra)
        arrays["radius"] = _exact_radii(arrays, settings)
    _check_tried(arrays["radius"], settings)
    return arrays


def _whole(name: str, values: Any) -> np.ndarray:
    array = _array(name, values, "iuf", "whole numbers")
    good = array <= np.iinfo(np.int64).max
    if array.dtype.kind == "f":
        good = (np.abs(array) < _EXACT) & (array == np.floor(array))
    _check(name, "be a whole number", array, good)
    return array.astype(np.int64)


def _numbers(name: str, values: Any) -> np.ndarray:
    return _array(name, values, "iuf", "numbers").astype(np.float64)


def _flags(name: str, values: Any) -> np.ndarray:
    array = _array(name, values, "biuf", "True or False")
    _check(name, "be 0 or 1", array, (array == 0) | (array == 1))
    return array.astype(bool)


def _array(name: str, values: Any, kinds: str, what: str) -> np.ndarray:
    """Returns an array, which must be empty or of one of NumPy's `kinds`."""
    array = np.asarray(values)
    if array.size and array.dtype.kind not in kinds:
        raise ValueError(
            f"`{name}` must hold {what}. Received: dtype={array.dtype}"
        )
    return array


def _check(name: str, rule: str, values: np.ndarray, good: np.ndarray) -> None:
    """Raises RowError for the first row that is not `good`."""
    if not np.all(good):
        row = int(np.argmin(np.ravel(good)))
        value = np.ravel(values)[row].item()
        raise RowError(row, f"`{name}` must {rule}. Received: {name}={value!r}")


def _check_values(log: Mapping[str, np.ndarray]) -> None:
    idx, label, predict = log["idx"], log["label"], log["predict"]
    _check("idx", "be a whole number >= 0", idx, idx >= 0)
    _check("label", "be a class number (-1: not known)", label, label >= -1)
    _check(
        "predict", "be a class number (-1: abstained)", predict, predict >= -1
    )
    for name in ("radius", "time"):
        good = np.isfinite(log[name]) & (log[name] >= 0)
        _check(name, "be a finite number >= 0", log[name], good)
    correct = log["correct"]
    right = (predict == label) & (predict != ABSTAIN)
    rule = "be 0 unless `predict` is `label`"
    _check("correct", rule, correct, right | ~correct)
    rule = "be 1 where `predict` is `label`"
    _check("correct", rule, correct, correct | ~right)
    rule = "be 0 where `predict` is -1"
    abstains = predict == ABSTAIN
    _check("radius", rule, log["radius"], ~abstains | (log["radius"] == 0))
    first = np.zeros(len(idx), bool)
    first[np.unique(idx, return_index=True)[1]] = True
    _check("idx", "be in one row only", idx, first)


def _check_grid(idx: np.ndarray, settings: Mapping[str, Any]) -> None:
    if settings.get("skip") is None:
        return
    skip = check_count("skip", settings["skip"])
    rule = f"be a multiple of `skip`, {skip} in the settings"
    _check("idx", rule, idx, idx % skip == 0)


def _check_largest(
    radius: np.ndarray, settings: Mapping[str, Any], extra: Mapping[str, Any]
) -> None:
    limit = largest_radius(settings, extra.get("sigma"), extra.get("n"))
    if limit is None:
        return
    limit = np.broadcast_to(limit, radius.shape)
    bad = np.flatnonzero(radius > limit + _ROUNDING)
    if len(bad):
        raise RowError(
            int(bad[0]),
            f"`radius` must be <= {limit[bad[0]]:.6f}, the largest that the "
            f"settings allow. Received: radius={radius[bad[0]].item()!r}",
        )


def largest_radius(
    settings: Mapping[str, Any],
    sigmas: Sequence[float] | None = None,
    drawn: Sequence[int] | None = None,
) -> np.ndarray | None:
    """Returns the radius if all draws agree; None if the settings do not tell.

    Args:
        settings: Of certificates, as in a log.
        sigmas: One for each row, where the sigma is of each image's own.
        drawn: Draws of each row, where they are known: it may have taken fewer
            than the settings allow.

    Returns:
        float64, a scalar or one for each row.

    Raises:
        ValueError: If a setting that it rests on is out of its range.

    Example:

    >>> from rs_keras.logs.rules import largest_radius
    >>> settings = {"sigma": 0.5, "n": 100_000, "alpha": 0.001,
    ...             "bound": "clopper_pearson", "runner_up": False}
    >>> round(float(largest_radius(settings)), 4)
    1.9057
    """
    names = ("n", "alpha", "bound", "runner_up")
    sigma = _sigma(settings, sigmas)
    if sigma is None or any(settings.get(name) is None for name in names):
        return None
    n = check_count("n", settings["n"])
    alpha = check_probability("alpha", settings["alpha"])
    bound = check_choice("bound", settings["bound"], _LARGEST)
    if settings.get("scope") == "composition":
        alpha /= 2
    runner_up = check_flag("runner_up", settings["runner_up"])
    if runner_up and bound == "clopper_pearson":
        alpha *= _TOP_SHARE
    draws = np.asarray(n, np.float64)
    if drawn is not None:
        draws = np.clip(_numbers("n", drawn), 1, n)
    p = np.clip(_LARGEST[bound](draws, alpha), 0.5, 1.0)
    limit = sigma * scipy.special.ndtri(p)
    if settings.get("max_radius") is not None:
        most = check_not_negative("max_radius", settings["max_radius"])
        limit = np.minimum(limit, most)
    return limit


def _sigma(
    settings: Mapping[str, Any], sigmas: Sequence[float] | None
) -> np.ndarray | None:
    """The noise behind the radii; None if it is not known."""
    scope = settings.get("scope")
    if scope == "per_input_sigma" and sigmas is not None:
        values = _numbers("sigma", sigmas)
        good = np.isfinite(values) & (values > 0)
        _check("sigma", "be a finite number > 0", values, good)
        return values
    if scope == "composition" and settings.get("expert_sigmas"):
        router = check_positive("router_sigma", settings["router_sigma"])
        return np.asarray(min(router, max(settings["expert_sigmas"])))
    if settings.get("sigma") is None:
        return None
    return np.asarray(check_positive("sigma", settings["sigma"]))


# The lower bounds of `rs_keras.bounds` where all n draws agree.
_LARGEST: dict[str, Callable[[np.ndarray, float], np.ndarray]] = {
    "clopper_pearson": lambda n, alpha: alpha ** (1 / n),
    # Of two classes, the joint bound looks at one count.
    "joint": lambda n, alpha: alpha ** (1 / n),
    "hoeffding": lambda n, alpha: 1 - np.sqrt(-math.log(alpha) / (2 * n)),
    "bernstein": lambda n, alpha: (
        1 - 7 * math.log(2 / alpha) / (3 * np.maximum(n - 1, 1e-9))
    ),
}


def _check_tried(radius: np.ndarray, settings: Mapping[str, Any]) -> None:
    if settings.get("scope") != ATTACK or not settings.get("attack_radii"):
        return
    tried = settings["attack_radii"]
    most = max(check_positive("attack_radii", r) for r in tried)
    rule = f"be <= {most:g}, the largest radius of the attack"
    _check("radius", rule, radius, radius <= most + _ROUNDING)


def _exact_radii(
    log: Mapping[str, np.ndarray], settings: Mapping[str, Any]
) -> np.ndarray:
    """Returns the exact radii of decisions, which the settings list.

    A column holds six decimals, rounded down: 0.501960 stands for 128/255. Of
    radii with the same six decimals, the smallest is taken.
    """
    radius = log["radius"]
    if settings.get("radii") is None:
        return radius
    listed = sorted(check_not_negative("radii", r) for r in settings["radii"])
    exact = {float(rounded_down(r)): r for r in reversed(listed)}
    exact |= {r: r for r in listed}
    known, row_of = np.unique(radius, return_inverse=True)
    # NaN where the settings do not list the radius.
    radii = np.array([exact.get(r, math.nan) for r in known.tolist()])[row_of]
    radii = np.where((log["predict"] == ABSTAIN) & (radius == 0), 0.0, radii)
    rule = f"be 0 or one of the radii asked for, {listed}"
    _check("radius", rule, radius, ~np.isnan(radii))
    return radii
