"""The notebooks in examples/ print today what stands in them."""

import base64
import re
import sys
import tempfile
from pathlib import Path

import nbformat
import pytest
from kits import notebooks

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))
NUMBER = re.compile(r"\d+\.\d+|\d+")

each = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def differences(committed, now):
    """Returns what differs between two texts by more than other hardware may.

    Training rounds differently on other processors, which moves an image or
    two: shares and radii by less than 0.1, percentages (with one decimal) by
    less than 10, counts of votes and draws by a quarter. Words, and whole
    numbers up to 20, must be the same.
    """
    texts = [NUMBER.sub("#", text).split() for text in (committed, now)]
    if texts[0] != texts[1]:
        return texts
    pairs = zip(NUMBER.findall(committed), NUMBER.findall(now), strict=True)
    return [pair for pair in pairs if not close(*pair)]


def close(one, other):
    if "." in one:
        limit = 10 if re.fullmatch(r"\d+\.\d", one) else 0.1
        return "." in other and abs(float(one) - float(other)) < limit
    if one == other:
        return True
    return int(one) > 20 and abs(int(one) - int(other)) < 0.25 * int(one)


@each
def test_a_notebook_prints_what_is_committed(path):
    committed = nbformat.read(path, as_version=4)
    now, said = notebooks.run(path)
    assert "Warning" not in said, said[-3000:]
    cells = zip(
        notebooks.code_cells(committed), notebooks.code_cells(now), strict=True
    )
    for one, other in cells:
        assert one.source == other.source
        found = differences(notebooks.printed(one), notebooks.printed(other))
        assert not found, (one.source, found)
        assert len(notebooks.pictures(one)) == len(notebooks.pictures(other))


@each
def test_a_notebook_is_fit_to_be_committed(path):
    assert path.stat().st_size < 300_000
    text = path.read_text()
    places = [ROOT, Path.home(), sys.prefix, tempfile.gettempdir()]
    for word in (*map(str, places), "site-packages", "stderr", "Traceback"):
        assert word not in text
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    cells = notebooks.code_cells(notebook)
    assert [cell.execution_count for cell in cells] == list(
        range(1, len(cells) + 1)
    )


@each
def test_a_notebook_shows_pictures_and_results(path):
    cells = notebooks.code_cells(nbformat.read(path, as_version=4))
    pictures = [
        picture for cell in cells for picture in notebooks.pictures(cell)
    ]
    assert pictures
    for picture in pictures:
        data = base64.b64decode(picture)
        assert data.startswith(b"\x89PNG") and len(data) > 5_000
    assert sum(bool(notebooks.printed(cell)) for cell in cells) >= 5


@pytest.mark.parametrize(
    "committed, now, same",
    [
        ("accuracy 0.731", "accuracy 0.745", True),
        ("accuracy 0.731", "accuracy 0.931", False),
        ("accuracy 0.731", "share 0.731", False),
        ("class 9", "class 8", False),
        ("7459 of 10000", "7300 of 10000", True),
        ("7459 of 10000", "73 of 10000", False),
        ("certified: [True]", "certified: [False]", False),
        ("radius 0.500", "radius 1", False),
        ("abstain 2.0", "abstain 4.0", True),
        ("right 82.0", "right 70.0", False),
    ],
)
def test_outputs_of_notebooks_differ_by_more_than_rounding(
    committed, now, same
):
    assert (not differences(committed, now)) == same
