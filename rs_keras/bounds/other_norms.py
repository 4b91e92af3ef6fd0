"""Radii in other norms, from those in L2."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from rs_keras._checks import check_count
from rs_keras.logs.log import CertificationLog

# Covers the roundings of a square root and a division.
_ROUNDING = 2.0**-51


def linf_radius(
    radius: np.ndarray | float, image_shape: Sequence[int]
) -> np.ndarray:
    """The L-infinity radius that an L2 radius implies.

        radius / sqrt(d), d = the number of pixel values

    because |x|_2 <= sqrt(d) * |x|_inf: if no pixel value changes by as much,
    the whole change is shorter than `radius` in L2.

    Args:
        radius: L2 radii, >= 0 and finite.
        image_shape: (H, W, C).

    Returns:
        float64, the shape of `radius`, rounded down.

    Raises:
        ValueError: If an argument is out of its range.

    Example:

    >>> from rs_keras.bounds import linf_radius
    >>> float(linf_radius(0.56, (28, 28, 1)).round(6))
    0.02

    References:
    - [Salman et al., 2019](https://arxiv.org/abs/1906.04584), section 4.2
    """
    sizes = [check_count("image_shape", size) for size in image_shape]
    if not sizes:
        raise ValueError(
            "`image_shape` must be (H, W, C). "
            f"Received: image_shape={image_shape!r}"
        )
    radii = np.asarray(radius, np.float64)
    if not (np.isfinite(radii) & (radii >= 0)).all():
        raise ValueError(
            f"`radius` must be >= 0 and finite. Received: radius={radius!r}"
        )
    return radii / np.sqrt(float(np.prod(sizes))) * (1 - _ROUNDING)


def linf_log(
    log: CertificationLog, image_shape: Sequence[int]
) -> CertificationLog:
    """Returns a log with L-infinity radii, for tables in that norm.

    Args:
        log: With L2 radii.
        image_shape: (H, W, C) of its images.

    Raises:
        ValueError: If `image_shape` is none, or the log is in L-infinity.

    Example:

    >>> from rs_keras import CertificationLog
    >>> from rs_keras.bounds import linf_log
    >>> log = CertificationLog([0], [7], [7], [0.56], [1], [2.0], name="mnist")
    >>> found = linf_log(log, (28, 28, 1))
    >>> found.name, found.radius.round(6)
    ('mnist (L-infinity)', array([0.02]))
    """
    if log.settings.get("norm") == "linf":
        raise ValueError(f"{log.name} holds L-infinity radii already")
    return replace(
        log,
        radius=linf_radius(log.radius, image_shape),
        name=f"{log.name} (L-infinity)",
        settings={**log.settings, "norm": "linf"},
    )
