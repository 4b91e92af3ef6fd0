"""The short form of the soak: servers killed and stopped under a stream."""

import importlib.util
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "fleet_soak.py"


def test_a_stream_over_servers_that_are_killed_and_stopped(monkeypatch):
    spec = importlib.util.spec_from_file_location("fleet_soak", SCRIPT)
    fleet_soak = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(fleet_soak)
    monkeypatch.setattr(fleet_soak, "PAUSE", (0.5, 2.0))
    monkeypatch.setattr(fleet_soak, "FAULT", (0.5, 4.0))
    missing, differing, share, summary = fleet_soak.soak(
        count=200, rate=6_500, seed=1
    )
    assert (missing, differing) == (0, 0), summary
    # The whole soak is held to 0.85; here the last requests weigh more.
    assert share > 0.5, summary
