"""Merging the shards of several workers; see `CertificationLog.merge`."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from rs_keras.logs import file_format
from rs_keras.logs.file_format import FIRST
from rs_keras.logs.file_format import first_few


def joined(
    logs: Sequence[Any], examples: int | None
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray], dict[str, Any]]:
    """Returns columns, extra columns and settings of the one log of shards.

    The arguments and errors are those of `CertificationLog.merge`.
    """
    check(logs)
    order = np.argsort(np.concatenate([log.idx for log in logs]))
    columns = {
        column: np.concatenate([getattr(log, column) for log in logs])[order]
        for column in file_format.COLUMNS
    }
    extra = {
        column: np.concatenate([log.extra[column] for log in logs])[order]
        for column in logs[0].extra
    }
    settings = {k: v for k, v in logs[0].settings.items() if k != "shard"}
    _check_whole(columns["idx"], settings.get("skip", 1), examples)
    return columns, extra, settings


def check(logs: Sequence[Any]) -> None:
    """Raises unless the logs are all shards of one.

    Raises:
        ValueError: That names what is missing, there twice, or differs.
    """
    if not logs:
        raise ValueError("`logs` must hold at least one log. Received: none")
    others = [log.name for log in logs if "shard" not in log.settings]
    if others:
        raise ValueError(
            "`logs` must be shards, made with `shard=(i, m)`. Not so: "
            f"{', '.join(others)}"
        )
    for log in logs[1:]:
        _check_same_data(logs[0], log)
        differing = file_format.differences(_common(logs[0]), _common(log))
        if not differing and list(log.extra) != list(logs[0].extra):
            differing = "the columns"
        if differing:
            raise ValueError(
                "shards must be made under the same settings. Differing "
                f"between {logs[0].name} and {log.name}: {differing}"
            )
    numbers = sorted(log.settings["shard"][0] for log in logs)
    expected = list(range(logs[0].settings["shard"][1]))
    if numbers != expected:
        raise ValueError(
            f"`logs` must be all shards, each once: {expected}. "
            f"Received: {numbers}"
        )


def _check_same_data(first: Any, other: Any) -> None:
    """Compares the hash of example 0, which every shard records."""
    hashes = [log.settings.get(FIRST) for log in (first, other)]
    if None not in hashes and hashes[0] != hashes[1]:
        raise ValueError(
            "shards must be of the same data set. Example 0 differs between "
            f"{first.name} (hash {hashes[0]}) and {other.name} (hash "
            f"{hashes[1]})"
        )


def _common(log: Any) -> dict[str, Any]:
    """Returns the settings that all shards share, with their number."""
    settings = dict(log.settings)
    settings["shards"] = settings.pop("shard")[1]
    return settings


def _check_whole(idx: np.ndarray, skip: int, examples: int | None) -> None:
    """Raises unless sorted `idx` are 0, skip, 2 * skip, ..., each once."""
    twice = idx[1:][idx[1:] == idx[:-1]]
    if len(twice):
        raise ValueError(
            f"shards must not overlap. Twice: {first_few(np.unique(twice))}"
        )
    last = int(idx[-1]) if len(idx) else -skip
    total = last // skip + 1 if examples is None else examples
    expected = skip * np.arange(total)
    missing = np.setdiff1d(expected, idx)
    if len(missing):
        raise ValueError(
            "shards must have no gaps; was a worker stopped before its end? "
            f"Missing: {first_few(missing)}"
        )
    extra = np.setdiff1d(idx, expected)
    if len(extra):
        raise ValueError(
            f"shards must hold every {skip}-th of {total} examples, no others. "
            f"Received also: {first_few(extra)}"
        )
