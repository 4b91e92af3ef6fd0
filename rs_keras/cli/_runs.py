"""The recipe and the folder of a training run, from a command's flags."""

import argparse
import json
from pathlib import Path
from typing import Any

from rs_keras._checks import check_count
from rs_keras.cli._photographs import data_name
from rs_keras.datasets.photographs import split_name
from rs_keras.trainers import recipes
from rs_keras.trainers.recipes.recipe import Recipe
from rs_keras.trainers.runs.training import RECIPE


def recipe_of(args: argparse.Namespace) -> Recipe:
    """Returns the recipe that the flags of `train` describe."""
    file = args.recipe
    if file is None and args.data is None and args.resume and args.out:
        file = Path(args.out) / RECIPE
    if file is not None:
        refuse(args, ("data", "method", "sigma"), "--recipe FILE")
        recipe = recipes.load(file)
    else:
        needed = {
            "DATASET": args.data,
            "--method": args.method,
            "--sigma": args.sigma,
        }
        missing = [flag for flag, value in needed.items() if value is None]
        if missing:
            raise ValueError(f"{', '.join(missing)} must be given")
        data = data_name(args)
        recipe = recipes.get(data, args.method, args.sigma, args.data_dir)
    if args.epochs is not None and args.epochs != recipe.epochs:
        recipe = recipe.shortened(args.epochs)
    recipe = recipe.replace(**_overrides(args))
    if args.teacher_n is not None:
        n = check_count("teacher-n", args.teacher_n)
        recipe = recipe.replace(teacher={**recipe.teacher, "n": n})
    return recipe


def _overrides(args: argparse.Namespace) -> dict[str, Any]:
    flags = {
        "seed": args.seed,
        "dtype": args.dtype,
        "limit": args.limit,
        "certify.every": args.certify_every,
        "jit_compile": args.jit or None,
        "sync_batch_norm": args.sync_batch_norm or None,
    }
    given = {key: value for key, value in flags.items() if value is not None}
    return {**assignments(args.set), **given}


def assignments(texts: list[str]) -> dict[str, Any]:
    """Reads every NAME=VALUE: the value as JSON, or else as a word."""
    values: dict[str, Any] = {}
    for text in texts:
        name, sign, value = text.partition("=")
        if not sign or not name:
            raise ValueError(f"--set must be NAME=VALUE. Received: {text!r}")
        try:
            values[name] = json.loads(value)
        except ValueError:
            values[name] = value
    return values


def refuse(
    args: argparse.Namespace, names: tuple[str, ...], other: str
) -> None:
    """Raises ValueError for a flag that cannot be given beside another."""
    for name in names:
        value = getattr(args, name)
        if value is not None:
            flag = "DATASET" if name == "data" else f"--{name}"
            raise ValueError(
                f"{flag.replace('_', '-')} cannot be given beside {other}. "
                f"Received: {value}"
            )


def folder_of(out: str | None, recipe: Recipe, suffix: str = "") -> Path:
    """Returns --out, or a folder named after what is trained."""
    if out is not None:
        return Path(out)
    # The file's name, for npz:some/where/data.npz.
    dataset = split_name(recipe.dataset)[0]
    name = Path(dataset.partition(":")[2] or dataset).stem
    return Path("runs") / f"{name}_{recipe.method}_{recipe.sigma:.2f}{suffix}"
