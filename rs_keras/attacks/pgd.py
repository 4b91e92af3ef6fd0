"""Projected gradient ascent through the soft prediction."""

import numpy as np

from rs_keras._checks import check_choice
from rs_keras._checks import check_count
from rs_keras._checks import check_flag
from rs_keras._checks import check_positive
from rs_keras.attacks import balls
from rs_keras.attacks.attacked import ANY
from rs_keras.attacks.base import Attack
from rs_keras.attacks.base import Task

OBJECTIVES = ("cross_entropy", "margin")


class PGD(Attack):
    """Projected gradient ascent on the smoothed classifier's loss.

    Formula, at each radius r, `steps` times from the image or from a random
    point of the ball, with g the gradient of the objective over `noises` noisy
    copies and P the projection onto the ball and [0, 1] together:

        x = P(x + step_scale * r / steps * g / |g|)

    All radii, starts and goals of an image climb together.

    Args:
        steps: T in the paper, >= 1.
        noises: Noisy copies a step, m in the paper, >= 1.
        objective: "margin" (the log of the likeliest other class's mean
            softmax minus that of the label), or "cross_entropy" (-log of the
            label's: the paper's, and weaker, as the probability that the label
            loses is spread over several classes).
        goals: So many other classes, the likeliest, are climbed towards one by
            one, too; >= 0.
        random_starts: Starts at random points of the ball, beside the one at
            the image; >= 0.
        fresh_noise: Whether each step draws noise of its own (expectation over
            transformation), or all steps the same (the paper's).
        step_scale: Length of all steps together, in radii, > 0.

    Raises:
        ValueError: If an argument is out of range.

    Example:

    >>> import numpy as np
    >>> from rs_keras import Certifier
    >>> from rs_keras import attacks
    >>> certifier = Certifier(lambda x: x[:, 0, 0, :2], sigma=0.5)
    >>> image = np.array([[0.75, 0.25]], np.float32).reshape(1, 1, 1, 2)
    >>> found = attacks.attack(
    ...     certifier, image, [0], 0.5, attacks.PGD(steps=5), seed=7)
    >>> bool(0.353 < found.norm[0] < 0.39)  # the boundary is sqrt(1/8) away
    True

    References:
    - [Salman et al., 2019](https://arxiv.org/abs/1906.04584)
    - [Athalye et al., 2018](https://arxiv.org/abs/1707.07397), on expectation
      over transformation
    """

    def __init__(
        self,
        steps: int = 20,
        noises: int = 32,
        objective: str = "margin",
        goals: int = 0,
        random_starts: int = 0,
        fresh_noise: bool = True,
        step_scale: float = 2.0,
    ) -> None:
        self.steps = check_count("steps", steps)
        self.noises = check_count("noises", noises)
        self.objective = check_choice("objective", objective, OBJECTIVES)
        self.goals = check_count("goals", goals, 0)
        self.random_starts = check_count("random_starts", random_starts, 0)
        self.fresh_noise = check_flag("fresh_noise", fresh_noise)
        self.step_scale = check_positive("step_scale", step_scale)

    def __call__(self, task: Task) -> np.ndarray:
        """Returns one candidate a radius, start and goal."""
        goals = [task.goal]
        if task.goal == ANY and self.goals:
            goals += task.likeliest(self.goals).tolist()
        starts = 1 + self.random_starts
        # Rows: for each start, for each goal, all radii.
        radii = np.tile(task.radii, starts * len(goals))
        targets = np.tile(np.repeat(goals, len(task.radii)), starts)
        x = self._started(task, radii, len(goals) * len(task.radii))
        sizes = self.step_scale / self.steps * radii[:, None, None, None]
        for step in range(self.steps):
            _, slopes = task.attacked.gradients(
                x,
                task.label,
                seed=task.seed_of(step if self.fresh_noise else 0),
                goals=targets,
                noises=self.noises,
                objective=self.objective,
            )
            x = balls.project(task.image, x + sizes * unit(slopes), radii)
        return x

    def _started(
        self, task: Task, radii: np.ndarray, at_image: int
    ) -> np.ndarray:
        """Returns where the rows begin: the first ones at the image."""
        x = np.repeat(task.image[None], len(radii), axis=0)
        if self.random_starts:
            rng = np.random.default_rng(task.seed_of(-2).view(np.uint64))
            inside = rng.normal(size=x[at_image:].shape)
            # Uniform in the ball: the share within r is r**dimension.
            share = rng.uniform(size=len(inside)) ** (1 / task.image.size)
            x[at_image:] = balls.along(
                task.image, inside, share * radii[at_image:]
            )
        return x


def unit(slopes: np.ndarray) -> np.ndarray:
    """Returns gradients [K, H, W, C] of length 1; where 0, as they are."""
    slopes = slopes.astype(np.float64)
    size = np.sqrt((slopes**2).sum((1, 2, 3), keepdims=True))
    return slopes / np.where(size > 0, size, 1.0)
