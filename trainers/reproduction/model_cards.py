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

_LIMITS = """\
It knows handwritten digits as MNIST has them: white on black, centred, 28x28.
What it says of any other image means nothing, however large the radius: a
certificate is about the stability of the answer, not about its truth. The
certificate is about the smoothed classifier (noise of this sigma, majority
vote), in L2, on images in [0, 1]; the network alone promises nothing. Trained
once, with seed 0, on two CPU cores; no other seed was looked at. MNIST is a
benchmark, not an application: do not read cheques with it."""


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
    place = Path(folder)
    recipe = recipes.load(place / runs.RECIPE)
    logs = [_log(place, form, weights) for form in reproduction.FORMS]
    return "\n\n".join(
        [
            f"# {known.name}",
            f"`rs_keras.models.pretrained({known.name!r})`: a LeNet (431,080 "
            "parameters) from images [B, 28, 28, 1] in [0, 1] to 10 logits, "
            f"to be smoothed with sigma = {known.sigma:g}. Apache-2.0.",
            "## Data",
            "The 60,000 training images of MNIST (LeCun, Cortes and Burges), "
            "without augmentation. Certified on "
            f"{len(logs[0]):,} of the 10,000 test images, spread over all of "
            "them, which training did not see.",
            "## Recipe",
            _recipe(recipe, known.method),
            "## Certified",
            certified_table(
                logs, [0.25 * i for i in range(11)], format="markdown"
            ),
            "Percent of the test images that are classified rightly and "
            "certified at each L2 radius; ACR is the average certified radius. "
            f"{_settings(logs[0])} `plain` is the papers' bound, `runner_up` "
            "bounds the second class, too. `results/mnist/` holds the logs "
            "image by image; they name the fingerprint of these weights, "
            f"`{weights}`.",
            "## Limits",
            _LIMITS.replace("\n", " "),
            "",
        ]
    )


def _log(folder: Path, form: str, weights: str | None) -> CertificationLog:
    log = CertificationLog.read(folder / f"{form}.tsv", recover=True)
    if log.settings["model"] != weights:
        raise ValueError(
            f"`{folder / form}.tsv` must be of the weights {weights}. "
            f"Received: {log.settings['model']}"
        )
    return log


def _recipe(recipe: Recipe, method: str) -> str:
    full = recipes.get(recipe.dataset, method, recipe.sigma)
    command = f"rs-keras reproduce mnist --sigma {recipe.sigma} "
    command += f"--methods {method}"
    length = f"{recipe.epochs} epochs"
    if recipes.is_cut(recipe):
        length = f"stopped after {length} of the command's {full.epochs}"
    elif recipe.epochs != full.epochs:
        command += f" --epochs {recipe.epochs}"
        length += f" (published: {full.epochs})"
    if recipe.dtype != full.dtype:
        command += f" --dtype {recipe.dtype}"
        length += f" in {recipe.dtype} (published: {full.dtype})"
    arguments = ", ".join(
        f"{key} = {value}"
        for key, value in recipe.trainer.items()
        if key != "name"
    )
    name = f"`{recipe.trainer['name']}`"
    return (
        f"`{command}`: {f'{name} ({arguments})' if arguments else name}, "
        f"{length} of batch {recipe.batch_size}, SGD with rate "
        f"{recipe.optimizer['learning_rate']} times "
        f"{recipe.schedule['factor']} from each of the epochs "
        f"{', '.join(map(str, recipe.schedule['drops']))} on, momentum "
        f"{recipe.optimizer['momentum']}, weight decay "
        f"{recipe.optimizer['weight_decay']}, seed {recipe.seed}."
        f"{_teacher(recipe.teacher, full.teacher)}"
    )


def _teacher(told: Mapping[str, Any], published: Mapping[str, Any]) -> str:
    """Says where the soft labels are from."""
    if not told:
        return ""
    return (
        f" Soft labels: {told['n']:,} votes an image (published: "
        f"{published['n']:,}) of a Gaussian network, sigma {told['sigma']:g}, "
        f"{told['epochs']} epochs."
    )


def _settings(log: CertificationLog) -> str:
    told = log.settings
    return (
        f"n0 = {told['n0']}, n = {told['n']:,}, alpha = {told['alpha']} for "
        "each image by itself."
    )
