"""The arguments of `certify` and `decide`, checked, wherever draws are made."""

from collections.abc import Sequence
from dataclasses import InitVar
from dataclasses import dataclass
from dataclasses import field
from functools import lru_cache
from typing import Any

import numpy as np

from rs_keras import bounds
from rs_keras._checks import check_choice
from rs_keras._checks import check_count
from rs_keras._checks import check_feasible
from rs_keras._checks import check_flag
from rs_keras._checks import check_not_negative
from rs_keras._checks import check_positive
from rs_keras._checks import check_probability
from rs_keras._checks import check_up_to
from rs_keras.certification.sequential.boundaries import shares_of_looks

BOUNDS = ("clopper_pearson", "hoeffding", "bernstein")

# Draws that select the class where they also tell how many more are needed.
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
        """Returns what settings say of the smoothed classifier."""
        settings: dict[str, Any] = {
            "sigma": self.sigma,
            "noise": self.noise,
            "dtype": self.dtype,
        }
        if self.distance:
            settings["total_variation"] = self.distance
        return settings


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
        _keep(self, "n0", check_count("n0", self.n0))
        _keep(self, "n", check_count("n", self.n))
        _keep(self, "alpha", check_probability("alpha", self.alpha))
        check_choice("bound", self.bound, BOUNDS)
        _keep(self, "beta", check_positive("beta", self.beta))
        _keep(self, "runner_up", check_flag("runner_up", self.runner_up))
        if self.soft and self.runner_up:
            raise ValueError(
                "`runner_up` must be False for soft bounds, which bound one "
                f"class only. Received: runner_up={self.runner_up}, "
                f"bound={self.bound!r}"
            )
        smallest = bounds.minimum_n(self.alpha, self.bound, self.runner_up)
        check_feasible("n", self.n, self.alpha, smallest)
        if self.tolerance is not None:
            lost = check_not_negative("tolerance", self.tolerance)
            _keep(self, "tolerance", lost)
            _keep(self, "n0", PILOT)
        if self.max_radius is not None:
            largest = check_positive("max_radius", self.max_radius)
            _keep(self, "max_radius", largest)

    @property
    def soft(self) -> bool:
        """Whether soft predictions are averaged, or votes counted."""
        return self.bound != "clopper_pearson"

    def check(self, smoothing: SmoothingSpec) -> None:
        """Refuses a tolerance or maximum that n draws cannot reach."""
        limit = bounds.max_radius(
            self.n, self.alpha, smoothing.sigma, self.bound, self.runner_up
        )
        for name in ("tolerance", "max_radius"):
            if (value := getattr(self, name)) is not None:
                check_up_to(name, value, limit)

    def settings(self, smoothing: SmoothingSpec) -> dict[str, Any]:
        """Returns what a certificate rests on."""
        settings = {
            "n0": self.n0,
            "n": self.n,
            "alpha": self.alpha,
            "bound": self.bound,
            "runner_up": self.runner_up,
            **smoothing.settings(),
        }
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
    ((0.25, 0.5), 1.1755)
    """

    radius: InitVar[float | Sequence[float]]
    alpha: float = 1e-3
    n_max: int = 100_000
    runner_up: bool = True
    n0: int = 100
    radii: tuple[float, ...] = field(init=False)

    def __post_init__(self, radius: float | Sequence[float]) -> None:
        given = np.ravel(radius).tolist()
        radii = {check_not_negative("radius", one) for one in given}
        if not radii:
            raise ValueError(
                "`radius` must be a number, or several. "
                f"Received: radius={radius!r}"
            )
        _keep(self, "radii", tuple(sorted(radii)))
        _keep(self, "alpha", check_probability("alpha", self.alpha))
        _keep(self, "n0", check_count("n0", self.n0))
        _keep(self, "n_max", check_count("n_max", self.n_max))
        _keep(self, "runner_up", check_flag("runner_up", self.runner_up))

    def check(self, smoothing: SmoothingSpec) -> None:
        """Refuses radii that no n_max draws can certify."""
        smallest = self.n0 + 1
        while not self._max_radius_of(smallest, smoothing):
            smallest += 1
        check_feasible("n_max", self.n_max, self.alpha, smallest)
        check_up_to("radius", self.radii[-1], self.max_radius(smoothing))

    def max_radius(self, smoothing: SmoothingSpec) -> float:
        """The largest radius that can be certified: if all draws agree."""
        return self._max_radius_of(self.n_max, smoothing)

    def _max_radius_of(self, n_max: int, smoothing: SmoothingSpec) -> float:
        return max_decided_radius(
            n_max - self.n0, self.alpha, self.runner_up, smoothing
        )


@lru_cache(maxsize=256)
def max_decided_radius(
    n: int, alpha: float, runner_up: bool, smoothing: SmoothingSpec
) -> float:
    """The radius of a decision whose `n` draws, in several looks, all agree."""
    sigma, distance = smoothing.sigma, smoothing.distance
    if not runner_up:
        return bounds.max_radius(
            n, alpha, sigma, runner_up=False, distance=distance
        )
    looks, levels = shares_of_looks(alpha, n)
    return max(
        bounds.max_radius(look, float(level), sigma, distance=distance)
        for look, level in zip(looks, levels, strict=True)
    )


def _keep(spec: CertifySpec | DecideSpec, name: str, value: Any) -> None:
    """Keeps a checked value as Python's own type: NumPy's make no JSON."""
    object.__setattr__(spec, name, value)
