"""Attacks on images: the search, and its confirmation under fresh noise."""

from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import field
from dataclasses import replace
from typing import Any

import numpy as np
import scipy.special

from rs_keras import bounds
from rs_keras._checks import check_alpha
from rs_keras._checks import check_count
from rs_keras._checks import check_feasible
from rs_keras._checks import check_images
from rs_keras._checks import check_positive
from rs_keras._rows import Rows
from rs_keras.attacks import balls
from rs_keras.attacks import rays
from rs_keras.attacks.attacked import ANY
from rs_keras.attacks.attacked import AttackedClassifier
from rs_keras.attacks.base import Attack
from rs_keras.attacks.base import Task
from rs_keras.attacks.smallest import SmallestPerturbation
from rs_keras.certification.certificate import ABSTAIN
from rs_keras.certification.certifier import Certifier
from rs_keras.noise.draws import fold_in
from rs_keras.noise.grid import LEVELS

# Fresh noise may not confirm the smallest distance that the search's noise
# found to be enough: the next attempts keep so many standard deviations more.
_CUSHIONS = (0.0, 1.0, 2.0, 3.5)

# The same where an abstention is enough; it takes no part of alpha.
_ABSTENTION_CUSHIONS = (0.5, 2.0)

# Uses of an image's seed.
_CLEAN, _SEARCH, _CONFIRM, _ABSTENTION = 0, 1, 2, 16


@dataclass(frozen=True)
class AttackResult(Rows):
    """The smallest perturbation that was found for each image.

    It has a length, and an index, a slice, a mask and a loop give the results
    of some of its images.

    Attributes:
        predicted: int64 [B], the smoothed prediction at the image; -1 where it
            abstains.
        norm: float64 [B], the L2 norm of the smallest perturbation found at
            which the smoothed classifier predicts another class (or the goal);
            0 where it does so at the image, infinity where none was found.
        adversarial: float32 [B, H, W, C], the image at this distance; the image
            itself where none was found.
        adversarial_label: int64 [B], the prediction there; -1 where none was
            found.
        abstain_norm: float64 [B], of the smallest perturbation found at which
            the prediction is not the label: another class, or an abstention.
        seed: int64 [B, 2]; the same seed gives the same result again.
        settings: sigma, n, alpha, the radii and the attack.

    Example:

    >>> import numpy as np
    >>> from rs_keras import Certifier
    >>> from rs_keras import attacks
    >>> certifier = Certifier(lambda x: x[:, 0, 0, :2], sigma=0.5)
    >>> images = np.array([[0.75, 0.25], [0.25, 0.75]], np.float32)
    >>> found = attacks.attack(
    ...     certifier, images[:, None, None], [0, 0], radii=0.2, seed=7)
    >>> found.predicted, found.norm
    (array([0, 1]), array([inf,  0.]))
    >>> found.robust(0.2)
    array([ True, False])
    """

    predicted: np.ndarray
    norm: np.ndarray
    adversarial: np.ndarray
    adversarial_label: np.ndarray
    abstain_norm: np.ndarray
    seed: np.ndarray
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.norm)

    def _take(self, rows: np.ndarray) -> "AttackResult":
        arrays = {
            name: np.asarray(value)[rows]
            for name, value in vars(self).items()
            if name != "settings"
        }
        return replace(self, **arrays)

    def robust(self, radius: float) -> np.ndarray:
        """Whether no perturbation smaller than a radius was found, bool [B].

        Args:
            radius: >= 0.
        """
        return (self.norm > 0) & (self.norm >= radius)


def attack(
    certifier: Certifier,
    images: Any,
    labels: Any,
    radii: float | Sequence[float] | np.ndarray,
    method: Attack | None = None,
    n: int = 10_000,
    alpha: float = 1e-3,
    goals: Any = None,
    seed: Any = None,
) -> AttackResult:
    """Searches for the smallest perturbation that changes each prediction.

    The method finds candidates. Votes along the rays through them tell where
    the prediction changes first, and there the image is predicted by
    `certifier.predict` with n votes of noise that the search has not seen. A
    perturbation counts only if this prediction is another class than the label
    (the goal, if there is one); an abstention does not count. The prediction is
    made at most four times, at alpha / 4 each: with probability at least
    1 - alpha the smoothed classifier itself answers another class there.

    Args:
        certifier: Of the classifier; its model must have gradients, unless the
            method needs none.
        images: [B, H, W, C], in [0, 1].
        labels: The right classes, integers [B].
        radii: L2 radii that the method tries, > 0: a number, some numbers, or
            [B, R] for radii of each image's own. No perturbation is larger than
            the largest.
        method: An attack; None is `SmallestPerturbation()`.
        n: Votes of a prediction.
        alpha: Of a prediction, in (0, 1).
        goals: Classes that the predictions are to be changed to, [B]; None for
            any class but the label.
        seed: See `rs_keras.noise.as_seeds`; None is fresh entropy.

    Returns:
        An `AttackResult`.

    Raises:
        ValueError: For arguments out of range.

    Example:

    >>> import numpy as np
    >>> from rs_keras import Certifier
    >>> from rs_keras import attacks
    >>> certifier = Certifier(lambda x: x[:, 0, 0, :2], sigma=0.5)
    >>> image = np.array([0.75, 0.25], np.float32).reshape(1, 1, 1, 2)
    >>> certificate = certifier.certify(image, n=10_000, seed=7)
    >>> inside = attacks.attack(
    ...     certifier, image, [0], radii=certificate.radius, seed=7)
    >>> outside = attacks.attack(certifier, image, [0], radii=0.4, seed=7)
    >>> bool(inside.norm[0] < np.inf), bool(outside.norm[0] < np.inf)
    (False, True)
    """
    images = check_images(images)
    attacked = AttackedClassifier(certifier, images.shape[1:])
    labels = _classes("labels", labels, len(images), attacked.num_classes)
    wanted = np.full(len(images), ANY)
    if goals is not None:
        wanted = _classes("goals", goals, len(images), attacked.num_classes)
        if (wanted == labels).any():
            row = int(np.flatnonzero(wanted == labels)[0])
            raise ValueError(
                "`goals` must differ from `labels`. Received: class "
                f"{wanted[row]} for both of image {row}"
            )
    reach = checked_radii(radii, len(images))
    harness = Harness(method or SmallestPerturbation(), n, alpha)
    seeds = certifier.seeds(seed, images)
    rows = zip(images, labels, reach, wanted, seeds, strict=True)
    found = [
        harness(Task(attacked, image, int(label), r, s, goal=int(goal)))
        for image, label, r, goal, s in rows
    ]
    columns = {
        name: np.stack([one[name] for one in found]) for name in found[0]
    }
    shape = images.shape[1:]
    return AttackResult(
        **columns, seed=seeds, settings=harness.settings(certifier, shape)
    )


def checked_radii(radii: Any, count: int) -> np.ndarray:
    """Returns increasing radii for each of `count` images, [count, R].

    Raises:
        ValueError: If they are not positive numbers, or of another shape.
    """
    array = np.asarray(radii, np.float64)
    if array.ndim < 2:
        array = np.tile(array.reshape(1, -1), (count, 1))
    if array.ndim != 2 or len(array) != count or not array.size:
        raise ValueError(
            "`radii` must be a number, some numbers, or radii of each of the "
            f"{count} images, [{count}, R]. Received: shape="
            f"{list(np.shape(radii))}"
        )
    for value in array.ravel().tolist():
        check_positive("radii", value)
    return np.sort(array, axis=1)


def _classes(name: str, values: Any, count: int, classes: int) -> np.ndarray:
    array = np.asarray(values)
    if array.shape != (count,) or array.dtype.kind not in "iu":
        raise ValueError(
            f"`{name}` must be one class number per image, shape [{count}]. "
            f"Received: shape={list(array.shape)}, dtype={array.dtype}"
        )
    if array.min() < 0 or array.max() >= classes:
        raise ValueError(
            f"`{name}` must be in [0, {classes}). "
            f"Received: {array.min()} to {array.max()}"
        )
    return array.astype(np.int64)


class Harness:
    """Runs an attack on one image at a time, and confirms what it finds.

    Args:
        method: The attack.
        n: Votes of a prediction.
        alpha: Of a prediction.
    """

    def __init__(self, method: Attack, n: int, alpha: float) -> None:
        self.method = method
        self.n = check_count("n", n)
        self.alpha = check_alpha(alpha)
        smallest = bounds.minimum_n(self.alpha / len(_CUSHIONS), "predict")
        check_feasible("n", self.n, self.alpha, smallest)

    def settings(
        self, certifier: Certifier, shape: Sequence[int] | None
    ) -> dict[str, Any]:
        """Returns the settings of the attack and of the classifier."""
        smoothing = certifier.settings(image_shape=shape)
        kept = ("sigma", "noise", "dtype", "total_variation")
        return {
            **{key: smoothing[key] for key in kept if key in smoothing},
            "scope": "attack",
            "attack": type(self.method).__name__,
            "attack_settings": self.method.get_config(),
            "n": self.n,
            "alpha": self.alpha,
        }

    def __call__(self, given: Task) -> dict[str, Any]:
        """Returns the fields of an `AttackResult` for one image.

        Args:
            given: With the image's own seed.
        """
        image, root = given.image, given.seed
        if given.attacked.certifier.noise == "grid":
            # What the certifier sees of it, and certifies.
            image = np.round(image * LEVELS) / np.float32(LEVELS)
        task = replace(given, image=image, seed=fold_in(root, _SEARCH))
        label = self._predict(task, image, self.alpha, fold_in(root, _CLEAN))
        result: dict[str, Any] = {
            "predicted": label,
            "norm": np.inf,
            "adversarial": image,
            "adversarial_label": ABSTAIN,
            "abstain_norm": np.inf,
        }
        if label != task.label:
            result["abstain_norm"] = 0.0
        if _succeeds(task, label):
            return result | {"norm": 0.0, "adversarial_label": label}
        ray = rays.best_ray(task, self.method(task), self.n)
        if ray is None:
            return result
        result |= self._confirmed(task, ray, root)
        if result["abstain_norm"] > 0:
            own = self._abstention(task, ray, root)
            result["abstain_norm"] = min(own, result["norm"])
        return result

    def _confirmed(
        self, task: Task, ray: rays.Ray, root: np.ndarray
    ) -> dict[str, Any]:
        """Predicts at growing distances until one attempt succeeds."""
        level = self.alpha / len(_CUSHIONS)
        quantile = -scipy.special.ndtri(level / 2)
        done = 0.0
        for attempt, cushion in enumerate(_CUSHIONS):
            distance = ray.crossing((quantile + cushion) / np.sqrt(self.n))
            # The farthest image is worth an attempt in any case.
            distance = min(distance, task.radii[-1])
            if distance <= done:
                continue
            done = distance
            [image] = rays.placed(task, ray.direction, distance)
            seed = fold_in(root, _CONFIRM + attempt)
            label = self._predict(task, image, level, seed)
            if _succeeds(task, label):
                return {
                    "norm": float(balls.distances(task.image, image[None])[0]),
                    "adversarial": image,
                    "adversarial_label": label,
                }
        return {}

    def _abstention(self, task: Task, ray: rays.Ray, root: np.ndarray) -> float:
        """Returns the first distance where the prediction is not the label."""
        quantile = -scipy.special.ndtri(self.alpha / 2)
        for attempt, cushion in enumerate(_ABSTENTION_CUSHIONS):
            distance = ray.crossing((cushion - quantile) / np.sqrt(self.n))
            if not np.isfinite(distance):
                break
            [image] = rays.placed(task, ray.direction, distance)
            seed = fold_in(root, _ABSTENTION + attempt)
            if self._predict(task, image, self.alpha, seed) != task.label:
                return float(balls.distances(task.image, image[None])[0])
        return np.inf

    def _predict(
        self, task: Task, image: np.ndarray, alpha: float, seed: np.ndarray
    ) -> int:
        predict = task.attacked.certifier.predict
        return int(predict(image[None], self.n, alpha, seed[None]).label[0])


def _succeeds(task: Task, label: int) -> bool:
    """Whether a prediction is what the attack wants; an abstention is not."""
    if task.goal != ANY:
        return label == task.goal
    return label not in (task.label, ABSTAIN)
