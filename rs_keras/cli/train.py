"""`rs-keras train`: a classifier to be smoothed, with the papers' settings."""

import argparse
import os
import sys
from pathlib import Path
from typing import Any
from typing import NoReturn

import numpy as np
import tensorflow as tf

import rs_keras
from rs_keras import distribution
from rs_keras import teacher
from rs_keras._checks import check_count
from rs_keras._checks import check_not_negative
from rs_keras.classifiers.checkpoints import load_classifier
from rs_keras.cli import _runs
from rs_keras.trainers import recipes
from rs_keras.trainers._distributed import startup
from rs_keras.trainers.recipes.recipe import Recipe
from rs_keras.trainers.runs import training

# Of the teacher, where the recipe does not say: the paper's.
_TEACHER_SIGMA = 0.25
_TEACHER_VOTES = 10_000


def run(args: argparse.Namespace) -> int | None:
    # Workers must meet before anything else of TensorFlow is used.
    strategy = distribution.strategy_of(
        args.strategy, args.worker_timeout, args.replicas
    )
    try:
        return _train(args, strategy)
    except distribution.LOST as error:
        if distribution.member_of(strategy).size == 1:
            raise
        _restart(error)


def _train(
    args: argparse.Namespace, strategy: tf.distribute.Strategy | None
) -> int | None:
    startup.check_steps(strategy, args.steps_per_execution)
    is_chief = distribution.member_of(strategy).is_chief
    recipe, folder = distribution.everywhere(
        strategy, lambda: _prepare(args, is_chief)
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
            # The teacher of the recipe was not used.
            recipe = recipe.replace(teacher={})
        training.train(recipe, folder, soft_labels=labels, **options)
    except FloatingPointError as error:
        print(f"rs-keras train: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(
            f"\nrs-keras train: stopped. {folder} holds the training so far; "
            "run the same command with --resume to continue.",
            file=sys.stderr,
        )
        return 130
    if is_chief:
        print(
            f"{folder}: trained. Certify it with\n  rs-keras certify "
            f"{recipe.dataset} --model {folder} --out {folder}/certified.tsv"
        )
    return None


def _restart(cause: BaseException) -> NoReturn:
    """Restarts this process with --resume, to wait for a lost worker.

    TensorFlow's collectives cannot be used again once a worker is gone.
    """
    print(
        f"\nrs-keras: a worker was lost ({type(cause).__name__}). This one "
        "returns to the last snapshot and waits for it: restart the lost "
        "worker with the same command.",
        file=sys.stderr,
        flush=True,
    )
    command = list(sys.orig_argv)
    if "--resume" not in command:
        command.append("--resume")
    sys.stdout.flush()
    os.execv(sys.executable, command)


def _prepare(args: argparse.Namespace, is_chief: bool) -> tuple[Recipe, Path]:
    """Returns the recipe and its folder, both checked."""
    check_count("steps-per-execution", args.steps_per_execution)
    check_not_negative("snapshot-seconds", args.snapshot_seconds)
    recipe = _runs.recipe_of(args)
    folder = _runs.folder_of(args.out, recipe)
    if is_chief and not args.resume and (folder / training.SNAPSHOT).exists():
        raise ValueError(
            f"{folder} holds a run already: continue it with --resume, or "
            "choose another --out"
        )
    return recipe, folder


def _summary(recipe: Recipe, folder: Path) -> str:
    settings = "".join(
        f", {key} {value}"
        for key, value in recipe.trainer.items()
        if key != "name" and value is not None
    )
    return (
        f"{recipe.trainer['name']} on {recipe.dataset}, sigma "
        f"{recipe.sigma:g}{settings}; {recipe.epochs} epochs of batch "
        f"{recipe.batch_size}, seed {recipe.seed}, {recipe.dtype}; in {folder}"
    )


def _soft_labels(
    args: argparse.Namespace,
    recipe: Recipe,
    folder: Path,
    options: dict[str, Any],
) -> np.ndarray | None:
    """Returns the soft labels that the flags ask for."""
    if recipe.trainer["name"] != "CATRS":
        _runs.refuse(
            args,
            ("soft_labels", "teacher", "teacher_n"),
            f"the method {recipe.method}, which does not use it",
        )
        return None
    if args.soft_labels is not None:
        _runs.refuse(args, ("teacher", "teacher_n"), "--soft-labels FILE")
        return teacher.read_labels(args.soft_labels, recipe.dataset)
    if args.teacher is not None:
        return _labels_of_teacher(args, recipe, folder, options)
    _runs.refuse(args, ("teacher_n",), "no --teacher, which would vote")
    earlier = sorted(folder.glob("soft_labels_*[0-9].npz"))
    if args.resume and earlier:
        return teacher.read_labels(earlier[0], recipe.dataset)
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


def _labels_of_teacher(
    args: argparse.Namespace,
    recipe: Recipe,
    folder: Path,
    options: dict[str, Any],
) -> np.ndarray:
    n = recipe.teacher.get("n", _TEACHER_VOTES)
    member = distribution.member_of(options["strategy"])
    # Each worker computes the votes itself, maybe in a folder shared by all.
    suffix = "" if member.is_chief else f".worker{member.rank}"
    path = folder / f"soft_labels_{n}{suffix}.npz"
    if args.teacher == "train" and args.resume and member.size == 1:
        # Once the student has begun, the teacher is not needed any more.
        if path.exists() and (folder / training.SNAPSHOT).exists():
            return teacher.read_labels(path, recipe.dataset)
    local_strategy = distribution.within_machine(options["strategy"])
    # Reports errors of the student before its teacher is trained.
    recipe.build(args.data_dir)
    if args.teacher == "train":
        source = folder / "teacher"
        # Not read from its folder, which other workers may not see.
        model = training.train(
            _teacher_recipe(recipe, args.data_dir),
            source,
            **{**options, "resume": True},
        ).model
    else:
        source = Path(args.teacher)
        with distribution.scope_of(local_strategy):
            model = load_classifier(source)
    sigma = recipe.teacher.get("sigma", _TEACHER_SIGMA)
    print(f"soft labels: {n} votes per example of {source}, sigma {sigma:g}")
    return rs_keras.smoothed_labels(
        model,
        recipe.dataset,
        sigma,
        n,
        path,
        seed=recipe.seed,
        data_dir=args.data_dir,
        limit=recipe.limit,
        strategy=local_strategy,
    )


def _teacher_recipe(recipe: Recipe, data_dir: str | None) -> Recipe:
    """Returns the recipe of a student's teacher, alike but for the method."""
    settings = recipe.teacher
    sigma = settings.get("sigma", _TEACHER_SIGMA)
    base = recipes.get(recipe.dataset, "gaussian", sigma, data_dir)
    return base.replace(
        epochs=settings.get("epochs", base.epochs),
        drops=settings.get("drops", base.schedule["drops"]),
        model=dict(recipe.model),
        seed=recipe.seed,
        dtype=recipe.dtype,
        jit_compile=recipe.jit_compile,
        sync_batch_norm=recipe.sync_batch_norm,
        limit=recipe.limit,
    )
