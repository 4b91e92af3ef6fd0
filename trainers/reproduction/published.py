"""What the papers and the authors' logs say of MNIST, to compare with."""

import math
from pathlib import Path
from typing import Any
from typing import NamedTuple

from rs_keras.logs.log import CertificationLog

# ACR over the whole test set: SmoothMix, tables 2 and 9; CAT-RS: the authors'
# log, of one training. By sigma and recipe.
PUBLISHED: dict[float, dict[str, float]] = {
    0.25: {
        "gaussian": 0.911,
        "stability": 0.915,
        "smoothadv": 0.932,
        "macer": 0.920,
        "consistency": 0.928,
        "smoothmix_eta1": 0.931,
        "smoothmix_onestep_eta1": 0.933,
        "smoothmix": 0.932,
        "smoothmix_onestep": 0.933,
    },
    0.5: {
        "gaussian": 1.553,
        "stability": 1.570,
        "smoothadv": 1.687,
        "macer": 1.594,
        "consistency": 1.657,
        "smoothmix_eta1": 1.678,
        "smoothmix_onestep_eta1": 1.694,
        "smoothmix": 1.694,
        "smoothmix_onestep": 1.685,
    },
    1.0: {
        "gaussian": 1.620,
        "stability": 1.634,
        "smoothadv": 1.779,
        "macer": 1.598,
        "consistency": 1.740,
        "smoothmix_T1": 1.785,
        "smoothmix_eta1": 1.788,
        "smoothmix_onestep_eta1": 1.816,
        "smoothmix": 1.820,
        "smoothmix_onestep": 1.823,
        "catrs": 1.831,
    },
}


# Of ACR over five training seeds: SmoothMix, table 5.
_DEVIATIONS: dict[float, dict[str, float]] = {
    0.25: {
        "gaussian": 0.0003,
        "stability": 0.0007,
        "smoothadv": 0.0005,
        "macer": 0.0006,
        "consistency": 0.0003,
        "smoothmix_eta1": 0.0003,
        "smoothmix_onestep_eta1": 0.0004,
        "smoothmix": 0.0002,
        "smoothmix_onestep": 0.0002,
    },
    0.5: {
        "gaussian": 0.0016,
        "stability": 0.0028,
        "smoothadv": 0.0007,
        "macer": 0.0069,
        "consistency": 0.0011,
        "smoothmix_eta1": 0.0007,
        "smoothmix_onestep_eta1": 0.0009,
        "smoothmix": 0.0007,
        "smoothmix_onestep": 0.0003,
    },
    1.0: {
        "gaussian": 0.0021,
        "stability": 0.0018,
        "smoothadv": 0.0017,
        "macer": 0.0051,
        "consistency": 0.0017,
        "smoothmix_eta1": 0.0020,
        "smoothmix_onestep_eta1": 0.0011,
        "smoothmix": 0.0016,
        "smoothmix_onestep": 0.0013,
    },
}

# An image, for CAT-RS' soft labels.
AUTHORS_VOTES = 10_000

# Draws an image in their logs.
AUTHORS_N = 100_000

# Where seeds can make more than the papers' own difference, this, times sigma,
# is as good as none.
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


# Changes to the recipe `smoothmix_T1` at sigma 1.0: SmoothMix, appendix H.
ABLATIONS: dict[str, dict[str, Any]] = {
    "eta_4": {"eta": 4.0},
    "eta_16": {"eta": 16.0},
    "m_1": {"num_noise": 1},
    "T_2": {"steps": 2, "step_size": 4.0},
    "T_4": {"steps": 4, "step_size": 2.0},
    "T_8": {"steps": 8, "step_size": 1.0},
}


class Claim(NamedTuple):
    """How much larger an ablation's ACR is in the paper than another's.

    Attributes:
        first: The one to compare with; "base" for no change.
        second: The other.
        published: ACR of the second minus that of the first.

    Example:

    >>> from rs_keras.trainers.reproduction.published import CLAIMS
    >>> CLAIMS[0].first, CLAIMS[0].second, round(CLAIMS[0].published, 3)
    ('base', 'eta_4', 0.031)
    """

    first: str
    second: str
    published: float


# The tables vary eta and m at T = 8; alpha T = 8 throughout.
CLAIMS = (
    Claim("base", "eta_4", 1.820 - 1.789),
    Claim("base", "eta_16", 1.812 - 1.789),
    Claim("eta_4", "eta_16", 1.812 - 1.820),
    Claim("base", "m_1", 1.744 - 1.789),
    Claim("base", "T_2", 1.788 - 1.785),
    Claim("base", "T_4", 1.790 - 1.785),
    Claim("base", "T_8", 1.789 - 1.785),
)

# The logs that the authors published, by sigma and recipe: names as in
# `rs-keras reproduce --references`.
_AUTHORS = {
    "smoothmix": "smoothmix_eta5",
    "smoothmix_onestep": "smoothmix_onestep_eta5",
}


def reference_log(
    folder: str | Path, sigma: float, method: str
) -> CertificationLog | None:
    """Returns the authors' own log of a method, where `folder` has one.

    Args:
        folder: Of files `mnist_METHOD_sigmaSIGMA.tsv`.
        sigma: Of the noise.
        method: A recipe.
    """
    name = _AUTHORS.get(method, method)
    path = Path(folder) / f"mnist_{name}_sigma{sigma}.tsv"
    return CertificationLog.read(path) if path.is_file() else None
