"""`rs-keras table`: certification logs as text, Markdown or LaTeX."""

import argparse
import sys

from rs_keras.cli import _logs
from rs_keras.report.tables import certified_table


def run(args: argparse.Namespace) -> None:
    logs = _logs.read_curves(args)
    print(certified_table(logs, args.radii, args.format, args.per_input_sigma))
    varying = [log.name for log in logs if log.scope == "per_input_sigma"]
    if varying and not args.per_input_sigma:
        print(
            f"left out: {', '.join(varying)}; their sigma varies from image to "
            "image (--per-input-sigma includes them)",
            file=sys.stderr,
        )
