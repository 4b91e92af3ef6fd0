"""The signatures of an export: names, inputs and outputs.

The table is `signatures.toml`: the exporter builds these signatures, servers
and clients read them. Every tensor has the batch in front, so that a server may
put requests together; the outputs of an image stand in its row, whatever rows
are beside it.

This module imports nothing but the standard library.
"""

import tomllib
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

# The signature of requests that name none: `predict`.
DEFAULT = "serving_default"

PREDICT = "predict"
CERTIFY = "certify"
CERTIFY_WITH = "certify_with"
DECIDE = "decide"
SAMPLE = "sample"
BOUND = "bound"
DESCRIBE = "describe"
LOGITS = "logits"
PREPARE = "prepare"
PREPARE_BYTES = "prepare_bytes"
PREDICT_BYTES = "predict_bytes"
CERTIFY_BYTES = "certify_bytes"

# The `k2` of a row that wants the bound on one class alone.
NO_RUNNER_UP = -1

# Dimensions that differ from export to export.
IMAGE = "image"
CLASSES = "classes"


@dataclass(frozen=True)
class Field:
    """One input or output.

    Attributes:
        dtype: As TensorFlow names it.
        shape: Of one row: numbers, IMAGE (height, width and channels) or
            CLASSES.
        meaning: In one line.

    Example:

    >>> from rs_keras.export import signature
    >>> certify = signature.SIGNATURES["certify"]
    >>> field = certify.outputs["n"]
    >>> field.dtype, field.shape, field.meaning
    ('int64', (), 'draws really made; 0 for a row that was refused')
    """

    dtype: str
    shape: tuple[int | str, ...]
    meaning: str

    def row_shape(
        self, image_shape: Sequence[int], num_classes: int
    ) -> tuple[int, ...]:
        """Returns the shape of one row in a given export.

        Example:

        >>> from rs_keras.export import signature
        >>> images = signature.SIGNATURES["sample"].inputs["images"]
        >>> images.row_shape([28, 28, 1], num_classes=10)
        (28, 28, 1)
        """
        known = {IMAGE: image_shape, CLASSES: [num_classes]}
        sizes = [known.get(str(size), [size]) for size in self.shape]
        return tuple(int(size) for part in sizes for size in part)


@dataclass(frozen=True)
class Signature:
    """The inputs and outputs of one signature, by name.

    Example:

    >>> from rs_keras.export import signature
    >>> decide = signature.SIGNATURES[signature.DECIDE]
    >>> list(decide.inputs), list(decide.outputs)
    (['images', 'radius'],
     ['certified', 'label', 'counts', 'n', 'seed', 'export'])
    """

    inputs: Mapping[str, Field]
    outputs: Mapping[str, Field]


def _fields(table: Mapping[str, Any]) -> dict[str, Field]:
    return {
        name: Field(dtype, tuple(shape), meaning)
        for name, (dtype, shape, meaning) in table.items()
    }


def _read_signatures() -> dict[str, Signature]:
    path = Path(__file__).with_name("signatures.toml")
    tables = tomllib.loads(path.read_text(encoding="utf-8"))
    signatures = {}
    for name, table in tables.items():
        outputs = table["outputs"]
        if isinstance(outputs, str):
            outputs = tables[outputs]["outputs"]
        signatures[name] = Signature(_fields(table["inputs"]), _fields(outputs))
    return signatures


_ALL = _read_signatures()

# Internal: for a server that cuts long requests into short ones.
INTERNAL_SIGNATURES: Mapping[str, Signature] = MappingProxyType(
    {name: _ALL.pop(name) for name in (PREPARE, PREPARE_BYTES)}
)
# Optional: only in exports with `image_bytes`.
BYTES_SIGNATURES: Mapping[str, Signature] = MappingProxyType(
    {name: _ALL.pop(name) for name in (PREDICT_BYTES, CERTIFY_BYTES)}
)
SIGNATURES: Mapping[str, Signature] = MappingProxyType(_ALL)
