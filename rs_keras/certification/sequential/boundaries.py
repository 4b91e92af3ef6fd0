"""Group-sequential tests of "is the radius at least r?": their boundaries.

A class whose probability under noise is above p0 = cdf(r / sigma) keeps its
place within r. Its votes are counted after n_1 < ... < n_K draws, and the
radius is certified at the first stage k whose count reaches c_k. The c_k are
chosen so that a class of probability exactly p0 crosses with probability at
most alpha, over all stages together: an exact dynamic program over the count
carries the probability of not having crossed yet from stage to stage, and each
c_k is the smallest that keeps what is spent so far under

    (1 - reserve) * alpha * (k / K)**rho,

and alpha at the last stage, which decides the images that no other could.
Crossing is an increasing event, so a class below p0 crosses even more rarely:
no stage costs a correction. Pure NumPy and SciPy; nothing here is random.

References:
- [Lan and DeMets, 1983](https://doi.org/10.1093/biomet/70.3.659), spending
- [Jennison and Turnbull, 1999](https://doi.org/10.1201/9780367805326)
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import scipy.special

# Logarithms of factorials at n = 1e7 are good to 1e-8; spending this part less
# covers them for every number of stages.
_SAFETY = 1e-6

# Mass that is cut off to keep the arrays short, as a part of the first
# spending. It is counted as if it had crossed.
_CUT = 1e-6

# Most of alpha is kept for the late stages, which decide the difficult cases.
# Between 1 and 4 the votes of a network for MNIST show no difference above 5 %.
_RHO = 2.0

# The part of alpha that only the last stage spends, so that after all draws
# nearly as many images are certified as by a single test of that many.
_RESERVE = 0.2

# The probability that an image on the very boundary is given up too early.
# Spent as alpha is, so that few are given up after few draws.
_FUTILITY = 0.05

# The part of alpha for certificates of another class than the most probable
# one, where two counts are tested and no class is fixed beforehand.
OTHER_CLASSES = 0.01


def checkpoints(
    n_max: int, first: int = 128, ratio: float = 1.25
) -> tuple[int, ...]:
    """The numbers of draws at the stages of a test: geometric, up to `n_max`.

    A pass of few draws costs more each, so that stages are at least
    `first` // 2 draws apart.

    Args:
        n_max: Draws at the last stage, >= 1.
        first: Draws at the first stage, >= 1.
        ratio: From stage to stage, > 1.

    Example:

    >>> from rs_keras.certification.sequential import boundaries
    >>> boundaries.checkpoints(1000)
    (128, 192, 256, 320, 400, 500, 625, 782, 978, 1000)
    """
    stages = [min(first, n_max)]
    while (last := stages[-1]) < n_max:
        following = max(int(np.ceil(last * ratio)), last + first // 2)
        stages.append(min(following, n_max))
    return tuple(stages)


def spending(
    alpha: float, stages: int, rho: float, reserve: float = 0.0
) -> np.ndarray:
    """How much of `alpha` is spent up to each stage: float64 [stages].

    (1 - reserve) * alpha * (k / stages)**rho, and alpha at the last stage: the
    larger `rho`, the later it is spent.

    Example:

    >>> from rs_keras.certification.sequential import boundaries
    >>> boundaries.spending(0.5, stages=4, rho=2.0).tolist()
    [0.03125, 0.125, 0.28125, 0.5]
    """
    parts = (np.arange(1, stages + 1) / stages) ** rho
    parts[:-1] *= 1 - reserve
    return alpha * parts


class Walk:
    """The count of successes, as far as it has not been stopped yet.

    Args:
        p: Probability of a success.
        q: 1 - p, given by itself: the smaller of both has all its digits.
        cut: Mass that may be cut off at each end of each step. `lost` counts
            it, so `lost` plus the mass at a boundary is never too small.

    Attributes:
        n: Trials so far.
        low: The smallest count that is held.
        mass: float64; mass[i] is the probability of `low` + i successes.
        lost: Mass cut off.

    Example:

    >>> from rs_keras.certification.sequential import boundaries
    >>> walk = boundaries.Walk(0.5, 0.5, cut=1e-14)
    >>> walk.advance(2)
    >>> walk.n, walk.mass.round(6), walk.tail().round(6)
    (2, array([0.25, 0.5 , 0.25]), array([1.  , 0.75, 0.25, 0.  ]))
    >>> round(walk.stop_at(2), 6)
    0.25
    """

    def __init__(self, p: float, q: float, cut: float) -> None:
        self._log_p, self._log_q = np.log(p), np.log(q)
        self._cut = cut
        self.n = 0
        self.low = 0
        self.mass = np.ones(1)
        self.lost = 0.0

    def advance(self, n: int) -> None:
        """Goes on to `n` trials."""
        trials = n - self.n
        first, last = self._window(trials)
        successes = np.arange(first, last + 1)
        part = np.exp(
            _log_choose(trials)[first : last + 1]
            + successes * self._log_p
            + (trials - successes) * self._log_q
        )
        start, part = self._trimmed(part)
        # Sums of products of positive numbers: unlike a convolution by FFT,
        # exact in every digit of the smallest tail.
        start_mass, mass = self._trimmed(np.convolve(self.mass, part))
        self.low += first + start + start_mass
        self.mass = mass
        self.n = n

    def tail(self) -> np.ndarray:
        """tail[i] is the probability of at least `low` + i successes."""
        return np.append(np.cumsum(self.mass[::-1])[::-1], 0.0)

    def stop_at(self, count: int) -> float:
        """Takes away the mass at `count` and above, and returns it."""
        kept = int(np.clip(count - self.low, 0, len(self.mass)))
        stopped = float(self.mass[kept:].sum())
        self.mass = self.mass[:kept] if kept else np.zeros(1)
        return stopped

    def _window(self, trials: int) -> tuple[int, int]:
        """The range of successes that is computed; the others have mass 1e-30.

        By Bernstein's inequality, t = 12 * sd + 60 away from the mean is less
        probable than exp(-t**2 / (2 * (sd**2 + t / 3))) < exp(-72).
        """
        p, q = np.exp(self._log_p), np.exp(self._log_q)
        reach = 12 * np.sqrt(trials * p * q) + 60
        self.lost += 1e-30
        first = max(int(trials * p - reach), 0)
        return first, min(int(trials * p + reach) + 1, trials)

    def _trimmed(self, mass: np.ndarray) -> tuple[int, np.ndarray]:
        """Cuts off both ends; returns how many at the lower, and the rest."""
        below = np.cumsum(mass)
        above = np.cumsum(mass[::-1])
        first = int(np.searchsorted(below, self._cut, side="right"))
        last = int(np.searchsorted(above, self._cut, side="right"))
        first = min(first, len(mass) - 1)
        last = min(last, len(mass) - 1 - first)
        for number, sums in ((first, below), (last, above)):
            if number:
                self.lost += float(sums[number - 1])
        return first, mass[first : len(mass) - last]


@lru_cache(maxsize=256)
def _log_choose(n: int) -> np.ndarray:
    """log of the binomial coefficients of `n`: float64 [n + 1]."""
    log_factorial = scipy.special.gammaln(np.arange(1, n + 2, dtype=float))
    return log_factorial[n] - log_factorial - log_factorial[::-1]


def boundary(
    p: float, q: float, stages: Sequence[int], levels: np.ndarray
) -> np.ndarray:
    """The smallest counts at which a success probability p is given up.

    Args:
        p: In (0, 1); the hypothesis is a success probability of at most p.
        q: 1 - p.
        stages: Increasing numbers of trials [K].
        levels: float64 [K], increasing; what may be spent up to each stage.

    Returns:
        int64 [K]: reject at stage k if the count is at least c[k]. A c[k] above
        stages[k] cannot be reached.

    Example:

    >>> import numpy as np
    >>> from rs_keras.certification.sequential import boundaries
    >>> boundaries.boundary(0.5, 0.5, [5, 10], np.array([0.05, 0.05])).tolist()
    [5, 9]
    """
    walk = Walk(p, q, _CUT * levels[0] / len(stages))
    spent, counts = 0.0, []
    for n, level in zip(stages, levels, strict=True):
        walk.advance(n)
        left = level * (1 - _SAFETY) - spent - walk.lost
        # The tail falls with the count: the first that fits the rest.
        index = int(np.searchsorted(-walk.tail(), -left))
        counts.append(walk.low + index)
        spent += walk.stop_at(counts[-1])
    return np.asarray(counts, np.int64)


def crossing_probability(
    p: float, q: float, stages: Sequence[int], counts: Any
) -> float:
    """The probability that a count ever reaches its boundary, rounded up.

    Args:
        p: Probability of a success, in (0, 1).
        q: 1 - p.
        stages: Increasing numbers of trials [K].
        counts: The boundary, whole numbers [K], as of `boundary`.

    Example:

    >>> from rs_keras.certification.sequential import boundaries
    >>> found = boundaries.crossing_probability(0.5, 0.5, [5, 10], [5, 10])
    >>> abs(found - 1 / 32) < 1e-7
    True
    """
    walk = Walk(p, q, 1e-14)
    crossed = 0.0
    for n, count in zip(stages, counts, strict=True):
        walk.advance(n)
        crossed += walk.stop_at(int(count))
    return crossed * (1 + _SAFETY) + walk.lost


@dataclass(frozen=True, eq=False)
class Tables:
    """The stages and boundaries of a decision, fixed before the first draw.

    Attributes:
        radii: float64 [J], increasing.
        selection: Draws that fix the class beforehand; 0 where the class with
            the most votes may be taken at every stage.
        stages: int64 [K], draws after the selection.
        upper: int64 [K, J], the counts that certify; None for two counts.
        lower: int64 [K, J], the counts at which there is no hope; None for two
            counts.
        levels: float64 [K], the share of alpha of each stage where two counts
            are tested; else None.
        futility: float64 [K], the standard errors below a radius at which there
            is no hope for two counts; else None.
        distance: Total variation between the noise of one draw and the
            Gaussian.

    Example:

    >>> from rs_keras.certification.sequential import boundaries
    >>> tables = boundaries.one_count((0.25,), 0.5, 0.001, 1_000, selection=100)
    >>> tables.stages.tolist()
    [128, 192, 256, 320, 400, 500, 625, 782, 978, 1000]
    >>> tables.upper[:, 0].tolist()  # votes that certify 0.25 at each stage
    [111, 158, 206, 252, 311, 383, 473, 586, 727, 739]
    """

    radii: np.ndarray
    selection: int
    stages: np.ndarray
    upper: np.ndarray | None = None
    lower: np.ndarray | None = None
    levels: np.ndarray | None = None
    futility: np.ndarray | None = None
    distance: float = 0.0

    def __post_init__(self) -> None:
        for array in vars(self).values():
            if isinstance(array, np.ndarray):
                array.setflags(write=False)


@lru_cache(maxsize=64)
def one_count(
    radii: tuple[float, ...],
    sigma: float,
    alpha: float,
    n_max: int,
    selection: int,
    distance: float = 0.0,
) -> Tables:
    """Tables for the test of the top class's count alone.

    The radii are nested hypotheses: whoever crosses the boundary of one has
    crossed those of all smaller ones, so each is tested at the full alpha.

    Args:
        radii: Increasing, >= 0.
        sigma: Standard deviation of the noise.
        alpha: Error probability, over all stages and radii.
        n_max: Draws in all, with the selection.
        selection: Draws that fix the class where it has to be fixed.
        distance: Total variation between the noise of one draw and the
            Gaussian: a class that is just not certified may get so much more.

    Example:

    >>> from rs_keras.certification.sequential import boundaries
    >>> tables = boundaries.one_count((0.25, 0.5), 0.5, 0.001, 1_000, 100)
    >>> tables.upper[-1].tolist(), tables.selection
    ([739, 878], 0)
    """
    for fixed in (0, selection):
        stages = checkpoints(n_max - fixed)
        null = _null_hypotheses(radii, sigma, distance)
        upper, lower = _boundaries(null, alpha, stages)
        if fixed or _top_class_may_run(null, alpha, stages, upper):
            break
    return Tables(
        np.array(radii),
        fixed,
        np.array(stages),
        upper,
        lower,
        distance=distance,
    )


@lru_cache(maxsize=64)
def two_counts(
    radii: tuple[float, ...],
    alpha: float,
    n_max: int,
    selection: int,
    distance: float = 0.0,
) -> Tables:
    """Tables for the test of the top class's count and the runner-up's.

    Every stage has confidence bounds of its own, at its share of alpha; all of
    them hold together, whatever radius they are compared with.

    No class has to be fixed beforehand. Let a be the most probable class.
    Certificates of a are false with the probability that the shares allow,
    which sum to (1 - OTHER_CLASSES) * alpha. Those of a class c != a are rare,
    since a class is only certified if its count k, beside the largest other
    count k2, has

        P[Binomial(k + k2, 1/2) >= k] <= OTHER_CLASSES * share / (C - 1)

    for C classes: as k2 is at least the count of a, and c is as probable as a
    at most, each c passes with at most that probability (given the votes for
    a and c together, those for c are binomial). In noise that is `distance`
    away from the Gaussian, n_max draws change this by n_max * distance at most,
    which is taken off alpha, or the class is fixed beforehand if that is much.

    Args:
        radii: Increasing, >= 0.
        alpha: Error probability, over all stages.
        n_max: Draws in all, with the selection.
        selection: Draws that fix the class where it has to be fixed.
        distance: As in `one_count`.

    Example:

    >>> from rs_keras.certification.sequential import boundaries
    >>> tables = boundaries.two_counts((0.25, 0.5), 0.001, 1_000, selection=100)
    >>> tables.stages.tolist(), bool(tables.levels.sum() <= 0.001)
    ([128, 192, 256, 320, 400, 500, 625, 782, 978, 1000], True)
    >>> tables.selection
    0
    """
    if n_max * distance <= OTHER_CLASSES * alpha:
        alpha -= n_max * distance
        selection = 0
    stages, levels = shares_of_stages(alpha, n_max - selection)
    # In standard errors, the boundary of one share is nearly that of any
    # estimate. Stopping for want of hope certifies nothing: near is enough.
    draws = np.array(stages)
    successes = boundary(0.5, 0.5, stages, _hopeless(stages))
    return Tables(
        np.array(radii),
        selection,
        draws,
        levels=levels,
        futility=(2 * successes - draws) / np.sqrt(draws),
        distance=distance,
    )


def shares_of_stages(
    alpha: float, n_max: int
) -> tuple[tuple[int, ...], np.ndarray]:
    """The stages up to `n_max`, and the part of alpha that each may spend.

    On certificates of the most probable class, see `two_counts`.

    Example:

    >>> from rs_keras.certification.sequential import boundaries
    >>> stages, shares = boundaries.shares_of_stages(0.001, 300)
    >>> stages, shares.round(6).tolist()
    ((128, 192, 256, 300), [4.9e-05, 0.000148, 0.000247, 0.000544])
    """
    stages = checkpoints(n_max)
    # The sum of the parts must not round to more than alpha.
    alpha *= (1 - OTHER_CLASSES) * (1 - 1e-12)
    spent = spending(alpha, len(stages), _RHO, _RESERVE)
    return stages, np.diff(spent, prepend=0.0)


# The probabilities at which a radius is just not certified, and 1 minus them.
_Null = Sequence[tuple[float, float]]


def _boundaries(
    null: _Null, alpha: float, stages: Sequence[int]
) -> tuple[np.ndarray, np.ndarray]:
    levels = spending(alpha, len(stages), _RHO, _RESERVE)
    hopeless = _hopeless(stages)
    upper, lower = [], []
    for p, q in null:
        upper.append(boundary(p, q, stages, levels))
        # Few failures below p0 are many successes above: the same boundary
        # from the other side. Stopping for want of hope certifies nothing.
        lower.append(np.array(stages) - boundary(q, p, stages, hopeless))
    nested = np.maximum.accumulate(np.stack(upper, 1), axis=1)
    ends = np.maximum.accumulate(np.stack(lower, 1), axis=1)
    ends[-1] = stages[-1]
    return nested, ends


def _hopeless(stages: Sequence[int]) -> np.ndarray:
    """What is spent of the probability of giving up: float64 [K]."""
    return spending(_FUTILITY, len(stages), _RHO)


def _null_hypotheses(
    radii: Sequence[float], sigma: float, distance: float
) -> _Null:
    """p0 = cdf(r / sigma) + distance, and 1 - p0, for each radius."""
    scaled = np.array(radii) / sigma
    p0 = scipy.special.ndtr(scaled) + distance
    q0 = scipy.special.ndtr(-scaled) - distance
    return list(zip(p0.tolist(), q0.tolist(), strict=True))


def _top_class_may_run(
    null: _Null,
    alpha: float,
    stages: Sequence[int],
    upper: np.ndarray,
) -> bool:
    """Whether any class may cross, not only one that was fixed beforehand.

    Let f_j(p) be the probability that a class of probability p crosses the
    boundary of radius j. Classes put together have at least the votes of each,
    so some class of a group crosses with at most the f_j of the group's sum.
    With p the largest probability, a false certificate needs

    - p <= 1/2: a class that crosses the boundary of radius 0. The classes fall
      into three groups of at most 1/2 each: 3 * f_0(1/2);
    - p between 1/2 and p0_0: the largest or another one: f_0(p) + f_0(1 - p),
      which the ends of an interval around p bound, f being monotone;
    - p between p0_(j-1) and p0_j: f_j(p0_j) + f_0(1 - p0_0).
    """

    def crossing(p: float, q: float, radius: int = 0) -> float:
        return crossing_probability(p, q, stages, upper[:, radius])

    p0, q0 = null[0]
    middle = (0.5 + p0) / 2
    half, others = crossing(0.5, 0.5), crossing(q0, p0)
    worst = max(
        3 * half,
        crossing(middle, 1 - middle) + half,
        crossing(p0, q0) + crossing(1 - middle, middle),
        *(crossing(*null[j], j) + others for j in range(1, len(null))),
    )
    return worst <= alpha
