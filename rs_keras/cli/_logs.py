"""What the commands that read certification logs share."""

import argparse
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rs_keras.logs.log import CertificationLog
    from rs_keras.logs.log import Envelope


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the logs, and whether their envelope is wanted."""
    add_logs(parser)
    parser.add_argument(
        "--envelope",
        action="store_true",
        help="adds the largest certified accuracy of all logs at each radius "
        "(of no one classifier: the best sigma differs from radius to radius)",
    )


def add_logs(parser: argparse.ArgumentParser) -> None:
    """Adds the logs alone."""
    parser.add_argument(
        "logs",
        nargs="+",
        metavar="LOG",
        help="a log written by `certify`, or one published with a paper",
    )


def read_logs(
    args: argparse.Namespace,
) -> "list[CertificationLog | Envelope]":
    """Reads the logs that `args` names, and makes their envelope."""
    from rs_keras.logs.log import CertificationLog

    logs = read_certification_logs(args)
    return [
        *logs,
        *([CertificationLog.envelope(logs)] if args.envelope else []),
    ]


def read_certification_logs(
    args: argparse.Namespace,
) -> "list[CertificationLog]":
    """Reads the logs that `args` names, each under a name of its own."""
    from rs_keras.logs.log import CertificationLog

    logs = [CertificationLog.read(path) for path in args.logs]
    uses = Counter(log.name for log in logs)
    return [
        log if uses[log.name] == 1 else replace(log, name=path)
        for log, path in zip(logs, args.logs, strict=True)
    ]


def radii_of(text: str) -> list[float]:
    """Reads radii with commas between."""
    try:
        return [float(part) for part in text.split(",")]
    except ValueError as error:
        raise ValueError(
            "--radii must be numbers with commas between, as in 0,0.25,0.5. "
            f"Received: {text}"
        ) from error
