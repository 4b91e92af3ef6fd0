"""Certify a data set into a log, or one image into a sentence.

rs-keras certify mnist --model runs/mnist --skip 100 --out runs/mnist.tsv
"""

import argparse

from rs_keras.cli import certifying

HELP = "certifies a data set (a log that resumes), or one image"
EXAMPLE = (
    "rs-keras certify mnist --model runs/mnist --skip 100 --out runs/mnist.tsv"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    certifying.add_arguments(parser)
    parser.add_argument(
        "--out", metavar="LOG", help="the log, TSV; resumed if it is there"
    )
    parser.add_argument(
        "--n0",
        type=int,
        default=100,
        help="draws that select the class (default: %(default)s)",
    )
    parser.add_argument(
        "--n",
        type=int,
        default=100_000,
        help="draws that bound its probability (default: %(default)s)",
    )
    parser.add_argument(
        "--bound",
        default="clopper_pearson",
        help="clopper_pearson (votes), hoeffding or bernstein (soft "
        "predictions; default: %(default)s)",
    )
    parser.add_argument(
        "--beta",
        type=float,
        default=1.0,
        help="inverse temperature of soft predictions (default: %(default)s)",
    )
    parser.add_argument(
        "--plain",
        action="store_true",
        help="Cohen et al.'s bound, the one in the papers' tables, instead of "
        "the runner-up bound",
    )
    parser.add_argument(
        "--tolerance",
        type=float,
        metavar="R",
        help="radius that an image may lose for fewer draws (default: none, "
        "all n are drawn)",
    )
    parser.add_argument(
        "--max-radius",
        type=float,
        metavar="R",
        help="larger radii are not asked for (default: no limit)",
    )


def run(args: argparse.Namespace) -> None:
    arguments = {
        "n0": args.n0,
        "n": args.n,
        "alpha": args.alpha,
        "bound": args.bound,
        "beta": args.beta,
        "runner_up": not args.plain and args.bound == "clopper_pearson",
        "tolerance": args.tolerance,
        "max_radius": args.max_radius,
    }
    if certifying.is_image(args.data):
        _one_image(args, arguments)
    elif args.out is None:
        raise ValueError("--out LOG must be given to certify a data set")
    else:
        _data_set(args, arguments)


def _one_image(args: argparse.Namespace, arguments: dict) -> None:
    certifier = certifying.certifier_of(args)
    for _, image, _ in certifying.examples_of(args, certifier):
        found = certifier.certify(image, seed=args.seed, **arguments)
        print(f"{args.data}: {found.sentence(0)}")


def _data_set(args: argparse.Namespace, arguments: dict) -> None:
    from rs_keras import certify_dataset
    from rs_keras import datasets

    certifier = certifying.certifier_of(args)
    data = datasets.load(args.data, split=args.split, data_dir=args.data_dir)
    log = certify_dataset(
        certifier,
        data,
        args.out,
        skip=args.skip,
        max_examples=args.max_examples,
        seed=args.seed,
        name=f"{args.data}/{args.split}",
        **arguments,
    )
    print(
        f"{args.out}: {len(log)} examples, ACR {log.acr():.3f}, certified "
        f"accuracy at 0 {log.certified_accuracy([0.0])[0]:.1%}, "
        f"{log.abstention_rate():.1%} abstained"
    )
