"""Specifications: the checked arguments of smoothing, certify and decide."""

from collections.abc import Callable
from collections.abc import Sequence
from dataclasses import InitVar
from dataclasses import asdict
from dataclasses import dataclass
from dataclasses import field
from functools import lru_cache
from typing import Any
from typing import Literal
from typing import get_args

import numpy as np

from rs_keras import bounds
from rs_keras._checks import check_alpha
from rs_keras._checks import check_choice
from rs_keras._checks import check_count
from rs_keras._checks import check_feasible
from rs_keras._checks import check_flag
from rs_keras._checks import check_not_negative
from rs_keras._checks import check_positive
from rs_keras._checks import check_up_to
from rs_keras.bounds.names import SOFT_BOUNDS
from rs_keras.certification.sequential.boundaries import shares_of_stages

Bound = Literal["clopper_pearson", "joint", "hoeffding", "bernstein"]
BOUNDS: tuple[str, ...] = get_args(Bound)

# Selection draws if they also determine the number of estimation draws.
PILOT = 1_000


@dataclass(frozen=True)
class SmoothingSpec:
    """The noise of a smoothed classifier, and the type it computes in.

    Attributes:
        sigma: Standard deviation of the noise, in pixel units.
        noise: "float" or "grid"; see `Certifier`.
        dtype: As in `Certifier`.
        distance: Bounds the total variation between one draw of the noise,
            all pixels together, and the Gaussian.
    """

    sigma: float
    noise: str = "float"
    dtype: str | None = None
    distance: float = 0.0

    def settings(self) -> dict[str, Any]:
        """Returns the settings of the smoothed classifier."""
        settings = asdict(self)
        distance = settings.pop("distance")
        return settings | ({"total_variation": distance} if distance else {})


@dataclass(frozen=True)
class CertifySpec:
    """The arguments of `Certifier.certify`, which explains them, checked.

    Raises:
        ValueError: If an argument is out of its range, or n can never certify
            anything at this alpha.

    Example:

    >>> from rs_keras.certification.spec import CertifySpec, SmoothingSpec
    >>> spec = CertifySpec(n=10_000)
    >>> smoothing = SmoothingSpec(0.5, noise="float", dtype="float32")
    >>> spec.check(smoothing)
    >>> spec.soft, spec.settings(smoothing)["n"]
    (False, 10000)
    """

    n0: int = 100
    n: int = 100_000
    alpha: float = 1e-3
    bound: str = "clopper_pearson"
    beta: float = 1.0
    runner_up: bool = True
    tolerance: float | None = None
    max_radius: float | None = None

    def __post_init__(self) -> None:
        _check_each(self, n0=check_count, n=check_count)
        _check_each(self, alpha=_check_alpha)
        check_choice("bound", self.bound, BOUNDS)
        _check_each(self, beta=check_positive, runner_up=check_flag)
        check_runner_up(self.bound, self.runner_up)
        smallest = bounds.minimum_n(self.alpha, self.bound, self.runner_up)
        check_feasible("n", self.n, self.alpha, smallest)
        if self.tolerance is not None:
            _check_each(self, tolerance=check_not_negative)
            object.__setattr__(self, "n0", PILOT)
        if self.max_radius is not None:
            _check_each(self, max_radius=check_positive)

    @property
    def soft(self) -> bool:
        """Whether soft predictions are averaged, or votes counted."""
        return self.bound in SOFT_BOUNDS

    def check(self, smoothing: SmoothingSpec) -> None:
        """Raises for a tolerance or maximum beyond the radius of n draws."""
        limit = bounds.max_radius(
            self.n, self.alpha, smoothing.sigma, self.bound, self.runner_up
        )
        for name in ("tolerance", "max_radius"):
            if (value := getattr(self, name)) is not None:
                check_up_to(name, value, limit)

    def settings(self, smoothing: SmoothingSpec) -> dict[str, Any]:
        """Returns the settings of a certificate."""
        names = ("n0", "n", "alpha", "bound", "runner_up")
        settings = {name: getattr(self, name) for name in names}
        settings |= smoothing.settings()
        if self.soft:
            settings["beta"] = self.beta
        for name in ("tolerance", "max_radius"):
            if (value := getattr(self, name)) is not None:
                settings[name] = value
        return settings


@dataclass(frozen=True)
class DecideSpec:
    """The arguments of `Certifier.decide`, which explains them, checked.

    Attributes:
        radii: The radii, increasing, each once.

    Raises:
        ValueError: If an argument is out of its range.

    Example:

    >>> from rs_keras.certification.spec import DecideSpec, SmoothingSpec
    >>> spec = DecideSpec([0.5, 0.25], n_max=1_000)
    >>> spec.radii, round(spec.max_radius(SmoothingSpec(0.5)), 4)
    ((0.25, 0.5), 1.1854)
    """

    radius: InitVar[float | Sequence[float]]
    alpha: float = 1e-3
    n_max: int = 100_000
    runner_up: bool = True
    n0: int = 100
    radii: tuple[float, ...] = field(init=False)

    def __post_init__(self, radius: float | Sequence[float]) -> None:
        radii = {
            check_not_negative("radius", value)
            for value in np.ravel(radius).tolist()
        }
        if not radii:
            raise ValueError(
                "`radius` must be a number, or several. "
                f"Received: radius={radius!r}"
            )
        object.__setattr__(self, "radii", tuple(sorted(radii)))
        _check_each(self, alpha=_check_alpha, n0=check_count)
        _check_each(self, n_max=check_count, runner_up=check_flag)

    def check(self, smoothing: SmoothingSpec) -> None:
        """Raises for radii that n_max draws cannot certify."""
        smallest = self.n0 + 1
        while not self.max_radius(smoothing, smallest):
            smallest += 1
        check_feasible("n_max", self.n_max, self.alpha, smallest)
        check_up_to("radius", self.radii[-1], self.max_radius(smoothing))

    def max_radius(
        self, smoothing: SmoothingSpec, n_max: int | None = None
    ) -> float:
        """The largest radius that `n_max` draws can certify: if all agree."""
        n = (n_max or self.n_max) - self.n0
        return max_decided_radius(n, self.alpha, self.runner_up, smoothing)


@lru_cache(maxsize=256)
def max_decided_radius(
    n: int, alpha: float, runner_up: bool, smoothing: SmoothingSpec
) -> float:
    """The radius of a decision whose `n` draws, in all stages, agree."""
    sigma, distance = smoothing.sigma, smoothing.distance
    if not runner_up:
        return bounds.max_radius(
            n, alpha, sigma, runner_up=False, distance=distance
        )
    stages, levels = shares_of_stages(alpha, n)
    return max(
        bounds.max_radius(n_stage, float(level), sigma, distance=distance)
        for n_stage, level in zip(stages, levels, strict=True)
    )


def check_runner_up(bound: str, runner_up: bool) -> None:
    """Raises for a bound that does not go with the number of its counts."""
    if bound in SOFT_BOUNDS and runner_up:
        raise ValueError(
            "`runner_up` must be False for soft bounds, which bound one "
            f"class only. Received: runner_up={runner_up}, bound={bound!r}"
        )
    if bound == "joint" and not runner_up:
        raise ValueError(
            "`runner_up` must be True for bound='joint', which tests both "
            f"counts. Received: runner_up={runner_up}"
        )


def _check_alpha(name: str, value: Any) -> float:
    return check_alpha(value)


def _check_each(
    spec: CertifySpec | DecideSpec, **checks: Callable[[str, Any], Any]
) -> None:
    """Checks fields and converts them to Python's types, for JSON."""
    for name, check in checks.items():
        value = check(name, getattr(spec, name))
        object.__setattr__(spec, name, value)
