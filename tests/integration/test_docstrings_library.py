"""The examples in the docstrings of rs_keras/ are run, word for word."""

import pytest
from kits import docstrings_kit as kit

EXAMPLES = kit.examples("rs_keras")


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_example_holds(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    kit.run(name, EXAMPLES[name])
