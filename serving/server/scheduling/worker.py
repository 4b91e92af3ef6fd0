"""A loaded model, with what the scheduler knows of it."""

import json

import numpy as np

from rs_keras.certification.sampling import pass_size
from rs_keras.export import metadata
from rs_keras.export import signature
from rs_keras.serving import tensors
from rs_keras.serving.server.grpc_errors import StatusError
from rs_keras.serving.server.runtime import SessionModel
from rs_keras.serving.server.scheduling.certifier import Arrays
from rs_keras.serving.server.scheduling.certifier import CertifierExport
from rs_keras.serving.server.scheduling.costs import DrawCost

METADATA = "metadata_json"

# Without these, an export cannot be answered in slices.
_NEEDED = {signature.DESCRIBE, signature.PREPARE, signature.SAMPLE}


class Worker:
    """A loaded model, with what the scheduler knows of it.

    Args:
        model: The model.

    Attributes:
        model: The model.
        export: What is known of a certifier; None for another model.
        cost: Of a draw.
    """

    def __init__(self, model: SessionModel) -> None:
        self.model = model
        self.export = _export_of(model)
        size = 1 if self.export is None else pass_size(self.export.image_shape)
        self.cost = DrawCost(size)

    @property
    def num_classes(self) -> int:
        """Of a certifier."""
        return 0 if self.export is None else self.export.num_classes

    def is_regular(self, name: str, inputs: Arrays) -> bool:
        """Whether a graph takes these inputs: types, shapes, equal rows."""
        rows = {len(array) if array.ndim else -1 for array in inputs.values()}
        if len(rows) != 1:
            return False
        for alias, info in self.model.signatures[name].inputs.items():
            array = inputs[alias]
            sizes = [dim.size for dim in info.tensor_shape.dim]
            if tensors.enum_of(array) != info.dtype:
                return False
            if len(sizes) != array.ndim:
                return False
            wanted = zip(sizes, array.shape, strict=True)
            if any(size not in (-1, found) for size, found in wanted):
                return False
        return True


def _export_of(model: SessionModel) -> CertifierExport | None:
    """Returns what is known of an export of this release, else None."""
    if not _NEEDED <= model.signatures.keys():
        return None
    try:
        query = {"query": np.array([0])}
        (texts,) = model.call(signature.DESCRIBE, query, [METADATA])
        facts = json.loads(texts[0])
        if facts["format"] == metadata.FORMAT:
            return CertifierExport(facts)
    except (StatusError, ValueError, KeyError, TypeError, IndexError):
        # Signatures of these names that are not ours.
        pass
    return None
