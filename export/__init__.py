"""The certifier as a SavedModel for TF Serving."""

from typing import TYPE_CHECKING

from rs_keras._lazy import attach

if TYPE_CHECKING:
    from rs_keras.export.exporter import export_certifier as export_certifier

# Loaded when first used: clients read `signature` without TensorFlow.
__all__, __getattr__, __dir__ = attach(__name__)
