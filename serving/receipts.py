"""Receipts: certificates that can be checked later, by repeating their draws.

A receipt is one JSON object: the description of the export, the settings of the
certificate, and for each image its hash, seed, votes, label and radius. Draws
are addressed by seed and number, so whoever has the model can repeat any of
them. This shows that the votes are those of the model for this image and seed,
and that the radius follows from them; it does not show how the seed was chosen.
"""

import hashlib
import json
import math
import re
import reprlib
from collections.abc import Callable
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from typing import NamedTuple
from typing import Protocol

import numpy as np

import rs_keras
from rs_keras.certification.certificate import Certificate
from rs_keras.certification.sample_size import sample_sizes
from rs_keras.certification.spec import CertifySpec
from rs_keras.export import metadata as metadata_lib
from rs_keras.noise.draws import POSITION_BITS
from rs_keras.serving.client import answers
from rs_keras.serving.client import metadata_check
from rs_keras.serving.client.served_model import ServedModel

# Incremented when a field changes its meaning.
FORMAT = 1
_MOST_BYTES = 64 * 2**20
_NEEDED = ("n0", "n", "alpha", "bound", "runner_up")
_OPTIONAL = ("tolerance", "max_radius")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_VOTES = ("selection_counts", "counts", "n", "seed")
# Of results that two machines compute from the same votes.
_RTOL = 1e-9
_ATOL = 1e-12


class Row(NamedTuple):
    """What a receipt claims of one image.

    Attributes:
        image_sha256: Hash of the image, see `image_hash`.
        seed: int64 [2].
        n: Draws of the estimation round.
        selection_counts: int64 [C].
        counts: int64 [C].
        label: The class, or -1.
        radius: L2, in pixel units.
        p_lower: Lower confidence bound on the class.
    """

    image_sha256: str
    seed: np.ndarray
    n: int
    selection_counts: np.ndarray
    counts: np.ndarray
    label: int
    radius: float
    p_lower: float


class Receipt(NamedTuple):
    """A receipt, with its fields checked; not whether they are true.

    Attributes:
        model: The export.
        spec: The arguments of the certificates.
        rows: What is claimed of each image.
    """

    model: ServedModel
    spec: CertifySpec
    rows: tuple[Row, ...]


class Source(Protocol):
    """What repeats draws: a `Certifier` or a `CertificationClient`."""

    def sample(
        self, images: Any, n: int, seed: Any, first: int
    ) -> np.ndarray: ...


def image_hash(image: Any) -> str:
    """Returns the hash of an image [H, W, C], as the model gets it.

    SHA-256 of the text "HEIGHT,WIDTH,CHANNELS" with a line break, and of the
    pixels as float32 (little-endian, row by row).

    Example:

    >>> import numpy as np
    >>> from rs_keras.serving import receipts
    >>> receipts.image_hash(np.zeros([2, 2, 1]))[:16]
    'dd93c9fc8fb74fff'
    """
    pixels = np.asarray(image).astype("<f4")
    digest = hashlib.sha256(f"{','.join(map(str, pixels.shape))}\n".encode())
    digest.update(pixels.tobytes())
    return digest.hexdigest()


def write(model: ServedModel, images: np.ndarray, found: Certificate) -> str:
    """Returns the receipt of a certificate, as JSON.

    Args:
        model: The export that made the draws.
        images: float32 [B, H, W, C].
        found: The certificate of these images.
    """
    names = (*_NEEDED, *_OPTIONAL)
    rows = [
        {
            "image_sha256": image_hash(image),
            **{
                name: getattr(found, name)[row].tolist()
                for name in Row._fields[1:]
            },
        }
        for row, image in enumerate(images)
    ]
    receipt = {
        "receipt": FORMAT,
        "library": f"rs-keras {rs_keras.__version__}",
        "model": model.name,
        "version": model.version,
        "identity": model.identity,
        "export": dict(model.metadata),
        "settings": {k: v for k, v in found.settings.items() if k in names},
        "certificates": rows,
    }
    return json.dumps(receipt, ensure_ascii=False, indent=1)


def read(path: str | Path) -> Receipt:
    """Reads a receipt and checks each field.

    Raises:
        OSError: If the file cannot be read.
        ValueError: If it is not a receipt, or one that nobody can have
            received, such as more votes than draws.

    Example:

    >>> from pathlib import Path
    >>> from rs_keras.serving import receipts
    >>> _ = Path("receipt.json").write_text('{"receipt": 7}')
    >>> try:
    ...     receipts.read("receipt.json")
    ... except ValueError as error:
    ...     print(error)
    `RECEIPT` must be of format 1. Received: receipt=7
    """
    with open(path, "rb") as file:
        text = file.read(_MOST_BYTES + 1)
    if len(text) > _MOST_BYTES:
        raise ValueError(
            f"`RECEIPT` must have at most {_MOST_BYTES} bytes. Received: {path}"
        )
    try:
        table = json.loads(
            text.decode(), object_pairs_hook=_once, parse_constant=_no_constant
        )
    except (ValueError, RecursionError) as error:
        raise ValueError(
            f"`RECEIPT` must be a JSON file. Received: {path} ({error})"
        ) from error
    return _parse(table)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Refuses names that come twice: programs differ in which they read."""
    table = dict(pairs)
    if len(table) < len(pairs):
        raise ValueError("a name is given twice")
    return table


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _must(holds: bool, name: str, rule: str, value: Any) -> None:
    if not holds:
        raise ValueError(
            f"`RECEIPT` must have `{name}` {rule}. "
            f"Received: {name}={reprlib.repr(value)}"
        )


def _parse(table: Any) -> Receipt:
    number = table.get("receipt") if isinstance(table, dict) else None
    if number != FORMAT:
        raise ValueError(
            f"`RECEIPT` must be of format {FORMAT}. "
            f"Received: receipt={reprlib.repr(number)}"
        )
    model = _parse_model(table)
    spec = _parse_settings(table.get("settings"), model)
    rows = table.get("certificates")
    listed = isinstance(rows, list) and bool(rows)
    _must(listed, "certificates", "as a list of at least one", rows)
    return Receipt(model, spec, tuple(_parse_row(r, model, spec) for r in rows))


def _parse_model(table: Mapping[str, Any]) -> ServedModel:
    name: Any = table.get("model")
    version: Any = table.get("version")
    _must(isinstance(name, str), "model", "as a string", name)
    _must(_is_whole(version, 1), "version", "as a whole number >= 1", version)
    export: Any = table.get("export")
    _must(isinstance(export, dict), "export", "as an object", export)
    known = export.get("format") == metadata_lib.FORMAT
    rule = f"of format {metadata_lib.FORMAT}"
    _must(known, "export", rule, export.get("format"))
    try:
        metadata_check.check(export)
    except ValueError as error:
        raise ValueError(f"`RECEIPT` has no valid `export`: {error}") from error
    model = ServedModel(name, version, export)
    same = table.get("identity") == model.identity
    rule = "of the export that it describes"
    _must(same, "identity", rule, table.get("identity"))
    return model


def _parse_settings(settings: Any, model: ServedModel) -> CertifySpec:
    names = {*settings} if isinstance(settings, dict) else set()
    known = {*_NEEDED} <= names <= {*_NEEDED, *_OPTIONAL}
    _must(known, "settings", f"with {', '.join(_NEEDED)}", settings)
    try:
        return model.certify_spec(**settings)
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(
            f"`RECEIPT` has no valid `settings`: {error}"
        ) from error


def _parse_row(row: Any, model: ServedModel, spec: CertifySpec) -> Row:
    names = {*row} if isinstance(row, dict) else set()
    rule = f"with {', '.join(Row._fields)}"
    _must(names == {*Row._fields}, "certificates", rule, row)
    for name, (rule, holds) in _rules(
        model.num_classes, spec, row["n"]
    ).items():
        _must(holds(row[name]), name, rule, row[name])
    fields: dict[str, Any] = {
        name: np.array(value, np.int64) if isinstance(value, list) else value
        for name, value in row.items()
    }
    return Row(**fields)


def _rules(
    classes: int, spec: CertifySpec, n: Any
) -> dict[str, tuple[str, Callable[[Any], bool]]]:
    """What each field of a row must be, in words and as a function."""

    def votes(draws: int) -> tuple[str, Callable[[Any], bool]]:
        return (
            f"as {classes} numbers of votes of {draws} draws",
            lambda value: (
                _are_whole(value, classes, 0, draws) and sum(value) <= draws
            ),
        )

    fixed = spec.n if spec.tolerance is None else 1
    return {
        "image_sha256": (
            "as 64 hexadecimal digits",
            lambda value: (
                isinstance(value, str) and bool(_DIGEST.fullmatch(value))
            ),
        ),
        "seed": (
            "as two numbers of 64 bits",
            lambda value: _are_whole(value, 2, -(2**63), 2**63 - 1),
        ),
        "n": (
            f"as a whole number in [{fixed}, {spec.n}]",
            lambda value: _is_whole(value, fixed, spec.n),
        ),
        "selection_counts": votes(spec.n0),
        "counts": votes(n if _is_whole(n, 1) else 0),
        "label": (
            f"as a whole number in [-1, {classes - 1}]",
            lambda value: _is_whole(value, -1, classes - 1),
        ),
        "radius": (
            "as a number >= 0",
            lambda value: _is_real(value) and value >= 0,
        ),
        "p_lower": (
            "as a number in [0, 1]",
            lambda value: _is_real(value) and 0 <= value <= 1,
        ),
    }


def _is_whole(value: Any, least: int, most: int = 2**POSITION_BITS) -> bool:
    return type(value) is int and least <= value <= most


def _are_whole(values: Any, count: int, least: int, most: int) -> bool:
    listed = isinstance(values, list) and len(values) == count
    return listed and all(_is_whole(value, least, most) for value in values)


def _is_real(value: Any) -> bool:
    return type(value) is float and math.isfinite(value)


def computed(receipt: Receipt, row: Row) -> Certificate:
    """Computes the certificate from the votes of a row."""
    votes = {name: np.asarray(getattr(row, name))[None] for name in _VOTES}
    return answers.certificate(receipt.model, receipt.spec, **votes)


def contradiction(receipt: Receipt, row: Row) -> str:
    """Says which claim does not follow from the votes; empty if all do."""
    sizes = sample_sizes(
        row.selection_counts[None], receipt.spec, receipt.model.sigma
    )
    if row.n != sizes[0]:
        return f"it claims n={row.n} where its settings give n={sizes[0]}"
    own = computed(receipt, row)
    for name in ("label", "radius", "p_lower"):
        claimed, follows = getattr(row, name), getattr(own, name)[0]
        if not np.isclose(claimed, follows, rtol=_RTOL, atol=_ATOL):
            return f"it claims {name}={claimed} where its votes give {follows}"
    return ""
