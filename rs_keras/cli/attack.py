"""`rs-keras attack`: perturbations that change the smoothed prediction."""

import argparse

from rs_keras import attacks
from rs_keras._checks import check_choice
from rs_keras.attacks.base import Attack
from rs_keras.cli import _certification
from rs_keras.cli import _photographs
from rs_keras.logs.robustness import robust_accuracy

# The flags that each method takes, by the name of its argument.
_FLAGS = {
    "smallest": ("steps", "noises", "goals"),
    "pgd": ("steps", "noises", "goals", "random_starts", "objective"),
    "random": ("steps",),
}
_METHODS = {
    "smallest": attacks.SmallestPerturbation,
    "pgd": attacks.PGD,
    "random": attacks.RandomSearch,
}


def run(args: argparse.Namespace) -> None:
    method = method_of(args)
    if _photographs.is_image(args.data):
        raise ValueError(
            "`DATASET` must be a data set: the label of an image file is not "
            f"known. Received: {args.data}"
        )
    certifier = _certification.certifier_of(args)
    log = attacks.attack_dataset(
        certifier,
        _certification.dataset_of(args, certifier),
        args.out,
        args.radius,
        method,
        n=args.n,
        alpha=args.alpha,
        skip=args.skip,
        max_examples=args.max_examples,
        seed=args.seed,
        name=f"{_photographs.data_name(args)}/{args.split}",
        save_images=args.save_images,
    )
    radii = sorted({0.0, *args.radius})
    shares = ", ".join(
        f"{share:.1%} at {radius:.12g}"
        for radius, share in zip(
            radii, robust_accuracy(log, radii), strict=True
        )
    )
    print(
        f"{args.out}: {len(log)} examples, empirical robust accuracy {shares}"
    )


def method_of(args: argparse.Namespace) -> Attack:
    """Returns the attack of --method, with the flags that it takes."""
    name = check_choice("--method", args.method, _METHODS)
    known = {flag for flags in _FLAGS.values() for flag in flags}
    given = {key: getattr(args, key) for key in sorted(known)}
    given = {key: value for key, value in given.items() if value is not None}
    for key in given:
        if key not in _FLAGS[name]:
            raise ValueError(
                f"--{key.replace('_', '-')} must not be given with --method "
                f"{name}. Received: {given[key]}"
            )
    if args.fixed_noise and name != "pgd":
        raise ValueError(
            f"--fixed-noise must not be given with --method {name}"
        )
    if args.fixed_noise:
        given["fresh_noise"] = False
    return _METHODS[name](**given)
