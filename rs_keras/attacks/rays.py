"""Where the smoothed prediction changes on the way to an attack's candidate.

The *lead* of an image is the z-score per draw of the class that would be
predicted: for votes a of the most frequent class and b of the second,

    lead = +-(a - b) / sqrt((a + b) * n)

positive if the class is one that the attack wants, else negative. With n draws
`Certifier.predict` tells the two classes apart at level alpha about where
|lead| * sqrt(n) is above the normal quantile of 1 - alpha / 2.
"""

from dataclasses import dataclass

import numpy as np

from rs_keras.attacks import balls
from rs_keras.attacks.attacked import ANY
from rs_keras.attacks.base import Task
from rs_keras.noise.grid import LEVELS

# Points of each ray at first, and draws for each of them.
_POINTS = 8
_COARSE = 250

# Points between the two where the prediction changes, and their share of n.
_FINE_POINTS = 5
_FINE_SHARE = 0.5

# Streams of the task's seed, beside the steps of an attack.
_RAYS = -3


@dataclass(frozen=True)
class Ray:
    """Leads along a ray from an image.

    Attributes:
        direction: float64 [H, W, C].
        distances: Increasing, [P].
        leads: [P].
    """

    direction: np.ndarray
    distances: np.ndarray
    leads: np.ndarray

    def crossing(self, lead: float) -> float:
        """Returns the first distance where a lead is reached, interpolated.

        Infinity if it is not reached at any of the points.
        """
        at = np.flatnonzero(self.leads >= lead)
        if not len(at):
            return np.inf
        k = int(at[0])
        if k == 0 or self.leads[k] == self.leads[k - 1]:
            return float(self.distances[k])
        share = (lead - self.leads[k - 1]) / (self.leads[k] - self.leads[k - 1])
        step = self.distances[k] - self.distances[k - 1]
        return float(self.distances[k - 1] + share * step)


def best_ray(task: Task, candidates: np.ndarray, n: int) -> Ray | None:
    """Returns the ray on which the prediction changes first, looked at closely.

    Args:
        task: The attack's.
        candidates: float32 [K, H, W, C]; the rays through them are searched to
            the largest radius of the task.
        n: Draws of the prediction that is to change.

    Returns:
        None if no vote is lost on any of them.
    """
    moved = candidates.astype(np.float64) - task.image
    moved = moved[np.abs(moved).reshape(len(moved), -1).any(1)]
    if not len(moved):
        return None
    reach = task.radii[-1]
    distances = reach * np.arange(1, _POINTS + 1) / _POINTS
    rays = [_ray(task, direction, distances, _COARSE) for direction in moved]
    # Where no ray gets there, the one that gets nearest to it.
    best = min(rays, key=lambda ray: (ray.crossing(0.0), -ray.leads.max()))
    if not np.isfinite(best.crossing(0.0)):
        k = int(best.leads.argmax())
    else:
        k = int(np.flatnonzero(best.leads >= 0)[0])
    # A point more on either side: there were few draws.
    low = distances[k - 2] if k > 1 else 0.0
    high = distances[min(k + 1, _POINTS - 1)]
    fine = np.linspace(low, high, _FINE_POINTS + 1)[1:]
    return _ray(task, best.direction, fine, max(1, round(_FINE_SHARE * n)))


def _ray(
    task: Task, direction: np.ndarray, distances: np.ndarray, n: int
) -> Ray:
    images = placed(task, direction, distances)
    votes = task.attacked.votes(images, n, task.seed_of(_RAYS))
    return Ray(direction, distances, leads(votes, task.label, task.goal))


def placed(task: Task, direction: np.ndarray, distances: object) -> np.ndarray:
    """Returns the images of a ray, on the 8-bit grid if the certifier's are."""
    distances = np.atleast_1d(np.asarray(distances, np.float64))
    directions = np.repeat(direction[None], len(distances), axis=0)
    images = balls.along(task.image, directions, distances)
    if task.attacked.certifier.noise != "grid":
        return images
    near = np.round(images * LEVELS)
    # Towards the image where rounding to the nearest would leave the ball.
    whole = np.round(task.image * LEVELS)
    inner = whole + np.trunc(images * LEVELS - whole)
    near, inner = near / np.float32(LEVELS), inner / np.float32(LEVELS)
    outside = balls.distances(task.image, near) > task.radii[-1]
    return np.where(outside[:, None, None, None], inner, near)


def leads(votes: np.ndarray, label: int, goal: int = ANY) -> np.ndarray:
    """Returns the lead of each image, float64 [K].

    Args:
        votes: int64 [K, num_classes].
        label: The class to leave.
        goal: The class to reach; -1 for any other.
    """
    first, second = np.sort(votes, axis=1)[:, :-3:-1].T.astype(np.float64)
    n = np.maximum(votes.sum(1), 1)
    size = (first - second) / np.sqrt(np.maximum(first + second, 1) * n)
    winner = votes.argmax(1)
    wanted = winner != label if goal == ANY else winner == goal
    if goal != ANY:
        own = votes[:, goal].astype(np.float64)
        behind = (first - own) / np.sqrt(np.maximum(first + own, 1) * n)
        size = np.where(wanted, size, behind)
    return np.where(wanted, size, -size)
