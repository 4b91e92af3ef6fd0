"""One log of the shards that workers wrote; see `CertificationLog.merge`."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from rs_keras.logs import file_format
from rs_keras.logs.hashes import FIRST

# How many of the examples at fault a message names.
_NAMED = 5


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
    settings = _common(logs[0])
    _check_whole(columns["idx"], settings.get("skip", 1), examples)
    return columns, extra, settings


def check(logs: Sequence[Any]) -> None:
    """Raises unless the logs are all shards of one.

    Raises:
        ValueError: That names what is missing, there twice, or differs.
    """
    if not logs:
        raise ValueError("`logs` must hold at least one log. Received: none")
    strange = [log.name for log in logs if "shard" not in log.settings]
    if strange:
        raise ValueError(
            "`logs` must be shards, made with `shard=(i, m)`. Not so: "
            f"{', '.join(strange)}"
        )
    for log in logs[1:]:
        _check_same_data(logs[0], log)
        differing = file_format.differences(_common(logs[0]), _common(log))
        count = file_format.differences(
            {"shards": logs[0].settings["shard"][1]},
            {"shards": log.settings["shard"][1]},
        )
        if list(log.extra) != list(logs[0].extra):
            differing = differing or "the columns"
        if differing or count:
            raise ValueError(
                "shards must be made under the same settings. Differing "
                f"between {logs[0].name} and {log.name}: {differing or count}"
            )
    found = sorted(log.settings["shard"][0] for log in logs)
    wanted = list(range(logs[0].settings["shard"][1]))
    if found != wanted:
        raise ValueError(
            f"`logs` must be all shards, each once: {wanted}. Received: {found}"
        )


def _check_same_data(one: Any, other: Any) -> None:
    """Shards share no example, but each knows the hash of example 0."""
    hashes = [log.settings.get(FIRST) for log in (one, other)]
    if None not in hashes and hashes[0] != hashes[1]:
        raise ValueError(
            "shards must be of the same data set. Example 0 differs between "
            f"{one.name} (hash {hashes[0]}) and {other.name} (hash {hashes[1]})"
        )


def _common(log: Any) -> dict:
    return {k: v for k, v in log.settings.items() if k != "shard"}


def _check_whole(idx: np.ndarray, skip: int, examples: int | None) -> None:
    """Raises unless sorted `idx` are 0, skip, 2 * skip, ..., each once."""
    twice = idx[1:][idx[1:] == idx[:-1]]
    if len(twice):
        raise ValueError(
            f"shards must not overlap. Twice: {_shown(np.unique(twice))}"
        )
    last = int(idx[-1]) if len(idx) else -skip
    total = last // skip + 1 if examples is None else examples
    wanted = skip * np.arange(total)
    missing = np.setdiff1d(wanted, idx)
    if len(missing):
        raise ValueError(
            "shards must have no gaps; was a worker stopped before its end? "
            f"Missing: {_shown(missing)}"
        )
    extra = np.setdiff1d(idx, wanted)
    if len(extra):
        raise ValueError(
            f"shards must hold every {skip}-th of {total} examples, no others. "
            f"Received also: {_shown(extra)}"
        )


def _shown(idx: np.ndarray) -> str:
    shown = ", ".join(str(number) for number in idx[:_NAMED])
    return f"{shown}, ... ({len(idx)})" if len(idx) > _NAMED else shown
