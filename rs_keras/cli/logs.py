"""What the commands that read certification logs share."""

import argparse
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rs_keras.log import CertificationLog
    from rs_keras.log import Envelope


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the logs, and whether their envelope is wanted."""
    parser.add_argument(
        "logs",
        nargs="+",
        metavar="LOG",
        help="a log written by `certify`, or one published with a paper",
    )
    parser.add_argument(
        "--envelope",
        action="store_true",
        help="adds the largest certified accuracy of all logs at each radius "
        "(of no one classifier: the best sigma differs from radius to radius)",
    )


def read_logs(
    args: argparse.Namespace,
) -> "list[CertificationLog | Envelope]":
    """Reads the logs that `args` names, each under a name of its own."""
    from rs_keras.log import CertificationLog

    logs = [CertificationLog.read(path) for path in args.logs]
    uses = Counter(log.name for log in logs)
    logs = [
        log if uses[log.name] == 1 else replace(log, name=path)
        for log, path in zip(logs, args.logs, strict=True)
    ]
    return [
        *logs,
        *([CertificationLog.envelope(logs)] if args.envelope else []),
    ]
