"""Names of a package that are loaded when they are first used."""

import sys
from collections.abc import Callable
from collections.abc import Mapping
from importlib import import_module
from typing import Any


def attach(
    package: str, homes: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Returns the `__getattr__` and the `__dir__` of a package.

    Args:
        package: Its name.
        homes: The module that defines each name. A name that is the last of
            its module's is the module itself.

    Example:

    >>> from rs_keras._lazy import attach
    >>> load, names = attach("json", {"loads": "json", "tool": "json.tool"})
    >>> load("loads")("1"), load("tool").__name__, "tool" in names()
    (1, 'json.tool', True)
    """

    def load(name: str) -> Any:
        if name not in homes:
            raise AttributeError(
                f"module {package!r} has no attribute {name!r}"
            )
        module = import_module(homes[name])
        is_module = homes[name].rpartition(".")[2] == name
        value = module if is_module else getattr(module, name)
        setattr(sys.modules[package], name, value)
        return value

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *homes})

    return load, names
