"""Prints requirements.lock: lock.py INDEX RUN ALL

INDEX is the address of a package index (PEP 503). RUN and ALL are files that
`pip freeze` wrote: what the package needs to run, and with its tools for
development. Each requirement gets the SHA-256 of every wheel that a supported
machine may install (Linux, CPython 3.11 to 3.13), as the index lists them; of
the source archive only where there is no such wheel. Any other file is refused
by `pip install --require-hashes`.
"""

import re
import sys
from collections.abc import Callable
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote
from urllib.parse import urlsplit
from urllib.request import urlopen

from packaging.utils import canonicalize_name
from packaging.utils import parse_sdist_filename
from packaging.utils import parse_wheel_filename
from packaging.version import Version

MINORS = range(11, 14)
HEADER = """\
# Made by `make lock`: the versions that the tests ran with, and the SHA-256 of
# each file that may be installed. pip and setuptools are not locked.

# To run
"""
DEVELOPMENT = "\n# For development\n"


class Links(HTMLParser):
    """The files that a page of an index lists: {name: SHA-256}."""

    def __init__(self) -> None:
        super().__init__()
        self.files: dict[str, str] = {}

    def handle_starttag(
        self, tag: str, attrs: list[tuple[str, str | None]]
    ) -> None:
        if tag == "a":
            parts = urlsplit(dict(attrs).get("href") or "")
            name = unquote(parts.path.rpartition("/")[2])
            self.files[name] = parts.fragment.removeprefix("sha256=")


def suits(wheel: str) -> bool:
    """Says whether one of the supported machines could install a wheel."""
    return any(
        _python(tag.interpreter, tag.abi) and _linux(tag.platform)
        for tag in parse_wheel_filename(wheel)[3]
    )


def _python(interpreter: str, abi: str) -> bool:
    if interpreter == "py3":
        return True
    known = re.fullmatch(r"(?:cp|py)3(\d+)", interpreter)
    if known is None:
        return False
    minor = int(known[1])
    # The stable interface, and Python alone, serve later versions too.
    lasts = abi in ("abi3", "none")
    return minor in MINORS or (lasts and minor <= MINORS[-1])


def _linux(platform: str) -> bool:
    return platform == "any" or "linux" in platform and "musl" not in platform


def hashes(files: dict[str, str], version: str) -> list[str]:
    """Returns the hashes of a version's wheels, or of its source archive."""
    wheels, archives = [], []
    for name, digest in files.items():
        if name.endswith(".whl"):
            if _is(parse_wheel_filename, name, version) and suits(name):
                wheels.append(digest)
        elif name.endswith((".tar.gz", ".zip")):
            if _is(parse_sdist_filename, name, version):
                archives.append(digest)
    return sorted(wheels or archives)


def _is(parse: Callable[[str], Any], name: str, version: str) -> bool:
    try:
        return parse(name)[1] == Version(version)
    except ValueError:  # A name from before there were rules for names.
        return False


def locked(index: str, frozen: list[str]) -> Iterator[str]:
    """Yields a requirement with hashes for each line of a frozen list."""
    for line in frozen:
        name, version = line.split("==")
        page = Links()
        address = f"{index.rstrip('/')}/{canonicalize_name(name)}/"
        with urlopen(address) as answer:
            page.feed(answer.read().decode())
        found = hashes(page.files, version)
        if not found:
            raise SystemExit(f"{address} lists no file of {name} {version}")
        yield " \\\n".join(
            [f"{name}=={version}", *(f"    --hash=sha256:{h}" for h in found)]
        )


def _lines(path: str) -> list[str]:
    return Path(path).read_text().splitlines()


def main(index: str, run: str, everything: str) -> None:
    """Prints the lock file."""
    names = {line.split("==")[0] for line in _lines(run)}
    needed, others = [], []
    for line in _lines(everything):
        (needed if line.split("==")[0] in names else others).append(line)
    print(HEADER + "\n".join(locked(index, needed)))
    print(DEVELOPMENT + "\n".join(locked(index, others)))


if __name__ == "__main__":
    main(*sys.argv[1:])
