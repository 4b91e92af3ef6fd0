"""The list and contents of the API pages.

No module is imported: names come from each `__all__` and texts from docstrings,
both read statically from a copy of the sources in the installed layout.
"""

import ast
import re
import shutil
from collections.abc import Iterable
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import griffe
from docstrings import KerasDocstrings

import rs_keras

# In a checkout these are beside the folder `rs_keras`, not in it.
ROOMS = ("trainers", "export", "serving")

# The module that registers the papers' methods, in order.
METHODS = "rs_keras.trainers.methods"

# Packages whose names each have their own page.
OPEN = ("rs_keras", "rs_keras.trainers", "rs_keras.serving")

# What is public: everything in `__all__`, where a module has one; else the
# names that are given here; without any, what the module says of itself. A
# module with an `__all__` that is not here comes last in its package's group.
GROUPS = {
    "Certifying": {
        "rs_keras": "",
        "rs_keras.bounds": "",
        "rs_keras.noise": "",
        "rs_keras.classifiers.ensembles": "ensemble denoised",
        "rs_keras.per_input_sigma": "",
        "rs_keras.per_input_sigma.certifier": "",
        "rs_keras.certification.sequential": "",
        "rs_keras.attacks": "",
        "rs_keras.distribution": "strategy_of member_from_environment Member",
    },
    "Data and models": {
        "rs_keras.datasets": "",
        "rs_keras.models": "",
        "rs_keras.classifiers": "",
    },
    "Logs, tables, plots": {
        "rs_keras.logs": "",
        "rs_keras.report.tables": "certified_table",
        "rs_keras.report.plots": "plot_certified_accuracy",
        "rs_keras.report.robustness": "gap_table plot_robustness",
        "rs_keras.report": "",
        "rs_keras.report.figures": "adversarial_images confidences "
        "equal_confidence_ratios plot_interpolation plot_mixing_ratios",
    },
    "Training": {
        "rs_keras.trainers": "",
        "rs_keras.trainers.recipes": "",
        "rs_keras.trainers.callbacks": "CertifyCallback SaveModel",
        "rs_keras.trainers.runs": "",
        "rs_keras.adversaries": "",
        "rs_keras.losses": "labels_of cross_entropy smoothed divergence",
    },
    "Sweeps": {
        "rs_keras.trainers.tuning": "",
        "rs_keras.trainers.tuning.search_spaces": "",
        "rs_keras.trainers.tuning.sweeps": "TrialResult results pareto table "
        "plot_front write",
    },
    "Exporting and serving": {
        "rs_keras.export": "",
        "rs_keras.export.signature": "Signature Field",
        "rs_keras.serving": "",
    },
}

Package = griffe.Object | griffe.Alias


@dataclass(frozen=True)
class Page:
    """One page: a module with some of its names, or one name of a package.

    Attributes:
        group: Its heading in the navigation.
        identifier: Of the module or name.
        members: Names of the module; None for a page about one name.
        is_a_method: Whether the name is a method of a paper.
    """

    group: str
    identifier: str
    members: tuple[str, ...] | None
    is_a_method: bool = False

    @property
    def is_a_name(self) -> bool:
        return self.members is None

    @property
    def title(self) -> str:
        short = self.identifier.removeprefix("rs_keras.")
        return short.split(".")[-1] if self.is_a_name else short

    @property
    def path(self) -> str:
        return f"api/{self.identifier.replace('.', '/')}.md"

    def markdown(self) -> str:
        """Returns the page, for mkdocstrings to fill."""
        options: dict[str, object] = {"members": list(self.members or ())}
        if self.is_a_name:
            # A method's page is about the method: the base has its own.
            options = {"inherited_members": not self.is_a_method}
        lines = [f"---\ntitle: {self.title}\n---", f"::: {self.identifier}"]
        lines += ["    options:"]
        lines += [f"      {name}: {value}" for name, value in options.items()]
        return "\n".join([*lines, ""])


def exported(sources: Path, module: str) -> tuple[str, ...]:
    """Returns a module's `__all__`, as its source has it; () for none."""
    listed: tuple[str, ...] = ()
    for node in ast.parse(_file_of(sources, module).read_text()).body:
        match node:
            case ast.Assign(targets=[ast.Name("__all__")], value=ast.List()):
                listed = (*ast.literal_eval(node.value), *listed)
            case ast.ImportFrom(names=[ast.alias("*")]):
                listed += imported(sources, str(node.module))
            case ast.Assign(targets=[ast.Tuple([ast.Name("__all__"), *_])]):
                listed = _attached(sources, module)
    return listed


def imported(sources: Path, module: str) -> tuple[str, ...]:
    """Returns the names that a module imports, in the order of its source."""
    body = ast.parse(_file_of(sources, module).read_text()).body
    imports = [node for node in body if isinstance(node, ast.ImportFrom)]
    return tuple(alias.name for node in imports for alias in node.names)


def _attached(sources: Path, package: str) -> tuple[str, ...]:
    """Returns the names that a package imports when they are first used.

    Without the modules of other packages, which have pages there.
    """
    names = {
        alias.name
        for node in ast.parse(_file_of(sources, package).read_text()).body
        if isinstance(node, ast.If) and ast.unparse(node.test) == _LAZY
        for statement in node.body
        if isinstance(statement, ast.ImportFrom)
        for alias in statement.names
        if statement.module == package
        or not _file_of(sources, f"{statement.module}.{alias.name}").is_file()
    }
    return tuple(sorted(names))


_LAZY = "TYPE_CHECKING"


def _file_of(sources: Path, module: str) -> Path:
    path = sources.joinpath(*module.split("."))
    file = path / "__init__.py"
    return file if file.is_file() else path.with_suffix(".py")


def pages(sources: Path) -> Iterator[Page]:
    """Yields all pages, in the order of the navigation."""
    entries = _entries(sources)
    modules = {module for _, module, _ in entries}
    methods = imported(sources, METHODS)
    for group, module, given in entries:
        listed = exported(sources, module)
        names = tuple(
            name
            for name in listed or given.split()
            if f"{module}.{name}" not in modules
            and not _is_shown_above(sources, module, name)
        )
        if listed and not names:
            continue
        if module not in OPEN:
            yield Page(group, module, names)
            continue
        for name in names:
            yield Page(group, f"{module}.{name}", None, name in methods)


def _is_shown_above(sources: Path, module: str, name: str) -> bool:
    """Whether a package around a module has the name, and so its page."""
    parts = module.split(".")
    around = (".".join(parts[:end]) for end in range(1, len(parts)))
    return any(name in exported(sources, package) for package in around)


def _entries(sources: Path) -> list[tuple[str, str, str]]:
    """Returns group, module and names of all that `GROUPS` says or implies."""
    named = [
        (group, module, names)
        for group, modules in GROUPS.items()
        for module, names in modules.items()
    ]
    homes = {module: group for group, module, _ in named}
    for file in sorted((sources / "rs_keras").rglob("*.py")):
        path = file.parent if file.name == "__init__.py" else file
        parts = path.relative_to(sources).with_suffix("").parts
        module, package = ".".join(parts), ".".join(parts[:-1])
        if module not in homes and exported(sources, module):
            named.append((homes[package], module, ""))
    return sorted(named, key=lambda entry: list(GROUPS).index(entry[0]))


def load(sources: Path) -> Package:
    """Reads what `lay_out` made; imports nothing."""
    return griffe.load(
        "rs_keras",
        extensions=griffe.load_extensions(KerasDocstrings),
        search_paths=[sources],
        try_relative_path=False,
    )


def index(pages: Iterable[Page], package: Package) -> str:
    """Returns Markdown: what there is, each with the first line it says."""
    lines, group = [], ""
    for page in pages:
        if page.group != group:
            group = page.group
            lines += ["", f"## {group}", "", "| | |", "| --- | --- |"]
        names = [page.identifier]
        names += [f"{page.identifier}.{name}" for name in page.members or ()]
        for name in names:
            first = " ".join(_paragraphs(package, name)[0].split())
            lines += [f"| [`{name}`][{name}] | {_as_cell(first)} |"]
    return "\n".join(lines)


def formulas(package: Package) -> str:
    """Returns Markdown: each method, to the end of its formula."""
    lines = []
    trainers = package.members["trainers"].members["methods"].members
    for method in trainers:
        identifier = f"rs_keras.trainers.{method}"
        told = _paragraphs(package, identifier)
        blocks = (n for n, text in enumerate(told) if text.startswith("    "))
        heading = f"## [{method}][{identifier}]"
        lines += [heading, *told[: next(blocks, 0) + 1]]
    return "\n\n".join(lines)


def _paragraphs(package: Package, identifier: str) -> list[str]:
    found = package
    for name in identifier.split(".")[1:]:
        found = found.members[name]
    return (found.docstring.value if found.docstring else "").split("\n\n")


def _as_cell(text: str) -> str:
    return re.sub(r"\\?([*_<>|\[\]])", r"\\\1", text)


def lay_out(target: Path) -> None:
    """Copies the package's sources to `target` as they install."""
    no_caches = shutil.ignore_patterns("__pycache__")
    home, *beside = map(Path, rs_keras.__path__)
    shutil.copytree(home, target / "rs_keras", ignore=no_caches)
    for checkout in beside:
        for room in ROOMS:
            inside = target / "rs_keras" / room
            shutil.copytree(checkout / room, inside, ignore=no_caches)
