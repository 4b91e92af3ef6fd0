"""How confidence falls from an image to its adversarial example.

SmoothMix trains on such mixtures; here they are measured, for any smoothed
classifier, trained with it or not.
"""

from typing import Any

import numpy as np
import tensorflow as tf

from rs_keras import noise as noise_lib
from rs_keras._checks import check_count
from rs_keras._checks import check_images
from rs_keras.adversaries.ascent import Ascent
from rs_keras.certification.certifier import Certifier

# Of the noise that an adversary looks at: not that of the votes.
_STREAM = 11

# Images whose adversarial examples are looked for at a time.
_ROWS = 32

# step_size * steps / sigma of SmoothMix's published settings.
_REACH = 8.0


def adversarial_images(
    certifier: Certifier,
    images: Any,
    labels: Any,
    steps: int = 8,
    step_size: float | None = None,
    num_noise: int = 16,
    seed: int = 0,
) -> np.ndarray:
    """Climbs the smoothed classifier's loss with nothing but pixels' range.

    As SmoothMix does in training, see `rs_keras.adversaries.Ascent`.

    Args:
        certifier: Of the classifier.
        images: [B, H, W, C] in [0, 1].
        labels: Integers [B].
        steps: T in the paper, >= 0.
        step_size: alpha in the paper, > 0; None for 8 * sigma / steps.
        num_noise: Noisy copies of each image that it looks at, >= 1.
        seed: Of their noise.

    Returns:
        float32 [B, H, W, C] in [0, 1].

    Raises:
        ValueError: If an argument is out of its range.

    Example:

    >>> import numpy as np
    >>> from rs_keras import Certifier
    >>> from rs_keras.report.interpolation import adversarial_images
    >>> certifier = Certifier(lambda x: x[:, 0, 0] - 0.5, 0.25, num_classes=2)
    >>> image = np.array([0.75, 0.25]).reshape(1, 1, 1, 2)
    >>> adversarial_images(certifier, image, [0]).ravel()
    array([0., 1.], dtype=float32)

    References:
    - [Jeong et al., 2021](https://arxiv.org/abs/2111.09277), equation 7
    """
    images, labels = _checked(images, labels)
    check_count("num_noise", num_noise)
    check_count("steps", steps, 0)
    size = _REACH * certifier.sigma / max(1, steps)
    ascent = Ascent(steps, size if step_size is None else step_size)
    seeds = noise_lib.as_seeds(seed, len(images))
    logits = certifier.sampler(images.shape[1:]).logits

    @tf.function
    def climb(x: tf.Tensor, y: tf.Tensor, eps: tf.Tensor) -> tf.Tensor:
        def classify(at: tf.Tensor) -> tf.Tensor:
            copies = tf.reshape(at + eps, [-1, *images.shape[1:]])
            found = logits(copies)
            return tf.reshape(found, [num_noise, -1, found.shape[-1]])

        return ascent(classify, x, y)

    return np.concatenate(
        [
            climb(
                tf.constant(images[rows]),
                tf.constant(labels[rows]),
                certifier.sigma * _noise(images, seeds[rows], num_noise),
            ).numpy()
            for rows in _parts(len(images))
        ]
    )


def confidences(
    certifier: Certifier,
    images: Any,
    adversarial: Any,
    ratios: Any,
    n: int = 1_000,
    seed: int = 0,
) -> np.ndarray:
    """The share of votes of every class along the way.

    Of (1 - ratio) * image + ratio * adversarial, under the same noise for all
    ratios.

    Args:
        certifier: Of the classifier.
        images: [B, H, W, C] in [0, 1].
        adversarial: As `images`.
        ratios: Numbers in [0, 1], [R].
        n: Votes, >= 1.
        seed: Of the noise.

    Returns:
        float64 [R, B, num_classes].

    Raises:
        ValueError: If an argument is out of its range.

    Example:

    >>> import numpy as np
    >>> from rs_keras import Certifier
    >>> from rs_keras.report.interpolation import confidences
    >>> certifier = Certifier(lambda x: x[:, 0, 0] - 0.5, 0.25, num_classes=2)
    >>> image = np.array([1.0, 0.0]).reshape(1, 1, 1, 2)
    >>> shares = confidences(certifier, image, 1 - image, [0.0, 0.5, 1.0])
    >>> shares[:, 0, 0].round(1)
    array([1. , 0.5, 0. ])
    """
    images, adversarial = _pair(images, adversarial)
    ratios = np.atleast_1d(np.asarray(ratios, np.float64))
    if not ((ratios >= 0) & (ratios <= 1)).all():
        raise ValueError(
            f"`ratios` must lie in [0, 1]. Received: ratios={ratios}"
        )
    seeds = noise_lib.as_seeds(seed, len(images))
    votes = [
        certifier.sample(_mixed(images, adversarial, ratio), n, seeds)
        for ratio in ratios
    ]
    return np.stack(votes) / n


def equal_confidence_ratios(
    certifier: Certifier,
    images: Any,
    labels: Any,
    adversarial: Any,
    n: int = 1_000,
    points: int = 32,
    halvings: int = 5,
    seed: int = 0,
) -> np.ndarray:
    """The smallest mixing ratio that changes a correct smoothed prediction.

    There the confidences of two classes are equal, and near 1/2 it lies where
    a classifier is as sure of an image as of its adversarial example.
    Miscalibrated classifiers give in sooner.

    Args:
        certifier: Of the classifier.
        images: [B, H, W, C] in [0, 1].
        labels: Integers [B].
        adversarial: As `images`, such as from `adversarial_images`.
        n: Votes a prediction, >= 1; the same noise for all ratios of an image.
        points: Ratios 1 / points, 2 / points, ..., 1 are looked at, >= 1: a
            prediction that changes and changes back in between is not seen.
        halvings: Of the first such interval, >= 0: the result is at most
            1 / (points * 2**halvings) above the change.
        seed: Of the noise.

    Returns:
        float64 [B], in (0, 1]; infinity where the prediction stays up to the
        adversarial example, NaN where it is not the label to begin with.

    Raises:
        ValueError: If an argument is out of its range.

    Example:

    >>> import tensorflow as tf
    >>> from rs_keras import Certifier
    >>> from rs_keras.report.interpolation import equal_confidence_ratios
    >>> certifier = Certifier(
    ...     lambda x: x[:, 0, 0, :1] * [[1.0, -1.0]] - [[0.5, -0.5]], 0.01)
    >>> bright, dark = tf.ones([1, 1, 1, 1]), tf.zeros([1, 1, 1, 1])
    >>> ratio = equal_confidence_ratios(certifier, bright, [0], dark)
    >>> bool(abs(ratio[0] - 0.5) < 0.01)
    True

    References:
    - [Jeong et al., 2021](https://arxiv.org/abs/2111.09277), section 4 (figure
      5: equal-confidence mixing ratios)
    """
    images, labels = _checked(images, labels)
    images, adversarial = _pair(images, adversarial)
    check_count("n", n)
    check_count("points", points)
    check_count("halvings", halvings, 0)
    seeds = noise_lib.as_seeds(seed, len(images))

    def keeps(rows: np.ndarray, ratios: Any) -> np.ndarray:
        mixed = _mixed(images[rows], adversarial[rows], ratios)
        votes = certifier.sample(mixed, n, seeds[rows])
        return votes.argmax(1) == labels[rows]

    everyone = np.arange(len(images))
    right = keeps(everyone, 0.0)
    found = np.where(right, np.inf, np.nan)
    going = everyone[right]
    for point in range(1, points + 1):
        if not len(going):
            break
        held = keeps(going, point / points)
        found[going[~held]] = point / points
        going = going[held]
    changed = np.flatnonzero(np.isfinite(found))
    low = found[changed] - 1 / points
    for _ in range(halvings if len(changed) else 0):
        middle = (low + found[changed]) / 2
        held = keeps(changed, middle)
        low[held] = middle[held]
        found[changed[~held]] = middle[~held]
    return found


def _checked(images: Any, labels: Any) -> tuple[np.ndarray, np.ndarray]:
    images = check_images(images)
    labels = np.asarray(labels, np.int64)
    if labels.shape != images.shape[:1]:
        raise ValueError(
            f"`labels` must have shape [{len(images)}], one an image. "
            f"Received: shape={list(labels.shape)}"
        )
    return images, labels


def _pair(images: Any, adversarial: Any) -> tuple[np.ndarray, np.ndarray]:
    images, adversarial = check_images(images), check_images(adversarial)
    if images.shape != adversarial.shape:
        raise ValueError(
            f"`adversarial` must have the shape of `images`, "
            f"{list(images.shape)}. Received: shape={list(adversarial.shape)}"
        )
    return images, adversarial


def _mixed(
    images: np.ndarray, adversarial: np.ndarray, ratios: Any
) -> np.ndarray:
    share = np.asarray(ratios, np.float32).reshape(-1, 1, 1, 1)
    mixed = (1 - share) * images + share * adversarial
    # White mixed with white may be rounded to more than white.
    return np.clip(mixed, 0, 1)


def _noise(images: np.ndarray, seeds: np.ndarray, count: int) -> tf.Tensor:
    """Returns [count, len(seeds), H, W, C]."""
    shape = images.shape[1:]
    return tf.stack(
        [
            noise_lib.normal(shape, one, 0, count, stream=_STREAM)
            for one in seeds
        ],
        axis=1,
    )


def _parts(count: int) -> list[slice]:
    return [slice(i, i + _ROWS) for i in range(0, count, _ROWS)]
