"""Every public name shows how it is used, in an example that is run.

Public is what `__all__` lists in a package or module, and what the pages of
the API show of modules without one. All else serves the package itself and may
change. The tests beside this one run the examples.
"""

import ast
import doctest
import importlib
import inspect
import re

from kits import docstrings

SECTIONS = (
    "Formula Args Attributes Returns Yields Raises Example References".split()
)

TREES = {
    module: tree
    for room in docstrings.ROOMS
    for module, tree in docstrings.modules(room).items()
}
TEXTS = {
    name: text
    for module, tree in TREES.items()
    for name, text in docstrings.documented(module, tree)
}


def is_private(name):
    return any(part.startswith("_") for part in name.split("."))


def on_pages():
    """{module: its names that the pages of the API show}, "" for all."""
    tree = ast.parse((docstrings.ROOT / "docs" / "site" / "api.py").read_text())
    (groups,) = (
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and node.targets[0].id == "GROUPS"
    )
    return {m: names for group in groups.values() for m, names in group.items()}


def exported(module, shown=""):
    """The names that a module gives, as its source says."""
    listed = getattr(importlib.import_module(module), "__all__", None)
    if listed is not None:
        return list(listed)
    defined = [n.name for n in TREES[module].body if hasattr(n, "name")]
    return shown.split() or [n for n in defined if not n.startswith("_")]


def public():
    """{public name: (the module it is listed in, the object)}."""
    listing = [
        module
        for module in TREES
        if not is_private(module)
        and hasattr(importlib.import_module(module), "__all__")
    ]
    modules = dict.fromkeys(listing, "") | on_pages()
    return {
        f"{module}.{name}": (
            module,
            getattr(importlib.import_module(module), name),
        )
        for module, shown in modules.items()
        for name in exported(module, shown)
    }


def used(text):
    """The names that an example's code uses, as attributes or by themselves."""
    shown = doctest.DocTestParser().get_examples(text)
    tree = ast.parse("".join(one.source for one in shown))
    names = {n.attr for n in ast.walk(tree) if isinstance(n, ast.Attribute)}
    return names | {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)}


def has_result(text):
    """Whether an example says what comes of it."""
    return any(e.want for e in doctest.DocTestParser().get_examples(text))


def own_methods(cls):
    """Public methods and properties that no base class has already."""
    inherited = {name for base in cls.__mro__[1:] for name in vars(base)}
    kinds = property | classmethod | staticmethod
    return [
        name
        for name, value in vars(cls).items()
        if not name.startswith("_")
        and name not in inherited
        and (isinstance(value, kinds) or inspect.isfunction(value))
    ]


def lacking(name, listed_in, value):
    """Names of `value` and of its methods that no example shows."""
    if inspect.ismodule(value):
        return []
    if not hasattr(value, "__qualname__"):
        # A constant: its module's examples, or its package's, use it.
        texts = [t for n, t in TEXTS.items() if n.startswith(listed_in + ".")]
        constant = name.rpartition(".")[2]
        return [] if any(constant in used(t) for t in texts) else [name]
    home = f"{value.__module__}.{value.__qualname__}"
    text = TEXTS[home]
    missing = [] if has_result(text) else [home]
    if not inspect.isclass(value):
        return missing
    # An example of the class, or of one method, may cover others.
    shown = {
        word
        for name, text in TEXTS.items()
        if name == home or name.startswith(f"{home}.")
        for word in used(text)
    }
    return missing + [
        f"{home}.{method}"
        for method in own_methods(value)
        if not has_result(TEXTS.get(f"{home}.{method}", ""))
        and method not in shown
    ]


def test_sections_have_the_same_names_in_the_same_order():
    for name, text in TEXTS.items():
        found = re.findall(r"^(\w+):$", text, re.M)
        assert found == [one for one in SECTIONS if one in found], name
        if ">>>" in text:
            assert re.search(r"^Example:\n\n>>> ", text, re.M), name


def test_every_public_name_has_an_example_that_shows_a_result():
    missing = [
        one
        for name, (module, value) in public().items()
        for one in lacking(name, module, value)
    ]
    assert sorted(set(missing)) == []


def test_what_pages_and_examples_import_is_public():
    pattern = re.compile(r"^from (rs_keras[\w.]*) import ([\w, ]+)", re.M)
    known = {*public(), *(module for module, _ in public().values())}
    # A module may give what its package lists.
    known |= {
        f"{value.__module__}.{value.__qualname__}"
        for _, value in public().values()
        if hasattr(value, "__qualname__") and not is_private(value.__module__)
    }
    # It keeps TensorFlow's notes out of what an example prints.
    known.add("rs_keras._compat.import_tensorflow")
    root = docstrings.ROOT
    pages = [root / "README.md", *(root / "docs").glob("*.md")]
    for page in [*pages, *(root / "examples").glob("*.py")]:
        for module, names in pattern.findall(page.read_text()):
            for name in names.split(", "):
                assert f"{module}.{name}" in known, page.name


def test_nothing_private_has_a_page_of_the_api():
    assert not [name for name in public() if is_private(name)]
