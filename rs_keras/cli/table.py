"""Print certification logs as a table.

rs-keras table runs/mnist.tsv --radii 0,0.25,0.5 --format markdown
"""

import argparse
import sys

from rs_keras.cli import _logs

HELP = "prints certification logs as a table (text, Markdown, LaTeX)"
EXAMPLE = "rs-keras table runs/mnist.tsv --radii 0,0.25,0.5 --format markdown"
TENSORFLOW = False


def add_arguments(parser: argparse.ArgumentParser) -> None:
    _logs.add_arguments(parser)
    parser.add_argument(
        "--radii",
        metavar="R,R,...",
        help="columns of the table (default: to the largest that is certified)",
    )
    parser.add_argument(
        "--format",
        default="text",
        help="text, markdown or latex (default: %(default)s)",
    )
    parser.add_argument(
        "--per-input-sigma",
        action="store_true",
        help="keeps logs whose sigma varies from image to image, marked",
    )


def run(args: argparse.Namespace) -> None:
    from rs_keras.report.tables import certified_table

    radii = None if args.radii is None else _logs.radii_of(args.radii)
    found = _logs.read_logs(args)
    print(certified_table(found, radii, args.format, args.per_input_sigma))
    varying = [log.name for log in found if log.scope == "per_input_sigma"]
    if varying and not args.per_input_sigma:
        print(
            f"left out: {', '.join(varying)}; their sigma varies from image to "
            "image (--per-input-sigma keeps them)",
            file=sys.stderr,
        )
