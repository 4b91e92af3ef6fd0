"""`rs-keras reproduce`: the papers' MNIST table and its ablations."""

import argparse
import signal
import sys
from pathlib import Path
from typing import Any

import tensorflow as tf

from rs_keras import cli
from rs_keras import distribution
from rs_keras._checks import check_choice
from rs_keras._checks import check_count
from rs_keras.classifiers.checkpoints import load_classifier
from rs_keras.trainers import recipes
from rs_keras.trainers.recipes.recipe import Recipe
from rs_keras.trainers.reproduction import mnist
from rs_keras.trainers.reproduction import pairs
from rs_keras.trainers.reproduction import results
from rs_keras.trainers.reproduction import tables
from rs_keras.trainers.reproduction.published import ABLATIONS
from rs_keras.trainers.reproduction.published import PUBLISHED
from rs_keras.trainers.reproduction.published import reference_log

# The papers' 10,000 votes per image take four hours on two cores.
_TEACHER_VOTES = "1000"


def run(args: argparse.Namespace) -> int | None:
    strategy = None
    if args.replicas is not None:
        # Before anything else of TensorFlow is used.
        strategy = distribution.strategy_of("mirrored", replicas=args.replicas)
    # A training handles SIGTERM itself; a certification stops as at Ctrl-C.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    root = Path(args.out)
    names = _runs(args)
    # Reports what is wrong before hours of work.
    tables.check_own(root)
    _check_references(args, names)
    for name in names:
        _compare(args, name)
    _print_tables(args)
    done = [
        name
        for name in names
        if mnist.is_certified(*_folder_and_recipe(args, name), args.budget)
    ]
    for name in done:
        print(f"{name}: done before", file=sys.stderr, flush=True)
    try:
        for name in names:
            if name in done:
                continue
            try:
                code = _run(args, name, strategy)
            finally:
                _compare(args, name)
            if code:
                return code
            _print_tables(args)
    finally:
        if root.is_dir():
            tables.write_report(root)
    return None


def _print_tables(args: argparse.Namespace) -> None:
    if texts := tables.tables(args.out, args.sigma):
        print("\n\n".join(texts), flush=True)


def _check_references(args: argparse.Namespace, names: list[str]) -> None:
    """Reads the authors' logs once, to report their errors early."""
    if args.references is None:
        return
    if not Path(args.references).is_dir():
        raise ValueError(
            f"--references must be a folder. Received: {args.references}"
        )
    for name in names:
        reference_log(args.references, args.sigma, name)


def _compare(args: argparse.Namespace, name: str) -> None:
    """Compares a run's log, complete or not, with the authors'."""
    if args.references is None:
        return
    run = results.read(args.out, args.sigma, name)
    if run:
        pairs.against_authors(run, args.references)


def _runs(args: argparse.Namespace) -> list[str]:
    """Returns the runs that the flags ask for, each checked."""
    check_choice("--sigma", str(args.sigma), map(str, PUBLISHED))
    if args.epochs is not None:
        check_count("--epochs", args.epochs)
    if args.ablations is None:
        known = recipes.methods("mnist")
        for method in args.methods or ():
            check_choice("--methods", method, known)
        chosen = args.methods or mnist.methods(args.sigma)
        return list(dict.fromkeys(chosen))
    if args.methods:
        raise ValueError(
            "--methods cannot be given beside --ablations. Received: "
            f"{' '.join(args.methods)}"
        )
    if args.sigma != 1.0:
        raise ValueError(
            "--sigma must be 1.0 for --ablations, as in the paper. Received: "
            f"{args.sigma}"
        )
    for name in args.ablations:
        check_choice("--ablations", name, ABLATIONS)
    changed = map(mnist.ablation, args.ablations or ABLATIONS)
    return list(dict.fromkeys([_base(args), *changed]))


def _base(args: argparse.Namespace) -> str:
    """Returns the ablations' baseline; in full, it is a method of the table."""
    method = mnist.ABLATED
    recipe = mnist.recipe_of(
        method, args.sigma, args.budget, args.epochs, args.data_dir
    )
    full = mnist.recipe_of(method, args.sigma, data_dir=args.data_dir)
    if args.budget == "paper" and recipe.epochs == full.epochs:
        return method
    return mnist.ablation(mnist.BASE)


def _folder_and_recipe(
    args: argparse.Namespace, name: str
) -> tuple[Path, Recipe]:
    """Returns a run's folder, and its recipe by the flags."""
    folder = mnist.folder_of(args.out, args.sigma, name)
    dtype = args.dtype or mnist.dtype_of(folder)
    recipe = mnist.recipe_of(
        name, args.sigma, args.budget, args.epochs, args.data_dir, dtype=dtype
    )
    return folder, recipe


def _run(
    args: argparse.Namespace,
    name: str,
    strategy: tf.distribute.Strategy | None,
) -> int:
    """Trains and certifies one run, or resumes it."""
    folder, recipe = _folder_and_recipe(args, name)
    if not mnist.is_trained(folder, recipe):
        code = _train(args, recipe, mnist.changes_of(name), folder)
        if code:
            return code
    print(f"certifying {folder}", file=sys.stderr, flush=True)
    with distribution.scope_of(strategy):
        model = load_classifier(folder)
    mnist.certify(
        model,
        args.sigma,
        folder,
        args.budget,
        args.data_dir,
        strategy=strategy,
    )
    return 0


def _train(
    args: argparse.Namespace,
    recipe: Recipe,
    changes: dict[str, Any],
    folder: Path,
) -> int:
    """Trains through the command that a reader can repeat."""
    words = ["train", "mnist", "--method", recipe.method]
    words += ["--sigma", str(args.sigma)]
    words += ["--epochs", str(recipe.epochs), "--out", str(folder), "--resume"]
    if recipe.dtype != "float32":
        words += ["--dtype", recipe.dtype]
    for key, value in changes.items():
        words += ["--set", f"{key}={value}"]
    if recipe.teacher:
        words += ["--teacher", "train", "--teacher-n", _TEACHER_VOTES]
    if args.data_dir:
        words += ["--data-dir", args.data_dir]
    if args.replicas is not None:
        words += ["--strategy", "mirrored", "--replicas", str(args.replicas)]
    print(f"$ rs-keras {' '.join(words)}", flush=True)
    return cli.main(words)
