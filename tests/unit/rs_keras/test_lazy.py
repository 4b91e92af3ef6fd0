"""Names of packages that are imported when they are first used."""

import importlib
import subprocess
import sys

import pytest

PACKAGES = """
rs_keras rs_keras.bounds rs_keras.certification
rs_keras.certification.sequential rs_keras.classifiers rs_keras.export
rs_keras.logs rs_keras.noise rs_keras.per_input_sigma rs_keras.report
rs_keras.serving rs_keras.serving.client rs_keras.serving.server
rs_keras.trainers.runs rs_keras.trainers.tuning
""".split()


@pytest.mark.parametrize("package", PACKAGES)
def test_every_name_is_there(package):
    module = importlib.import_module(package)
    assert module.__all__ == sorted(module.__all__)
    for name in module.__all__:
        assert getattr(module, name) is vars(module)[name]
        assert name in dir(module)


@pytest.mark.parametrize("package", [*PACKAGES, "rs_keras.trainers"])
def test_dir_has_public_names_only(package):
    names = dir(importlib.import_module(package))
    assert not {"Any", "Path", "TYPE_CHECKING", "annotations", "attach"} & {
        *names
    }
    assert not [name for name in names if name.startswith("_")]


def test_packages_are_attributes():
    code = (
        "import sys, rs_keras\n"
        "names = ['export', 'plots', 'serving', 'trainers']\n"
        "assert {*names} <= {*dir(rs_keras)} and 'keras' not in sys.modules\n"
        "print([getattr(rs_keras, name).__name__ for name in names])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    parts = ("export", "report.plots", "serving", "trainers")
    assert done.stdout == f"{[f'rs_keras.{name}' for name in parts]}\n"


def test_modules_of_other_packages_have_shorter_names():
    import rs_keras
    from rs_keras.classifiers import ensembles
    from rs_keras.report import plots
    from rs_keras.report import tables

    assert rs_keras.ensembles is ensembles
    assert rs_keras.plots is plots and rs_keras.tables is tables


def test_unknown_names_are_refused():
    module = importlib.import_module("rs_keras.bounds")
    with pytest.raises(AttributeError, match="rs_keras.bounds.*'no_bound'"):
        _ = module.no_bound


def test_packages_are_imported_without_tensorflow():
    code = (
        f"import sys, {', '.join(PACKAGES[:-2])}\n"
        "print(sorted({'tensorflow', 'keras', 'grpc'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"
