"""`rs-keras merge`: the shards of several workers into one log."""

import argparse

from rs_keras.logs.writer import merge_files


def run(args: argparse.Namespace) -> None:
    log = merge_files(args.logs, args.out, args.examples)
    print(f"{args.out}: {len(log)} examples of {len(args.logs)} shards")
