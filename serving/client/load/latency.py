"""The usual latency of a server's requests, as a line in their draws."""

import time

# Weight of the newest request in the moving averages.
_WEIGHT = 0.3
# The line is fitted only if the numbers of draws differ: their standard
# deviation divided by their mean.
_LEAST_SPREAD = 0.3
# Share of the mean latency that the draws explain, at least: requests of one
# size cannot tell draws from overhead.
_LEAST_SLOPE = 0.25
# One request that took longer than so many times the usual latency counts as
# if it had taken this long: a stopped server does not spoil the estimate.
_OUTLIER = 4.0
# Seconds for which an estimate is recent.
_RECENT = 10.0


class Latency:
    """Estimates the seconds of a request: overhead + draws / rate.

    The line is fitted by least squares to exponentially weighted averages of
    the requests so far.

    Example:

    >>> from rs_keras.serving.client.load.latency import Latency
    >>> latency = Latency()
    >>> latency.expected(1_000) is None
    True
    >>> for draws in [1_000, 3_000] * 10:
    ...     latency.measured(draws, seconds=0.5 + draws / 2_000)
    >>> round(latency.expected(5_000), 3), round(latency.rate)
    (3.0, 2000)
    """

    def __init__(self) -> None:
        self._draws = self._seconds = 0.0
        self._squares = self._products = 0.0
        self._count = 0
        self._slope = 0.0
        self._measured_at = float("-inf")

    @property
    def rate(self) -> float | None:
        """Draws per second, without the overhead; None before the first."""
        return 1 / self._slope if self._count else None

    def expected(self, draws: int) -> float | None:
        """Usual seconds of a request of so many draws; None if unknown."""
        if not self._count:
            return None
        overhead = self._seconds - self._slope * self._draws
        return overhead + self._slope * draws

    def recent(self, draws: int) -> float | None:
        """As `expected`; None as well if the last request is long ago."""
        old = time.monotonic() - self._measured_at > _RECENT
        return None if old else self.expected(draws)

    def measured(self, draws: int, seconds: float) -> None:
        """Updates the estimate with one request."""
        usual = self.expected(draws)
        seconds = max(seconds, 1e-4)
        if usual is not None:
            seconds = min(seconds, _OUTLIER * usual)
        self._count += 1
        weight = max(_WEIGHT, 1 / self._count)
        self._draws += weight * (draws - self._draws)
        self._seconds += weight * (seconds - self._seconds)
        self._squares += weight * (draws**2 - self._squares)
        self._products += weight * (draws * seconds - self._products)
        self._measured_at = time.monotonic()
        self._fit()

    def _fit(self) -> None:
        """Computes the slope, such that slope and overhead are positive."""
        most = self._seconds / self._draws
        variance = self._squares - self._draws**2
        slope = self._slope or most
        if variance > (_LEAST_SPREAD * self._draws) ** 2:
            covariance = self._products - self._draws * self._seconds
            slope = covariance / variance
        self._slope = min(max(slope, _LEAST_SLOPE * most), most)
