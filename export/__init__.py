"""The certifier as a SavedModel for TF Serving."""

from importlib import import_module
from typing import TYPE_CHECKING
from typing import Any

if TYPE_CHECKING:
    from rs_keras.export.exporter import export_certifier as export_certifier

__all__ = ["export_certifier"]


def __getattr__(name: str) -> Any:
    # Loaded when first used: clients read `signature` without TensorFlow.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("rs_keras.export.exporter"), name)
