"""Attacks on the examples of a data set, into a log that resumes."""

import os
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
from decimal import ROUND_CEILING
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from rs_keras._atomic_files import written_whole
from rs_keras._checks import check_images
from rs_keras.attacks.attacked import AttackedClassifier
from rs_keras.attacks.attacked import check_certifier
from rs_keras.attacks.base import Attack
from rs_keras.attacks.base import Task
from rs_keras.attacks.images import Harness
from rs_keras.attacks.images import checked_radii
from rs_keras.attacks.smallest import SmallestPerturbation
from rs_keras.certification.certifier import Certifier
from rs_keras.logs.evaluation import log_results
from rs_keras.logs.evaluation import reader_for
from rs_keras.logs.log import CertificationLog
from rs_keras.logs.selection import Selection

# The columns of an attack's log beside those of all logs.
COLUMNS = ("adversarial_norm", "abstain_norm", "adversarial_label")

# The step of a log's radii; norms are rounded up to it.
_STEP = Decimal("0.000001")


def attack_dataset(
    certifier: Certifier,
    dataset: tf.data.Dataset | Iterable,
    path: str | os.PathLike[str],
    radii: float | Sequence[float],
    method: Attack | None = None,
    n: int = 10_000,
    alpha: float = 1e-3,
    skip: int = 1,
    max_examples: int | None = None,
    seed: int | str | None = None,
    name: str | None = None,
    progress: bool = True,
    shard: tuple[int, int] | None = None,
    class_names: Sequence[str] | None = None,
    save_images: str | os.PathLike[str] | None = None,
) -> CertificationLog:
    """Attacks every `skip`-th example of a data set, and logs each.

    The log has the format of `certify_dataset`, with settings, hashes and
    checksums, and resumes like it. `predict` is the smoothed prediction at the
    image. `radius` is the norm of the smallest perturbation found that changes
    a right prediction to another class, rounded up, or the largest of `radii`
    where none was found; `certified_accuracy` of this log is therefore the
    empirical robust accuracy, up to the largest radius. Further columns:
    `adversarial_norm` (the norm, inf where none was found), `abstain_norm` (the
    same where an abstention counts, too) and `adversarial_label`.

    Arguments that are not listed, result and errors are those of
    `certify_dataset`.

    Args:
        certifier: A `Certifier`.
        dataset: See `certify_dataset`.
        path: The log (TSV).
        radii: See `attack`; the same for all examples.
        method: See `attack`.
        n: See `attack`.
        alpha: See `attack`.
        save_images: A folder; the adversarial image of example idx is saved as
            `<idx>.npy`, float32 [H, W, C].

    Example:

    >>> import tensorflow as tf
    >>> from rs_keras import Certifier
    >>> from rs_keras import attacks
    >>> certifier = Certifier(lambda x: x[:, 0, 0, :2], sigma=0.5)
    >>> images = tf.constant([[1.0, 0.0], [0.6, 0.4]])[:, None, None]
    >>> data = tf.data.Dataset.from_tensor_slices((images, [0, 0]))
    >>> log = attacks.attack_dataset(
    ...     certifier, data, "attack.tsv", radii=0.5, seed=7, progress=False)
    >>> log.certified_accuracy([0.1, 0.5])
    array([1. , 0.5])
    """
    check_certifier(certifier)
    harness = Harness(method or SmallestPerturbation(), n, alpha)
    reach = checked_radii(np.ravel(radii), 1)
    attacked: dict[tuple[int, ...], AttackedClassifier] = {}
    folder = None if save_images is None else Path(save_images)

    def settings(image_shape: Sequence[int] | None = None) -> dict[str, Any]:
        own = harness.settings(certifier, image_shape)
        return own | {"attack_radii": reach[0].tolist()}

    def results(
        examples: Iterable[tuple[tuple[int, int, str], np.ndarray, Any]],
    ) -> Iterator[tuple[Any, dict[str, Any]]]:
        for key, image, seeds in examples:
            image = check_images(image)
            shape = image.shape[1:]
            if shape not in attacked:
                attacked[shape] = AttackedClassifier(certifier, shape)
            target = attacked[shape]
            _check_label(key[1], target.num_classes)
            [own] = certifier.seeds(seeds, image)
            task = Task(target, image[0], key[1], reach[0], own)
            found = harness(task)
            if folder is not None and found["adversarial_label"] >= 0:
                _save(folder / f"{key[0]}.npy", found["adversarial"])
            yield key, found

    return log_results(
        certifier,
        path,
        Selection(
            dataset,
            skip,
            max_examples,
            shard,
            seed=seed,
            name=name,
            progress=progress,
            read=reader_for(certifier, class_names),
        ),
        settings_of=settings,
        results_of=results,
        row_of=lambda found: _row(found, reach[0][-1]),
        columns=COLUMNS,
    )


def _row(found: dict[str, Any], reach: float) -> dict[str, Any]:
    """Returns the columns of one result, with its norms rounded up."""
    predicted, norm = found["predicted"], _rounded_up(found["norm"])
    return {
        "predict": predicted,
        "radius": 0.0 if predicted < 0 else min(norm, reach),
        "adversarial_norm": norm,
        "abstain_norm": _rounded_up(found["abstain_norm"]),
        "adversarial_label": found["adversarial_label"],
    }


def _rounded_up(norm: float) -> float:
    """Returns a norm with six decimals, never less: it is what was found."""
    if not np.isfinite(norm):
        return float(norm)
    return float(Decimal(repr(float(norm))).quantize(_STEP, ROUND_CEILING))


def _check_label(label: int, classes: int) -> None:
    if not 0 <= label < classes:
        raise ValueError(
            f"`dataset` must have labels in [0, {classes}) to be attacked. "
            f"Received: {label}"
        )


def _save(path: Path, image: np.ndarray) -> None:
    with written_whole(path) as temporary:
        np.save(temporary, image)
