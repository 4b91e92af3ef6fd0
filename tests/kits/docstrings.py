"""Finds the examples of docstrings, and runs them as a reader would."""

import ast
import doctest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ROOMS = {
    "rs_keras": "rs_keras",
    "trainers": "rs_keras.trainers",
    "export": "rs_keras.export",
    "serving": "rs_keras.serving",
}
FLAGS = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
DEFINITION = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def modules(folder):
    """{module's name: its syntax tree} of one room."""
    found = {}
    for path in sorted((ROOT / folder).rglob("*.py")):
        parts = path.relative_to(ROOT / folder).with_suffix("").parts
        names = [part for part in parts if part != "__init__"]
        tree = ast.parse(path.read_text())
        found[".".join([ROOMS[folder], *names])] = tree
    return found


def documented(name, node):
    """Yields (dotted name, docstring) of a tree and all that it defines."""
    yield name, ast.get_docstring(node) or ""
    for child in node.body:
        if isinstance(child, DEFINITION):
            yield from documented(f"{name}.{child.name}", child)


def examples(folder):
    """{dotted name: docstring} of every docstring that shows an example."""
    return {
        name: text
        for module, tree in modules(folder).items()
        for name, text in documented(module, tree)
        if ">>>" in text
    }


def run(name, text):
    """Runs an example; it has nothing but what it imports itself."""
    names = {"__name__": "__main__"}
    test = doctest.DocTestParser().get_doctest(text, names, name, name, 0)
    said = []
    runner = doctest.DocTestRunner(optionflags=FLAGS)
    runner.run(test, out=said.append)
    assert test.examples
    assert not runner.failures, "".join(said)
