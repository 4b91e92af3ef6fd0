"""`rs-keras plot`: certified and attacked accuracy against radius."""

import argparse

from rs_keras.cli import _logs
from rs_keras.logs.robustness import is_attack
from rs_keras.report.plots import plot_certified_accuracy
from rs_keras.report.robustness import plot_robustness


def run(args: argparse.Namespace) -> None:
    logs = _logs.read_logs(args)
    if not any(map(is_attack, logs)):
        plot_certified_accuracy(_logs.read_curves(args), args.out, args.title)
    elif args.envelope:
        raise ValueError("--envelope cannot be given with a log of an attack")
    else:
        plot_robustness(logs, args.out, args.title)
    print(args.out)
