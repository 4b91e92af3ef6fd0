"""The package as it is published: metadata, files of the project, releases."""

import ast
import re
import runpy
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

import pytest
import setuptools
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import rs_keras

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("rs_keras", "trainers", "export", "serving")
ADDRESS = "https://repository.example/rs-keras"
# What a distribution is imported as, where that is another name.
IMPORTED_AS = {
    "grpcio": "grpc",
    "grpcio-health-checking": "grpc_health",
    "pillow": "PIL",
    "scikit-learn": "sklearn",
    "tensorflow-serving-api": "tensorflow_serving",
}
# Requirements that only another package imports, without declaring them: the
# module that does. If it no longer does, the requirement can go.
IMPORTED_BY = {
    "importlib_resources": "tensorflow_datasets/core/dataset_builder.py",
    "scikit-learn": "keras_tuner/src/tuners/bayesian.py",
    "tensorboard": "keras_tuner/src/engine/tuner.py",
    "tf-keras": "tensorflow_probability/python/__init__.py",
}


def read(name):
    return (ROOT / name).read_text()


@pytest.fixture(scope="module")
def setup():
    """What setup.py passes to setuptools, and its own names."""
    passed = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            setuptools, "setup", lambda **kwargs: passed.update(kwargs)
        )
        patch.chdir(ROOT)
        names = runpy.run_path("setup.py")
    return passed, names


# -- metadata ----------------------------------------------------------------


def test_the_version_is_the_same_everywhere(setup):
    version = rs_keras.__version__
    assert setup[0]["version"] == version
    assert yaml.safe_load(read("CITATION.cff"))["version"] == version
    assert f'"{version}"' not in read("setup.py")


def test_the_licence_is_an_spdx_expression_and_no_classifier(setup):
    passed, _ = setup
    assert re.fullmatch(r"[\w.-]+( AND [\w.-]+)*", passed["license_expression"])
    assert not [one for one in passed["classifiers"] if "License" in one]
    for pattern in passed["license_files"]:
        assert list(ROOT.glob(pattern)), pattern


def test_python_versions_agree_with_the_classifiers(setup):
    passed, _ = setup
    listed = re.findall(r"Python :: (3\.\d+)'", str(passed["classifiers"]))
    first, after = re.findall(r"3\.(\d+)", passed["python_requires"])
    assert listed == [f"3.{minor}" for minor in range(int(first), int(after))]


def imported(path):
    """Returns the top-level packages that a file imports, anywhere in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found.add(node.module)
    return {name.split(".")[0] for name in found}


def test_every_requirement_is_imported(setup):
    ours = set()
    for room in ROOMS:
        for path in (ROOT / room).rglob("*.py"):
            ours |= imported(path)
    for text in setup[0]["install_requires"]:
        name = Requirement(text).name
        module = IMPORTED_AS.get(name, name.replace("-", "_"))
        if name not in IMPORTED_BY:
            assert module in ours, f"nothing imports {name}"
            continue
        package, _, rest = IMPORTED_BY[name].partition("/")
        folder = Path(find_spec(package).origin).parent
        assert module in imported(folder / rest), f"nothing imports {name}"
        assert name not in metadata.requires(package.replace("_", "-")), (
            f"{package} declares {name} now"
        )


# -- the repository's address ------------------------------------------------


def relative_links(text):
    return re.findall(r"\]\((?!https?:|#)([^)\s]+)\)", text)


def test_without_an_address_nothing_links_to_a_file(setup):
    passed, names = setup
    if names["REPOSITORY"]:
        pytest.skip("the repository has an address")
    assert passed["project_urls"] == {}
    assert relative_links(read("README.md"))
    assert relative_links(passed["long_description"]) == []
    assert "![" not in passed["long_description"]
    assert "repository-code" not in yaml.safe_load(read("CITATION.cff"))


def test_with_an_address_links_lead_to_files_of_the_release(setup):
    _, names = setup
    readme = read("README.md")
    shown = names["long_description"](readme, ADDRESS, "1.2.3")
    assert relative_links(shown) == []
    found = re.findall(rf"{ADDRESS}/(raw|blob)/v1\.2\.3/([^)#\s]+)", shown)
    assert len(found) == len(relative_links(readme))
    for kind, path in found:
        assert (ROOT / path).exists()
        assert (kind == "raw") == path.endswith(".png")
    urls = names["project_urls"](ADDRESS, "1.2.3")
    assert all(url.startswith(ADDRESS) for url in urls.values())


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("", "A\n\nsee b, [c](#c) and [d](https://d.example)."),
        (
            "https://x",
            "A\n\n![p](https://x/raw/v1/p.png)\n\n*Caption\nof p.*\n\n"
            "see [b](https://x/blob/v1/b.md#b), [c](#c) and "
            "[d](https://d.example).",
        ),
    ],
)
def test_links_of_a_readme(setup, address, shown):
    readme = (
        "A\n\n![p](p.png)\n\n*Caption\nof p.*\n\n"
        "see [b](b.md#b), [c](#c) and [d](https://d.example)."
    )
    assert setup[1]["long_description"](readme, address, "1") == shown


def test_an_address_is_cited_too(setup):
    address = setup[1]["REPOSITORY"]
    cited = yaml.safe_load(read("CITATION.cff")).get("repository-code", "")
    assert cited == address
    assert not address.endswith("/")


# -- dependencies ------------------------------------------------------------


def locked():
    """The lock file: {normalised name: (version, hashes)}."""
    text = read("requirements.lock").replace(" \\\n", " ")
    lines = [line.split() for line in text.splitlines() if "==" in line]
    return {
        canonicalize_name(one.partition("==")[0]): (
            one.partition("==")[2],
            hashes,
        )
        for one, *hashes in lines
    }


def test_every_locked_package_has_hashes():
    for name, (version, hashes) in locked().items():
        assert version and hashes, name
        for text in hashes:
            assert re.fullmatch(r"--hash=sha256:[0-9a-f]{64}", text), name


def test_the_lock_has_what_is_required(setup):
    passed, _ = setup
    required = passed["install_requires"] + passed["extras_require"]["dev"]
    for requirement in map(Requirement, required):
        version, _ = locked()[canonicalize_name(requirement.name)]
        assert version in requirement.specifier, requirement


WHEELS = {
    "a-1.0-cp311-cp311-manylinux_2_17_x86_64.manylinux2014_x86_64.whl": True,
    "a-1.0-cp313-cp313-linux_aarch64.whl": True,
    "a-1.0-cp39-abi3-manylinux_2_17_x86_64.whl": True,
    "a-1.0-py2.py3-none-any.whl": True,
    "a-1.0-cp310-cp310-manylinux_2_17_x86_64.whl": False,
    "a-1.0-cp314-cp314-manylinux_2_17_x86_64.whl": False,
    "a-1.0-cp314-abi3-manylinux_2_17_x86_64.whl": False,
    "a-1.0-cp311-cp311-musllinux_1_2_x86_64.whl": False,
    "a-1.0-cp311-cp311-win_amd64.whl": False,
    "a-1.0-py2-none-any.whl": False,
    "a-1.1-py3-none-any.whl": False,
}


@pytest.fixture(scope="module")
def lock():
    return runpy.run_path(str(ROOT / ".ci" / "lock.py"))


def test_wheels_of_the_supported_machines_are_locked(lock):
    page = "".join(f'<a href="x/{name}#sha256={name}">x</a>' for name in WHEELS)
    links = lock["Links"]()
    links.feed(page + '<a href="a-1.0.tar.gz#sha256=source">x</a>')
    suitable = sorted(name for name, suits in WHEELS.items() if suits)
    assert lock["hashes"](links.files, "1.0") == suitable


def test_a_source_archive_is_locked_where_there_is_no_wheel(lock):
    files = {"a-1.0.tar.gz": "source", "a-1.0-cp311-cp311-win32.whl": "wheel"}
    assert lock["hashes"](files, "1.0") == ["source"]


def rows_of(page):
    return re.findall(r"^\| (\S+) \| (.+) \| (run|develop) \|$", page, re.M)


def test_the_page_lists_the_licence_of_each_locked_package():
    rows = rows_of(read("docs/dependencies.md"))
    assert sorted(canonicalize_name(name) for name, *_ in rows) == sorted(
        locked()
    )
    licence = runpy.run_path(str(ROOT / ".ci" / "licences.py"))["licence"]
    for name, said, _ in rows:
        # What `pip install` brings may be used in closed programs.
        assert "GPL" not in said, name
        try:
            installed = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
        if installed == locked()[canonicalize_name(name)][0]:
            assert licence(name) == said


def test_the_page_says_what_is_needed_to_run(setup):
    rows = rows_of(read("docs/dependencies.md"))
    needed = {canonicalize_name(name): verb for name, _, verb in rows}
    for text in setup[0]["install_requires"]:
        assert needed[canonicalize_name(Requirement(text).name)] == "run"
    assert needed["pytest"] == "develop"
