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
