"""What README and docs show is run, and what they link to is there.

Blocks marked `py` need machines of the reader's and are not run.
"""

import os
import re
from pathlib import Path

import pytest

from rs_keras.cli import COMMANDS

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")])
BLOCK = re.compile(r"```python\n(.*?)```", re.S)
LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)(#[^)\s]+)?\)")
CALL = re.compile(r"^    rs-keras ([a-z]+)|`rs-keras ([a-z]+)", re.M)


# Keras Tuner 1.4.8 asks for a thread's name in the old way.
pytestmark = [
    pytest.mark.filterwarnings("ignore:currentThread:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:getName:DeprecationWarning"),
]


def pages_with_code():
    return [page for page in PAGES if BLOCK.search(page.read_text())]


@pytest.mark.parametrize("page", pages_with_code(), ids=lambda p: p.name)
def test_code_runs_as_it_stands(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "__main__"}
    for number, block in enumerate(BLOCK.findall(page.read_text()), 1):
        exec(compile(block, f"{page.name}, block {number}", "exec"), names)


def anchor(heading):
    text = re.sub(r"[^\w\- ]", "", heading.strip().lower())
    return "#" + text.replace(" ", "-")


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_lead_somewhere(page):
    for target, fragment in LINK.findall(page.read_text()):
        place = page.parent / target if target else page
        assert place.exists(), f"{page.name}: no {target}"
        if fragment:
            headings = re.findall(r"^#+ (.*)$", place.read_text(), re.M)
            assert fragment in map(anchor, headings), f"no {fragment}"


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_commands_exist(page):
    for match in CALL.findall(page.read_text()):
        assert "".join(match) in COMMANDS


def test_nothing_is_cut():
    assert len((ROOT / "README.md").read_text().splitlines()) < 200
    assert os.path.getsize(ROOT / "docs" / "images" / "curves.png") > 1_000
