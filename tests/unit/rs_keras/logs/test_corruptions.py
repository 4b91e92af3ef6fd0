"""Corruptions: averages by hand, the published table, refusals."""

import json
from dataclasses import replace

import numpy as np
import pytest

from rs_keras import CertificationLog
from rs_keras.logs import corruption_table
from rs_keras.logs import grouped
from rs_keras.logs import summarize


def log_of(radius, name="log", idx=None, **settings):
    radius = np.asarray(radius, float)
    size = len(radius)
    # A radius of 0 is an abstention.
    predict = np.where(radius > 0, 1, -1)
    return CertificationLog(
        idx=np.arange(size) if idx is None else idx,
        label=np.ones(size),
        predict=predict,
        radius=radius,
        correct=predict == 1,
        time=np.ones(size),
        name=name,
        settings=settings,
    )


def test_severities_weigh_the_same_and_corruptions_too():
    # Severity 1 has three examples, severity 2 one: accuracies (1/3 + 1) / 2,
    # average radii (0.3 / 3 + 0.5) / 2.
    idx = [0, 1, 2, 5]
    fog = log_of([0.3, 0, 0, 0.5], idx=idx)
    snow = log_of([0, 0, 0, 0], idx=idx)
    found = summarize({"fog": fog, "snow": snow}, severity_size=5)
    assert found.results[0].accuracy == pytest.approx(2 / 3)
    assert found.results[0].acr == pytest.approx(0.3)
    assert found.mean_accuracy == pytest.approx(1 / 3)
    assert found.mean_acr == pytest.approx(0.15)
    assert (found.results[1].severities, found.results[1].examples) == (2, 4)


def test_a_log_a_severity_gives_the_same():
    whole = log_of([0.3, 0, 0.2, 0.5], idx=[0, 1, 10, 11])
    parts = [log_of([0.3, 0]), log_of([0.2, 0.5])]
    first = summarize({"fog": whole}, severity_size=10)
    second = summarize({"fog": parts})
    assert first == second


def test_logs_are_grouped_by_their_data_sets():
    names = ["motion_blur_2", "fog_1", "motion_blur_1"]
    logs = [
        log_of([0.1], name, dataset=f"cifar10_corrupted/{name}/test")
        for name in names
    ]
    found = grouped(logs)
    assert {k: [log.name for log in v] for k, v in found.items()} == {
        "motion_blur": ["motion_blur_1", "motion_blur_2"],
        "fog": ["fog_1"],
    }
    digits = log_of([0.1], dataset="mnist_corrupted/glass_blur/test")
    assert list(grouped([digits])) == ["glass_blur"]


def test_the_table_of_corruptions_by_hand():
    good = summarize({"fog": log_of([0.5, 0.5]), "snow": log_of([0.5, 0])})
    bad = summarize({"fog": log_of([0.5, 0]), "snow": log_of([0, 0])})
    assert corruption_table({"a": good, "longer": bad}) == (
        "          fog  snow  mean\n"
        "a       100.0  50.0  75.0\n"
        "longer   50.0   0.0  25.0"
    )
    assert corruption_table({"a": good}, "acr").splitlines()[1] == (
        "a  0.500  0.250  0.375"
    )


@pytest.mark.parametrize("method", ["cohen", "catrs"])
def test_the_published_table_of_corruptions(shared, method):
    folder = shared / "reference_logs"
    expected = json.loads((folder / "expected.json").read_text())
    expected = expected["cifar10c"][method]
    logs = {
        name: CertificationLog.read(
            folder / f"cifar10c_{method}_sigma0.25_{name}.tsv"
        )
        for name in expected["corruptions"]
    }
    found = summarize(logs)
    assert found.mean_accuracy == pytest.approx(expected["mAcc"])
    assert found.mean_acr == pytest.approx(expected["mACR"])
    # CAT-RS, table 3: 64.4 and 70.1.
    printed = expected["published"]["mAcc_percent"]
    assert round(100 * found.mean_accuracy, 1) == printed
    for one in found.results:
        raw = np.genfromtxt(
            folder / f"cifar10c_{method}_sigma0.25_{one.corruption}.tsv",
            names=True,
            usecols=(3, 4),
        )
        assert one.accuracy == pytest.approx(raw["correct"].mean())
        gained = (raw["correct"] * raw["radius"]).mean()
        assert one.acr == pytest.approx(gained)
        assert one.severities == 5 and one.examples == 500
    assert f"{printed}" in corruption_table({method: found})


@pytest.mark.parametrize(
    "logs, message",
    [
        ({}, "at least one log"),
        ({"fog": []}, "examples of fog"),
        ({"fog": log_of([])}, "examples of fog"),
        (
            {"fog": log_of([1]), "snow": log_of([1, 1])},
            r"fog with \[1\] examples a severity, snow with \[2\]",
        ),
        (
            {"fog": log_of([1]), "snow": log_of([1], idx=[3])},
            "same severities and examples",
        ),
        (
            {
                "fog": log_of([1], "f", sigma=0.25),
                "snow": log_of([1], "s", sigma=0.5),
            },
            r"sigma=0.25 \(f\), 0.5 \(s\)",
        ),
        (
            {"fog": log_of([1], sigma=0.25), "snow": log_of([1], sigma=0.5)},
            r"sigma=0.25 \(log\), 0.5 \(log\)",
        ),
        (
            {"fog": replace(log_of([1, 1]), extra={"sigma": np.array([1, 2])})},
            "`per_input_sigma` must be True",
        ),
    ],
    ids=[
        "none",
        "no-logs",
        "empty",
        "counts",
        "examples",
        "sigma",
        "sigma-one-name",
        "sigma-per-input",
    ],
)
def test_logs_of_no_corruptions_are_refused(logs, message):
    with pytest.raises(ValueError, match=message):
        summarize(logs)


@pytest.mark.parametrize(
    "logs, message",
    [
        ([log_of([1], "x")], "Received: x of unknown data"),
        ([log_of([1], "x", dataset="mnist/test")], "x of mnist/test"),
        (
            [log_of([1], n, dataset="cifar10_corrupted/fog_1") for n in "xy"],
            "x and y, both of cifar10_corrupted/fog_1",
        ),
    ],
    ids=["unknown", "clean", "twice"],
)
def test_logs_that_cannot_be_grouped_are_refused(logs, message):
    with pytest.raises(ValueError, match=message):
        grouped(logs)


def test_tables_of_other_corruptions_are_refused():
    one = summarize({"fog": log_of([1])})
    two = summarize({"fog": log_of([1, 1]), "snow": log_of([1, 1])})
    with pytest.raises(
        ValueError,
        match=r"fog \(1 examples in a, 2 in b\), snow \(0 examples in a",
    ):
        corruption_table({"a": one, "b": two})
    turned = summarize({"snow": log_of([1, 1]), "fog": log_of([1, 1])})
    with pytest.raises(ValueError, match="same order"):
        corruption_table({"a": two, "b": turned})
    with pytest.raises(ValueError, match="at least one"):
        corruption_table({})
    with pytest.raises(ValueError, match="`measure`"):
        corruption_table({"a": one}, "accurcy")
