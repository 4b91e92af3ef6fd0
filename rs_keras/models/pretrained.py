"""Trained classifiers that come with the package."""

from dataclasses import dataclass
from pathlib import Path

import keras

from rs_keras._checks import check_choice

FOLDER = Path(__file__).resolve().parent.parent / "data" / "pretrained"


@dataclass(frozen=True)
class Pretrained:
    """What is known of a bundled model.

    Attributes:
        dataset: What it was trained on.
        method: The recipe: `rs_keras.trainers.recipes.get(dataset, method,
            sigma)`.
        sigma: Of the noise that it was trained with, and is certified with.
        weights: Its `.keras` file.
        card: Its model card, in Markdown: data, recipe, certified table,
            limits.

    Example:

    >>> from rs_keras import models
    >>> known = models.PRETRAINED["mnist-gaussian-1.00"]
    >>> known.dataset, known.method, known.sigma, known.card.name
    ('mnist', 'gaussian', 1.0, 'mnist-gaussian-1.00.md')
    >>> known.name, known.weights.is_file()
    ('mnist-gaussian-1.00', True)
    """

    dataset: str
    method: str
    sigma: float

    @property
    def name(self) -> str:
        """Data set, family of methods and sigma, as `pretrained` takes it."""
        family = self.method.split("_")[0]
        return f"{self.dataset}-{family}-{self.sigma:.2f}"

    @property
    def weights(self) -> Path:
        return FOLDER / f"{self.name}.keras"

    @property
    def card(self) -> Path:
        return FOLDER / f"{self.name}.md"


PRETRAINED: dict[str, Pretrained] = {
    known.name: known
    for known in (
        Pretrained("mnist", "smoothmix_onestep", 1.0),
        Pretrained("mnist", "catrs", 1.0),
        Pretrained("mnist", "gaussian", 1.0),
    )
}


def pretrained(name: str) -> keras.Model:
    """Loads a classifier that comes with the package.

    Args:
        name: One of `PRETRAINED`, which tells its sigma and its model card.

    Returns:
        A model from images in [0, 1] to logits, ready to be certified. From
        the command line it is the checkpoint `pretrained:NAME`.

    Raises:
        ValueError: For an unknown name (the nearest is named).

    Example:

    >>> from rs_keras import Certifier, models
    >>> model = models.pretrained("mnist-gaussian-1.00")
    >>> model.input_shape, model.output_shape
    ((None, 28, 28, 1), (None, 10))
    >>> Certifier(model, models.PRETRAINED["mnist-gaussian-1.00"].sigma).sigma
    1.0
    """
    known = PRETRAINED[check_choice("name", name, PRETRAINED)]
    return keras.saving.load_model(known.weights, compile=False)
