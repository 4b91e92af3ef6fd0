"""The rules for the arguments of `certify`, wherever the draws are made."""

from collections.abc import Mapping
from typing import Any

from rs_keras import bounds
from rs_keras._checks import check_choice
from rs_keras._checks import check_count
from rs_keras._checks import check_feasible
from rs_keras._checks import check_flag
from rs_keras._checks import check_positive
from rs_keras._checks import check_probability
from rs_keras._checks import check_up_to
from rs_keras.certification.sample_size import PILOT

BOUNDS = ("clopper_pearson", "hoeffding", "bernstein")


def classifier_settings(classifier: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what settings say of the smoothed classifier.

    Args:
        classifier: sigma, noise and dtype; total_variation, where the noise
            has one; and anything else, which is left out.
    """
    names = "sigma", "noise", "dtype"
    told = {name: classifier[name] for name in names}
    if distance := classifier.get("total_variation"):
        told["total_variation"] = distance
    return told


def certificate_settings(
    classifier: Mapping[str, Any],
    n0: int = 100,
    n: int = 100_000,
    alpha: float = 1e-3,
    bound: str = "clopper_pearson",
    beta: float = 1.0,
    runner_up: bool = True,
    tolerance: float | None = None,
    max_radius: float | None = None,
) -> dict[str, Any]:
    """Returns what a certificate rests on under these arguments, checked.

    Args:
        classifier: See `classifier_settings`.
        n0: This and the others as in `Certifier.certify`.
        n: See there.
        alpha: See there.
        bound: See there.
        beta: See there.
        runner_up: See there.
        tolerance: See there.
        max_radius: See there.

    Raises:
        ValueError: If an argument is out of its range, or n can never certify
            anything at this alpha.

    Example:

    >>> from rs_keras.certification.spec import certificate_settings
    >>> classifier = {"sigma": 0.5, "noise": "float", "dtype": "float32"}
    >>> certificate_settings(classifier, n=10_000)["n"]
    10000
    """
    check_count("n0", n0)
    check_count("n", n)
    check_probability("alpha", alpha)
    check_choice("bound", bound, BOUNDS)
    check_positive("beta", beta)
    check_flag("runner_up", runner_up)
    soft = bound != "clopper_pearson"
    if soft and runner_up:
        raise ValueError(
            "`runner_up` must be False for soft bounds, which bound one "
            f"class only. Received: runner_up={runner_up}, bound={bound!r}"
        )
    smallest = bounds.minimum_n(alpha, bound, runner_up)
    check_feasible("n", n, alpha, smallest)
    settings = {
        "n0": int(n0) if tolerance is None else PILOT,
        "n": int(n),
        "alpha": float(alpha),
        "bound": bound,
        "runner_up": bool(runner_up),
        **classifier_settings(classifier),
    }
    if soft:
        settings["beta"] = float(beta)
    limit = bounds.max_radius(n, alpha, classifier["sigma"], bound, runner_up)
    if tolerance is not None:
        settings["tolerance"] = check_up_to("tolerance", tolerance, limit)
    if max_radius is not None:
        check_positive("max_radius", max_radius)
        settings["max_radius"] = check_up_to("max_radius", max_radius, limit)
    return settings
