"""Train a classifier to be smoothed, with the papers' settings.

rs-keras train mnist --method smoothmix --sigma 1.0 --out runs/mnist
"""

import argparse
import importlib.util
import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING
from typing import Any

from rs_keras.cli import _devices

if TYPE_CHECKING:
    import numpy as np
    import tensorflow as tf

    from rs_keras.trainers.recipes.recipe import Recipe

HELP = "trains a classifier to be smoothed; resumes bit for bit"
EXAMPLE = "rs-keras train mnist --method smoothmix --sigma 1.0 --out runs/mnist"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "data",
        nargs="?",
        metavar="DATASET",
        help="mnist, fashion_mnist, cifar10, cifar100, svhn_cropped, "
        "imagenet2012, fashion_mini, npz:PATH or image_folder:PATH",
    )
    _add_recipe(parser)
    _add_run(parser)
    _add_teacher(parser)
    _devices.add_arguments(parser, "the workers that TF_CONFIG names")
    _devices.add_timeout(parser)
    parser.add_argument(
        "--sync-batch-norm",
        action="store_true",
        help="normalise by the batch of all replicas, not of each (exact, and "
        "slower: one more message a layer and pass)",
    )


def _methods() -> list[str]:
    """Returns the names of the methods without importing TensorFlow.

    Importing `trainers/methods.py`, the list of them, would.
    """
    spec = importlib.util.find_spec("rs_keras.trainers")
    [folder] = (spec and spec.submodule_search_locations) or []
    text = Path(folder, "methods.py").read_text(encoding="utf-8")
    return re.findall(r"^from rs_keras\.trainers\.(\w+) import", text, re.M)


def _add_recipe(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("what is trained")
    group.add_argument(
        "--method",
        help=f"{', '.join(_methods())}, or a variant such as smoothmix_onestep",
    )
    group.add_argument(
        "--sigma", type=float, help="of the noise, pixels in [0, 1]"
    )
    group.add_argument(
        "--recipe",
        metavar="FILE",
        help="a recipe in JSON (each run writes its own), instead of DATASET, "
        "--method and --sigma",
    )
    group.add_argument(
        "--epochs",
        type=int,
        help="of the run; drops of the learning rate and warm-ups keep their "
        "share of it",
    )
    group.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="another value of the recipe, such as eta=1.0, model=lenet or "
        "optimizer.learning_rate=0.1; may be repeated",
    )
    group.add_argument(
        "--seed", type=int, help="of weights, order and noise (default: 0)"
    )
    group.add_argument(
        "--dtype", help="float32, mixed_bfloat16, mixed_float16 or float64"
    )
    group.add_argument(
        "--jit", action="store_true", help="compile the step with XLA"
    )
    group.add_argument(
        "--limit",
        type=int,
        metavar="N",
        help="train on the first N examples, for trials",
    )


def _add_run(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("how it runs")
    group.add_argument(
        "--out",
        metavar="DIR",
        help="the run's folder (default: runs/DATASET_METHOD_SIGMA)",
    )
    group.add_argument(
        "--resume",
        action="store_true",
        help="go on from the run in the folder, if there is one; --out alone "
        "tells then what to train",
    )
    group.add_argument("--data-dir", help="where tensorflow-datasets looks")
    group.add_argument(
        "--certify-every",
        type=int,
        metavar="K",
        help="certify 200 test images, 1,000 draws each, every K epochs",
    )
    group.add_argument(
        "--steps-per-execution",
        type=int,
        default=1,
        metavar="K",
        help="steps a call of the graph (default: %(default)s)",
    )
    group.add_argument(
        "--snapshot-seconds",
        type=float,
        default=60.0,
        metavar="S",
        help="between snapshots within an epoch (default: %(default)s)",
    )


def _add_teacher(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("soft labels (catrs)")
    group.add_argument(
        "--soft-labels",
        metavar="FILE",
        help="of rs_keras.smoothed_labels, or of an earlier run",
    )
    group.add_argument(
        "--teacher",
        metavar="CHECKPOINT",
        help="make them with this classifier; 'train' trains it first",
    )
    group.add_argument(
        "--teacher-n",
        type=int,
        metavar="N",
        help="votes an example (default: that of the recipe, 10,000)",
    )


def run(args: argparse.Namespace) -> int | None:
    from rs_keras import distribution

    # Before anything else of TensorFlow: workers have to meet first.
    strategy = distribution.strategy_of(
        args.strategy, args.worker_timeout, args.replicas
    )
    try:
        return _train(args, strategy)
    except distribution.LOST as error:
        if distribution.member_of(strategy).size == 1:
            raise
        _devices.begin_again(error)


def _train(
    args: argparse.Namespace, strategy: "tf.distribute.Strategy | None"
) -> int | None:
    from rs_keras import distribution
    from rs_keras.trainers._distributed import startup
    from rs_keras.trainers.runs import training as runs

    startup.check_steps(strategy, args.steps_per_execution)
    is_chief = distribution.member_of(strategy).is_chief
    recipe, folder = distribution.everywhere(
        strategy, lambda: _prepared(args, is_chief)
    )
    if is_chief:
        print(_summary(recipe, folder))
    options = {
        "resume": args.resume,
        "data_dir": args.data_dir,
        "steps_per_execution": args.steps_per_execution,
        "every_seconds": args.snapshot_seconds,
        "strategy": strategy,
    }
    try:
        labels = _soft_labels(args, recipe, folder, options)
        if recipe.teacher and (labels is None or args.soft_labels is not None):
            # The recipe tells of a teacher that had no part in this.
            recipe = recipe.replace(teacher={})
        runs.train(
            recipe,
            folder,
            soft_labels=labels,
            **options,
        )
    except FloatingPointError as error:
        print(f"rs-keras train: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(
            f"\nrs-keras train: stopped. {folder} holds all up to here; the "
            "same command with --resume goes on.",
            file=sys.stderr,
        )
        return 130
    if is_chief:
        print(
            f"{folder}: trained. Certify it with\n  rs-keras certify "
            f"{recipe.dataset} --model {folder} --out {folder}/certified.tsv"
        )
    return None


def _prepared(
    args: argparse.Namespace, is_chief: bool
) -> tuple["Recipe", Path]:
    """Returns what to train, and the chief's folder for it."""
    from rs_keras._checks import check_count
    from rs_keras._checks import check_not_negative
    from rs_keras.trainers.runs import training as runs

    check_count("steps-per-execution", args.steps_per_execution)
    check_not_negative("snapshot-seconds", args.snapshot_seconds)
    recipe = _recipe(args)
    folder = folder_of(args.out, recipe)
    if is_chief:
        _check_free(folder / runs.SNAPSHOT, args.resume)
    return recipe, folder


def _recipe(args: argparse.Namespace) -> "Recipe":
    """Returns the recipe that the flags ask for."""
    from rs_keras.trainers import recipes
    from rs_keras.trainers.runs import training as runs

    file = args.recipe
    if file is None and args.data is None and args.resume and args.out:
        file = Path(args.out) / runs.RECIPE
    if file is not None:
        _refuse(args, ("data", "method", "sigma"), "--recipe FILE")
        recipe = recipes.load(file)
    else:
        missing = [
            flag
            for flag, value in (
                ("DATASET", args.data),
                ("--method", args.method),
                ("--sigma", args.sigma),
            )
            if value is None
        ]
        if missing:
            raise ValueError(f"{', '.join(missing)} must be given")
        recipe = recipes.get(args.data, args.method, args.sigma, args.data_dir)
    if args.epochs is not None and args.epochs != recipe.epochs:
        recipe = recipe.shortened(args.epochs)
    return _with_votes(recipe.replace(**_overrides(args)), args.teacher_n)


def _refuse(
    args: argparse.Namespace, names: tuple[str, ...], instead: str
) -> None:
    for name in names:
        value = getattr(args, name)
        if value is not None:
            flag = "DATASET" if name == "data" else f"--{name}"
            flag = flag.replace("_", "-")
            raise ValueError(
                f"{flag} cannot be given beside {instead}. Received: {value}"
            )


def _overrides(args: argparse.Namespace) -> dict[str, Any]:
    overrides = dict(assignment(text) for text in args.set)
    for name in ("seed", "dtype", "limit"):
        if getattr(args, name) is not None:
            overrides[name] = getattr(args, name)
    if args.certify_every is not None:
        overrides["certify.every"] = args.certify_every
    if args.jit:
        overrides["jit_compile"] = True
    if args.sync_batch_norm:
        overrides["sync_batch_norm"] = True
    return overrides


def _with_votes(recipe: "Recipe", teacher_n: int | None) -> "Recipe":
    """Writes into the recipe how many votes the soft labels are made of."""
    from rs_keras._checks import check_count

    if teacher_n is None:
        return recipe
    n = check_count("teacher-n", teacher_n)
    return recipe.replace(teacher={**recipe.teacher, "n": n})


def assignment(text: str) -> tuple[str, Any]:
    """Reads NAME=VALUE; the value as JSON has it, else as a word."""
    name, sign, value = text.partition("=")
    if not sign or not name:
        raise ValueError(f"--set must be NAME=VALUE. Received: {text!r}")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def folder_of(out: str | None, recipe: "Recipe", ending: str = "") -> Path:
    """Returns --out, or a folder named after what is trained."""
    if out is not None:
        return Path(out)
    # npz:some/where/data.npz is called by its file.
    name = Path(recipe.dataset.partition(":")[2] or recipe.dataset).stem
    return Path("runs") / f"{name}_{recipe.method}_{recipe.sigma:.2f}{ending}"


def _check_free(snapshot: Path, resume: bool) -> None:
    if snapshot.exists() and not resume:
        raise ValueError(
            f"{snapshot.parent} holds a run already: go on with --resume, or "
            "choose another --out"
        )


def _summary(recipe: "Recipe", folder: Path) -> str:
    settings = {
        key: value
        for key, value in recipe.trainer.items()
        if key != "name" and value is not None
    }
    named = "".join(f", {key} {value}" for key, value in settings.items())
    return (
        f"{recipe.trainer['name']} on {recipe.dataset}, sigma "
        f"{recipe.sigma:g}{named}; {recipe.epochs} epochs of batch "
        f"{recipe.batch_size}, seed {recipe.seed}, {recipe.dtype}; in {folder}"
    )


def _soft_labels(
    args: argparse.Namespace,
    recipe: "Recipe",
    folder: Path,
    options: dict[str, Any],
) -> "np.ndarray | None":
    """Returns the soft labels that the flags ask for."""
    from rs_keras import teacher

    if recipe.trainer["name"] != "CATRS":
        _refuse(
            args,
            ("soft_labels", "teacher", "teacher_n"),
            f"the method {recipe.method}, which has no use for it",
        )
        return None
    if args.soft_labels is not None:
        _refuse(args, ("teacher", "teacher_n"), "--soft-labels FILE")
        return teacher.read_labels(args.soft_labels, recipe.dataset)
    if args.teacher is None:
        _refuse(args, ("teacher_n",), "no --teacher, which would vote")
        made = sorted(folder.glob("soft_labels_*[0-9].npz"))
        if args.resume and made:
            return teacher.read_labels(made[0], recipe.dataset)
        if recipe.trainer.get("confidence_mask"):
            raise ValueError(
                "--soft-labels or --teacher must be given for "
                "confidence_mask=true: the mask is the teacher's confidence"
            )
        print(
            "no --soft-labels, no --teacher: trains the variant without a "
            "teacher, towards the model's own mean prediction under noise"
        )
        return None
    return _labels_of_teacher(args, recipe, folder, options)


def _labels_of_teacher(
    args: argparse.Namespace,
    recipe: "Recipe",
    folder: Path,
    options: dict[str, Any],
) -> "np.ndarray":
    import rs_keras
    from rs_keras import distribution
    from rs_keras import teacher
    from rs_keras.classifiers.checkpoints import load_classifier
    from rs_keras.trainers.runs import training as runs

    settings = recipe.teacher
    n = settings.get("n", 10_000)
    member = distribution.member_of(options["strategy"])
    # Each worker votes for itself, and may see the same folder.
    own = "" if member.is_chief else f".worker{member.rank}"
    made = folder / f"soft_labels_{n}{own}.npz"
    if args.teacher == "train" and args.resume and member.size == 1:
        # A student that has begun knows its labels: its teacher may be gone.
        if made.exists() and (folder / runs.SNAPSHOT).exists():
            return teacher.read_labels(made, recipe.dataset)
    spread = distribution.within_machine(options["strategy"])
    # What is wrong with the student shows before its teacher is trained.
    recipe.build(args.data_dir)
    if args.teacher == "train":
        place = folder / "teacher"
        trained = _teacher_recipe(recipe, args.data_dir)
        # Not read from its folder, which other workers need not see.
        model = runs.train(trained, place, **{**options, "resume": True}).model
    else:
        place = Path(args.teacher)
        with distribution.scope_of(spread):
            model = load_classifier(place)
    sigma = settings.get("sigma", 0.25)
    print(f"soft labels: {n} votes an example of {place}, sigma {sigma:g}")
    return rs_keras.smoothed_labels(
        model,
        recipe.dataset,
        sigma,
        n,
        made,
        recipe.seed,
        data_dir=args.data_dir,
        limit=recipe.limit,
        strategy=spread,
    )


def _teacher_recipe(recipe: "Recipe", data_dir: str | None) -> "Recipe":
    """Returns the teacher's training: as long as the recipe says, and alike."""
    from rs_keras.trainers import recipes

    settings = recipe.teacher
    teacher = recipes.get(
        recipe.dataset, "gaussian", settings.get("sigma", 0.25), data_dir
    )
    return teacher.replace(
        epochs=settings.get("epochs", teacher.epochs),
        drops=settings.get("drops", teacher.schedule["drops"]),
        model=dict(recipe.model),
        seed=recipe.seed,
        dtype=recipe.dtype,
        jit_compile=recipe.jit_compile,
        sync_batch_norm=recipe.sync_batch_norm,
        limit=recipe.limit,
    )
