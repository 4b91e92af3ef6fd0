"""The examples in the docstrings of rs_keras/ are run, word for word."""

import pytest
from kits import docstrings

EXAMPLES = docstrings.examples("rs_keras")


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_example_of_a_docstring_holds(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    docstrings.run(name, EXAMPLES[name])
