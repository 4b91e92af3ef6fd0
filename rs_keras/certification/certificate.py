"""Predictions and certificates, and their guarantees in words."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import field
from dataclasses import replace
from decimal import ROUND_DOWN
from decimal import Context
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np

from rs_keras._rows import SHOWN
from rs_keras._rows import Rows
from rs_keras._rows import data_frame
from rs_keras._rows import shortened
from rs_keras.bounds.names import SOFT_BOUNDS

ABSTAIN = -1

STATEMENTS: dict[str, Any] = tomllib.loads(
    (Path(__file__).parent / "statements.toml").read_text()
)


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
class Certificate(Rows):
    """Labels and the L2 radii within which they provably stay.

    It has a length, and `certificate[0]`, a slice, a mask and a loop give
    certificates of some of its images.

    Attributes:
        label: int64 [B]; -1 where the certifier abstains.
        radius: float64 [B], L2, in pixel units; 0 where it abstains.
        p_lower: float64 [B], the lower confidence bound on the probability of
            the selected class; NaN where there is none (the joint bound).
        counts: int64 [B, C], the votes of the estimation round (soft bounds:
            float64 sums of the soft predictions).
        selection_counts: int64 [B, C], the votes of the selection round.
        n: int64 [B], samples drawn in the estimation round.
        seed: int64 [B, 2]; the same seed gives the same certificate again.
        settings: What the guarantee rests on: sigma, alpha, bound, runner_up,
            n0, n, noise and, for soft bounds, beta.
        sigma: float64 [B] where each image has its own, else None.
        receipt: JSON with which `rs-keras verify` checks it, if a client asked
            for one; of all images that were certified together.

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
    >>> certificate
    Certificate of 2 images, sigma 0.5, n 10000, alpha 0.001
      0: class 0, radius 0.691
      1: abstains
    >>> [float(one.radius[0]) > 0 for one in certificate]
    [True, False]
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
    receipt: str | None = None

    def __len__(self) -> int:
        return len(self.label)

    def _take(self, rows: np.ndarray) -> "Certificate":
        arrays = {
            name: np.asarray(value)[rows]
            for name, value in vars(self).items()
            if name not in ("settings", "receipt") and value is not None
        }
        return replace(self, **arrays)

    def __repr__(self) -> str:
        shown = [
            f", {name} {self.settings[name]}"
            for name in ("sigma", "n", "alpha")
            if self.settings.get(name) is not None
        ]
        count = "1 image" if len(self) == 1 else f"{len(self)} images"
        lines = [f"Certificate of {count}{''.join(shown)}"]
        for row in range(min(len(self), SHOWN)):
            if self.label[row] == ABSTAIN:
                lines.append(f"  {row}: abstains")
                continue
            radius = rounded_down(self.radius[row])
            at = "" if self.sigma is None else f" at sigma {self.sigma[row]}"
            lines.append(
                f"  {row}: class {self.label[row]}, radius {radius}{at}"
            )
        return "\n".join(lines) + shortened(len(self), "images")

    def to_pandas(self) -> Any:
        """Returns a `pandas.DataFrame` with a row an image.

        Its columns are label, radius, p_lower and n, and sigma where each image
        has its own; its `attrs` are the settings.

        Raises:
            ImportError: If pandas is not installed.

        Example:

        >>> import numpy as np
        >>> from rs_keras import Certifier
        >>> certifier = Certifier(lambda x: x[:, 0, 0, :2] - 0.5, sigma=0.5)
        >>> certificate = certifier.certify(np.ones([3, 1, 1, 2]), n=100)
        >>> list(certificate.to_pandas())
        ['label', 'radius', 'p_lower', 'n']
        """
        names = ["label", "radius", "p_lower", "n"]
        names += [] if self.sigma is None else ["sigma"]
        columns = {name: getattr(self, name) for name in names}
        return data_frame(columns, self.settings)

    def sentence(self, row: int = 0) -> str:
        """Describes the certificate of one image in words.

        The radius is rounded down. A sigma chosen for the image is named: a
        classifier that chooses sigma for each input is not certified.

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
        texts = STATEMENTS["certificate"]
        at = answer = ""
        per_input = self.settings.get("scope") == "per_input_sigma"
        if per_input and self.sigma is not None:
            at = texts["at"].format(sigma=self.sigma[row])
            answer = texts["answer"]
        abstains = self.label[row] == ABSTAIN
        return texts["abstains" if abstains else "certified"].format(
            label=self.label[row],
            radius=rounded_down(self.radius[row]),
            at=at,
            answer=answer,
            confidence=confidence_of(self.settings["alpha"]),
        )

    def statement(self) -> str:
        """Describes the guarantee and its conditions in words."""
        texts = STATEMENTS["certificate"]
        notes = [
            texts[name].format(**self.settings)
            for name in ("tolerance", "max_radius")
            if name in self.settings
        ]
        if self.settings.get("bound") == "joint":
            notes.insert(0, texts["joint"])
        return guarantee(self.settings, texts["claim"], *notes)


def confidence_of(alpha: float) -> str:
    """Returns 1 - alpha as text, rounded down: "99.9% confidence"."""
    return f"{(100 * _complement(alpha)).normalize():f}% confidence"


def _complement(alpha: float) -> Decimal:
    """Returns 1 - alpha to twelve digits, never more: never 1."""
    rounds = Context(prec=12, rounding=ROUND_DOWN)
    exact = Decimal(repr(float(alpha)))
    return rounds.subtract(Decimal(1), exact).normalize()


def guarantee(settings: Mapping[str, Any], claim: str, *notes: str) -> str:
    """Describes a claim, its confidence and its conditions in words.

    Args:
        settings: sigma, alpha and noise; bound and beta where the bound is on
            soft predictions.
        claim: What the smoothed classifier does: "answers ...".
        *notes: More sentences.
    """
    scope = settings.get("scope", "fixed_sigma")
    soft = settings.get("bound") in SOFT_BOUNDS
    classifier = STATEMENTS["classifier"]["soft" if soft else "votes"]
    first = STATEMENTS["guarantee"].format(
        probability=f"{_complement(settings['alpha']):f}",
        classifier=classifier.format(**settings),
        deviation=STATEMENTS["deviation"][scope].format(**settings),
        claim=claim,
    )
    sentences = [first, *notes, STATEMENTS["condition"].get(scope, "")]
    if settings.get("dtype", "float32") != "float32":
        sentences.append(STATEMENTS["dtype"].format(**settings))
    if "resize" in settings:
        height, width = settings["resize"]
        size, fit = f"{height} x {width}", settings["fit"]
        sentences.append(STATEMENTS["resize"].format(size=size, fit=fit))
    sentences.append(STATEMENTS["independence"])
    exact = STATEMENTS["arithmetic"][settings["noise"]]
    sentences.append(exact.format(**settings))
    return " ".join(filter(None, sentences))


def rounded_down(radius: float, digits: int = 3) -> str:
    """Prints a radius with some decimals, never above its value."""
    scale = Decimal(1).scaleb(-digits)
    return str(Decimal(float(radius)).quantize(scale, ROUND_DOWN))
