"""Metrics of a certification log beyond the average certified radius.

The average certified radius rewards easy images and many draws: it can rise by
a third while fewer images are classified correctly, and by a fourth with n
alone. These metrics do not.

References:
- [Sun et al., 2025](https://arxiv.org/abs/2410.06895), on the weakness of ACR
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import scipy.special

from rs_keras._checks import check_not_negative
from rs_keras._checks import check_positive
from rs_keras._checks import check_probability
from rs_keras.bounds.confidence import clopper_pearson_lower
from rs_keras.bounds.confidence import clopper_pearson_upper
from rs_keras.bounds.radii import linf_radius
from rs_keras.logs.log import CertificationLog
from rs_keras.logs.log import count_examples


def accuracy_interval(
    log: CertificationLog,
    radii: Sequence[float] | np.ndarray | float,
    level: float = 0.95,
) -> tuple[np.ndarray, np.ndarray]:
    """Exact binomial interval of the certified accuracy.

    That of the population that the test images were drawn from: how far the
    number moves with the choice of images alone. (Clopper-Pearson, (1 - level)
    / 2 at each end.)

    Args:
        log: The log.
        radii: Radii r, >= 0.
        level: Probability that the interval covers it, in (0, 1).

    Returns:
        Its lower and upper ends: float64, the shape of `radii`.

    Raises:
        ValueError: If an argument is out of its range, or the log is empty.

    Example:

    >>> import numpy as np
    >>> from rs_keras import CertificationLog
    >>> from rs_keras.logs import accuracy_interval
    >>> log = CertificationLog(
    ...     idx=range(4), label=[1] * 4, predict=[1, 1, 1, -1],
    ...     radius=[1.0, 2.0, 0.5, 0.0], correct=[1, 1, 1, 0], time=[1.0] * 4)
    >>> low, high = accuracy_interval(log, 0.5)
    >>> round(float(low), 4), round(float(high), 4)
    (0.1941, 0.9937)
    """
    tail = (1 - check_probability("level", level)) / 2
    n = len(log)
    k = np.rint(log.certified_accuracy(radii) * n)
    lower = clopper_pearson_lower(k, n, tail).numpy()
    upper = clopper_pearson_upper(k, n, tail).numpy()
    return lower, upper


def capped_acr(
    log: CertificationLog, max_radius: float, per_input_sigma: bool = False
) -> float:
    """The average certified radius, with no radius above `max_radius`.

    mean(correct * min(radius, max_radius)). It does not reward samples beyond
    those that `max_radius` takes.

    Args:
        log: The log.
        max_radius: The cap, > 0, in the units of the radii.
        per_input_sigma: See `CertificationLog.acr`.

    Raises:
        ValueError: If `max_radius` is out of its range, the log is empty, or
            there are radii at a sigma chosen for each image and it was not
            asked for them.

    Example:

    >>> from rs_keras import CertificationLog
    >>> from rs_keras.logs import capped_acr
    >>> log = CertificationLog(
    ...     idx=[0, 1], label=[1, 1], predict=[1, 1], radius=[0.5, 3.0],
    ...     correct=[1, 1], time=[1.0, 1.0])
    >>> log.acr(), capped_acr(log, max_radius=1.0)
    (1.75, 0.75)
    """
    count_examples(log)
    log.check_averaged(per_input_sigma)
    radius = np.minimum(log.radius, check_positive("max_radius", max_radius))
    return float((log.correct * radius).mean())


def median_radius(log: CertificationLog) -> float:
    """The certified radius that half of the images reach, correctly.

    Images that are wrong or abstained have radius 0.

    Args:
        log: The log.

    Raises:
        ValueError: If the log is empty.

    Example:

    >>> from rs_keras import CertificationLog
    >>> from rs_keras.logs import median_radius
    >>> log = CertificationLog(
    ...     idx=[0, 1, 2], label=[1, 1, 1], predict=[1, 1, 0],
    ...     radius=[0.5, 3.0, 9.0], correct=[1, 1, 0], time=[1.0] * 3)
    >>> median_radius(log)
    0.5
    """
    count_examples(log)
    return float(np.median(log.correct * log.radius))


def class_accuracy(log: CertificationLog, radius: float = 0.0) -> dict:
    """Certified accuracy of each class at a radius, the worst class first.

    Args:
        log: The log.
        radius: >= 0.

    Returns:
        {label: share of its images}, in increasing order of the share.

    Raises:
        ValueError: If `radius` is out of its range, or the log is empty.

    Example:

    >>> from rs_keras import CertificationLog
    >>> from rs_keras.logs import class_accuracy
    >>> log = CertificationLog(
    ...     idx=[0, 1, 2], label=[1, 1, 2], predict=[1, 1, 2],
    ...     radius=[0.5, 0.25, 0.75], correct=[1, 1, 1], time=[1.0] * 3)
    >>> class_accuracy(log, radius=0.5)
    {1: 0.5, 2: 1.0}
    """
    check_not_negative("radius", radius)
    count_examples(log)
    reached = log.correct & (log.radius >= radius)
    shares = {
        int(label): float(reached[log.label == label].mean())
        for label in np.unique(log.label)
    }
    return dict(sorted(shares.items(), key=lambda item: item[1]))


def top_probabilities(log: CertificationLog) -> np.ndarray:
    """How probable the certified class is under noise, image by image.

    Their distribution describes the classifier rather than the certifier: it
    does not depend on the number of samples. From the column `p_top`, the
    share of votes; in a log without it, from the radius of a plain bound, which
    gives the lower bound p = cdf(radius / sigma), near the share for large n.

    Args:
        log: The log.

    Returns:
        float64 [m], sorted: the j-th is reached by all but j of the m images.
        0 for images that are wrong or abstained.

    Raises:
        ValueError: If the log has neither, or is empty.

    Example:

    >>> from rs_keras import CertificationLog
    >>> from rs_keras.logs import top_probabilities
    >>> log = CertificationLog(
    ...     idx=[0, 1, 2], label=[1, 1, 1], predict=[1, 1, 0],
    ...     radius=[1.0, 0.5, 0.5], correct=[1, 1, 0], time=[1.0] * 3,
    ...     settings={"sigma": 0.5})
    >>> top_probabilities(log).round(3)
    array([0.   , 0.841, 0.977])
    """
    count_examples(log)
    if "p_top" in log.extra:
        share = np.asarray(log.extra["p_top"], np.float64)
    elif "sigma" in log.settings and not log.settings.get("runner_up"):
        share = scipy.special.ndtr(log.radius / log.settings["sigma"])
    else:
        raise ValueError(
            "`log` must have the column p_top, or settings with sigma and the "
            f"plain bound. Received: {log.name}"
        )
    return np.sort(np.where(log.correct, share, 0.0))


def top_probability_ecdf(
    log: CertificationLog, p: Sequence[float] | np.ndarray | float
) -> np.ndarray:
    """The share of images whose `top_probabilities` are at most p.

    Args:
        log: The log.
        p: Probabilities.

    Returns:
        float64, the shape of `p`.

    Raises:
        ValueError: As `top_probabilities`.

    Example:

    >>> from rs_keras import CertificationLog
    >>> from rs_keras.logs import top_probability_ecdf
    >>> log = CertificationLog(
    ...     idx=[0, 1, 2, 3], label=[1] * 4, predict=[1] * 4, radius=[0.5] * 4,
    ...     correct=[1] * 4, time=[1.0] * 4,
    ...     extra={"p_top": [0.6, 0.7, 0.8, 0.9]})
    >>> top_probability_ecdf(log, [0.5, 0.75, 1.0])
    array([0. , 0.5, 1. ])
    """
    reached = top_probabilities(log)
    below = np.searchsorted(reached, np.asarray(p, np.float64), side="right")
    return below / len(reached)


def mean_samples(log: CertificationLog) -> float:
    """Samples drawn for an image, on average.

    From the column `n`; in a log without it, from the settings.

    Args:
        log: The log.

    Raises:
        ValueError: If neither tells, or the log is empty.

    Example:

    >>> from rs_keras import CertificationLog
    >>> from rs_keras.logs import mean_samples
    >>> log = CertificationLog(
    ...     idx=[0, 1], label=[1, 1], predict=[1, 1], radius=[0.5, 0.5],
    ...     correct=[1, 1], time=[1.0, 1.0], extra={"n": [500, 1500]})
    >>> mean_samples(log)
    1000.0
    """
    count_examples(log)
    if "n" in log.extra:
        return float(np.mean(log.extra["n"]))
    settings = log.settings
    varies = "tolerance" in settings or "radii" in settings
    if varies or "n" not in settings:
        raise ValueError(
            "`log` must have the column n, or settings with a fixed n. "
            f"Received: {log.name}"
        )
    return float(settings["n"] + settings.get("n0", 0))


def linf_log(
    log: CertificationLog, image_shape: Sequence[int]
) -> CertificationLog:
    """Returns a log with L-infinity radii, for tables in that norm.

    Args:
        log: With L2 radii.
        image_shape: (H, W, C) of its images.

    Raises:
        ValueError: If `image_shape` is invalid, or the log is in L-infinity.

    Example:

    >>> from rs_keras import CertificationLog
    >>> from rs_keras.bounds import linf_log
    >>> log = CertificationLog([0], [7], [7], [0.56], [1], [2.0], name="mnist")
    >>> found = linf_log(log, (28, 28, 1))
    >>> found.name, found.radius.round(6)
    ('mnist (L-infinity)', array([0.02]))
    """
    if log.settings.get("norm") == "linf":
        raise ValueError(f"{log.name} holds L-infinity radii already")
    return replace(
        log,
        radius=linf_radius(log.radius, image_shape),
        name=f"{log.name} (L-infinity)",
        settings={**log.settings, "norm": "linf"},
    )
