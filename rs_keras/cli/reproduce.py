"""Train and certify the methods of the papers' MNIST table.

rs-keras reproduce mnist --methods gaussian --budget short --out runs/table
"""

import argparse
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING
from typing import Any

from rs_keras.cli import _devices

if TYPE_CHECKING:
    import tensorflow as tf

    from rs_keras.trainers.recipes.recipe import Recipe

HELP = (
    "trains and certifies the papers' MNIST table and ablations; resumes at "
    "every step"
)
EXAMPLE = (
    "rs-keras reproduce mnist --methods gaussian --budget short "
    "--out runs/table"
)

# The papers' 10,000 votes an image take four hours on two cores.
_TEACHER_VOTES = "1000"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "data",
        metavar="DATASET",
        choices=("mnist",),
        help="mnist, the papers' table that two cores can reproduce",
    )
    parser.add_argument(
        "--sigma", type=float, default=1.0, help="0.25, 0.5 or 1.0"
    )
    parser.add_argument(
        "--methods",
        nargs="+",
        metavar="METHOD",
        help="recipes, such as gaussian smoothmix_T1 (default: each method of "
        "the table, the quickest first)",
    )
    parser.add_argument(
        "--ablations",
        nargs="*",
        metavar="NAME",
        help="trains variants of SmoothMix (T = 1, sigma 1.0) and what they "
        "differ from, instead of the methods: eta_4 eta_16 m_1 T_2 T_4 T_8 "
        "(none named: all)",
    )
    parser.add_argument(
        "--budget",
        default="paper",
        choices=("paper", "short"),
        help="paper: full schedules, 1,000 images, n = 100,000 (1,000 votes "
        "an image for CAT-RS' soft labels, of the papers' 10,000); short: a "
        "tenth of the schedules, 500 images, n = 10,000 (default: %(default)s)",
    )
    parser.add_argument(
        "--epochs",
        type=int,
        metavar="N",
        help="of each training, instead of as many as the budget has; another "
        "length of the same run needs another --out",
    )
    parser.add_argument(
        "--dtype",
        choices=("float32", "mixed_bfloat16"),
        help="of trainings: float32, as the authors, or mixed_bfloat16, about "
        "twice as quick where processors multiply matrices in it (AMX); "
        "certificates are about the weights in float32 all the same; another "
        "type of the same run needs another --out (default: that of the run "
        "in --out, or float32)",
    )
    parser.add_argument(
        "--out",
        metavar="DIR",
        default="results",
        help="the results folder (default: %(default)s)",
    )
    parser.add_argument(
        "--references",
        metavar="DIR",
        help="the authors' logs, as DIR/mnist_METHOD_sigmaSIGMA.tsv "
        "(smoothmix_eta5 and smoothmix_onestep_eta5 for what is smoothmix and "
        "smoothmix_onestep here): the table gets the paired difference on the "
        "same images",
    )
    parser.add_argument("--data-dir", help="where tensorflow-datasets looks")
    _devices.add_replicas(parser, "on a machine without accelerators")


def run(args: argparse.Namespace) -> int | None:
    from rs_keras import distribution
    from rs_keras.trainers.reproduction import mnist as reproduction
    from rs_keras.trainers.reproduction import tables as reproduction_table

    strategy = None
    if args.replicas is not None:
        # Before anything else of TensorFlow.
        strategy = distribution.strategy_of("mirrored", replicas=args.replicas)
    # Trainings stop at SIGTERM by themselves; a certification, as at Ctrl-C.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    root = Path(args.out)
    names = _runs(args)
    # Before hours of work: what is there, and what stands in its way.
    reproduction_table.check_own(root)
    _check_references(args, names)
    for name in names:
        _compare(args, name)
    _print_tables(args)
    done = [
        name
        for name in names
        if reproduction.is_certified(*_asked(args, name), args.budget)
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
            reproduction_table.write_report(root)
    return None


def _print_tables(args: argparse.Namespace) -> None:
    from rs_keras.trainers.reproduction import tables as reproduction_table

    tables = reproduction_table.tables(args.out, args.sigma)
    if tables:
        print("\n\n".join(tables), flush=True)


def _check_references(args: argparse.Namespace, names: list[str]) -> None:
    """Reads the authors' logs once, to find what is wrong with them."""
    from rs_keras.trainers.reproduction.published import reference_log

    if args.references is None:
        return
    if not Path(args.references).is_dir():
        raise ValueError(
            f"--references must be a folder. Received: {args.references}"
        )
    for name in names:
        reference_log(args.references, args.sigma, name)


def _compare(args: argparse.Namespace, name: str) -> None:
    """Compares a run's log with the authors', how far ever it came."""
    from rs_keras.trainers.reproduction import pairs
    from rs_keras.trainers.reproduction import results

    if args.references is None:
        return
    run = results.read(args.out, args.sigma, name)
    if run:
        pairs.against_authors(run, args.references)


def _runs(args: argparse.Namespace) -> list[str]:
    """Returns the runs that the flags ask for, each checked."""
    from rs_keras._checks import check_choice
    from rs_keras._checks import check_count
    from rs_keras.trainers import recipes
    from rs_keras.trainers.reproduction import mnist as reproduction
    from rs_keras.trainers.reproduction.published import ABLATIONS
    from rs_keras.trainers.reproduction.published import PUBLISHED

    check_choice("--sigma", str(args.sigma), map(str, PUBLISHED))
    if args.epochs is not None:
        check_count("--epochs", args.epochs)
    if args.ablations is None:
        known = recipes.methods("mnist")
        for method in args.methods or ():
            check_choice("--methods", method, known)
        chosen = args.methods or reproduction.methods(args.sigma)
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
    changed = map(reproduction.ablation, args.ablations or ABLATIONS)
    return list(dict.fromkeys([_base(args), *changed]))


def _base(args: argparse.Namespace) -> str:
    """What the ablations change: in full, it is a method of the table."""
    from rs_keras.trainers.reproduction import mnist as reproduction

    method = reproduction.ABLATED
    asked = reproduction.recipe_of(
        method, args.sigma, args.budget, args.epochs, args.data_dir
    )
    full = reproduction.recipe_of(method, args.sigma, data_dir=args.data_dir)
    if args.budget == "paper" and asked.epochs == full.epochs:
        return method
    return reproduction.ablation(reproduction.BASE)


def _asked(args: argparse.Namespace, name: str) -> tuple[Path, "Recipe"]:
    """Returns a run's folder, and what the flags ask to be in it."""
    from rs_keras.trainers.reproduction import mnist as reproduction

    folder = reproduction.folder_of(args.out, args.sigma, name)
    dtype = args.dtype or reproduction.dtype_of(folder)
    recipe = reproduction.recipe_of(
        name, args.sigma, args.budget, args.epochs, args.data_dir, dtype
    )
    return folder, recipe


def _run(
    args: argparse.Namespace,
    name: str,
    strategy: "tf.distribute.Strategy | None",
) -> int:
    """Trains and certifies one run, from where it was."""
    from rs_keras import distribution
    from rs_keras.classifiers.checkpoints import load_classifier
    from rs_keras.trainers.reproduction import mnist as reproduction

    folder, recipe = _asked(args, name)
    if not reproduction.is_trained(folder, recipe):
        code = _train(args, recipe, reproduction.changes_of(name), folder)
        if code:
            return code
    print(f"certifying {folder}", file=sys.stderr, flush=True)
    with distribution.scope_of(strategy):
        model = load_classifier(folder)
    reproduction.certify(
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
    recipe: "Recipe",
    changes: dict[str, Any],
    folder: Path,
) -> int:
    """Trains through the command that a reader can repeat."""
    from rs_keras.cli import main

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
    return main(words)
