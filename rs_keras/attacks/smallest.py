"""The smallest perturbation, by linearising the smoothed classifier."""

import numpy as np

from rs_keras._checks import check_count
from rs_keras._checks import check_not_negative
from rs_keras.attacks import balls
from rs_keras.attacks.base import Attack
from rs_keras.attacks.base import Task


class SmallestPerturbation(Attack):
    """Steps to linearised decision boundaries, for each goal by itself.

    For each of the `goals` likeliest other classes k, the margin
    M = log p_k - log p_label is taken as linear in x (as in DeepFool; p is the
    soft smoothed prediction). Of the points of [0, 1] on the boundary,

        M(x) + grad M(x) . (z - x) = 0,

    the one nearest to the image has a closed form. The next step leads there
    (as in FAB), but for a share of the old point, which averages over the noise
    of the steps:

        x = averaging * x + (1 - averaging) * z

    Args:
        steps: >= 1.
        noises: Noisy copies a step, >= 1.
        goals: Classes whose boundaries are looked at, >= 1.
        averaging: In [0, 1).

    Raises:
        ValueError: If an argument is out of range.

    Example:

    >>> import numpy as np
    >>> from rs_keras import Certifier
    >>> from rs_keras import attacks
    >>> certifier = Certifier(lambda x: x[:, 0, 0, :2], sigma=0.5)
    >>> image = np.array([[0.75, 0.25]], np.float32).reshape(1, 1, 1, 2)
    >>> found = attacks.attack(
    ...     certifier, image, [0], 0.5, attacks.SmallestPerturbation(), seed=7)
    >>> bool(0.353 < found.norm[0] < 0.39)  # the boundary is sqrt(1/8) away
    True

    References:
    - [Moosavi-Dezfooli et al., 2016](https://arxiv.org/abs/1511.04599)
    - [Croce and Hein, 2020](https://arxiv.org/abs/1907.02044)
    """

    def __init__(
        self,
        steps: int = 10,
        noises: int = 64,
        goals: int = 3,
        averaging: float = 0.5,
    ) -> None:
        self.steps = check_count("steps", steps)
        self.noises = check_count("noises", noises)
        self.goals = check_count("goals", goals)
        self.averaging = check_not_negative("averaging", averaging)
        if self.averaging >= 1:
            raise ValueError(
                "`averaging` must be in [0, 1). "
                f"Received: averaging={averaging}"
            )

    def __call__(self, task: Task) -> np.ndarray:
        """Returns the last point of each goal, within the largest radius."""
        goals = task.likeliest(self.goals)
        x = np.repeat(task.image[None], len(goals), axis=0)
        for step in range(self.steps):
            margins, slopes = task.attacked.gradients(
                x,
                task.label,
                seed=task.seed_of(step),
                goals=goals,
                noises=self.noises,
                objective="margin",
            )
            kept = self.averaging if step else 0.0
            slopes = slopes.astype(np.float64)
            # How far each margin has to rise from its linearised value at the
            # image.
            moved = x.astype(np.float64) - task.image
            rises = (slopes * moved).sum((1, 2, 3)) - margins
            for k, rise in enumerate(rises):
                # A boundary on the near side of the image tells nothing.
                if rise > 0:
                    z = balls.nearest_on_plane(task.image, slopes[k], rise)
                    moved[k] = kept * moved[k] + (1 - kept) * (z - task.image)
            x = balls.project(task.image, task.image + moved, task.radii[-1])
        return x
