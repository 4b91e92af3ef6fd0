"""The examples in the docstrings of trainers/ are run, word for word."""

import pytest
from kits import docstrings_kit as kit

EXAMPLES = kit.examples("trainers")

# Keras Tuner 1.4.8 asks for a thread's name in the old way.
pytestmark = [
    pytest.mark.filterwarnings("ignore:currentThread:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:getName:DeprecationWarning"),
]


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_example_holds(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    kit.run(name, EXAMPLES[name])
