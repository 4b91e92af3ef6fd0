"""Ways away from an image: at random, and where a classifier is weakest.

Every stop has the L2 distance that was asked for, measured on pixels that are
clipped to [0, 1] and rounded to float32: on the image that is then judged.
"""

from collections.abc import Iterator
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from rs_keras import noise as noise_lib
from rs_keras.adversaries.pgd import PGD
from rs_keras.certification.sampling import Sampler

# In units of the certified radius; never 1, of which nothing is said.
ATTACK_STOPS = tuple(2.5 * stop / 13 for stop in range(1, 14))
RANDOM_STOPS = (0.5, 0.95, 1.45, 1.9)
RANDOM_RAYS = 5
# Measured on LeNet: four times as much of both takes 20 times as long, and
# moves few votes.
_STEPS = 10
_COPIES = 16
# Logits that spread more are scaled down to this deviation: of a softmax that
# is 0 or 1 to the last bit, no gradient is left to climb.
_STEEPEST = 3.0
# Halvings that find a step's length to the last bit of a float64.
_HALVINGS = 60


class Point(NamedTuple):
    """An image away from another.

    Attributes:
        kind: "random" or "adversarial".
        ray: Which way, of its kind.
        distance: In L2, pixels in [0, 1].
        image: float32 [H, W, C].
    """

    kind: str
    ray: int
    distance: float
    image: np.ndarray


class Traveller:
    """Finds images at growing distances.

    Args:
        sampler: The smoothed classifier, with gradients.
    """

    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler
        shape = list(sampler.image_shape)
        self._climb = tf.function(
            self._attack,
            [
                tf.TensorSpec(shape, tf.float32),
                tf.TensorSpec([], tf.int64),
                tf.TensorSpec([None, 1, 1, 1], tf.float32),
                tf.TensorSpec([2], tf.int64),
            ],
            # Nothing here branches on a tensor, and without it the graph is
            # traced sooner.
            autograph=False,
        )
        # Copies of so many stops make one pass.
        self._together = max(1, sampler.batch_size // _COPIES)

    def points(
        self, image: np.ndarray, label: int, scale: float
    ) -> Iterator[list[Point]]:
        """Goes along random rays first, then where the label is lost soonest.

        Args:
            image: float32 [H, W, C], in [0, 1].
            label: What the attack is to change.
            scale: Distances are this times the stops.

        Yields:
            Points of one ray, in order of their distance.
        """
        random = np.random.default_rng()
        for ray in range(RANDOM_RAYS):
            direction = random.normal(size=image.shape)
            yield [
                _point("random", ray, image, direction, scale * stop)
                for stop in RANDOM_STOPS
            ]
        for first in range(0, len(ATTACK_STOPS), self._together):
            stops = ATTACK_STOPS[first : first + self._together]
            yield self.attacked(image, label, [scale * stop for stop in stops])

    def attacked(
        self, image: np.ndarray, label: int, distances: Sequence[float]
    ) -> list[Point]:
        """Returns the worst image that was found at each distance."""
        found = self._climb(
            tf.constant(image),
            tf.constant(label, tf.int64),
            tf.reshape(tf.constant(distances, tf.float32), [-1, 1, 1, 1]),
            tf.constant(noise_lib.fresh_seeds(1)[0]),
        ).numpy()
        return [
            _point("adversarial", 0, image, worst - image, distance)
            for worst, distance in zip(found, distances, strict=True)
        ]

    def _attack(
        self,
        image: tf.Tensor,
        label: tf.Tensor,
        distances: tf.Tensor,
        seed: tf.Tensor,
    ) -> tf.Tensor:
        """Climbs from the image on the loss of its noisy copies."""
        sampler, shape = self._sampler, list(self._sampler.image_shape)
        noise = sampler.sigma * noise_lib.normal(shape, seed, 0, _COPIES)

        def noisy_logits(images: tf.Tensor) -> tf.Tensor:
            copies = images[None] + noise[:, None]
            logits = sampler.logits(tf.reshape(copies, [-1, *shape]))
            logits = tf.cast(logits, tf.float32)
            return tf.reshape(logits, [_COPIES, -1, sampler.num_classes])

        found = noisy_logits(image[None])
        spread = tf.reduce_max(tf.math.reduce_std(found, axis=-1))
        sharpness = _STEEPEST / tf.maximum(spread, _STEEPEST)
        rows = tf.shape(distances)[0]
        images = tf.repeat(image[None], rows, axis=0)
        attack = PGD(_STEPS, 1.0, order="project_clip")
        return attack(
            lambda images: sharpness * noisy_logits(images),
            images,
            tf.repeat(label, rows),
            distances,
        )


def _point(
    kind: str, ray: int, image: np.ndarray, direction: np.ndarray, far: float
) -> Point:
    found = at_distance(image, direction, far)
    return Point(kind, ray, distance_of(found, image), found)


def distance_of(one: np.ndarray, other: np.ndarray) -> float:
    """The L2 distance, in float64.

    Example:

    >>> import numpy as np
    >>> from rs_keras.serving.demo.directions import distance_of
    >>> distance_of(np.zeros([2, 2, 1]), np.full([2, 2, 1], 0.5))
    1.0
    """
    difference = one.astype(np.float64) - other.astype(np.float64)
    return float(np.linalg.norm(difference))


def at_distance(
    image: np.ndarray, direction: np.ndarray, distance: float
) -> np.ndarray:
    """Goes along a direction, clipped to [0, 1], as far as asked.

    Clipping shortens a step, so its length is searched for: the distance grows
    with it. The farthest point that there is, where the distance is beyond.

    Args:
        image: In [0, 1].
        direction: Of the same shape, of any length.
        distance: In L2, >= 0.

    Returns:
        float32, of the image's shape.

    Example:

    >>> import numpy as np
    >>> from rs_keras.serving.demo.directions import at_distance
    >>> image = np.array([0.0, 0.9])
    >>> at_distance(image, np.array([-1.0, 1.0]), 0.05).round(4).tolist()
    [0.0, 0.949999988079071]
    """
    start = image.astype(np.float64)
    along = direction / max(float(np.linalg.norm(direction)), 1e-12)

    def after(step: float) -> np.ndarray:
        return np.clip(start + step * along, 0.0, 1.0)

    low, high = 0.0, max(distance, 1e-12)
    for _ in range(_HALVINGS):
        if distance_of(after(high), start) >= distance:
            break
        low, high = high, 2 * high
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        far = distance_of(after(middle), start) >= distance
        low, high = (low, middle) if far else (middle, high)
    return after(high).astype(np.float32)
