"""The pages of examples/: its notebooks and scripts."""

import ast
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from formulas import drawn


@dataclass(frozen=True)
class Program:
    """One script or notebook.

    Attributes:
        name: Name of the file.
        about: One-line description.
        markdown: The page.
    """

    name: str
    about: str
    markdown: str

    @property
    def title(self) -> str:
        return Path(self.name).stem.replace("_", " ").capitalize()

    @property
    def path(self) -> str:
        return f"examples/{self.name}.md"


def read(folder: Path) -> Iterator[Program]:
    """Yields the programs of a folder: first notebooks, then scripts."""
    for path in sorted(folder.glob("*.ipynb")):
        yield _notebook(path)
    for path in sorted(folder.glob("*.py")):
        yield _script(path)


def index(found: list[Program]) -> str:
    """Returns a table of the programs, for the page that lists them."""
    rows = [f"| [{p.title}]({p.path}) | {p.about} |" for p in found]
    return "\n".join(["| | |", "| --- | --- |", *rows])


def _script(path: Path) -> Program:
    text = path.read_text()
    tree = ast.parse(text)
    about = ast.get_docstring(tree)
    if about is None:
        raise ValueError(
            f"`path` must begin with a docstring. Received: {path}"
        )
    code = "\n".join(text.splitlines()[tree.body[0].end_lineno :]).strip()
    first, _, rest = about.partition("\n")
    parts = [f"# {first.rstrip('.')}", rest.strip("\n"), _block("python", code)]
    return Program(path.name, first, "\n\n".join(parts))


def _notebook(path: Path) -> Program:
    """Reads a notebook that begins with a title and a description."""
    cells = json.loads(path.read_text())["cells"]
    title, text = "".join(cells[0]["source"]).split("\n", 1)
    about = re.split(r"(?<=\.)\s", text.strip(), maxsplit=1)[0]
    where = f"*The notebook `examples/{path.name}`.*"
    parts = [part for cell in cells[1:] for part in _cell(cell)]
    whole = "\n\n".join([title, where, drawn(text), *parts])
    return Program(path.name, drawn(" ".join(about.split())), whole)


def _cell(cell: dict[str, Any]) -> Iterator[str]:
    source = "".join(cell["source"]).strip()
    if cell["cell_type"] == "markdown":
        yield drawn(source)
    elif cell["cell_type"] == "code" and source:
        yield _block("ipython", source)
        for output in cell["outputs"]:
            yield from _output(output)


def _output(output: dict[str, Any]) -> Iterator[str]:
    """Yields the image of an output if it has one, otherwise its text."""
    data = output.get("data", {})
    if "image/png" in data:
        png = "".join("".join(data["image/png"]).split())
        yield f"![Output of the cell above](data:image/png;base64,{png})"
    elif text := "".join(output.get("text", data.get("text/plain", ""))):
        yield _block("text", text.rstrip())


def _block(language: str, text: str) -> str:
    return f"````{language}\n{text}\n````"
