"""Configurations: the arguments of `__init__`, read from an object."""

import inspect
from typing import Any


def argument_names(cls: type, root: type) -> list[str]:
    """Returns the names of all arguments of `cls.__init__`.

    What a class passes on to its bases with `**kwargs` is collected from them.

    Args:
        cls: The class.
        root: The last of its bases whose arguments count.
    """
    names: dict[str, None] = {}
    for base in cls.__mro__:
        if not issubclass(base, root):
            break
        for name, parameter in inspect.signature(
            base.__init__
        ).parameters.items():
            named = parameter.kind is parameter.POSITIONAL_OR_KEYWORD
            if named and name != "self":
                names[name] = None
    return list(names)


def arguments_of(instance: Any, root: type) -> dict[str, Any]:
    """Returns the arguments of `__init__`, each the attribute of its name."""
    names = argument_names(type(instance), root)
    return {name: getattr(instance, name) for name in names}
