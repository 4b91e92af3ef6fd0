"""Images to click on, for models of the bundled data's size."""

from collections.abc import Sequence

import numpy as np

from rs_keras import datasets

_BUNDLED = "fashion_mini"


def examples_for(
    shape: Sequence[int], names: Sequence[str] | None
) -> list[tuple[str, np.ndarray]]:
    """Returns (class name, image) for the first image of each bundled class.

    None for models of another size, or of digits: those the page draws itself.

    Args:
        shape: (H, W, C) of the model.
        names: Of its classes; None where they are not known.

    Example:

    >>> from rs_keras.serving.demo.examples import examples_for
    >>> [name for name, _ in examples_for((28, 28, 1), None)][:2]
    ['T-shirt/top', 'Trouser']
    """
    known = datasets.info(_BUNDLED)
    theirs = known.class_names or ()
    if tuple(shape) != known.image_shape or tuple(names or theirs) != theirs:
        return []
    images, labels = datasets.arrays(_BUNDLED)
    firsts = [int(np.argmax(labels == label)) for label in range(len(theirs))]
    return [
        (name, images[first])
        for name, first in zip(theirs, firsts, strict=True)
    ]
