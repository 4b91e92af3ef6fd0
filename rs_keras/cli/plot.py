"""Plot certified accuracy against radius for certification logs.

rs-keras plot runs/gaussian.tsv runs/smoothmix.tsv -o curves.png
"""

import argparse

from rs_keras.cli import _logs

HELP = "plots certified accuracy against radius (PNG, SVG, PDF)"
EXAMPLE = "rs-keras plot runs/gaussian.tsv runs/smoothmix.tsv -o curves.png"
TENSORFLOW = False


def add_arguments(parser: argparse.ArgumentParser) -> None:
    _logs.add_arguments(parser)
    parser.add_argument(
        "-o",
        "--out",
        required=True,
        metavar="FILE",
        help="the plot: a .png, .svg or .pdf file",
    )
    parser.add_argument("--title", help="above the plot")


def run(args: argparse.Namespace) -> None:
    from rs_keras.report.plots import plot_certified_accuracy

    plot_certified_accuracy(_logs.read_logs(args), args.out, args.title)
    print(args.out)
