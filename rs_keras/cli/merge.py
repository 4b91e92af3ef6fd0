"""Make one log of the shards that workers wrote.

rs-keras merge runs/mnist.?-of-3.tsv --out runs/mnist.tsv
"""

import argparse

HELP = "makes one log of the shards that several workers certified"
EXAMPLE = "rs-keras merge runs/mnist.?-of-3.tsv --out runs/mnist.tsv"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "logs",
        nargs="+",
        metavar="LOG",
        help="the shards, written by `certify --strategy multi_worker`",
    )
    parser.add_argument("--out", required=True, metavar="LOG", help="the log")
    parser.add_argument(
        "--examples",
        type=int,
        metavar="N",
        help="how many there have to be; else examples that are missing at "
        "the very end go unnoticed",
    )


def run(args: argparse.Namespace) -> None:
    from rs_keras.logs.writer import merge_files

    log = merge_files(args.logs, args.out, args.examples)
    print(f"{args.out}: {len(log)} examples of {len(args.logs)} shards")
