"""Describes an export in text.

This module imports nothing but the standard library.
"""

import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rs_keras.export import metadata
from rs_keras.export import signature
from rs_keras.export import versions

# In the order of a reader's questions; `describe` holds more.
_FACTS = """
sigma noise dtype n0 n alpha bound runner_up max_radius predict_n decide_n
decide_max_radius max_n seed num_classes class_names resize fit
classifier_sha256 library tensorflow
""".split()


def show(directory: str | Path) -> str:
    """Describes the newest version in a folder, or the version that it is.

    Raises:
        FileNotFoundError: If there is no export.
        ValueError: If what it says of itself cannot be read.
    """
    folder = Path(directory)
    numbers = versions.existing(folder)
    if (folder / metadata.FILE).is_file() or not numbers:
        return _version(folder)
    others = ", ".join(str(number) for number in numbers)
    newest = _version(versions.folder_of(folder, numbers[-1]))
    return f"{folder}: versions {others}\n{newest}"


def _version(folder: Path) -> str:
    facts = metadata.read(folder)
    weights = _megabytes(folder / "variables")
    lines = [
        f"{folder}: {_megabytes(folder)} MB, {weights} of them weights",
        *(f"  {n}: {_value(facts[n])}" for n in _FACTS if n in facts),
        textwrap.indent(textwrap.fill(facts["guarantee"], 78), "  "),
    ]
    signatures = {
        signature.DEFAULT: signature.SIGNATURES[signature.PREDICT],
        **signature.SIGNATURES,
        **signature.BYTES_SIGNATURES,
    }
    for name in signatures:
        if name in facts["signatures"]:
            lines.append(f"  {name}")
            lines += _fields("in ", signatures[name].inputs, facts)
            lines += _fields("out", signatures[name].outputs, facts)
    return "\n".join(lines)


def _fields(
    arrow: str, fields: Mapping[str, signature.Field], facts: dict[str, Any]
) -> list[str]:
    lines = []
    for name, field in fields.items():
        row = field.row_shape(facts["image"]["shape"], facts["num_classes"])
        kind = f"{field.dtype}[{', '.join(map(str, ['B', *row]))}]"
        lines.append(f"    {arrow} {name:<17}{kind:<26}{field.meaning}")
    return lines


def _value(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _megabytes(folder: Path) -> str:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return f"{sum(file.stat().st_size for file in files) / 1e6:.2f}"
