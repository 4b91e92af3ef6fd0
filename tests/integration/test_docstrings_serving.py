"""The examples in the docstrings of export/ and serving/ are run."""

import pytest
from kits import docstrings
from kits.authority import Authority

EXAMPLES = docstrings.examples("export") | docstrings.examples("serving")


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    """Certificates are dear: one authority for all that need any."""
    return Authority(tmp_path_factory.mktemp("authority"), "ca")


@pytest.fixture
def folder(authority, tmp_path):
    """What an operator has: a server's key, and certificates."""
    files = [authority.path, *authority.issue("server")]
    for name, file in zip(
        ("ca.crt", "server.key", "server.crt"), files, strict=True
    ):
        (tmp_path / name).write_bytes(file.read_bytes())
    return tmp_path


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_example_of_a_serving_docstring_holds(name, folder, monkeypatch):
    monkeypatch.chdir(folder)
    docstrings.run(name, EXAMPLES[name])
