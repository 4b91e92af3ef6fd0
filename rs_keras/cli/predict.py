"""Predict with the smoothed classifier, or abstain.

rs-keras predict mnist --model runs/mnist --max-examples 10
"""

import argparse

from rs_keras.cli import certifying

HELP = "says what the smoothed classifier answers, or abstains"
EXAMPLE = "rs-keras predict mnist --model runs/mnist --max-examples 10"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    certifying.add_arguments(parser)
    parser.add_argument(
        "--n", type=int, default=1_000, help="draws (default: %(default)s)"
    )


def run(args: argparse.Namespace) -> None:
    from rs_keras.noise import fold_in
    from rs_keras.noise import fresh_seeds

    certifier = certifying.certifier_of(args)
    root = fresh_seeds(1)[0] if args.seed is None else args.seed
    print(
        f"# sigma={certifier.sigma:g} n={args.n} alpha={args.alpha:g} "
        f"seed={root}"
    )
    print("idx\tlabel\tpredict\tp_value")
    for idx, image, label in certifying.examples_of(args, certifier):
        found = certifier.predict(
            image, n=args.n, alpha=args.alpha, seed=fold_in(root, idx)[None]
        )
        print(
            f"{idx}\t{label}\t{found.label[0]}\t{found.p_value[0]:.3g}",
            flush=True,
        )
