"""`rs-keras table`: certification logs as text, Markdown or LaTeX."""

import argparse
import sys

from rs_keras.cli import _logs
from rs_keras.logs.robustness import is_attack
from rs_keras.report.robustness import gap_table
from rs_keras.report.robustness import gaps
from rs_keras.report.robustness import verdict
from rs_keras.report.tables import certified_table


def run(args: argparse.Namespace) -> None:
    given = _logs.read_logs(args)
    if any(map(is_attack, given)) and not all(map(is_attack, given)):
        print(gap_table(given, args.radii, args.format))
        for gap in gaps(given, args.radii):
            print(verdict(gap), file=sys.stderr)
        return
    logs = _logs.read_curves(args)
    print(certified_table(logs, args.radii, args.format, args.per_input_sigma))
    varying = [log.name for log in logs if log.scope == "per_input_sigma"]
    if varying and not args.per_input_sigma:
        print(
            f"left out: {', '.join(varying)}; their sigma varies from image to "
            "image (--per-input-sigma includes them)",
            file=sys.stderr,
        )
