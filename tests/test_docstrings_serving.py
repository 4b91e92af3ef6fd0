"""The examples in the docstrings of export/ and serving/ are run."""

import docstrings_kit as kit
import pytest

EXAMPLES = kit.examples("export") | kit.examples("serving")


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_example_holds(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    kit.run(name, EXAMPLES[name])
