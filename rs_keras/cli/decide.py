"""Decide whether a radius is certified, with as few draws as it takes.

rs-keras decide mnist --model runs/mnist --radius 0.5,1.0 --max-examples 100
"""

import argparse
from typing import Any

from rs_keras.cli import _certification

HELP = "decides whether a radius is certified, with few draws"
EXAMPLE = (
    "rs-keras decide mnist --model runs/mnist --radius 0.5,1.0 "
    "--max-examples 100"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    _certification.add_arguments(parser)
    parser.add_argument(
        "--radius",
        type=_radii,
        required=True,
        metavar="R[,R...]",
        help="L2, pixels in [0, 1]; of several, the largest that is certified "
        "is told",
    )
    parser.add_argument(
        "--n-max",
        type=int,
        default=100_000,
        help="the most draws an image (default: %(default)s)",
    )
    parser.add_argument(
        "--plain",
        action="store_true",
        help="looks at the top class only: fewer draws, fewer certificates",
    )
    parser.add_argument(
        "--out", metavar="LOG", help="a log, TSV; resumed if it is there"
    )


def _radii(text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError as error:
        raise argparse.ArgumentTypeError(
            "must be numbers with commas between, as in 0.5,1.0. "
            f"Received: {text}"
        ) from error


def run(args: argparse.Namespace) -> int:
    certifier = _certification.certifier_of(args)
    arguments = {
        "radius": args.radius,
        "alpha": args.alpha,
        "n_max": args.n_max,
        "runner_up": not args.plain,
    }
    if _certification.is_image(args.data):
        return _one_image(args, certifier, arguments)
    if args.out is None:
        _print_data_set(args, certifier, arguments)
    else:
        _log_data_set(args, certifier, arguments)
    return 0


def _one_image(
    args: argparse.Namespace, certifier: Any, arguments: dict[str, Any]
) -> int:
    ((_, image, _),) = _certification.examples_of(args, certifier)
    found = certifier.decide(image, seed=args.seed, **arguments)
    print(f"{args.data}: {found.sentence(0)}")
    return 0 if found.certified[0] else 1


def _print_data_set(
    args: argparse.Namespace, certifier: Any, arguments: dict[str, Any]
) -> None:
    from rs_keras.noise.draws import example_seed

    root = _certification.root_of(args.seed)
    radii = ",".join(map(str, args.radius))
    print(
        f"# sigma={certifier.sigma:g} radius={radii} n_max={args.n_max} "
        f"alpha={args.alpha:g} seed={root}"
    )
    print("idx\tlabel\tpredict\tradius\tn")
    for idx, image, label in _certification.examples_of(args, certifier):
        seed = example_seed(root, idx)
        found = certifier.decide(image, seed=seed, **arguments)
        print(
            f"{idx}\t{label}\t{found.label[0]}\t{float(found.radius[0])}"
            f"\t{found.n[0]}",
            flush=True,
        )


def _log_data_set(
    args: argparse.Namespace, certifier: Any, arguments: dict[str, Any]
) -> None:
    from rs_keras.logs.evaluation import decide_dataset
    from rs_keras.logs.file_format import rounded_down

    data = _certification.data_set_of(args, certifier)
    log = decide_dataset(
        certifier,
        data,
        args.out,
        skip=args.skip,
        max_examples=args.max_examples,
        seed=args.seed,
        name=f"{args.data}/{args.split}",
        **arguments,
    )
    # With the decimals that the log has: it is read at its own radii.
    radii = [float(rounded_down(radius)) for radius in sorted(args.radius)]
    shares = ", ".join(
        f"{share:.1%} at {radius:.12g}"
        for radius, share in zip(
            radii, log.certified_accuracy(radii), strict=True
        )
    )
    print(
        f"{args.out}: {len(log)} examples, certified accuracy {shares}, "
        f"{log.extra['n'].mean():.0f} draws an image"
    )
