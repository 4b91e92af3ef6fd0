"""Docstrings as Keras writes them, turned into Markdown for the API pages."""

import re

import griffe

# Titles that the format of the docstrings does not know.
TITLE = re.compile(r"^(Examples?|References|Formula):$")
# "> 0" at the start of a line or of an argument's text: would be a quotation.
LARGER = re.compile(r"^(\s*(?:\w+: )?)>(?!>> )")


def _fenced(lines: list[str]) -> list[str]:
    """Puts every run of lines that begins with `>>>` into a code fence."""
    found: list[str] = []
    indent = None
    for line in [*lines, ""]:
        if indent is None and line.lstrip().startswith(">>> "):
            indent = line[: len(line) - len(line.lstrip())]
            found.append(f"{indent}```pycon")
        if indent is not None and not line.strip():
            found.append(f"{indent}```")
            indent = None
        found.append(line)
    return found[:-1]


def _titled(lines: list[str]) -> list[str]:
    """Sets off titles from what follows; keeps text from being markup."""
    found: list[str] = []
    for line in lines:
        line = LARGER.sub(r"\1\>", line)
        found += [f"**{line}**", ""] if TITLE.match(line) else [line]
    return found


def markdown_of(text: str) -> str:
    """Returns a docstring in which examples and references are Markdown.

    Example:

    >>> print(markdown_of("Adds.\\n\\nExample:\\n\\n>>> 1 + 1\\n2"))
    Adds.
    <BLANKLINE>
    **Example:**
    <BLANKLINE>
    <BLANKLINE>
    ```pycon
    >>> 1 + 1
    2
    ```
    """
    return "\n".join(_fenced(_titled(text.splitlines())))


class KerasDocstrings(griffe.Extension):
    """Rewrites every docstring of the package before it is parsed."""

    def on_instance(self, *, obj: griffe.Object, **kwargs: object) -> None:
        if obj.docstring:
            obj.docstring.value = markdown_of(obj.docstring.value)

    def on_package(self, *, pkg: griffe.Module, **kwargs: object) -> None:
        _prefer_names_to_modules(pkg)


def _prefer_names_to_modules(module: griffe.Module) -> None:
    """Shows `models.lenet` as what it is, a function, not its module."""
    for member in module.modules.values():
        if not member.is_alias:
            _prefer_names_to_modules(member)
    for name, target in module.imports.items():
        if target == f"{module.path}.{name}.{name}":
            for alias in module.members.values():
                if isinstance(alias, griffe.Alias):
                    alias.resolve_target()
            module.set_member(name, module.members[name].members[name])
