"""What an export holds, in words.

This module imports nothing but the standard library.
"""

import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rs_keras.export import metadata
from rs_keras.export import signature
from rs_keras.export import versions

# Told in the order of a reader's questions; `describe` holds all.
_FACTS = (
    "sigma",
    "noise",
    "dtype",
    "n0",
    "n",
    "alpha",
    "runner_up",
    "max_radius",
    "predict_n",
    "decide_n",
    "decide_max_radius",
    "max_n",
    "seed",
    "num_classes",
    "class_names",
    "classifier_sha256",
    "library",
    "tensorflow",
)
_INDENT = "  "


def show(directory: str | Path) -> str:
    """Describes the newest version in a folder, or the version that it is.

    Raises:
        FileNotFoundError: If there is no export.
        ValueError: If what it says of itself cannot be read.
    """
    place = Path(directory)
    numbers = versions.existing(place)
    if (place / metadata.FILE).is_file() or not numbers:
        return _version(place)
    others = ", ".join(str(number) for number in numbers)
    newest = _version(versions.folder_of(place, numbers[-1]))
    return f"{place}: versions {others}\n{newest}"


def _version(folder: Path) -> str:
    facts = metadata.read(folder)
    weights = _size(folder / "variables")
    lines = [
        f"{folder}: {_size(folder) / 1e6:.2f} MB, {weights / 1e6:.2f} of them "
        "weights",
        *(f"{_INDENT}{name}: {_value(facts[name])}" for name in _FACTS),
        *textwrap.wrap(
            facts["guarantee"],
            80,
            initial_indent=_INDENT,
            subsequent_indent=_INDENT,
        ),
    ]
    known = {
        signature.DEFAULT: signature.SIGNATURES[signature.PREDICT],
        **signature.SIGNATURES,
        **signature.BYTES_SIGNATURES,
    }
    sizes = facts["image"]["shape"], facts["num_classes"]
    for name, fields in known.items():
        if name in facts["signatures"]:
            lines.append(f"{_INDENT}{name}")
            lines += _fields("in ", fields.inputs, *sizes)
            lines += _fields("out", fields.outputs, *sizes)
    return "\n".join(lines)


def _fields(
    arrow: str,
    fields: Mapping[str, signature.Field],
    image_shape: list[int],
    num_classes: int,
) -> list[str]:
    lines = []
    for name, field in fields.items():
        sizes = ["B", *field.row_shape(image_shape, num_classes)]
        kind = f"{field.dtype}[{', '.join(map(str, sizes))}]"
        lines.append(
            f"{_INDENT * 2}{arrow} {name:<17}{kind:<26}{field.meaning}"
        )
    return lines


def _value(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return str(value)


def _size(folder: Path) -> int:
    return sum(p.stat().st_size for p in folder.rglob("*") if p.is_file())
