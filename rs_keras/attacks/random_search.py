"""Random search on the counts of votes, without gradients."""

import numpy as np

from rs_keras._checks import check_count
from rs_keras._checks import check_positive
from rs_keras.attacks import balls
from rs_keras.attacks.base import Attack
from rs_keras.attacks.base import Task


class RandomSearch(Attack):
    """Random search over square windows, on the counts of votes alone.

    The perturbation keeps the largest radius as its length. A proposal adds a
    random square window of one sign a channel to it, of the size

        side = round(sqrt(share * height * width))

    (the share falls from `window` to a 32nd of it), and is rescaled to this
    length, within [0, 1]. Of `proposals` at a time the one with the smallest
    margin (votes of the label minus those of the best other class, under the
    same noise for all) is kept if its margin is no larger than before. It needs
    no gradients, and so shows where these mislead the other attacks.

    Args:
        steps: >= 1.
        proposals: Of each step, >= 1.
        votes: Draws for each proposal, >= 1.
        window: The first window's share of the image, > 0.
        strength: Of a window, relative to the perturbation, > 0.

    Raises:
        ValueError: If an argument is out of range.

    Example:

    >>> import numpy as np
    >>> from rs_keras import Certifier
    >>> from rs_keras import attacks
    >>> certifier = Certifier(lambda x: x[:, 0, 0, :2], sigma=0.5)
    >>> image = np.array([[0.75, 0.25]], np.float32).reshape(1, 1, 1, 2)
    >>> found = attacks.attack(certifier, image, [0], 0.5,
    ...                        attacks.RandomSearch(steps=20), seed=7)
    >>> bool(found.norm[0] <= 0.5)
    True

    References:
    - [Andriushchenko et al., 2020](https://arxiv.org/abs/1912.00049)
    """

    def __init__(
        self,
        steps: int = 100,
        proposals: int = 8,
        votes: int = 100,
        window: float = 0.3,
        strength: float = 0.3,
    ) -> None:
        self.steps = check_count("steps", steps)
        self.proposals = check_count("proposals", proposals)
        self.votes = check_count("votes", votes)
        self.window = check_positive("window", window)
        self.strength = check_positive("strength", strength)

    def __call__(self, task: Task) -> np.ndarray:
        """Returns one candidate, at the largest radius."""
        rng = np.random.default_rng(task.seed_of(-2).view(np.uint64))
        reach = task.radii[-1]
        best = self._first(task, rng, reach)
        margin = self._margins(task, best[None])[0]
        for step in range(self.steps):
            side = self._side(task.image.shape, step)
            added = [
                self._window(rng, task.image.shape, side)
                for _ in range(self.proposals)
            ]
            moved = best.astype(np.float64) - task.image
            size = self.strength * float(np.linalg.norm(moved))
            tried = balls.along(
                task.image, moved + size * np.stack(added), reach
            )
            margins = self._margins(task, tried)
            if margins.min() <= margin:
                best, margin = tried[margins.argmin()], margins.min()
        return best[None]

    def _first(
        self, task: Task, rng: np.random.Generator, reach: float
    ) -> np.ndarray:
        """Returns the best of some random stripes, as the paper begins."""
        height, width, channels = task.image.shape
        stripes = rng.choice(
            [-1.0, 1.0], size=(self.proposals, 1, width, channels)
        )
        stripes = np.broadcast_to(stripes, (self.proposals, *task.image.shape))
        tried = balls.along(task.image, stripes, reach)
        return tried[self._margins(task, tried).argmin()]

    def _margins(self, task: Task, images: np.ndarray) -> np.ndarray:
        """Votes of the label minus those for the goal, [K]."""
        votes = task.attacked.votes(images, self.votes, task.seed_of(0))
        own = votes[:, task.label].copy()
        if task.goal >= 0:
            return own - votes[:, task.goal]
        votes[:, task.label] = -1
        return own - votes.max(1)

    def _side(self, shape: tuple[int, ...], step: int) -> int:
        """Returns the side of the windows: halved in area again and again."""
        share = self.window * 0.5 ** (5 * step / self.steps)
        side = round(float(np.sqrt(share * shape[0] * shape[1])))
        return int(np.clip(side, 1, min(shape[:2])))

    @staticmethod
    def _window(
        rng: np.random.Generator, shape: tuple[int, ...], side: int
    ) -> np.ndarray:
        """Returns a square of length 1 with random signs, zero elsewhere."""
        height, width, channels = shape
        top = rng.integers(height - side + 1)
        left = rng.integers(width - side + 1)
        window = np.zeros(shape)
        signs = rng.choice([-1.0, 1.0], size=channels)
        window[top : top + side, left : left + side] = signs
        return window / np.sqrt(side * side * channels)
