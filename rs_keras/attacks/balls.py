"""Images in the intersection of an L2 ball and the box [0, 1].

Every image that leaves this module is float32, in [0, 1], and within its ball
after rounding: distances are those of the rounded images, in float64.
"""

from typing import Any

import numpy as np

# An image that rounding pushed out of its ball is drawn in again so often.
_CORRECTIONS = 10

# The distance of float32 numbers below 1.
_ULP = 2.0**-24


def distances(centre: Any, images: Any) -> np.ndarray:
    """L2 distances of images from one image, in float64.

    Args:
        centre: [H, W, C].
        images: [K, H, W, C].

    Returns:
        float64 [K].

    Example:

    >>> import numpy as np
    >>> from rs_keras import attacks
    >>> attacks.distances(np.zeros([2, 2, 1]), np.ones([3, 2, 2, 1]))
    array([2., 2., 2.])
    """
    moved = np.asarray(images, np.float64) - np.asarray(centre, np.float64)
    return np.linalg.norm(moved.reshape(len(moved), -1), axis=1)


def project(centre: Any, images: Any, radii: Any) -> np.ndarray:
    """Projects images onto the intersection of a ball and the box [0, 1].

    The nearest point of it is clip(centre + t * (image - centre), 0, 1) with
    the largest t <= 1 whose distance is at most the radius.

    Args:
        centre: [H, W, C], in [0, 1].
        images: [K, H, W, C].
        radii: Of the balls: a number, or [K].

    Returns:
        float32 [K, H, W, C].

    Example:

    >>> import numpy as np
    >>> from rs_keras import attacks
    >>> centre = np.zeros([1, 1, 2])
    >>> attacks.project(centre, [[[[3.0, -4.0]]]], radii=0.5)
    array([[[[0.5, 0. ]]]], dtype=float32)
    """
    towards = np.asarray(images, np.float64) - np.asarray(centre, np.float64)
    return _moved(centre, towards, radii, largest=1.0)


def along(centre: Any, directions: Any, radii: Any) -> np.ndarray:
    """Moves an image along directions, clipped to [0, 1], by given distances.

    The image is clip(centre + t * direction, 0, 1), with t such that it has
    the distance; beyond the farthest corner of the box in that direction, it is
    this corner.

    Args:
        centre: [H, W, C], in [0, 1].
        directions: [K, H, W, C], of any length.
        radii: The distances, >= 0: a number, or [K].

    Returns:
        float32 [K, H, W, C], at most that far from `centre`.

    Example:

    >>> import numpy as np
    >>> from rs_keras import attacks
    >>> centre = np.array([0.0, 0.9]).reshape(1, 1, 2)
    >>> direction = np.array([-1.0, 1.0]).reshape(1, 1, 1, 2)
    >>> attacks.along(centre, direction, 0.05).ravel().round(4)
    array([0.  , 0.95], dtype=float32)
    """
    return _moved(centre, np.asarray(directions, np.float64), radii, np.inf)


def nearest_on_plane(centre: Any, gradient: Any, rise: float) -> np.ndarray:
    """The point of the box on a plane that is nearest to an image.

    Minimises |x - centre| over x in [0, 1] with gradient . (x - centre) = rise:
    clip(centre + t * gradient, 0, 1) for one t. If no point of the box lies on
    the plane, the corner that comes nearest to it.

    Args:
        centre: [H, W, C], in [0, 1].
        gradient: The normal of the plane, [H, W, C].
        rise: >= 0.

    Returns:
        float32 [H, W, C].

    Example:

    >>> import numpy as np
    >>> from rs_keras import attacks
    >>> centre = np.full([1, 1, 2], 0.5)
    >>> gradient = np.array([3.0, 4.0]).reshape(1, 1, 2)
    >>> attacks.nearest_on_plane(centre, gradient, rise=1.25).ravel()
    array([0.65, 0.7 ], dtype=float32)
    """
    centre = np.asarray(centre, np.float64)
    gradient = np.asarray(gradient, np.float64)
    t = _multiplier(centre, gradient[None], np.array([rise]), power=1)
    return np.clip(centre + t[0] * gradient, 0.0, 1.0).astype(np.float32)


def _moved(
    centre: Any, directions: np.ndarray, radii: Any, largest: float
) -> np.ndarray:
    """Returns clip(centre + t * direction), t <= largest, within the ball."""
    start = np.asarray(centre, np.float64)
    radii = np.broadcast_to(np.asarray(radii, np.float64), len(directions))
    allowed = radii.copy()
    images = np.empty(directions.shape, np.float32)
    rows = np.arange(len(directions))
    for attempt in range(_CORRECTIONS):
        t = _multiplier(start, directions[rows], allowed[rows] ** 2, power=2)
        t = np.minimum(t, largest)[:, None, None, None]
        moved = np.clip(start + t * directions[rows], 0.0, 1.0)
        images[rows] = moved
        excess = distances(start, images[rows]) - radii[rows]
        # More than the excess, and ever more: the next rounding errs, too.
        margin = (2 * excess + _ULP * radii[rows]) * 4.0**attempt
        allowed[rows] = np.maximum(radii[rows] - margin, 0.0)
        rows = rows[excess > 0]
        if not len(rows):
            return images
    images[rows] = start
    return images


def _multiplier(
    centre: np.ndarray, directions: np.ndarray, wanted: np.ndarray, power: int
) -> np.ndarray:
    """Returns the t at which sum(moved**power * |direction|**(2-power)) is met.

    `moved` is |clip(centre + t * direction, 0, 1) - centre|. For power 2 this
    is the squared distance, for power 1 the rise along the direction. Pixel i
    moves until t = room_i / |direction_i|, where it reaches the box: between
    two of these points the sum is c + t**power * sum(direction**2 of those
    that still move), which is solved.

    Args:
        centre: [H, W, C].
        directions: [K, H, W, C].
        wanted: [K]; the t of the last point where it is not reached.
        power: 1 or 2.
    """
    size = np.abs(directions).reshape(len(directions), -1)
    room = np.where(directions > 0, 1.0 - centre, centre)
    room = room.reshape(size.shape)
    still = size == 0
    ends = np.where(still, 0.0, room / np.where(still, 1.0, size))
    order = np.argsort(ends, axis=1)
    ends = np.take_along_axis(ends, order, axis=1)
    slopes = np.take_along_axis(size**2, order, axis=1)
    held = slopes * ends**power
    # Of the pixels that have stopped before each point; of those that move on.
    stopped = np.cumsum(held, axis=1) - held
    moving = np.cumsum(slopes[:, ::-1], axis=1)[:, ::-1]
    reached = stopped + ends**power * moving >= wanted[:, None]
    at = np.where(reached.any(1), reached.argmax(1), size.shape[1] - 1)
    rows = np.arange(len(size))
    rest = np.maximum(wanted - stopped[rows, at], 0.0)
    slope = moving[rows, at]
    t = (rest / np.where(slope > 0, slope, 1.0)) ** (1.0 / power)
    return np.minimum(t, ends[rows, at])
