"""The papers' MNIST results, from published.toml, and the authors' logs."""

import math
import tomllib
from pathlib import Path
from typing import Any

from rs_keras.logs.log import CertificationLog

_TABLES = tomllib.loads(
    Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")
)

# ACR over the whole test set, and its standard deviation over training seeds;
# by sigma and recipe.
PUBLISHED: dict[float, dict[str, float]]
PUBLISHED, _DEVIATIONS = (
    {float(sigma): row for sigma, row in _TABLES[name].items()}
    for name in ("acr", "deviations")
)

# The changes to the recipe in each ablation.
ABLATIONS: dict[str, dict[str, Any]] = _TABLES["ablations"]

# Pairs of them, `first` and `second`, and both ACRs in the paper.
CLAIMS: list[dict[str, Any]] = _TABLES["claims"]

# Votes per image of CAT-RS' soft labels.
AUTHORS_VOTES = 10_000

# Draws per image in the authors' logs.
AUTHORS_N = 100_000

# If training seeds can cause more than the published difference, differences
# below this times sigma count as none.
EQUAL = 0.02


def seeds(sigma: float, *methods: str) -> float:
    """Returns the difference in ACR that two training seeds can make.

    Twice the standard deviation of the difference, of which one in twenty is
    larger. A method that the table does not have, such as CAT-RS, is taken to
    vary as SmoothMix at most does.

    Args:
        sigma: Of the noise.
        methods: The two recipes.

    Example:

    >>> from rs_keras.trainers.reproduction.published import seeds
    >>> round(seeds(1.0, "gaussian", "macer"), 4)
    0.011
    """
    known = _DEVIATIONS[sigma]
    most = max(v for k, v in known.items() if k.startswith("smoothmix"))
    return 2 * math.hypot(*(known.get(method, most) for method in methods))


def reference_log(
    folder: str | Path, sigma: float, method: str
) -> CertificationLog | None:
    """Returns the authors' own log of a method, where `folder` has one.

    Args:
        folder: Of files `mnist_METHOD_sigmaSIGMA.tsv`.
        sigma: Of the noise.
        method: A recipe.
    """
    name = _TABLES["authors_logs"].get(method, method)
    path = Path(folder) / f"mnist_{name}_sigma{sigma}.tsv"
    return CertificationLog.read(path) if path.is_file() else None
