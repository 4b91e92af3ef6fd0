"""What a certifier answers."""

from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import field
from typing import Any

import numpy as np

ABSTAIN = -1


@dataclass(frozen=True)
class Prediction:
    """The smoothed classifier's labels, without a radius.

    Attributes:
        label: int64 [B]; -1 where the votes do not decide.
        p_value: float64 [B], of the two-sided test that the two most frequent
            classes are equally likely.
        counts: int64 [B, C], the votes.
        seed: int64 [B, 2], of the noise.
    """

    label: np.ndarray
    p_value: np.ndarray
    counts: np.ndarray
    seed: np.ndarray


@dataclass(frozen=True)
class Certificate:
    """Labels and the L2 radii within which they provably stay.

    Attributes:
        label: int64 [B]; -1 where the certifier abstains.
        radius: float64 [B], L2, in pixel units; 0 where it abstains.
        p_lower: float64 [B], the lower confidence bound on the probability of
            the selected class.
        counts: int64 [B, C], the votes of the estimation round (soft bounds:
            float64 sums of the soft predictions).
        selection_counts: int64 [B, C], the votes of the selection round.
        n: int64 [B], samples drawn in the estimation round.
        seed: int64 [B, 2]; the same seed gives the same certificate again.
        settings: What the guarantee rests on: sigma, alpha, bound, runner_up,
            n0, n, noise and, for soft bounds, beta.
    """

    label: np.ndarray
    radius: np.ndarray
    p_lower: np.ndarray
    counts: np.ndarray
    selection_counts: np.ndarray
    n: np.ndarray
    seed: np.ndarray
    settings: Mapping[str, Any] = field(default_factory=dict)
