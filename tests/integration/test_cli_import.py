"""`--import`: modules that register a user's own layers."""

import sys

import keras
import pytest

from rs_keras.cli import main

MODULE = """
import keras


@keras.saving.register_keras_serializable("own")
class Doubled(keras.layers.Layer):
    def call(self, x):
        return 2 * x
"""


@pytest.fixture
def checkpoint(tmp_path, monkeypatch):
    """A model whose layer this process does not know any more."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "own_layers.py").write_text(MODULE)
    sys.path.insert(0, str(tmp_path))
    from own_layers import Doubled

    layers = [Doubled(), keras.layers.Flatten(), keras.layers.Dense(10)]
    keras.Sequential([keras.Input([28, 28, 1]), *layers]).save("own.keras")
    sys.path.pop(0)
    forget()
    yield "own.keras"
    forget()


def forget():
    sys.modules.pop("own_layers", None)
    keras.saving.get_custom_objects().pop("own>Doubled", None)


CALL = "predict fashion_mini --model own.keras --sigma 0.5 --max-examples 1"


def test_a_module_of_the_working_folder_is_imported(checkpoint, capsys):
    assert main([*CALL.split(), "--n", "100"]) == 2
    assert "cannot load own.keras" in capsys.readouterr().err
    assert main([*CALL.split(), "--n", "100", "--import", "own_layers"]) == 0
    assert capsys.readouterr().out.startswith("# sigma=0.5 n=100")


def test_a_module_that_is_not_there_is_told(checkpoint, capsys):
    assert main([*CALL.split(), "--import", "no_layers"]) == 2
    error = capsys.readouterr().err
    assert "--import must name a module" in error and "no_layers" in error
