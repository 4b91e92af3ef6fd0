"""`rs-keras plot`: certified accuracy against radius."""

import argparse

from rs_keras.cli import _logs
from rs_keras.report.plots import plot_certified_accuracy


def run(args: argparse.Namespace) -> None:
    plot_certified_accuracy(_logs.read_curves(args), args.out, args.title)
    print(args.out)
