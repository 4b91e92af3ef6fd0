"""`rs-keras decide`: whether a radius is certified, with few draws."""

import argparse
from typing import Any

from rs_keras.cli import _certification
from rs_keras.cli import _photographs
from rs_keras.logs import decide_dataset
from rs_keras.logs.file_format import rounded_down
from rs_keras.noise.draws import example_seed


def run(args: argparse.Namespace) -> int:
    certifier = _certification.certifier_of(args)
    arguments = {
        "radius": args.radius,
        "alpha": args.alpha,
        "n_max": args.n_max,
        "runner_up": not args.plain,
    }
    if _certification.is_image(args.data):
        return _decide_image(args, certifier, arguments)
    if args.out is None:
        _print_decisions(args, certifier, arguments)
    else:
        _log_decisions(args, certifier, arguments)
    return 0


def _decide_image(
    args: argparse.Namespace, certifier: Any, arguments: dict[str, Any]
) -> int:
    [(_, image, _)] = _certification.examples_of(args, certifier)
    decision = certifier.decide(image, seed=args.seed, **arguments)
    note = _photographs.note(_photographs.resize_of(args))
    print(f"{args.data}: {decision.sentence(0)}{note}")
    return 0 if decision.certified[0] else 1


def _print_decisions(
    args: argparse.Namespace, certifier: Any, arguments: dict[str, Any]
) -> None:
    root = _certification.root_seed(args.seed)
    radii = ",".join(map(str, args.radius))
    print(
        f"# sigma={certifier.sigma:g} radius={radii} n_max={args.n_max} "
        f"alpha={args.alpha:g} seed={root}"
    )
    print("idx\tlabel\tpredict\tradius\tn")
    for idx, image, label in _certification.examples_of(args, certifier):
        seed = example_seed(root, idx)
        decision = certifier.decide(image, seed=seed, **arguments)
        print(
            f"{idx}\t{label}\t{decision.label[0]}"
            f"\t{float(decision.radius[0])}\t{decision.n[0]}",
            flush=True,
        )


def _log_decisions(
    args: argparse.Namespace, certifier: Any, arguments: dict[str, Any]
) -> None:
    log = decide_dataset(
        certifier,
        _certification.dataset_of(args, certifier),
        args.out,
        skip=args.skip,
        max_examples=args.max_examples,
        seed=args.seed,
        name=f"{_photographs.data_name(args)}/{args.split}",
        **arguments,
    )
    # Rounded as in the log, so that it is read at its own radii.
    radii = [float(rounded_down(radius)) for radius in sorted(args.radius)]
    shares = ", ".join(
        f"{share:.1%} at {radius:.12g}"
        for radius, share in zip(
            radii, log.certified_accuracy(radii), strict=True
        )
    )
    print(
        f"{args.out}: {len(log)} examples, certified accuracy {shares}, "
        f"{log.extra['n'].mean():.0f} draws per image"
    )
