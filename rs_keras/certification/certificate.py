"""What a certifier answers."""

from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import field
from decimal import ROUND_DOWN
from decimal import Context
from decimal import Decimal
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

    Example:

    >>> import numpy as np
    >>> from rs_keras import Certifier
    >>> certifier = Certifier(lambda x: x[:, 0, 0, :2] - 0.5, sigma=0.5)
    >>> images = np.array([[1.0, 0.0], [0.5, 0.5]]).reshape(2, 1, 1, 2)
    >>> prediction = certifier.predict(images, n=1_000, seed=7)
    >>> prediction.label
    array([ 0, -1])
    >>> prediction.counts.sum(1)
    array([1000, 1000])
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
        sigma: float64 [B] where each image has its own, else None.

    Example:

    >>> import numpy as np
    >>> from rs_keras import Certifier
    >>> certifier = Certifier(lambda x: x[:, 0, 0, :2] - 0.5, sigma=0.5)
    >>> images = np.array([[1.0, 0.0], [0.5, 0.5]]).reshape(2, 1, 1, 2)
    >>> certificate = certifier.certify(images, n=10_000, seed=7)
    >>> certificate.label
    array([ 0, -1])
    >>> certificate.radius.round(2)
    array([0.69, 0.  ])
    >>> certificate.sentence(1)
    'abstains: no class wins with 99.9% confidence'
    >>> certificate.statement()
    'For each image by itself, with probability at least 0.999 over ...'
    """

    label: np.ndarray
    radius: np.ndarray
    p_lower: np.ndarray
    counts: np.ndarray
    selection_counts: np.ndarray
    n: np.ndarray
    seed: np.ndarray
    settings: Mapping[str, Any] = field(default_factory=dict)
    sigma: np.ndarray | None = None

    def sentence(self, row: int = 0) -> str:
        """Says in words what is certified of one image.

        The radius is rounded down. At a sigma chosen for the image it is said
        which: of a classifier that chooses anew, nothing is certified.

        Example:

        >>> import numpy as np
        >>> from rs_keras import Certificate
        >>> one = np.ones(1)
        >>> certificate = Certificate(
        ...     label=one.astype(int), radius=one * 0.8389, p_lower=one * 0.9,
        ...     counts=one[None], selection_counts=one[None], n=one,
        ...     seed=one[None], settings={"alpha": 0.001})
        >>> certificate.sentence()
        'class 1; no change of the image smaller than 0.838 in L2 can alter \
this, with 99.9% confidence'
        """
        confidence = confidence_of(self.settings["alpha"])
        label = int(self.label[row])
        of = what = ""
        per_input = self.settings.get("scope") == "per_input_sigma"
        if per_input and self.sigma is not None:
            of = f" at sigma = {self.sigma[row]:g}, chosen for this image"
            what = " answer at this one sigma"
        if label == ABSTAIN:
            return f"abstains: no class wins{of} with {confidence}"
        return (
            f"class {label}{of}; no change of the image smaller than "
            f"{rounded_down(self.radius[row])} in L2 can alter this{what}, "
            f"with {confidence}"
        )

    def statement(self) -> str:
        """Says in words what is guaranteed, for whom and on what condition."""
        given = self.settings
        notes = []
        if "tolerance" in given:
            notes.append(
                f"How many samples bound an image's class was planned on the "
                f"{given['n0']} that selected it, to lose about "
                f"{given['tolerance']:g} of the radius at most; the bound "
                "itself is on fresh ones, at the full confidence."
            )
        if "max_radius" in given:
            notes.append(
                f"A radius above {given['max_radius']:g} is given as "
                f"{given['max_radius']:g}."
            )
        return guarantee(
            given,
            "answers `label` on every image closer than `radius` in L2, in "
            "units of pixels in [0, 1], unless `label` is -1",
            *notes,
        )


def confidence_of(alpha: float) -> str:
    """Says 1 - alpha in words, rounded down: "99.9% confidence"."""
    return f"{(100 * _complement(alpha)).normalize():f}% confidence"


def _complement(alpha: float) -> Decimal:
    """Returns 1 - alpha to twelve digits, never more: never 1."""
    rounds = Context(prec=12, rounding=ROUND_DOWN)
    exact = Decimal(repr(float(alpha)))
    return rounds.subtract(Decimal(1), exact).normalize()


def guarantee(settings: Mapping[str, Any], claim: str, *notes: str) -> str:
    """Says in words with what confidence a claim holds, and of what.

    Args:
        settings: sigma, alpha and noise; bound and beta where the bound is on
            soft predictions.
        claim: What the smoothed classifier does: "answers ...".
        *notes: More sentences.
    """
    classifier = (
        "the classifier that takes the majority vote of the base classifier"
        if settings.get("bound", "clopper_pearson") == "clopper_pearson"
        else "the classifier that averages softmax(beta * logits), "
        f"beta={settings['beta']:g},"
    )
    scope = settings.get("scope", "fixed_sigma")
    deviation = _DEVIATION[scope].format(settings["sigma"])
    first = (
        "For each image by itself, with probability at least "
        f"{_complement(settings['alpha']):f} over the noise drawn for it: "
        f"{classifier} under Gaussian noise of {deviation} {claim}."
    )
    notes = (*notes, *_CONDITIONS.get(scope, ()))
    dtype = settings.get("dtype", "float32")
    if dtype != "float32":
        notes = (
            *notes,
            f"It is about the base classifier as computed in {dtype}, which "
            "is another one than in float32.",
        )
    rests = (
        "The probability is not joint over many images. It rests on noise "
        "that was not known when the image was chosen."
    )
    exact = _ARITHMETIC[settings["noise"]].format(**settings)
    return " ".join([first, *notes, rests, exact])


_DEVIATION = {
    "fixed_sigma": "standard deviation {:g}",
    "per_input_sigma": "the standard deviation `sigma` chosen for this image",
    "composition": "the standard deviation of the expert that a smoothed "
    "router chooses",
}

_CONDITIONS = {
    "per_input_sigma": (
        "It is about that one sigma, kept for the whole ball. A deployed "
        "classifier that chooses sigma anew for each image is another one: of "
        "that, nothing is certified.",
    ),
    "composition": (
        "The radius is the smaller of the router's and the expert's, with "
        "half of the error probability for each.",
    ),
}

_ARITHMETIC = {
    "float": (
        "It is about real arithmetic: image plus noise is rounded to float32, "
        "which a base classifier made for it could exploit."
    ),
    "grid": (
        "It is about images whose pixels are multiples of 1/255 (another is "
        "rounded to the nearest such image first, and the radius is around "
        "that one). Image plus noise is exact on that grid, and a draw is "
        "within a total variation of {total_variation:.1e} of the Gaussian "
        "rounded to it, which is allowed for: so it holds for every base "
        "classifier."
    ),
}


def rounded_down(radius: float, digits: int = 3) -> str:
    """Prints a radius with some decimals, never above its value."""
    scale = Decimal(1).scaleb(-digits)
    return str(Decimal(float(radius)).quantize(scale, ROUND_DOWN))
