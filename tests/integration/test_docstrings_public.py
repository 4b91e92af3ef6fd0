"""Every public name shows how it is used, in an example that is run.

Public is what a package lists in `__all__`, and what the modules below define
(or list, where they have an `__all__`). All else serves the package itself and
may change. That the examples hold is seen to by the tests beside this one.
"""

import ast
import doctest
import importlib
import inspect
import re

from kits import docstrings_kit as kit

PACKAGES = """
rs_keras rs_keras.adversaries rs_keras.bounds rs_keras.certification
rs_keras.certification.sequential rs_keras.classifiers
rs_keras.datasets rs_keras.export rs_keras.logs rs_keras.models
rs_keras.noise rs_keras.per_input_sigma rs_keras.report
rs_keras.serving rs_keras.serving.client rs_keras.serving.demo
rs_keras.serving.server rs_keras.trainers rs_keras.trainers.recipes
rs_keras.trainers.runs rs_keras.trainers.tuning
""".split()

MODULES = """
rs_keras.certification.sample_size
rs_keras.certification.sequential.boundaries
rs_keras.certification.smoothing rs_keras.classifiers.checkpoints
rs_keras.classifiers.ensembles rs_keras.datasets.augmentation
rs_keras.distribution rs_keras.export.metadata
rs_keras.export.signature rs_keras.logs.comparison
rs_keras.logs.corruptions rs_keras.logs.evaluation
rs_keras.logs.metrics rs_keras.losses rs_keras.noise.draws
rs_keras.noise.keyed_seeds rs_keras.per_input_sigma.ball_memory
rs_keras.per_input_sigma.certifier
rs_keras.per_input_sigma.composition
rs_keras.per_input_sigma.optimization rs_keras.report.figures
rs_keras.report.plots
rs_keras.report.tables rs_keras.serving.client.served_model
rs_keras.teacher rs_keras.trainers._distributed.batch_norm
rs_keras.trainers._step.noisy_model
rs_keras.trainers.callbacks rs_keras.trainers.recipes.recipe
rs_keras.trainers.recipes.registry rs_keras.trainers.runs.snapshots
rs_keras.trainers.runs.training rs_keras.trainers.tuning.hypermodel
rs_keras.trainers.tuning.ranges rs_keras.trainers.tuning.search_spaces
rs_keras.trainers.tuning.sweeps
""".split()

SECTIONS = (
    "Formula Args Attributes Returns Yields Raises Example References".split()
)

TREES = {
    module: tree
    for room in kit.ROOMS
    for module, tree in kit.modules(room).items()
}
TEXTS = {
    name: text
    for module, tree in TREES.items()
    for name, text in kit.documented(module, tree)
}


def exported(module):
    """The names that a module gives, as its source says."""
    listed = getattr(importlib.import_module(module), "__all__", None)
    if listed is not None:
        return list(listed)
    defined = [n.name for n in TREES[module].body if hasattr(n, "name")]
    return [name for name in defined if not name.startswith("_")]


def public():
    """{public name: (the module it is listed in, the object)}."""
    return {
        f"{module}.{name}": (
            module,
            getattr(importlib.import_module(module), name),
        )
        for module in PACKAGES + MODULES
        for name in exported(module)
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


def test_what_the_pages_import_is_public():
    pattern = re.compile(r"^from (rs_keras[\w.]*) import ([\w, ]+)", re.M)
    known = {*public(), *PACKAGES, *MODULES}
    # It keeps TensorFlow's notes out of what an example prints.
    known.add("rs_keras._compat.import_tensorflow")
    pages = [kit.ROOT / "README.md", *(kit.ROOT / "docs").glob("*.md")]
    for page in [*pages, *(kit.ROOT / "examples").glob("*.py")]:
        for module, names in pattern.findall(page.read_text()):
            for name in names.split(", "):
                assert f"{module}.{name}" in known, page.name


def test_what_the_api_pages_list_is_public():
    tree = ast.parse((kit.ROOT / "docs" / "site" / "api.py").read_text())
    groups = next(
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and node.targets[0].id == "GROUPS"
    )
    listed = {
        f"{module}.{name}"
        for modules in groups.values()
        for module, names in modules.items()
        for name in names.split() or exported(module)
    }
    assert listed <= {*public()}
