"""Bundling a trained classifier with the package: weights and model card.

Example, from a checkout that holds the run's `model.keras`:

    from rs_keras.trainers.reproduction.model_cards import publish
    publish("results", "mnist-gaussian-1.00")
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rs_keras import CertificationLog
from rs_keras._atomic_files import written_whole
from rs_keras._checks import check_choice
from rs_keras.classifiers.checkpoints import load_classifier
from rs_keras.classifiers.fingerprint import fingerprint
from rs_keras.classifiers.precision import computing_in
from rs_keras.models import PRETRAINED
from rs_keras.models import Pretrained
from rs_keras.report.tables import certified_table
from rs_keras.trainers.recipes import registry as recipes
from rs_keras.trainers.recipes.recipe import Recipe
from rs_keras.trainers.reproduction import mnist as reproduction
from rs_keras.trainers.runs import training as runs

_TEMPLATE = Path(__file__).with_name("model_card.md")


def publish(root: str | Path, name: str) -> Pretrained:
    """Writes the weights and the card of a bundled model.

    Args:
        root: The results folder, with the run's `model.keras` in it.
        name: One of `rs_keras.models.PRETRAINED`.

    Returns:
        The entry, which tells where both files are.

    Raises:
        ValueError: For an unknown name, or if the logs were made with another
            model.
        OSError: If something is missing, or cannot be written.
    """
    known = PRETRAINED[check_choice("name", name, PRETRAINED)]
    folder = reproduction.folder_of(root, known.sigma, known.method)
    model = computing_in(load_classifier(folder), "float32")
    text = card(known, folder, fingerprint(model))
    with written_whole(known.weights) as part:
        model.save(part)
    with written_whole(known.card) as part:
        part.write_text(text)
    return known


def card(known: Pretrained, folder: str | Path, weights: str | None) -> str:
    """Returns a model card: data, recipe, certified table, limits.

    Args:
        known: The model.
        folder: The folder of its results.
        weights: The fingerprint of its weights; the logs must have the same.

    Returns:
        Markdown.

    Raises:
        ValueError: If the logs were made with another model.
        OSError: If a log or the recipe is missing.
    """
    folder = Path(folder)
    logs = [_log(folder, bound, weights) for bound in reproduction.BOUNDS]
    radii = [0.25 * i for i in range(11)]
    recipe = recipes.load(folder / runs.RECIPE)
    full = recipes.get(recipe.dataset, known.method, recipe.sigma)
    arguments = [f"{k} = {v}" for k, v in recipe.trainer.items() if k != "name"]
    command, length = _command_and_length(recipe, full)
    return _TEMPLATE.read_text(encoding="utf-8").format(
        known=known,
        examples=len(logs[0]),
        command=command,
        arguments=f" ({', '.join(arguments)})" if arguments else "",
        length=length,
        recipe=recipe,
        drops=", ".join(map(str, recipe.schedule["drops"])),
        teacher=_teacher(recipe.teacher, full.teacher),
        table=certified_table(logs, radii, format="markdown"),
        settings=logs[0].settings,
        weights=weights,
    )


def _log(folder: Path, bound: str, weights: str | None) -> CertificationLog:
    log = CertificationLog.read(folder / f"{bound}.tsv", recover=True)
    if log.settings["model"] != weights:
        raise ValueError(
            f"`{folder / bound}.tsv` must be of the weights {weights}. "
            f"Received: {log.settings['model']}"
        )
    return log


def _command_and_length(recipe: Recipe, full: Recipe) -> tuple[str, str]:
    """Returns a training's command, and its length beside the papers'."""
    command = f"--sigma {recipe.sigma} --methods {full.method}"
    length = f"{recipe.epochs} epochs"
    if recipes.is_cut(recipe):
        length = f"stopped after {length} of the command's {full.epochs}"
    elif recipe.epochs != full.epochs:
        command += f" --epochs {recipe.epochs}"
        length += f" (published: {full.epochs})"
    if recipe.dtype != full.dtype:
        command += f" --dtype {recipe.dtype}"
        length += f" in {recipe.dtype} (published: {full.dtype})"
    return command, length


def _teacher(teacher: Mapping[str, Any], published: Mapping[str, Any]) -> str:
    """Says where the soft labels are from."""
    if not teacher:
        return ""
    return (
        f" Soft labels: {teacher['n']:,} votes per image (published: "
        f"{published['n']:,}) of a Gaussian network, sigma "
        f"{teacher['sigma']:g}, {teacher['epochs']} epochs."
    )
