"""Callbacks that certify while training, and that save the model."""

from collections.abc import Iterable
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from rs_keras import distribution
from rs_keras._atomic_files import written_whole
from rs_keras._checks import check_count
from rs_keras._checks import check_positive
from rs_keras._checks import check_probability
from rs_keras.certification.certifier import Certifier
from rs_keras.classifiers.adapters import network_of
from rs_keras.logs.selection import selected
from rs_keras.noise.draws import fold_in


class CertifyCallback(keras.callbacks.Callback):
    """Certifies some images after an epoch, and logs the accuracies.

    The logs of an epoch get, with the radius R of an image whose certified
    label is right and R = 0 for the others,

        val_acr = mean(R)
        val_certified_accuracy_r050 = mean(certified, right and R >= 0.5)

        val_capped_acr = mean(min(R, cap)), with `cap`

    and one such accuracy for each of `radii` (the name has no dot and no @,
    which file patterns take for something else). Callbacks that read them
    must come later in the list: in a trainer of this package they do wherever
    this one stands, with any other `keras.Model` put this one first. To watch
    them, EarlyStopping, ModelCheckpoint and ReduceLROnPlateau need
    `mode="max"`.

    Image i is drawn with `fold_in(seed, i)` each time, so that epochs differ
    by their weights alone; training is not touched. The network computes as it
    does in training, such as in bfloat16. Between certifications the
    logs repeat the last values, because loggers and monitors want the same
    names in each epoch.

    Args:
        dataset: Yields (image, label), batched or not, in the same order each
            time; images in [0, 1]. A few hundred are enough, and all are held
            in memory.
        every: Certifies after the first epoch, every `every`-th from there
            and the last.
        n: Draws that bound the probability of the class, >= 1. The radius is
            at most sigma * icdf(alpha ** (1 / n)).
        radii: In pixel units, multiples of 0.01 in [0, 10).
        n0: Draws that select the class, >= 1.
        alpha: Probability of a wrong certificate, for each image, in (0, 1).
        seed: Of the noise.
        sigma: Of the noise; None for that of the trainer.
        runner_up: As in `Certifier.certify`; False is the papers' bound.
        cap: Largest radius that counts for `val_capped_acr`, > 0: it does not
            rise when few images get radii larger than anyone asks for.

    Raises:
        ValueError: If an argument is out of range.

    Example:

    >>> import keras
    >>> from rs_keras import datasets
    >>> from rs_keras.trainers import recipes
    >>> from rs_keras.trainers.callbacks import CertifyCallback
    >>> few = datasets.load("fashion_mini").take(2)
    >>> trainer = recipes.get("fashion_mini", "gaussian", sigma=0.5).build()
    >>> history = trainer.fit(
    ...     *datasets.arrays("fashion_mini"), batch_size=500, verbose=0,
    ...     callbacks=[CertifyCallback(few, n=100, radii=[0.5])])
    >>> sorted(name for name in history.history if name.startswith("val"))
    ['val_acr', 'val_certified_accuracy_r050']

    References:
    - [Cohen et al., 2019](https://arxiv.org/abs/1902.02918)
    """

    # A trainer's `fit` puts callbacks that say so before the others.
    runs_first = True
    # The attributes that a snapshot of a run keeps.
    state_attributes = ("_last",)

    def __init__(
        self,
        dataset: tf.data.Dataset | Iterable,
        every: int = 1,
        n: int = 1_000,
        radii: Sequence[float] = (0.25, 0.5, 0.75, 1.0),
        n0: int = 100,
        alpha: float = 1e-3,
        seed: int = 0,
        sigma: float | None = None,
        runner_up: bool = False,
        cap: float | None = None,
    ) -> None:
        super().__init__()
        self.cap = None if cap is None else check_positive("cap", cap)
        self.every = check_count("every", every)
        self.radii = {_name(radius): float(radius) for radius in radii}
        self.seed = check_count("seed", seed, -(2**63))
        self.sigma = None if sigma is None else check_positive("sigma", sigma)
        self._arguments: dict[str, Any] = {
            "n": check_count("n", n),
            "n0": check_count("n0", n0),
            "alpha": check_probability("alpha", alpha),
            "runner_up": bool(runner_up),
        }
        chosen = list(selected(dataset))
        if not chosen:
            raise ValueError(
                "`dataset` must hold at least one image. Received: none"
            )
        self._images = np.concatenate([image for _, image, _ in chosen])
        self._labels = np.array([label for _, _, label in chosen])
        self._seeds = np.stack([fold_in(self.seed, i) for i, _, _ in chosen])
        self._certifier: Certifier | None = None
        self._last: dict[str, float] = {}

    def set_model(self, model: keras.Model) -> None:
        """Prepares to certify the classifier that `model` trains."""
        super().set_model(model)
        sigma = self.sigma or getattr(model, "sigma0", None)
        if sigma is None:
            raise ValueError(
                "`sigma` must be given for a model that is not a trainer of "
                "this package. Received: sigma=None"
            )
        classifier = network_of(model)
        known = self._certifier
        if known is None or known.model is not classifier:
            self._certifier = Certifier(
                classifier,
                sigma,
                strategy=distribution.within_machine(model.distribute_strategy),
            )

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        """Adds the certified accuracies to the logs."""
        is_last = epoch + 1 == self.params.get("epochs")
        if not self._last or epoch % self.every == 0 or is_last:
            self._last = self._certified()
        if logs is not None:
            logs.update(self._last)

    def _certified(self) -> dict[str, float]:
        if self._certifier is None:
            raise RuntimeError("certifying before `set_model` was called")
        certificate = self._certifier.certify(
            self._images, seed=self._seeds, **self._arguments
        )
        right = certificate.label == self._labels
        radius = right * certificate.radius
        averages = {"val_acr": float(np.mean(radius))}
        if self.cap is not None:
            capped = np.minimum(radius, self.cap)
            averages["val_capped_acr"] = float(np.mean(capped))
        for name, least in self.radii.items():
            certified = right & (certificate.radius >= least)
            averages[name] = float(np.mean(certified))
        return averages


def _name(radius: Any) -> str:
    """Returns what the certified accuracy at a radius is called in logs."""
    try:
        hundredths = float(radius) * 100
    except (TypeError, ValueError):
        hundredths = float("nan")
    # 0.29 * 100 is not a whole number in floats.
    if not (0 <= hundredths < 1000 and abs(hundredths % 1 - 0.5) > 0.499999):
        raise ValueError(
            "`radii` must be multiples of 0.01 in [0, 10). "
            f"Received: {radius!r}"
        )
    return f"val_certified_accuracy_r{round(hundredths):03d}"


class SaveModel(keras.callbacks.Callback):
    """Saves the model after each epoch, whole or not at all.

    `ModelCheckpoint` writes over the old file: a process killed meanwhile
    leaves neither. This writes to a temporary name and renames.

    Args:
        path: A `.keras` file.

    Raises:
        ValueError: If `path` ends otherwise.

    Example:

    >>> import keras
    >>> from rs_keras import datasets
    >>> from rs_keras.trainers import recipes
    >>> from rs_keras.trainers.callbacks import SaveModel
    >>> trainer = recipes.get("fashion_mini", "gaussian", sigma=0.5).build()
    >>> history = trainer.fit(
    ...     *datasets.arrays("fashion_mini"), batch_size=500, verbose=0,
    ...     callbacks=[SaveModel("trainer.keras")])
    >>> keras.saving.load_model("trainer.keras").sigma
    0.5
    """

    def __init__(self, path: str | Path) -> None:
        super().__init__()
        self.path = Path(path)
        if self.path.suffix != ".keras":
            raise ValueError(
                f"`path` must end in .keras. Received: path={str(path)!r}"
            )

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        """Saves the model."""
        with written_whole(self.path) as temporary:
            self.model.save(temporary)
