"""What an export bakes in besides the certifier."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from rs_keras import bounds
from rs_keras.checks import check_choice
from rs_keras.checks import check_count
from rs_keras.checks import check_feasible
from rs_keras.checks import check_probability
from rs_keras.noise import POSITION_BITS

SEEDS = ("fresh", "keyed")


def addressed_draws(image_shape: Sequence[int]) -> int:
    """Returns how many draws of such an image a seed can tell apart.

    A draw takes at most one position for each number in it.
    """
    return int(2**POSITION_BITS // math.prod(image_shape))


@dataclass(frozen=True)
class Settings:
    """The numbers that `predict` and `certify` run with, and the limits.

    The arguments are those of `export_certifier`; they are checked here.

    Raises:
        ValueError: If one is out of its range.
    """

    n0: int = 100
    n: int = 10_000
    alpha: float = 1e-3
    predict_n: int = 1_000
    max_n: int = 1_000_000
    runner_up: bool = True
    class_names: tuple[str, ...] | None = None
    image_bytes: bool = False
    seed: str = "fresh"

    def __post_init__(self) -> None:
        check_count("n0", self.n0)
        check_count("max_n", self.max_n)
        check_choice("seed", self.seed, SEEDS)
        alpha = check_probability("alpha", self.alpha)
        smallest = bounds.minimum_n(alpha, runner_up=self.runner_up)
        check_feasible("n", check_count("n", self.n), alpha, smallest)
        smallest = bounds.minimum_n(alpha, "predict")
        predict_n = check_count("predict_n", self.predict_n)
        check_feasible("predict_n", predict_n, alpha, smallest)
        for name in ("n0", "n", "predict_n"):
            if getattr(self, name) > self.max_n:
                raise ValueError(
                    f"`max_n` must be >= `{name}`. Received: "
                    f"max_n={self.max_n}, {name}={getattr(self, name)}"
                )
        names = self.class_names
        if names is not None and not all(isinstance(n, str) for n in names):
            raise ValueError(
                "`class_names` must be strings, one a class. "
                f"Received: class_names={names!r}"
            )

    def check_image_shape(self, image_shape: Sequence[int]) -> None:
        """Refuses more draws, in two rounds, than a seed has numbers for."""
        most = addressed_draws(image_shape) // 2
        if self.max_n > most:
            raise ValueError(
                f"`max_n` must be <= {most} for images of shape "
                f"{list(image_shape)}. Received: max_n={self.max_n}"
            )

    def check_classes(self, num_classes: int) -> None:
        """Refuses names that are more or fewer than the classes."""
        names = self.class_names
        if names is not None and len(names) != num_classes:
            raise ValueError(
                f"`class_names` must be {num_classes} names, one a class. "
                f"Received: {len(names)} names"
            )

    def check_noise(self, noise: str) -> None:
        """Refuses keyed seeds where images may differ and share one.

        A key stands for an image's 255ths, or the last bit of a pixel would
        be another try. Seeds are echoed, so their noise is known to whoever
        asked: the images that share it must be one image to the classifier,
        too.
        """
        if self.seed == "keyed" and noise == "float":
            raise ValueError(
                "`seed` must be 'fresh' for a certifier with noise='float'; "
                "'keyed' needs noise='grid' or 'grid-strict'. "
                f"Received: seed={self.seed!r}"
            )
