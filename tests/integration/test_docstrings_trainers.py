"""The examples in the docstrings of trainers/ are run, word for word."""

import pytest
from kits import docstrings

EXAMPLES = docstrings.examples("trainers")

# Keras Tuner 1.4.8 asks for a thread's name in the old way.
pytestmark = [
    pytest.mark.filterwarnings("ignore:currentThread:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:getName:DeprecationWarning"),
]


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_example_of_a_trainers_docstring_holds(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    docstrings.run(name, EXAMPLES[name])
