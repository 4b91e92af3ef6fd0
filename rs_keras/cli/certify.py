"""`rs-keras certify`: a data set into a log, or one image."""

import argparse
from pathlib import Path
from typing import Any

from rs_keras import DataDependentCertifier
from rs_keras import certify_dataset
from rs_keras import distribution
from rs_keras.bounds.names import VOTE_BOUNDS
from rs_keras.cli import _certification
from rs_keras.cli import _photographs


def run(args: argparse.Namespace) -> None:
    _check_strategy(args)
    arguments = {
        "n0": args.n0,
        "n": args.n,
        "alpha": args.alpha,
        "bound": args.bound,
        "beta": args.beta,
        "runner_up": not args.plain and args.bound in VOTE_BOUNDS,
        "tolerance": args.tolerance,
        "max_radius": args.max_radius,
    }
    if _certification.is_image(args.data):
        _certify_image(args, arguments)
    elif args.out is None:
        raise ValueError("--out LOG must be given to certify a data set")
    else:
        _certify_dataset(args, arguments)


def _check_strategy(args: argparse.Namespace) -> None:
    """Refuses flags that the strategy cannot be used with."""
    if args.replicas is not None and args.strategy != "mirrored":
        raise ValueError("--replicas needs --strategy mirrored")
    if args.strategy == "one":
        return
    needs = {
        "--sigma-mode fixed": args.sigma_mode == "fixed",
        "--model": args.servers is None,
    }
    if args.strategy == "multi_worker":
        needs = {
            "a data set": not _certification.is_image(args.data),
            "--seed: all workers must draw with the same one": args.seed
            is not None,
        }
    missing = [name for name, given in needs.items() if not given]
    if missing:
        raise ValueError(f"--strategy {args.strategy} needs {missing[0]}")


def _certifier(args: argparse.Namespace) -> Any:
    certifier = _certification.certifier_of(args)
    if args.sigma_mode == "fixed":
        return certifier
    if args.servers is not None:
        raise ValueError(
            "--sigma-mode must be fixed with --servers: the export fixes "
            f"sigma. Received: {args.sigma_mode}"
        )
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


def _certify_image(args: argparse.Namespace, arguments: dict[str, Any]) -> None:
    certifier = _certifier(args)
    [(_, image, _)] = _certification.examples_of(args, certifier)
    certificate = certifier.certify(image, seed=args.seed, **arguments)
    note = _photographs.note(_photographs.resize_of(args))
    print(f"{args.data}: {certificate.sentence(0)}{note}")


def _certify_dataset(
    args: argparse.Namespace, arguments: dict[str, Any]
) -> None:
    shard, out = None, Path(args.out)
    if args.strategy == "multi_worker":
        shard = index, count = distribution.member_from_environment()
        out = out.with_name(f"{out.stem}.{index}-of-{count}{out.suffix}")
    certifier = _certifier(args)
    log = certify_dataset(
        certifier,
        _certification.dataset_of(args, certifier),
        out,
        skip=args.skip,
        max_examples=args.max_examples,
        seed=args.seed,
        name=f"{_photographs.data_name(args)}/{args.split}",
        shard=shard,
        **arguments,
    )
    acr = log.acr(per_input_sigma=True)
    mark = "" if args.sigma_mode == "fixed" else " (of a sigma for each image)"
    print(
        f"{out}: {len(log)} examples, ACR {acr:.3f}{mark}, certified "
        f"accuracy at 0 {log.certified_accuracy([0.0])[0]:.1%}, "
        f"{log.abstention_rate():.1%} abstained"
    )
