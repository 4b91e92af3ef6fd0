"""Training runs in folders, which resume bit for bit."""

from typing import TYPE_CHECKING

from rs_keras._lazy import attach

if TYPE_CHECKING:
    from rs_keras.trainers.runs.snapshots import fit as fit
    from rs_keras.trainers.runs.training import train as train

__all__, __getattr__, __dir__ = attach(__name__)
