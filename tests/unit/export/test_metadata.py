"""The metadata of an export: text, guarantee, files that cannot be read."""

import json

import pytest

from rs_keras.export import metadata
from rs_keras.export.show import show


def test_equal_facts_are_equal_text():
    assert metadata.to_json({"b": 1, "a": "ö"}) == '{"a": "ö", "b": 1}'


@pytest.mark.parametrize(
    ("changed", "wanted"),
    [
        ({}, ["1 - 0.001", "sigma = 0.5", "200 draws after 100", "top class"]),
        ({"runner_up": True}, ["two top classes"]),
        ({"noise": "grid"}, ["rounded"]),
        ({"seed": "keyed"}, ["same image gets the same noise"]),
    ],
    ids=["all", "runner-up", "grid", "keyed"],
)
def test_the_guarantee_names_its_limits(changed, wanted):
    facts = {
        "sigma": 0.5,
        "noise": "float",
        "alpha": 1e-3,
        "n0": 100,
        "n": 200,
        "runner_up": False,
        "seed": "fresh",
        **changed,
    }
    text = metadata.guarantee(facts)
    assert [part for part in wanted if part not in text] == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "cannot read"),
        ("[]", "not of format 3"),
        (json.dumps({"format": 99}), "not of format 3"),
    ],
    ids=["cut", "no dict", "another format"],
)
def test_a_file_that_cannot_be_read(text, message, tmp_path):
    (tmp_path / "assets.extra").mkdir()
    (tmp_path / metadata.FILE).write_text(text)
    with pytest.raises(ValueError, match=message):
        metadata.read(tmp_path)


def test_a_folder_without_an_export_is_said_to_have_none(tmp_path):
    with pytest.raises(FileNotFoundError, match="no export of rs-keras"):
        show(tmp_path)
