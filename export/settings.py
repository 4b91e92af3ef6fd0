"""The settings of an export: draws, limits, class names, seeds."""

from collections.abc import Sequence
from dataclasses import dataclass

from rs_keras import bounds
from rs_keras._checks import check_choice
from rs_keras._checks import check_count
from rs_keras._checks import check_feasible
from rs_keras._checks import check_probability
from rs_keras.bounds.names import VOTE_BOUNDS
from rs_keras.certification.spec import CertifySpec
from rs_keras.certification.spec import DecideSpec
from rs_keras.certification.spec import check_runner_up
from rs_keras.noise.draws import addressed_draws

SEEDS = ("fresh", "keyed")

# Default maximum number of draws, as in `Certifier.decide`.
_DECIDE_N = 100_000


def default_decide_n(n0: int, max_n: int) -> int:
    """Returns the default of `decide_n`."""
    most = check_count("n0", n0) + check_count("max_n", max_n)
    return min(_DECIDE_N, most)


@dataclass(frozen=True)
class Settings:
    """The numbers that the signatures run with, and the limits.

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
    bound: str = "clopper_pearson"
    class_names: tuple[str, ...] | None = None
    image_bytes: bool = False
    seed: str = "fresh"
    decide_n: int = _DECIDE_N

    def __post_init__(self) -> None:
        for name in ("n0", "max_n", "n", "predict_n", "decide_n"):
            self._keep(name, check_count(name, getattr(self, name)))
        check_choice("seed", self.seed, SEEDS)
        self._keep("alpha", check_probability("alpha", self.alpha))
        self._keep("runner_up", bool(self.runner_up))
        check_choice("bound", self.bound, VOTE_BOUNDS)
        check_runner_up(self.bound, self.runner_up)
        smallest_n = bounds.minimum_n(self.alpha, self.bound, self.runner_up)
        for name, smallest in (
            ("n", smallest_n),
            ("predict_n", bounds.minimum_n(self.alpha, "predict")),
            ("decide_n", self.n0 + bounds.minimum_n(self.alpha)),
        ):
            check_feasible(name, getattr(self, name), self.alpha, smallest)
        for name in ("n0", "n", "predict_n"):
            if getattr(self, name) > self.max_n:
                raise ValueError(
                    f"`max_n` must be >= `{name}`. Received: "
                    f"max_n={self.max_n}, {name}={getattr(self, name)}"
                )
        if self.decide_n > self.n0 + self.max_n:
            raise ValueError(
                "`decide_n` must be <= `n0` + `max_n`. Received: decide_n="
                f"{self.decide_n}, n0={self.n0}, max_n={self.max_n}"
            )
        names = self.class_names
        if names is not None and not all(isinstance(n, str) for n in names):
            raise ValueError(
                "`class_names` must be strings, one per class. "
                f"Received: class_names={names!r}"
            )

    @property
    def certify_spec(self) -> CertifySpec:
        """The arguments of `certify` if the client gives none."""
        return CertifySpec(
            self.n0,
            self.n,
            self.alpha,
            bound=self.bound,
            runner_up=self.runner_up,
        )

    @property
    def decide_spec(self) -> DecideSpec:
        """The arguments of `decide`, apart from the client's radius."""
        return DecideSpec(0.0, self.alpha, self.decide_n, n0=self.n0)

    def _keep(self, name: str, value: object) -> None:
        """Stores a Python number; JSON cannot represent NumPy's."""
        object.__setattr__(self, name, value)

    def check_image_shape(self, image_shape: Sequence[int]) -> None:
        """Raises if two rounds of `max_n` draws exceed those of a seed."""
        most = addressed_draws(image_shape) // 2
        if self.max_n > most:
            raise ValueError(
                f"`max_n` must be <= {most} for images of shape "
                f"{list(image_shape)}. Received: max_n={self.max_n}"
            )

    def check_classes(self, num_classes: int) -> None:
        """Raises unless there is one class name per class."""
        names = self.class_names
        if names is not None and len(names) != num_classes:
            raise ValueError(
                f"`class_names` must be {num_classes} names, one per class. "
                f"Received: {len(names)} names"
            )
