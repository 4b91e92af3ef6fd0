"""The line of latencies, against NumPy's weighted least squares."""

from types import SimpleNamespace

import numpy as np
import pytest

from rs_keras.serving.client.load import latency as latency_module
from rs_keras.serving.client.load.latency import Latency


def measured(pairs):
    latency = Latency()
    for draws, seconds in pairs:
        latency.measured(draws, seconds)
    return latency


def test_the_line_is_the_weighted_least_squares_fit():
    rng = np.random.default_rng(0)
    draws = np.array([100, 1_000, 4_000] * 20)
    seconds = 0.05 + draws / 10_000 + rng.uniform(-0.01, 0.01, 60)
    latency = measured(zip(draws.tolist(), seconds.tolist(), strict=True))
    # Weights 1/count while the average fills, then 0.3 for the newest.
    weights = np.zeros(60)
    for number in range(60):
        new = max(0.3, 1 / (number + 1))
        weights *= 1 - new
        weights[number] = new
    slope, overhead = np.polyfit(draws, seconds, 1, w=np.sqrt(weights))
    assert latency.rate == pytest.approx(1 / slope, rel=1e-6)
    assert latency.expected(2_000) == pytest.approx(
        overhead + 2_000 * slope, rel=1e-6
    )


def test_requests_of_one_size_are_expected_to_take_as_long():
    latency = measured([(100, 0.02)] * 5 + [(100, 0.04)] * 30)
    assert latency.expected(100) == pytest.approx(0.04, rel=1e-3)


def test_nothing_is_expected_of_the_unknown():
    latency = Latency()
    assert latency.rate is None
    assert latency.expected(100) is None
    assert latency.recent(100) is None


def test_one_stop_does_not_spoil_the_estimate():
    latency = measured([(100, 0.01)] * 10 + [(100, 60.0)])
    assert latency.expected(100) < 0.025


def test_an_estimate_is_not_recent_for_ever(monkeypatch):
    now = [100.0]
    clock = SimpleNamespace(monotonic=lambda: now[0])
    monkeypatch.setattr(latency_module, "time", clock)
    latency = measured([(100, 0.01)])
    assert latency.recent(100) == pytest.approx(0.01)
    now[0] += 11
    assert latency.recent(100) is None
    assert latency.expected(100) == pytest.approx(0.01)
