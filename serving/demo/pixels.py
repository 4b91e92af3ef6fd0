"""Images on their way to and from the page: float32 in base64."""

import base64
import math
from collections.abc import Sequence
from typing import Any

import numpy as np


def to_text(image: np.ndarray) -> str:
    """Writes pixels, row by row.

    Example:

    >>> import numpy as np
    >>> from rs_keras.serving.demo import pixels
    >>> text = pixels.to_text(np.ones([1, 1, 1]))
    >>> text, pixels.from_text(text, (1, 1, 1)).tolist()
    ('AACAPw==', [[[1.0]]])
    """
    return base64.b64encode(image.astype("<f4").tobytes()).decode()


def from_text(text: Any, shape: Sequence[int]) -> np.ndarray:
    """Reads pixels: float32 of `shape`.

    Raises:
        ValueError: If `text` is no such text, or of another size.
    """
    try:
        raw = base64.b64decode(text, validate=True)
    except (TypeError, ValueError) as error:
        raise ValueError("`pixels` must be text in base64.") from error
    wanted = 4 * math.prod(shape)
    if len(raw) != wanted:
        raise ValueError(
            f"`pixels` must be {wanted} bytes: float32, shape {list(shape)}. "
            f"Received: {len(raw)} bytes"
        )
    return np.frombuffer(raw, "<f4").reshape(shape)
