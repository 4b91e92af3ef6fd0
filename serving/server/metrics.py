"""TF Serving's metrics, in the text format that Prometheus reads.

Names and labels are TF Serving's, so that its dashboards and alerts work
unchanged: `/tensorflow/serving/request_count` becomes
`:tensorflow:serving:request_count`.
"""

import threading
from bisect import bisect_left
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from typing import Any

from rs_keras.serving.http import HTTPServer

PATH = "/monitoring/prometheus/metrics"
REQUEST_COUNT = "/tensorflow/serving/request_count"
REQUEST_LATENCY = "/tensorflow/serving/request_latency"
RUNTIME_LATENCY = "/tensorflow/serving/runtime_latency"
WARMUP_LATENCY = "/tensorflow/serving/model_warmup_latency"
LOAD_ATTEMPTS = "/tensorflow/cc/saved_model/load_attempt_count"

_COUNTERS = {
    REQUEST_COUNT: ("model_name", "status"),
    LOAD_ATTEMPTS: ("model_path", "status"),
}
_HISTOGRAMS = {
    REQUEST_LATENCY: ("model_name", "API", "entrypoint"),
    RUNTIME_LATENCY: ("model_name", "API", "runtime"),
    WARMUP_LATENCY: ("model_path", "status"),
}
# Microseconds, from 10 us to 20 min, as in servables/tensorflow/util.cc.
_LIMITS = [10 * 1.8**power for power in range(33)]
# A client that reads slower than this loses its connection.
_HTTP_TIMEOUT = 5


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
        self._counts: dict[str, dict[tuple[str, ...], int]] = {
            name: {} for name in _COUNTERS
        }
        self._times: dict[str, dict[tuple[str, ...], _Histogram]] = {
            name: {} for name in _HISTOGRAMS
        }

    def count(self, name: str, *labels: str) -> None:
        """Adds one to a counter."""
        with self._lock:
            cells = self._counts[name]
            cells[labels] = cells.get(labels, 0) + 1

    def observe(self, name: str, seconds: float, *labels: str) -> None:
        """Adds a duration to a histogram (of microseconds)."""
        with self._lock:
            cells = self._times[name]
            if labels not in cells:
                cells[labels] = _Histogram()
            cells[labels].add(seconds * 1e6)

    def total(self, name: str) -> int:
        """The sum of a counter over its labels; 0 for an unknown name."""
        with self._lock:
            return sum(self._counts.get(name, {}).values())

    def text(self) -> str:
        """All that was counted, as Prometheus reads it."""
        lines = []
        with self._lock:
            for name in sorted(self._counts):
                if self._counts[name]:
                    lines += self._counter_lines(name)
            for name in sorted(self._times):
                if self._times[name]:
                    lines += self._histogram_lines(name)
        return "\n".join(lines) + "\n"

    def _counter_lines(self, name: str) -> list[str]:
        public = _public(name)
        lines = [f"# TYPE {public} counter"]
        for values, count in sorted(self._counts[name].items()):
            labels = _labels(_COUNTERS[name], values)
            lines.append(f"{public}{{{labels}}} {count}")
        return lines

    def _histogram_lines(self, name: str) -> list[str]:
        public = _public(name)
        lines = [f"# TYPE {public} histogram"]
        for values, histogram in sorted(self._times[name].items()):
            labels = _labels(_HISTOGRAMS[name], values)
            cumulative = 0
            bounds = [f"{limit:g}" for limit in _LIMITS] + ["+Inf"]
            for bound, count in zip(bounds, histogram.counts, strict=True):
                cumulative += count
                lines.append(
                    f'{public}_bucket{{{labels},le="{bound}"}} {cumulative}'
                )
            lines.append(f"{public}_sum{{{labels}}} {histogram.sum:g}")
            lines.append(f"{public}_count{{{labels}}} {cumulative}")
        return lines


class _Histogram:
    def __init__(self) -> None:
        self.counts = [0] * (len(_LIMITS) + 1)
        self.sum = 0.0

    def add(self, value: float) -> None:
        self.counts[bisect_left(_LIMITS, value)] += 1
        self.sum += value


class MetricsEndpoint:
    """Answers `GET /monitoring/prometheus/metrics`.

    Args:
        text: Called for every answer.
        host: The interface to listen on.
        port: 0 for any free one.

    Raises:
        OSError: If the port is taken.
    """

    def __init__(self, text: Callable[[], str], host: str, port: int) -> None:
        self._server = HTTPServer(host, port, _handler(text))
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(
            target=self._server.serve_forever, name="metrics", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Stops listening."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _handler(text: Callable[[], str]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = _HTTP_TIMEOUT

        def do_GET(self) -> None:
            found = self.path.partition("?")[0] == PATH
            body = text() if found else f"Not here; see {PATH}\n"
            encoded = body.encode()
            self.send_response(200 if found else 404)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.send_header("Content-Length", str(len(encoded)))
            self.end_headers()
            self.wfile.write(encoded)

        def log_message(self, format: str, *args: Any) -> None:
            """Scrapes are not logged."""

    return Handler


def _public(name: str) -> str:
    return name.replace("/", ":")


def _labels(names: tuple[str, ...], values: tuple[str, ...]) -> str:
    return ",".join(
        f'{name}="{_escape(value)}"'
        for name, value in zip(names, values, strict=True)
    )


def _escape(value: str) -> str:
    value = value.replace("\\", "\\\\").replace('"', '\\"')
    return value.replace("\n", "\\n")
