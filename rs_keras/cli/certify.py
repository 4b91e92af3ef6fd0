"""Certify a data set into a log, or one image into a sentence.

rs-keras certify mnist --model runs/mnist --skip 100 --out runs/mnist.tsv
"""

import argparse
from typing import Any

from rs_keras.cli import _certification
from rs_keras.cli import _devices

HELP = "certifies a data set (a log that resumes), or one image"
EXAMPLE = (
    "rs-keras certify mnist --model runs/mnist --skip 100 --out runs/mnist.tsv"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    _certification.add_arguments(parser)
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

    group = parser.add_argument_group("a sigma for each image")
    group.add_argument(
        "--sigma-mode",
        default="fixed",
        choices=("fixed", "data-dependent"),
        help="fixed, or data-dependent: starts at --sigma; the log says so, "
        "and tables leave it out unless asked (default: %(default)s)",
    )
    group.add_argument(
        "--sigma-steps",
        type=int,
        default=900,
        help="of the choice (default: %(default)s)",
    )
    group.add_argument(
        "--sigma-num-noise",
        type=int,
        default=1,
        help="noisy copies a step of the choice (default: %(default)s)",
    )
    group.add_argument(
        "--sigma-learning-rate",
        type=float,
        default=1e-4,
        help="of the choice (default: %(default)s)",
    )
    _devices.add_arguments(
        parser,
        "this worker's share of the images, by TF_CONFIG, into LOG.i-of-m.tsv; "
        "`merge` makes one log of them",
    )


def run(args: argparse.Namespace) -> None:
    _check_strategy(args)
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
    if _certification.is_image(args.data):
        _one_image(args, arguments)
    elif args.out is None:
        raise ValueError("--out LOG must be given to certify a data set")
    else:
        _data_set(args, arguments)


def _check_strategy(args: argparse.Namespace) -> None:
    """Refuses what has no use for the strategy."""
    if args.replicas is not None and args.strategy != "mirrored":
        raise ValueError("--replicas needs --strategy mirrored")
    if args.strategy == "one":
        return
    uses = {
        "--sigma-mode fixed": args.sigma_mode == "fixed",
        "--model": args.servers is None,
    }
    if args.strategy == "multi_worker":
        uses = {
            "a data set": not _certification.is_image(args.data),
            "--seed: all workers have to draw under the same": args.seed
            is not None,
        }
    lacking = [name for name, found in uses.items() if not found]
    if lacking:
        raise ValueError(f"--strategy {args.strategy} needs {lacking[0]}")


def _certifier(args: argparse.Namespace) -> Any:
    certifier = _certification.certifier_of(args)
    if args.sigma_mode == "fixed":
        return certifier
    if args.servers is not None:
        raise ValueError(
            "--sigma-mode must be fixed with --servers: the export says which "
            f"sigma. Received: {args.sigma_mode}"
        )
    from rs_keras import DataDependentCertifier

    return DataDependentCertifier(
        certifier.model,
        sigma0=certifier.sigma,
        steps=args.sigma_steps,
        num_noise=args.sigma_num_noise,
        learning_rate=args.sigma_learning_rate,
        batch_size=args.batch_size,
        noise=args.noise,
        dtype=args.dtype,
    )


def _one_image(args: argparse.Namespace, arguments: dict) -> None:
    certifier = _certifier(args)
    for _, image, _ in _certification.examples_of(args, certifier):
        found = certifier.certify(image, seed=args.seed, **arguments)
        print(f"{args.data}: {found.sentence(0)}")


def _data_set(args: argparse.Namespace, arguments: dict) -> None:
    from rs_keras import certify_dataset

    shard, out = _devices.shard_of(args.strategy, args.out)
    certifier = _certifier(args)
    data = _certification.data_set_of(args, certifier)
    log = certify_dataset(
        certifier,
        data,
        out,
        skip=args.skip,
        max_examples=args.max_examples,
        seed=args.seed,
        name=f"{args.data}/{args.split}",
        shard=shard,
        **arguments,
    )
    acr = log.acr(per_input_sigma=True)
    mark = " (of a sigma for each image)" if args.sigma_mode != "fixed" else ""
    print(
        f"{out}: {len(log)} examples, ACR {acr:.3f}{mark}, certified "
        f"accuracy at 0 {log.certified_accuracy([0.0])[0]:.1%}, "
        f"{log.abstention_rate():.1%} abstained"
    )
