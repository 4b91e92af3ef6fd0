"""Train and certify the methods of the papers' MNIST table.

rs-keras reproduce mnist --sigma 1.0 --methods gaussian --budget short
"""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rs_keras.trainers.recipes import Recipe

HELP = "trains and certifies the papers' MNIST table; resumes at every step"
EXAMPLE = (
    "rs-keras reproduce mnist --sigma 1.0 --methods gaussian --budget short"
)

# The papers' 10,000 votes an image take 15 hours here.
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
        help="recipes, such as gaussian smoothmix_T1 (default: all of the "
        "table, the quickest first)",
    )
    parser.add_argument(
        "--budget",
        default="paper",
        choices=("paper", "short"),
        help="paper: full schedules, 1,000 images, n = 100,000; short: a "
        "tenth of each (default: %(default)s)",
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
        help="the authors' logs, as DIR/mnist_METHOD_sigmaSIGMA.tsv: the "
        "table gets the paired difference on the same images",
    )
    parser.add_argument("--data-dir", help="where tensorflow-datasets looks")


def run(args: argparse.Namespace) -> int | None:
    from rs_keras.checks import check_choice
    from rs_keras.trainers import recipes
    from rs_keras.trainers import reproduction
    from rs_keras.trainers import reproduction_table

    published = map(str, reproduction_table.PUBLISHED)
    check_choice("--sigma", str(args.sigma), published)
    known = recipes.methods("mnist")
    for method in args.methods or ():
        check_choice("--methods", method, known)
    for method in args.methods or reproduction.METHODS:
        code = _method(args, method)
        if code:
            return code
        root = Path(args.out)
        if args.references:
            reproduction_table.compare(
                root, args.sigma, method, args.references
            )
        rows = reproduction_table.rows_of(root, args.sigma)
        print(reproduction_table.table(rows))
        (root / "README.md").write_text(reproduction_table.report(root))
    return None


def _method(args: argparse.Namespace, method: str) -> int:
    """Trains and certifies one method, from where it was."""
    from rs_keras.checkpoints import load_classifier
    from rs_keras.trainers import recipes
    from rs_keras.trainers import reproduction

    folder = reproduction.folder_of(args.out, args.sigma, method)
    recipe = recipes.get("mnist", method, args.sigma, args.data_dir)
    recipe = reproduction.scheduled(recipe, args.budget)
    if not reproduction.is_trained(folder, recipe):
        code = _train(args, recipe, folder)
        if code:
            return code
    print(f"certifying {folder}", file=sys.stderr, flush=True)
    reproduction.certify(
        load_classifier(folder),
        args.sigma,
        folder,
        args.budget,
        args.data_dir,
    )
    return 0


def _train(args: argparse.Namespace, recipe: "Recipe", folder: Path) -> int:
    """Trains through the command that a reader can repeat."""
    from rs_keras.cli import main

    words = ["train", "mnist", "--method", recipe.method]
    words += ["--sigma", str(args.sigma)]
    words += ["--epochs", str(recipe.epochs), "--out", str(folder), "--resume"]
    if recipe.teacher:
        words += ["--teacher", "train", "--teacher-n", _TEACHER_VOTES]
    if args.data_dir:
        words += ["--data-dir", args.data_dir]
    print(f"$ rs-keras {' '.join(words)}", flush=True)
    return main(words)
