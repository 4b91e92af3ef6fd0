"""Public names of a package, each imported when it is first used."""

import ast
import sys
from collections.abc import Callable
from collections.abc import Sequence
from importlib import import_module
from typing import Any


def attach(
    package: str,
    subpackages: Sequence[str] = (),
) -> tuple[list[str], Callable[[str], Any], Callable[[], list[str]]]:
    """Returns the `__all__`, the `__getattr__` and the `__dir__` of a package.

    Its names are those that its `__init__` imports under `if TYPE_CHECKING:`,
    where type checkers and the documentation find them, too. At run time each
    of these imports is made when its name is first used, so that importing
    the package does not import TensorFlow.

    Args:
        package: Its name.
        subpackages: More names: packages inside it that it must not import.

    Example:

    >>> from rs_keras import certification
    >>> from rs_keras._lazy import attach
    >>> names, load, _ = attach("rs_keras.certification")
    >>> names
    ['Certificate', 'Certifier', 'Decision', 'Prediction']
    >>> load("Decision") is certification.Decision
    True
    """
    module = sys.modules[package]
    # Of the loader: `inspect` takes longer to import than all the rest.
    source = module.__loader__.get_source(package)  # type: ignore[union-attr]
    guarded = [
        statement
        for node in ast.parse(source).body
        if isinstance(node, ast.If) and ast.unparse(node.test) == _GUARD
        for statement in node.body
    ]
    homes = {
        imported.name: str(statement.module)
        for statement in guarded
        if isinstance(statement, ast.ImportFrom)
        for imported in statement.names
    }
    homes |= dict.fromkeys(subpackages, package)

    def load(name: str) -> Any:
        if name not in homes:
            raise AttributeError(
                f"module {package!r} has no attribute {name!r}"
            )
        home = import_module(homes[name])
        if hasattr(home, "__path__"):  # of a package, one of its modules
            value = import_module(f"{homes[name]}.{name}")
        else:
            value = getattr(home, name)
        setattr(module, name, value)
        return value

    def names() -> list[str]:
        # Public names alone: not what the module itself imports.
        return sorted({*getattr(module, "__all__", ()), *homes})

    return sorted(homes), load, names


_GUARD = "TYPE_CHECKING"
