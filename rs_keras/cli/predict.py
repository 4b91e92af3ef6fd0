"""`rs-keras predict`: the smoothed classifier's labels, or abstentions."""

import argparse

from rs_keras.cli import _certification
from rs_keras.noise.draws import example_seed


def run(args: argparse.Namespace) -> None:
    certifier = _certification.certifier_of(args)
    examples = _certification.examples_of(args, certifier)
    root = _certification.root_seed(args.seed)
    print(
        f"# sigma={certifier.sigma:g} n={args.n} alpha={args.alpha:g} "
        f"seed={root}"
    )
    print("idx\tlabel\tpredict\tp_value")
    for idx, image, label in examples:
        prediction = certifier.predict(
            image, n=args.n, alpha=args.alpha, seed=example_seed(root, idx)
        )
        print(
            f"{idx}\t{label}\t{prediction.label[0]}"
            f"\t{prediction.p_value[0]:.3g}",
            flush=True,
        )
