"""The certification logs that a command's flags name."""

import argparse
from collections import Counter
from dataclasses import replace

from rs_keras.logs.log import CertificationLog
from rs_keras.logs.log import Envelope


def read_logs(args: argparse.Namespace) -> list[CertificationLog]:
    """Reads the logs, each under a name of its own."""
    logs = [CertificationLog.read(path) for path in args.logs]
    uses = Counter(log.name for log in logs)
    return [
        log if uses[log.name] == 1 else replace(log, name=path)
        for log, path in zip(logs, args.logs, strict=True)
    ]


def read_curves(
    args: argparse.Namespace,
) -> list[CertificationLog | Envelope]:
    """Reads the logs, and adds their envelope with --envelope."""
    logs = read_logs(args)
    return [*logs, Envelope(tuple(logs))] if args.envelope else [*logs]
