"""Settings from anywhere: read, or refused with their file and name."""

import copy
import json
import random

import pytest

from rs_keras import cli
from rs_keras import distribution
from rs_keras.logs import LogWriter
from rs_keras.logs import read_settings
from rs_keras.logs.file_format import settings_path

VALUES = [
    *(None, True, 0, -1, 1.5, 1e308, float("nan"), float("inf"), 10**30),
    *("", "x", "0.5", [], [1], ["a:1"], {}, {"a": 1}, [[]], "a" * 1000),
]
SETTINGS = {
    "sigma": 0.5,
    "n": 100,
    "n0": 10,
    "alpha": 0.001,
    "bound": "clopper_pearson",
    "noise": "float",
    "dataset": "mnist",
    "skip": 1,
    "radii": [0.5, 1.0],
}
CLUSTER = {
    "cluster": {"worker": ["a:1", "b:2"], "chief": ["c:3"]},
    "task": {"type": "worker", "index": 0},
}


def altered(value, rng):
    """A copy of nested values, one of them replaced."""
    value = copy.deepcopy(value)
    parent, key, inner = None, None, value
    while isinstance(inner, dict | list) and inner and rng.random() < 0.8:
        names = list(inner) if isinstance(inner, dict) else range(len(inner))
        parent, key = inner, rng.choice(names)
        inner = parent[key]
    if parent is None:
        return rng.choice(VALUES)
    parent[key] = rng.choice(VALUES)
    return value


@pytest.fixture
def log(tmp_path):
    path = tmp_path / "a.tsv"
    with LogWriter(path, SETTINGS) as writer:
        writer.write(0, 1, 1, 0.5, 1.0)
    return path


def test_altered_settings_are_read_or_refused(log, tmp_path, capsys):
    """300 of them: no command ends in a traceback (code 70)."""
    rng, codes = random.Random(0), []
    for _ in range(300):
        settings_path(log).write_text(json.dumps(altered(SETTINGS, rng)))
        codes.append(cli.main(["table", str(log)]))
    assert set(codes) == {0, 2}
    assert codes.count(2) > 50


@pytest.mark.parametrize(
    "name, value, wanted",
    [
        ("sigma", "0.5", "a number"),
        ("n", 1.5, "a whole number"),
        ("n", True, "a whole number"),
        ("bound", 3, "a text"),
        ("radii", [0.5, "1"], "a list of numbers"),
    ],
)
def test_a_setting_of_another_kind_is_named(log, name, value, wanted):
    altered_settings = {**SETTINGS, name: value}
    settings_path(log).write_text(json.dumps(altered_settings))
    with pytest.raises(ValueError, match=f"a.tsv.json: `{name}`.*{wanted}"):
        read_settings(log)


def test_deep_settings_are_no_settings(log):
    settings_path(log).write_text("[" * 100_000)
    with pytest.raises(ValueError, match="a.tsv.json: not a JSON file"):
        read_settings(log)


def test_an_altered_cluster_is_read_or_refused(monkeypatch):
    rng, refused = random.Random(0), 0
    texts = [json.dumps(altered(CLUSTER, rng)) for _ in range(1_000)]
    for text in [*texts, "[" * 100_000]:
        monkeypatch.setenv("TF_CONFIG", text)
        try:
            distribution.member_from_environment()
        except ValueError as error:
            assert "TF_CONFIG" in str(error)
            refused += 1
    assert refused > 500
