"""The metadata of an export: the answer of `describe`, and a file.

This module imports nothing but the standard library.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

# In `assets.extra`, which TensorFlow never reads.
FILE = "assets.extra/rs_keras.json"

# Incremented when a field or an output of a signature changes its meaning.
FORMAT = 3

# These fields do not affect what is certified. (`limits` is of the embedded
# server that answers, not of the export.)
NOT_COMPARED = ("library", "tensorflow", "guarantee", "limits")

_SECRET = (
    "The seeds that the server makes rest on a secret in the files of this "
    "export (saved_model.pb): whoever knows it can predict the noise and make "
    "images that are certified falsely. If it leaks, export again with "
    "another secret and remove this version."
)


def to_json(metadata: dict[str, Any]) -> str:
    """Returns the text that `describe` answers: equal exports, equal text.

    Example:

    >>> from rs_keras.export import metadata
    >>> metadata.to_json({"sigma": 0.5, "n": 1000})
    '{"n": 1000, "sigma": 0.5}'
    """
    return json.dumps(metadata, sort_keys=True, ensure_ascii=False)


def identity(metadata: Mapping[str, Any]) -> int:
    """Returns the number with which every response identifies the export.

    Exports whose votes may be added up have the same number: all fields except
    `NOT_COMPARED` are equal. (The hash of one classifier may differ between
    releases of TensorFlow or Keras.)

    Example:

    >>> from rs_keras.export import metadata
    >>> facts = {"sigma": 0.5, "tensorflow": "2.21"}
    >>> one = metadata.identity(facts)
    >>> one == metadata.identity({**facts, "tensorflow": "2.20"})
    True
    >>> one == metadata.identity({**facts, "sigma": 0.25})
    False
    """
    compared = {k: v for k, v in metadata.items() if k not in NOT_COMPARED}
    text = to_json(compared).encode()
    digest = hashlib.blake2b(text, digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)


def read(version: str | Path) -> dict[str, Any]:
    """Reads the metadata of the SavedModel in a folder.

    Args:
        version: The folder of one version, as `exports/mnist/1`.

    Raises:
        FileNotFoundError: If the folder is not an export of this package.
        ValueError: If the file in it cannot be read.

    Example:

    >>> from rs_keras.export import metadata
    >>> text = metadata.to_json({"format": metadata.FORMAT, "sigma": 0.5})
    >>> metadata.write("exports/mnist/1", text)
    >>> metadata.read("exports/mnist/1")["sigma"]
    0.5
    """
    path = Path(version) / FILE
    if not path.is_file():
        raise FileNotFoundError(
            f"no export of rs-keras: {version} (it has no {FILE})"
        )
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"cannot read {path}: {error}") from error
    number = facts.get("format") if isinstance(facts, dict) else None
    if number != FORMAT:
        raise ValueError(
            f"{path} is not of format {FORMAT}: export it again. "
            f"Received: format={number!r}"
        )
    return facts


def write(version: str | Path, text: str) -> None:
    """Writes the text of `describe` beside the model.

    Example:

    >>> from pathlib import Path
    >>> from rs_keras.export import metadata
    >>> metadata.write("exports/mnist/1", metadata.to_json({"sigma": 0.5}))
    >>> Path("exports/mnist/1", metadata.FILE).read_text()
    '{"sigma": 0.5}'
    """
    path = Path(version) / FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def guarantee(metadata: dict[str, Any]) -> str:
    """Returns a text on what a certificate of this export guarantees.

    Example:

    >>> from rs_keras.export import metadata
    >>> facts = {"sigma": 0.5, "noise": "float", "alpha": 0.001, "n0": 100,
    ...          "n": 10_000, "bound": "joint", "runner_up": True,
    ...          "seed": "fresh"}
    >>> metadata.guarantee(facts)[:66]
    'For each image by itself, with probability at least 1 - 0.001 over'
    """
    about = {
        "float": "pixels in [0, 1], in real arithmetic",
        "grid": "pixels that are multiples of 1/255, to which they are rounded "
        "(the noise on that grid is exact)",
    }[metadata["noise"]]
    bound = "the Clopper-Pearson bound on the "
    bound += "two top classes" if metadata["runner_up"] else "top class"
    if metadata.get("bound") == "joint":
        bound = "one exact test of the votes for the two top classes"
    again = {
        "fresh": "Asking again draws again, and may err again.",
        "keyed": "The same image gets the same noise whenever it is sent.",
    }[metadata["seed"]]
    if metadata["seed"] == "keyed" and metadata["noise"] == "float":
        again += " (Another last bit of a pixel makes another image.)"
    resized = ""
    if "resize" in metadata:
        height, width = metadata["resize"]
        resized = (
            f" Photographs are resized to {height} x {width} before "
            f"({metadata['fit']}): all of this is about the resized image."
        )
    return (
        "For each image by itself, with probability at least "
        f"1 - {metadata['alpha']} over the noise, the label of `certify` is "
        f"that of the classifier smoothed with sigma = {metadata['sigma']}, "
        "and it stays the same within `radius` (L2, in pixel units). This "
        f"rests on {bound}, from {metadata['n']} draws after "
        f"{metadata['n0']} that select the class, and is about {about}. The "
        "same holds of `decide`, where it says `certified`, within the radius "
        "that was asked for: it bounds the two top classes, after as few draws "
        f"as it takes. {again}{resized} {_SECRET}"
    )
