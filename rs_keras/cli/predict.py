"""Predict with the smoothed classifier, or abstain.

rs-keras predict mnist --model runs/mnist --max-examples 10
"""

import argparse

from rs_keras.cli import _certification

HELP = "says what the smoothed classifier answers, or abstains"
EXAMPLE = "rs-keras predict mnist --model runs/mnist --max-examples 10"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    _certification.add_arguments(parser)
    parser.add_argument(
        "--n", type=int, default=1_000, help="draws (default: %(default)s)"
    )


def run(args: argparse.Namespace) -> None:
    from rs_keras.noise.draws import example_seed

    certifier = _certification.certifier_of(args)
    examples = _certification.examples_of(args, certifier)
    root = _certification.root_of(args.seed)
    print(
        f"# sigma={certifier.sigma:g} n={args.n} alpha={args.alpha:g} "
        f"seed={root}"
    )
    print("idx\tlabel\tpredict\tp_value")
    for idx, image, label in examples:
        found = certifier.predict(
            image,
            n=args.n,
            alpha=args.alpha,
            seed=example_seed(root, idx),
        )
        print(
            f"{idx}\t{label}\t{found.label[0]}\t{found.p_value[0]:.3g}",
            flush=True,
        )
