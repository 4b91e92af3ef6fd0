"""What the commands share that run on several devices or machines."""

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING
from typing import Any
from typing import NoReturn

if TYPE_CHECKING:
    import tensorflow as tf


def add_arguments(parser: argparse.ArgumentParser, workers: str) -> None:
    """Adds the flags; `workers` says what several of them do."""
    group = parser.add_argument_group("on several devices")
    group.add_argument(
        "--strategy",
        default="one",
        choices=("one", "mirrored", "multi_worker"),
        help="one device; mirrored: all accelerators of this machine, or "
        f"--replicas; multi_worker: {workers} (default: %(default)s)",
    )
    add_replicas(group, "with --strategy mirrored on a machine without them")


def add_replicas(group: Any, when: str) -> None:
    """Adds how many replicas share the cores; `when` says when they do."""
    group.add_argument(
        "--replicas",
        type=int,
        metavar="N",
        help=f"{when}: as many share its cores",
    )


def add_timeout(parser: argparse.ArgumentParser) -> None:
    """Adds how long workers wait for each other."""
    parser.add_argument(
        "--worker-timeout",
        type=float,
        default=300.0,
        metavar="S",
        help="how long workers wait for each other, to start and in a step; "
        "the tracing of the first step has to fit (default: %(default)s)",
    )


def local_strategy(
    name: str, replicas: int | None
) -> "tf.distribute.Strategy | None":
    """Returns what spreads an image's draws over this machine's devices.

    Call it before anything else of TensorFlow, as `cluster.strategy_of`.
    """
    import tensorflow as tf

    from rs_keras import distribution

    if name == "multi_worker":
        several = len(tf.config.list_logical_devices("GPU")) > 1
        name = "mirrored" if several else "one"
    return distribution.strategy_of(name, replicas=replicas)


def shard_of(name: str, out: str) -> tuple[tuple[int, int] | None, str]:
    """Returns this worker's shard of a data set, and the name of its log."""
    from rs_keras import distribution

    if name != "multi_worker":
        return None, out
    index, count = distribution.member_from_environment()
    path = Path(out)
    own = path.with_name(f"{path.stem}.{index}-of-{count}{path.suffix}")
    return (index, count), str(own)


def begin_again(why: BaseException) -> NoReturn:
    """Starts this process anew, with --resume, to wait for a lost worker.

    TensorFlow's collectives cannot be used again once a worker is gone.
    """
    print(
        f"\nrs-keras: a worker was lost ({type(why).__name__}). This one goes "
        "back to the last snapshot and waits for it: start it again with the "
        "same command.",
        file=sys.stderr,
        flush=True,
    )
    command = list(sys.orig_argv)
    if "--resume" not in command:
        command.append("--resume")
    sys.stdout.flush()
    os.execv(sys.executable, command)
