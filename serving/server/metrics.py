"""TF Serving's metrics in Prometheus' text format.

Names, labels and their values are TF Serving's, so that its dashboards and
alerts work unchanged: `/tensorflow/serving/request_count` becomes
`:tensorflow:serving:request_count`. What TF Serving has no name for starts
with `/rs_keras/`.
"""

import threading
from bisect import bisect_left
from collections import Counter
from collections import defaultdict
from collections.abc import Callable
from itertools import accumulate

PATH = "/monitoring/prometheus/metrics"
REQUEST_COUNT = "/tensorflow/serving/request_count"
REQUEST_LATENCY = "/tensorflow/serving/request_latency"
RUNTIME_LATENCY = "/tensorflow/serving/runtime_latency"
WARMUP_LATENCY = "/tensorflow/serving/model_warmup_latency"
LOAD_ATTEMPTS = "/tensorflow/cc/saved_model/load_attempt_count"
# The values of its label `status` (cc/saved_model/loader.cc).
LOADED, FAILED = "success", "fail"
# How full the server is: 0 (idle) to 1 (it turns requests away).
FULLNESS = "/rs_keras/serving/fullness"

_LABELS = {
    REQUEST_COUNT: ("model_name", "status"),
    REQUEST_LATENCY: ("model_name", "API", "entrypoint"),
    RUNTIME_LATENCY: ("model_name", "API", "runtime"),
    WARMUP_LATENCY: ("model_path", "status"),
    LOAD_ATTEMPTS: ("model_path", "status"),
    FULLNESS: (),
}
# Microseconds, from 10 us to 20 min, as in servables/tensorflow/util.cc.
_LIMITS = [10 * 1.8**power for power in range(33)]
_BOUNDS = [*(f"{limit:g}" for limit in _LIMITS), "+Inf"]


class Metrics:
    """Counts and times what a server does; safe to use from many threads.

    Example:

    >>> from rs_keras.serving.server.metrics import REQUEST_COUNT
    >>> from rs_keras.serving.server.metrics import Metrics
    >>> metrics = Metrics()
    >>> metrics.count(REQUEST_COUNT, "mnist", "OK")
    >>> metrics.total(REQUEST_COUNT)
    1
    >>> print(metrics.text().splitlines()[1])
    :tensorflow:serving:request_count{model_name="mnist",status="OK"} 1
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # By name, then by the values of the labels.
        self._counters: defaultdict = defaultdict(Counter)
        self._histograms: defaultdict = defaultdict(
            lambda: defaultdict(_Histogram)
        )
        self._gauges: dict[str, Callable[[], float]] = {}

    def count(self, name: str, *labels: str) -> None:
        """Adds one to a counter."""
        with self._lock:
            self._counters[name][labels] += 1

    def observe(self, name: str, seconds: float, *labels: str) -> None:
        """Adds a duration to a histogram (of microseconds)."""
        with self._lock:
            self._histograms[name][labels].add(seconds * 1e6)

    def gauge(self, name: str, value: Callable[[], float]) -> None:
        """Adds a gauge: a number that is asked for when it is read."""
        with self._lock:
            self._gauges[name] = value

    def total(self, name: str) -> int:
        """Returns the sum of a counter over its labels; 0 if unknown."""
        with self._lock:
            return sum(self._counters.get(name, {}).values())

    def text(self) -> str:
        """Returns all metrics in Prometheus' text format."""
        lines = []
        with self._lock:
            for name, counter in sorted(self._counters.items()):
                lines.append(f"# TYPE {_public(name)} counter")
                for labels, count in sorted(counter.items()):
                    lines.append(_sample(name, labels, str(count)))
            for name, histograms in sorted(self._histograms.items()):
                lines.append(f"# TYPE {_public(name)} histogram")
                for labels, histogram in sorted(histograms.items()):
                    lines += histogram.samples(name, labels)
            for name, value in sorted(self._gauges.items()):
                lines.append(f"# TYPE {_public(name)} gauge")
                lines.append(_sample(name, (), f"{value():g}"))
        return "\n".join(lines) + "\n"


class _Histogram:
    def __init__(self) -> None:
        self.counts = [0] * len(_BOUNDS)
        self.sum = 0.0

    def add(self, value: float) -> None:
        self.counts[bisect_left(_LIMITS, value)] += 1
        self.sum += value

    def samples(self, name: str, labels: tuple[str, ...]) -> list[str]:
        totals = [str(total) for total in accumulate(self.counts)]
        return [
            *(
                _sample(name, (*labels, bound), total, "_bucket")
                for bound, total in zip(_BOUNDS, totals, strict=True)
            ),
            _sample(name, labels, f"{self.sum:g}", "_sum"),
            _sample(name, labels, totals[-1], "_count"),
        ]


def _public(name: str) -> str:
    return name.replace("/", ":")


def _sample(
    name: str, labels: tuple[str, ...], value: str, suffix: str = ""
) -> str:
    """Returns one line; a last label more than the metric has is `le`."""
    pairs = zip((*_LABELS[name], "le"), labels, strict=False)
    text = ",".join(f'{key}="{_escaped(label)}"' for key, label in pairs)
    return f"{_public(name)}{suffix}{{{text}}} {value}"


def _escaped(label: str) -> str:
    label = label.replace("\\", "\\\\").replace('"', '\\"')
    return label.replace("\n", "\\n")
