"""What the papers and the authors' logs say of MNIST, to compare with."""

from pathlib import Path
from typing import Any
from typing import NamedTuple

from rs_keras.log import CertificationLog

# ACR over the whole test set: SmoothMix, tables 2 and 7; CAT-RS: the authors'
# log. By sigma and recipe.
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


class Ablation(NamedTuple):
    """One change to SmoothMix with T = 1, and what it did in the paper.

    Attributes:
        changed: Values of the recipe `smoothmix_T1` that differ.
        published: How much larger the paper's ACR is than without the change.

    Example:

    >>> from rs_keras.trainers.reproduction_published import ABLATIONS
    >>> ABLATIONS["eta_4"].changed, round(ABLATIONS["eta_4"].published, 3)
    ({'eta': 4.0}, 0.031)
    """

    changed: dict[str, Any]
    published: float


# SmoothMix, appendix H, at sigma 1.0. Alpha T = 8 throughout: each differs
# from (alpha, T) = (8, 1). The paper changes eta and m at T = 8.
ABLATIONS = {
    "eta_4": Ablation({"eta": 4.0}, 1.820 - 1.789),
    "eta_16": Ablation({"eta": 16.0}, 1.812 - 1.789),
    "m_1": Ablation({"num_noise": 1}, 1.744 - 1.789),
    "T_2": Ablation({"steps": 2, "step_size": 4.0}, 1.788 - 1.785),
    "T_4": Ablation({"steps": 4, "step_size": 2.0}, 1.790 - 1.785),
    "T_8": Ablation({"steps": 8, "step_size": 1.0}, 1.789 - 1.785),
}

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
