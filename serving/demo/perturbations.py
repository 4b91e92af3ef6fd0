"""Images at given L2 distances from another: random and adversarial ones.

A distance is that of the image which is judged: clipped to [0, 1] and rounded
to float32.
"""

from collections.abc import Iterator
from collections.abc import Sequence

import numpy as np
import tensorflow as tf
from scipy.optimize import brentq

from rs_keras import noise as noise_lib
from rs_keras.adversaries import PGD
from rs_keras.certification.sampling import Sampler

# In units of the certified radius; never 1, which the certificate excludes.
ATTACK_DISTANCES = tuple(2.5 * step / 13 for step in range(1, 14))
RANDOM_DISTANCES = (0.5, 0.95, 1.45, 1.9)
RANDOM_DIRECTIONS = 5
# Measured on LeNet: four times as much of both takes 20 times as long, and
# moves few votes.
_STEPS = 10
_COPIES = 16
# Logits that spread more are scaled down to this deviation: of a softmax that
# is 0 or 1 to the last bit, no gradient is left to climb.
_STEEPEST = 3.0


class PerturbationSearch:
    """Finds perturbed images at growing distances.

    Args:
        sampler: The smoothed classifier, with gradients.
    """

    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler
        self._attack = tf.function(
            self._pgd,
            [
                tf.TensorSpec(list(sampler.image_shape), tf.float32),
                tf.TensorSpec([], tf.int64),
                tf.TensorSpec([None, 1, 1, 1], tf.float32),
                tf.TensorSpec([2], tf.int64),
            ],
            # Nothing here branches on a tensor, and without it the graph is
            # traced sooner.
            autograph=False,
        )
        # The noisy copies of so many images make one pass.
        self._rows = max(1, sampler.batch_size // _COPIES)

    def search(
        self, image: np.ndarray, label: int, scale: float
    ) -> Iterator[tuple[str, int, list[np.ndarray]]]:
        """Perturbs an image in random directions, then adversarially.

        Args:
            image: float32 [H, W, C], in [0, 1].
            label: The class that the attack is to change.
            scale: The unit of the distances.

        Yields:
            "random" or "adversarial", the number of the direction among those
            of its kind, and perturbed images in order of their distance.
        """
        rng = np.random.default_rng()
        for number in range(RANDOM_DIRECTIONS):
            direction = rng.normal(size=image.shape)
            images = [
                at_distance(image, direction, scale * distance)
                for distance in RANDOM_DISTANCES
            ]
            yield "random", number, images
        distances = [scale * distance for distance in ATTACK_DISTANCES]
        for first in range(0, len(distances), self._rows):
            batch = distances[first : first + self._rows]
            yield "adversarial", 0, self.adversarial(image, label, batch)

    def adversarial(
        self, image: np.ndarray, label: int, distances: Sequence[float]
    ) -> list[np.ndarray]:
        """Returns the worst image that PGD found at each distance."""
        attacked = self._attack(
            tf.constant(image),
            tf.constant(label, tf.int64),
            tf.reshape(tf.constant(distances, tf.float32), [-1, 1, 1, 1]),
            tf.constant(noise_lib.fresh_seeds(1)[0]),
        ).numpy()
        return [
            at_distance(image, worst - image, distance)
            for worst, distance in zip(attacked, distances, strict=True)
        ]

    def _pgd(
        self,
        image: tf.Tensor,
        label: tf.Tensor,
        distances: tf.Tensor,
        seed: tf.Tensor,
    ) -> tf.Tensor:
        """Ascends the loss of the image's noisy copies: [B, H, W, C]."""
        sampler, shape = self._sampler, list(self._sampler.image_shape)
        # [copies, H, W, C], the same noise for every distance and step.
        noise = sampler.sigma * noise_lib.normal(shape, seed, 0, _COPIES)

        def noisy_logits(images: tf.Tensor) -> tf.Tensor:
            """Returns [copies, B, classes]."""
            copies = images[None] + noise[:, None]
            logits = sampler.logits(tf.reshape(copies, [-1, *shape]))
            logits = tf.cast(logits, tf.float32)
            return tf.reshape(logits, [_COPIES, -1, sampler.num_classes])

        logits = noisy_logits(image[None])
        spread = tf.reduce_max(tf.math.reduce_std(logits, axis=-1))
        sharpness = _STEEPEST / tf.maximum(spread, _STEEPEST)
        rows = tf.shape(distances)[0]
        return PGD(_STEPS, 1.0, order="project_clip")(
            lambda images: sharpness * noisy_logits(images),
            tf.repeat(image[None], rows, axis=0),
            tf.repeat(label, rows),
            distances,
        )


def distance_of(first: np.ndarray, second: np.ndarray) -> float:
    """Returns the L2 distance of two images, computed in float64.

    Example:

    >>> import numpy as np
    >>> from rs_keras.serving.demo.perturbations import distance_of
    >>> distance_of(np.zeros([2, 2, 1]), np.full([2, 2, 1], 0.5))
    1.0
    """
    difference = first.astype(np.float64) - second.astype(np.float64)
    return float(np.linalg.norm(difference))


def at_distance(
    image: np.ndarray, direction: np.ndarray, distance: float
) -> np.ndarray:
    """Moves an image along a direction, clipped to [0, 1], by a distance.

    Clipping shortens a step, so its length is solved for. Beyond the farthest
    image in that direction, the result is that image.

    Args:
        image: In [0, 1].
        direction: Of the same shape, of any length.
        distance: In L2, >= 0.

    Returns:
        float32, of the image's shape.

    Example:

    >>> import numpy as np
    >>> from rs_keras.serving.demo.perturbations import at_distance
    >>> image = np.array([0.0, 0.9])
    >>> at_distance(image, np.array([-1.0, 1.0]), 0.05).round(4).tolist()
    [0.0, 0.949999988079071]
    """
    start = image.astype(np.float64)
    corner = np.select([direction > 0, direction < 0], [1.0, 0.0], start)
    if distance >= distance_of(corner, start):
        return corner.astype(np.float32)
    unit = direction / np.linalg.norm(direction)

    def after(step: float) -> np.ndarray:
        return np.clip(start + step * unit, 0.0, 1.0)

    def excess(step: float) -> float:
        return distance_of(after(step), start) - distance

    longest = distance
    while excess(longest) < 0:
        longest *= 2
    return after(brentq(excess, 0.0, longest)).astype(np.float32)
