"""Measures: alternatives interleaved in one run, peak memory, tables."""

import time
from collections.abc import Callable

import numpy as np


def interleaved(
    work: dict[str, Callable[[], object]], rounds: int = 7
) -> dict[str, float]:
    """Returns the median seconds of each piece of work.

    Each round runs every piece once, so that whatever else the machine does
    falls on all of them. The first round warms up and is not counted.
    """
    seconds: dict[str, list[float]] = {name: [] for name in work}
    for round_number in range(rounds + 1):
        for name, run in work.items():
            begun = time.perf_counter()
            run()
            if round_number:
                seconds[name].append(time.perf_counter() - begun)
    return {name: float(np.median(taken)) for name, taken in seconds.items()}


def table(header: list[str], rows: list[list[str]]) -> str:
    """Lays out rows of text under a header."""
    lines = [header, *rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(
            cell.ljust(width) for cell, width in zip(line, widths, strict=True)
        )
        for line in lines
    )


def own_peak():
    """Peak resident megabytes of this process, by Linux's account.

    Not `ru_maxrss`, which a child inherits from its parent.
    """
    with open("/proc/self/status") as status:
        (line,) = (row for row in status if row.startswith("VmHWM"))
    return int(line.split()[1]) / 1024
