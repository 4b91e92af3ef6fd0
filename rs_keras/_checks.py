"""Argument checks, which raise ValueError with the rule and the value."""

import difflib
import warnings
from collections.abc import Iterable
from typing import Any

import numpy as np

# An alpha above looks like a confidence, a sigma from here on like bytes'.
_CONFIDENCE = 0.5
_OF_BYTES = 8.0

# Of a picture: colours and alpha.
_MOST_CHANNELS = 4


def check_images(
    images: Any, shape: tuple[int | None, ...] | None = None
) -> np.ndarray:
    """Returns `images` as float32 [B, H, W, C], or says what is wrong.

    Args:
        images: A batch of images; floats in [0, 1], or uint8 (divided by 255).
        shape: The (H, W, C) wanted, where it is known; None for a size that
            may vary.

    Raises:
        ValueError: For another rank or shape, an empty batch, another kind of
            numbers, values that are not finite or outside [0, 1].
    """
    array = np.asarray(images)
    if array.ndim != 4:
        raise ValueError(
            "`images` must have shape [batch, height, width, channels]. "
            f"Received: shape={list(array.shape)}."
            f"{_missing_axes(array.shape, shape)}"
        )
    if shape is not None and not fits(array.shape[1:], shape):
        sizes = ", ".join("any" if s is None else str(s) for s in shape)
        raise ValueError(
            f"`images` must have shape [batch, {sizes}] "
            f"for this model. Received: shape={list(array.shape)}"
        )
    if not len(array):
        raise ValueError(
            "`images` must hold at least one image. "
            f"Received: shape={list(array.shape)}"
        )
    if array.dtype == np.uint8:
        return array.astype(np.float32) / np.float32(255)
    if array.dtype.kind != "f" and str(array.dtype) != "bfloat16":
        raise ValueError(
            "`images` must be floats in [0, 1] or uint8. "
            f"Received: dtype={array.dtype}"
        )
    array = array.astype(np.float32)
    if not np.isfinite(array).all():
        bad = int(np.flatnonzero(~np.isfinite(array).all((1, 2, 3)))[0])
        raise ValueError(
            "`images` must be finite. Received: NaN or infinity in "
            f"images[{bad}]"
        )
    low, high = float(array.min()), float(array.max())
    if low < 0 or high > 1:
        hint = "; divide by 255" if 2 < high <= 255 and low >= 0 else ""
        raise ValueError(
            "`images` must lie in [0, 1]. "
            f"Received: min={low:g}, max={high:g}{hint}"
        )
    return array


def _missing_axes(
    shape: tuple[int, ...], wanted: tuple[int | None, ...] | None
) -> str:
    """Says which axes images lack: that of the batch, or of the channels."""
    if len(shape) == 2:
        return " One grey image still needs both axes: images[None, ..., None]."
    if len(shape) != 3:
        return ""
    # Where both are possible, the last axis tells: channels are few.
    single = wanted is None or fits(shape, wanted)
    grey = wanted is None or fits((*shape[1:], 1), wanted)
    if grey and not (single and shape[-1] <= _MOST_CHANNELS):
        return " Grey images still need an axis of channels: images[..., None]."
    return " One image still needs a batch dimension: images[None]."


def fits(sizes: tuple[int, ...], wanted: tuple[int | None, ...]) -> bool:
    """Tells whether sizes are those wanted, where None is any."""
    return len(sizes) == len(wanted) and all(
        want in (None, size) for size, want in zip(sizes, wanted, strict=True)
    )


def _number(name: str, value: Any, rule: str, holds: Any) -> float:
    """Returns a value as a float if it is a number that keeps a rule."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = float("nan")
    if isinstance(value, bool) or not (np.isfinite(number) and holds(number)):
        raise ValueError(f"`{name}` must be {rule}. Received: {name}={value!r}")
    return number


def check_positive(name: str, value: Any) -> float:
    """Returns a finite number > 0 as a float."""
    return _number(name, value, "a finite number > 0", lambda x: x > 0)


def check_not_negative(name: str, value: Any) -> float:
    """Returns a finite number >= 0 as a float."""
    return _number(name, value, "a finite number >= 0", lambda x: x >= 0)


def check_up_to(name: str, value: Any, limit: float) -> float:
    """Returns a radius in [0, limit], the largest that can be certified."""
    number = check_not_negative(name, value)
    if number > limit:
        raise ValueError(
            f"`{name}` must be <= {limit:.6g}, the largest radius that so many "
            f"draws can certify. Received: {name}={value!r}"
        )
    return number


def check_probability(name: str, value: Any) -> float:
    """Returns a number strictly between 0 and 1 as a float."""
    return _number(name, value, "in (0, 1)", lambda x: 0 < x < 1)


def check_alpha(value: Any) -> float:
    """Returns a probability of error; one that looks like a confidence warns.

    Raises:
        ValueError: If it is not in (0, 1).
    """
    number = check_probability("alpha", value)
    if number > _CONFIDENCE:
        warnings.warn(
            f"`alpha` is the probability of an error: alpha={number:g} gives "
            f"certificates that hold with probability {1 - number:.6g}. Did "
            f"you mean alpha={1 - number:.6g}?",
            UserWarning,
            stacklevel=4,
        )
    return number


def check_sigma(value: Any) -> float:
    """Returns a standard deviation; one of pixels in 0 .. 255 warns.

    Raises:
        ValueError: If it is not > 0.
    """
    number = check_positive("sigma", value)
    if number >= _OF_BYTES:
        warnings.warn(
            f"`sigma` is in units of pixels in [0, 1]: sigma={number:g} leaves "
            f"nothing of an image. Did you mean sigma={number:g}/255 = "
            f"{number / 255:.4g}?",
            UserWarning,
            stacklevel=4,
        )
    return number


def check_count(name: str, value: Any, minimum: int = 1) -> int:
    """Returns a whole number >= `minimum` as an int."""
    whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if not whole or value < minimum:
        raise ValueError(
            f"`{name}` must be a whole number >= {minimum}. "
            f"Received: {name}={value!r}"
        )
    return int(value)


def check_flag(name: str, value: Any) -> bool:
    """Returns True or False as it is; a word such as "no" would be true."""
    if not isinstance(value, bool | np.bool_):
        raise ValueError(
            f"`{name}` must be True or False. Received: {name}={value!r}"
        )
    return bool(value)


def check_distributions(
    soft_labels: Any, count: int, num_classes: int | None = None
) -> None:
    """Raises unless `soft_labels` are `count` rows of probabilities.

    Args:
        soft_labels: [count, num_classes].
        count: The rows wanted.
        num_classes: The columns wanted; None for any number.

    Raises:
        ValueError: That names `soft_label`.
    """
    array = np.asarray(soft_labels, np.float64)
    columns = num_classes or (array.shape[1] if array.ndim == 2 else None)
    if array.shape != (count, columns) or not array.size:
        raise ValueError(
            "`soft_label` must be one distribution an image, shape "
            f"[{count}, {num_classes or 'num_classes'}]. "
            f"Received: shape={list(array.shape)}"
        )
    sums = array.sum(axis=1)
    if not (np.isfinite(array).all() and array.min() >= 0):
        raise ValueError(
            "`soft_label` must be probabilities, finite and >= 0. "
            f"Received: min={array.min():g}"
        )
    if np.abs(sums - 1).max() > 1e-3:
        raise ValueError(
            "`soft_label` must sum to 1 over the classes. "
            f"Received: sums from {sums.min():g} to {sums.max():g}"
        )


def check_feasible(name: str, n: int, alpha: float, smallest: int) -> None:
    """Refuses a number of draws that could never decide anything."""
    if n < smallest:
        raise ValueError(
            f"`{name}` must be >= {smallest} to certify anything at "
            f"alpha={alpha:g}. Received: {name}={n}"
        )


def check_choice(name: str, value: Any, choices: Iterable[str]) -> str:
    """Returns `value` if it is among `choices`; else names the nearest."""
    choices = list(choices)
    if value in choices:
        return str(value)
    near = difflib.get_close_matches(str(value), choices, 1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    raise ValueError(
        f"`{name}` must be one of {', '.join(choices)}. "
        f"Received: {name}={value!r}.{hint}"
    )
