"""The examples in the docstrings of export/ and serving/ are run."""

import pytest
from kits import docstrings_kit as kit
from kits.authority import Authority

EXAMPLES = kit.examples("export") | kit.examples("serving")


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
def test_the_example_holds(name, folder, monkeypatch):
    monkeypatch.chdir(folder)
    kit.run(name, EXAMPLES[name])
