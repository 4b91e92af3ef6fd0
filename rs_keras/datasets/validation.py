"""Examples that are kept out of training, to choose between models."""

from pathlib import Path

import numpy as np

from rs_keras._checks import check_count
from rs_keras.datasets.loading import arrays
from rs_keras.datasets.sources import chosen_places


def held_out(
    name: str,
    count: int,
    data_dir: str | Path | None = None,
    *,
    split: str = "train",
) -> tuple[np.ndarray, np.ndarray]:
    """Some examples, for choosing between trained models.

    At random, but always the same ones, in the split's own order.
    `stream(..., held_out=count)` has the others.

    Args:
        name: As in `arrays`.
        count: How many, >= 1 and <= N.
        data_dir: As in `load`.
        split: As in `load`.

    Returns:
        As `arrays`.

    Raises:
        ValueError: As in `arrays`, or for a `count` out of range.
        OSError: As in `load`.

    Example:

    >>> from rs_keras import datasets
    >>> images, labels = datasets.held_out("fashion_mini", 100)
    >>> len(images), len(set(labels.tolist()))
    (100, 10)
    """
    check_count("count", count)
    images, labels = arrays(name, split, data_dir)
    if count > len(images):
        raise ValueError(
            f"`count` must be <= {len(images)}, the number of examples. "
            f"Received: count={count}"
        )
    rows = chosen_places(len(images), count)
    return images[rows], labels[rows]
