"""The doctor says what is missing, also where little is there to say it."""

import os
import re
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

import rs_keras
from rs_keras.cli import doctor
from rs_keras.cli import main
from rs_keras.models import Pretrained

# `rs_keras.models.pretrained` is the function of that name.
PRETRAINED_MODULE = sys.modules[Pretrained.__module__]
DATA = Path(rs_keras.__file__).parent / "data"

BLOCKED = """
import sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == sys.argv[1]:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Blocker())
from rs_keras.cli import main
sys.exit(main(sys.argv[2:]))
"""

NEW_MODULES = """
import sys
before = set(sys.modules)
from rs_keras.cli import make_parser
make_parser()
new = {name.partition(".")[0] for name in set(sys.modules) - before}
print(*sorted(new - set(sys.stdlib_module_names)))
"""


def python(code, *words, **environment):
    return subprocess.run(
        [sys.executable, "-c", code, *words],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )


def lines_of(text, state):
    return [line for line in text.splitlines() if line.startswith(state)]


def test_the_parser_needs_the_standard_library_alone():
    found = python(NEW_MODULES)
    assert found.stdout.split() == ["rs_keras"], found.stderr


@pytest.mark.parametrize("name", ["numpy", "tensorflow", "packaging"])
def test_a_package_that_is_missing_is_named(name):
    found = python(BLOCKED, name, "doctor")
    assert found.returncode == 1, found.stderr
    missing = lines_of(found.stdout, "MISSING")
    assert any(re.search(rf"\b{name}\b", line) for line in missing)
    assert "Traceback" not in found.stderr
    assert found.stdout.endswith("cannot work: see MISSING above.\n")


def test_the_doctor_finds_nothing_missing_in_a_whole_installation(tmp_path):
    (tmp_path / "mnist" / "3.0.1").mkdir(parents=True)
    (tmp_path / "mnist" / "3.0.1" / "dataset_info.json").touch()
    found = python(BLOCKED, "nothing", "doctor", TFDS_DATA_DIR=str(tmp_path))
    assert found.returncode == 0, found.stdout + found.stderr
    assert not lines_of(found.stdout, "MISSING")
    for name in ("numpy", "tensorflow", "packaging"):
        version = re.escape(metadata.version(name))
        assert re.search(rf"^ok +{name} +{version}$", found.stdout, re.M)
    assert re.search(rf"^ok +processors +{os.cpu_count()}$", found.stdout, re.M)
    assert f"{tmp_path}: mnist (others" in found.stdout
    assert re.search(r"^ok +bundled data +fashion_mini,", found.stdout, re.M)
    assert re.search(r"^ok +bundled weights +mnist-", found.stdout, re.M)


def test_weights_that_are_not_there(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(PRETRAINED_MODULE, "FOLDER", tmp_path)
    monkeypatch.setattr(doctor, "import_module", lambda name: None)
    assert main(["doctor"]) == 1
    (line,) = lines_of(capsys.readouterr().out, "MISSING")
    assert line.split()[1:3] == ["bundled", "weights"]
    assert f"{tmp_path / 'mnist-smoothmix-1.00.keras'}: no such file" in line


@pytest.fixture
def doctor_says(monkeypatch):
    """Looks at one thing: (state, what was found). Nothing is imported."""
    monkeypatch.setattr(doctor, "import_module", lambda name: None)

    def look(thing):
        return next(
            (state, told)
            for state, what, told in doctor.findings()
            if what == thing
        )

    return look


@pytest.mark.parametrize("imported", [True, False])
def test_another_backend_of_keras(monkeypatch, doctor_says, imported):
    assert doctor_says("keras backend") == ("ok", "tensorflow")
    if imported:
        monkeypatch.setattr("keras.backend.backend", lambda: "jax")
    else:  # its own backend may be what fails
        monkeypatch.delitem(sys.modules, "keras", raising=False)
        monkeypatch.setenv("KERAS_BACKEND", "jax")
    state, told = doctor_says("keras backend")
    assert (state, told.split(":")[0]) == (
        "MISSING",
        "jax, but tensorflow is needed",
    )


def test_all_bundled_archives_are_looked_at(doctor_says):
    state, told = doctor_says("bundled data")
    assert state == "ok"
    assert sorted(told.split(", ")) == sorted(
        path.stem for path in DATA.glob("*.npz")
    )


@pytest.mark.parametrize("damage", ["cut short", "a byte changed", "gone"])
def test_bundled_data_that_is_damaged(
    monkeypatch, tmp_path, doctor_says, damage
):
    folder = tmp_path / "data"
    folder.mkdir()
    for path in DATA.glob("*.npz"):
        shutil.copy(path, folder)
    monkeypatch.setattr(rs_keras, "__file__", str(tmp_path / "__init__.py"))
    assert doctor_says("bundled data")[0] == "ok"
    path = folder / "fashion_mini.npz"
    content = bytearray(path.read_bytes())
    if damage == "gone":
        path.unlink()
    elif damage == "cut short":
        path.write_bytes(content[: len(content) // 2])
    else:
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
    state, told = doctor_says("bundled data")
    assert state == "MISSING"
    assert str(path) in told


def test_a_download_that_was_interrupted_is_no_data_set(
    monkeypatch, tmp_path, doctor_says
):
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    assert f"{tmp_path}: empty" in doctor_says("data")[1]
    started = tmp_path / "cifar10" / "incomplete.ABCDEF_3.0.2"
    started.mkdir(parents=True)
    (started / "dataset_info.json").touch()
    assert f"{tmp_path}: cifar10 broken (others" in doctor_says("data")[1]
    started.rename(started.with_name("3.0.2"))
    assert f"{tmp_path}: cifar10 (others" in doctor_says("data")[1]
