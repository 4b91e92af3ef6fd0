"""How a command ends: codes, and what the terminal is told."""

import subprocess
import sys
from types import SimpleNamespace

import pytest

from rs_keras import cli
from rs_keras.logs import LogWriter


def failing(error):
    def run(args):
        raise error

    return SimpleNamespace(run=run)


@pytest.fixture
def call(monkeypatch, tmp_path, capsys):
    """Runs `table`, which ends in an error; returns code and words."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    def run(error):
        monkeypatch.setattr(cli, "import_module", lambda _: failing(error))
        code = cli.main(["table", "a.tsv"])
        return code, capsys.readouterr().err

    return run


@pytest.mark.parametrize(
    "error", [ValueError("no"), OSError("no"), FloatingPointError("no")]
)
def test_what_a_user_can_mend_is_one_line(error, call):
    assert call(error) == (2, "rs-keras table: no\n")


def test_no_memory_is_a_sentence(call):
    code, told = call(MemoryError())
    assert code == 2 and "not enough memory" in told


def test_a_defect_keeps_its_traceback(call, tmp_path):
    code, told = call(KeyError("gone"))
    [file] = tmp_path.glob("rs-keras-*.txt")
    assert code == 70
    assert told.startswith("rs-keras table: KeyError: 'gone'\n")
    assert told.endswith(f"{file}\n") and "Traceback" not in told
    assert "raise error" in file.read_text()


def test_a_name_cannot_steer_the_terminal(call):
    _, told = call(ValueError("\x1b]0;owned\x07.tsv\r is no log"))
    assert told == "rs-keras table: \\x1b]0;owned\\x07.tsv\\r is no log\n"


def test_a_reader_that_has_enough_is_not_told(tmp_path):
    """As `rs-keras table ... | head`."""
    path = tmp_path / "a.tsv"
    with LogWriter(path, {"sigma": 0.5, "n": 100}) as writer:
        writer.write(0, 1, 1, 0.5, 1.0)
    process = subprocess.Popen(
        [sys.executable, "-m", "rs_keras.cli", "table", str(path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    process.stdout.close()
    assert process.wait() == 141
    assert process.stderr.read() == b""
    process.stderr.close()
