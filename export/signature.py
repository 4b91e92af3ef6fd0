"""What an export is asked and what it answers: the names, defined once.

The exporter builds these signatures, servers and clients read them. Every
tensor has the batch in front, so that a server may put requests together; what
is said of an image holds for its row, whatever rows are beside it.

This module imports nothing but the standard library.
"""

from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from types import MappingProxyType

# What a client gets that names no signature: `predict`.
DEFAULT = "serving_default"

PREDICT = "predict"
CERTIFY = "certify"
CERTIFY_WITH = "certify_with"
DECIDE = "decide"
SAMPLE = "sample"
BOUND = "bound"
DESCRIBE = "describe"
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
        sizes: list[int] = []
        for size in self.shape:
            if size == IMAGE:
                sizes.extend(image_shape)
            else:
                sizes.append(num_classes if size == CLASSES else int(size))
        return tuple(sizes)


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


_IMAGES = Field("float32", (IMAGE,), "pixels in [0, 1]")
_IMAGE_BYTES = Field("string", (), "a PNG or JPEG file")
_SEED = Field("int64", (2,), "of the noise")
_LABEL = Field("int64", (), "class, or -1: it abstains")
_COUNTS = Field("int64", (CLASSES,), "votes")
_N = Field("int64", (), "draws really made; 0 for a row that was refused")
_ALPHA = Field("float64", (), "probability of a wrong answer, in (0, 1)")
_P_LOWER = Field("float64", (), "lower confidence bound on the class")
_RADIUS = Field("float64", (), "L2, in pixel units; 0 where it abstains")

_EXPORT = Field("int64", (), "which export answers: `metadata.identity`")

_PREDICTED = {
    "label": _LABEL,
    "counts": _COUNTS,
    "p_value": Field("float64", (), "of the test of the two top classes"),
    "n": _N,
    "seed": _SEED,
    "export": _EXPORT,
}
_CERTIFIED = {
    "label": _LABEL,
    "radius": _RADIUS,
    "p_lower": _P_LOWER,
    "counts": Field("int64", (CLASSES,), "votes of the estimation round"),
    "selection_counts": Field(
        "int64", (CLASSES,), "votes of the selection round"
    ),
    "n": _N,
    "seed": _SEED,
    "export": _EXPORT,
}

SIGNATURES: Mapping[str, Signature] = MappingProxyType(
    {
        PREDICT: Signature({"images": _IMAGES}, _PREDICTED),
        CERTIFY: Signature({"images": _IMAGES}, _CERTIFIED),
        CERTIFY_WITH: Signature(
            {
                "images": _IMAGES,
                "seed": _SEED,
                "n0": Field("int64", (), "draws that select the class, >= 1"),
                "n": Field("int64", (), "draws that bound it, >= 1"),
                "alpha": _ALPHA,
            },
            _CERTIFIED,
        ),
        DECIDE: Signature(
            {
                "images": _IMAGES,
                "radius": Field("float64", (), "L2, in pixel units, >= 0"),
            },
            {
                "certified": Field(
                    "bool", (), "whether the label stays within the radius"
                ),
                "label": Field("int64", (), "class, or -1: not certified"),
                "counts": Field("int64", (CLASSES,), "votes looked at"),
                "n": _N,
                "seed": _SEED,
                "export": _EXPORT,
            },
        ),
        SAMPLE: Signature(
            {
                "images": _IMAGES,
                "seed": _SEED,
                "first": Field("int64", (), "number of the first draw, >= 0"),
                "n": Field("int64", (), "draws"),
            },
            {"counts": _COUNTS, "n": _N, "export": _EXPORT},
        ),
        BOUND: Signature(
            {
                "k": Field("int64", (), "votes for the selected class"),
                "k2": Field(
                    "int64", (), "the most votes for another; -1: not looked at"
                ),
                "n": Field("int64", (), "draws"),
                "alpha": _ALPHA,
            },
            {"p_lower": _P_LOWER, "radius": _RADIUS, "export": _EXPORT},
        ),
        DESCRIBE: Signature(
            {"query": Field("int64", (), "any number")},
            {"metadata_json": Field("string", (), "see export/metadata.py")},
        ),
    }
)

# Only where the export was asked for them.
BYTES_SIGNATURES: Mapping[str, Signature] = MappingProxyType(
    {
        PREDICT_BYTES: Signature({"image_bytes": _IMAGE_BYTES}, _PREDICTED),
        CERTIFY_BYTES: Signature({"image_bytes": _IMAGE_BYTES}, _CERTIFIED),
    }
)
