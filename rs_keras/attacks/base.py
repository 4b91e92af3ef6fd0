"""The base class of attacks, and the task that they are given."""

from dataclasses import dataclass

import numpy as np

from rs_keras.adversaries.base import Adversary
from rs_keras.attacks.attacked import ANY
from rs_keras.attacks.attacked import AttackedClassifier
from rs_keras.noise.draws import fold_in


@dataclass(frozen=True)
class Task:
    """What an attack is asked for: one image, and how far it may go.

    Attributes:
        attacked: The smoothed classifier.
        image: float32 [H, W, C], in [0, 1].
        label: The class to leave.
        radii: Increasing L2 radii, > 0. An attack may try each of them, or
            only search within the largest.
        seed: int64 [2], of all that is random in the attack.
        goal: The class to reach; -1 for any other than the label.

    Example:

    >>> import numpy as np
    >>> from rs_keras import Certifier
    >>> from rs_keras import attacks
    >>> certifier = Certifier(lambda x: x[:, 0, 0, :3], sigma=0.5)
    >>> image = np.array([0.9, 0.1, 0.5], np.float32).reshape(1, 1, 3)
    >>> task = attacks.Task(
    ...     attacks.AttackedClassifier(certifier, image.shape), image,
    ...     label=0, radii=np.array([0.5]), seed=np.array([7, 0]))
    >>> task.likeliest(count=2).tolist()  # in order of the soft prediction
    [2, 1]
    >>> bool((task.seed_of(0) == task.seed_of(1)).any())
    False
    """

    attacked: AttackedClassifier
    image: np.ndarray
    label: int
    radii: np.ndarray
    seed: np.ndarray
    goal: int = ANY

    def seed_of(self, number: int) -> np.ndarray:
        """Returns the seed of one step of the attack, int64 [2]."""
        return fold_in(self.seed, number)

    def likeliest(self, count: int, noises: int = 256) -> np.ndarray:
        """Returns the classes to aim at: the goal, or the likeliest others.

        Args:
            count: How many at most.
            noises: Draws of the soft prediction, which tells classes apart
                that get no vote.
        """
        if self.goal != ANY:
            return np.array([self.goal])
        # A number that no step of an attack has.
        seed = self.seed_of(-1)[None]
        predict = self.attacked.certifier.soft_predict
        p = predict(self.image[None], noises, seed=seed).numpy()[0]
        others = np.argsort(-p, kind="stable")
        return others[others != self.label][:count]


class Attack(Adversary):
    """Finds images near another that may change the smoothed prediction.

    A subclass is called with a `Task` and returns candidates, float32 [K, H, W,
    C] in [0, 1], none farther away than the largest of the task's radii (see
    `rs_keras.attacks.project` and `along`). Whether one of them changes the
    prediction is found out by `rs_keras.attacks.attack`, with votes under
    noise that the attack has not seen. Every argument of `__init__` is an
    attribute of the same name: they are the settings in a log.

    Example:

    >>> import numpy as np
    >>> from rs_keras import Certifier
    >>> from rs_keras import attacks
    >>> class Brighter(attacks.Attack):
    ...     def __call__(self, task):
    ...         up = np.ones_like(task.image)[None]
    ...         return attacks.along(task.image, up, task.radii[-1])
    >>> from rs_keras.classifiers import from_numpy
    >>> def bright(images):
    ...     score = images[:, 0, 0, 0] - 0.5
    ...     return np.stack([-score, score], -1)
    >>> certifier = Certifier(from_numpy(bright, num_classes=2), sigma=0.25)
    >>> image = np.full([1, 1, 1, 1], 0.25, np.float32)
    >>> found = attacks.attack(certifier, image, [0], 0.5, Brighter(), seed=7)
    >>> bool(0.25 < found.norm[0] < 0.28)
    True
    """

    def __call__(self, task: Task) -> np.ndarray:
        raise NotImplementedError
