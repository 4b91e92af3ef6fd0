"""The registry of data sets: names, facts, and how to open one."""

import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from rs_keras._checks import check_choice
from rs_keras._paths import expanded
from rs_keras.datasets import readers
from rs_keras.datasets.photographs import Resize
from rs_keras.datasets.photographs import split_name
from rs_keras.datasets.sources import Source

_BUNDLED = Path(__file__).parents[1] / "data" / "fashion_mini.npz"


@dataclass(frozen=True)
class DatasetInfo:
    """What is known of a data set without reading it.

    Attributes:
        name: As in `load`.
        image_shape: (H, W, C) of what `load` yields.
        num_classes: Labels are 0 .. num_classes - 1.
        class_names: In the order of the labels; None where the data set's own
            files tell.
        mean: Of each channel, for a model's normalisation; None for none, the
            references' choice for MNIST and its likes.
        std: Of each channel; as `mean`.
        augmentation: Of training passes: None, "crop_and_flip" (shifts up to
            4 pixels, mirrors) or "resized_crop" (a random part at 224x224,
            mirrors; test images: shorter side 256, centre 224).
        splits: What `load` takes as `split`.

    Example:

    >>> from rs_keras import datasets
    >>> found = datasets.REGISTRY["fashion_mini"]
    >>> found.image_shape, found.num_classes, found.class_names[9]
    ((28, 28, 1), 10, 'Ankle boot')
    >>> found.augmentation is None, datasets.REGISTRY["cifar10"].augmentation
    (True, 'crop_and_flip')
    """

    name: str
    image_shape: tuple[int, int, int]
    num_classes: int
    class_names: tuple[str, ...] | None = None
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    augmentation: str | None = None
    splits: tuple[str, ...] = ("train", "test")


def _read_registry() -> dict[str, DatasetInfo]:
    path = Path(__file__).with_name("registry.toml")
    table = tomllib.loads(path.read_text(encoding="utf-8"))
    class_names = table.pop("class_names")

    def entry(name: str, facts: dict[str, Any]) -> DatasetInfo:
        if "class_names" in facts:
            facts["class_names"] = class_names[facts["class_names"]]
        for key, value in facts.items():
            facts[key] = tuple(value) if isinstance(value, list) else value
        return DatasetInfo(name, **facts)

    return {name: entry(name, facts) for name, facts in table.items()}


REGISTRY = _read_registry()
_WITH_VARIANTS = ("mnist_corrupted", "cifar10_corrupted")
_FROM_DISK: dict[str, Callable[[Path], readers.Contents]] = {
    "npz": readers.npz_contents,
    "image_folder": readers.folder_contents,
}


def names() -> list[str]:
    """The names that `load` takes; "npz:PATH" and the like are patterns.

    Example:

    >>> from rs_keras import datasets
    >>> "mnist" in datasets.names(), datasets.names()[-1]
    (True, 'image_folder:PATH')
    """
    return [*REGISTRY, *(f"{kind}:PATH" for kind in _FROM_DISK)]


def info(name: str, data_dir: str | Path | None = None) -> DatasetInfo:
    """Describes a data set.

    Args:
        name: As in `load`.
        data_dir: As in `load`; what `npz:` and `image_folder:` paths are
            relative to.

    Returns:
        A `DatasetInfo`. Those of the registry are known without reading.

    Raises:
        ValueError: For an unknown name (the nearest is named), or a file or
            folder that is not laid out as `load` says.
        OSError: If the file or folder is missing.

    Example:

    >>> from rs_keras import datasets
    >>> datasets.info("cifar10").image_shape
    (32, 32, 3)
    """
    plain, resize = split_name(name)
    kind, path = _parse(plain, data_dir)
    _check_resized(kind, name, resize)
    if path is None:
        return REGISTRY[kind]
    contents = _contents(kind, path, _written(path), resize)
    return DatasetInfo(
        name,
        contents.image_shape,
        len(contents.class_names),
        contents.class_names,
        splits=contents.splits,
    )


def check_name(name: str) -> None:
    """Raises a ValueError for a name of no data set, naming the nearest."""
    kind, colon, _ = str(name).partition(":")
    if colon and kind in _FROM_DISK:
        return
    base, variant, _ = str(name).partition("/")
    if base in REGISTRY and (base in _WITH_VARIANTS or not variant):
        return
    check_choice("name", name, names())


def open_split(name: str, split: str, data_dir: str | Path | None) -> Source:
    """Opens a split, or returns it from the cache, as for every epoch."""
    plain, resize = split_name(name)
    kind, path = _parse(plain, data_dir)
    _check_resized(kind, name, resize)
    if path is not None:
        return _open_path(kind, path, split, _written(path), resize)
    check_choice("split", split, REGISTRY[kind].splits)
    root = None if data_dir is None else expanded(data_dir)
    return _open(name, split, root)


def _parse(name: str, data_dir: str | Path | None) -> tuple[str, Path | None]:
    """Returns the registry's name, or the kind and the path of a pattern."""
    check_name(name)
    kind, colon, path = name.partition(":")
    if not colon:
        return name.partition("/")[0], None
    if not path:
        raise ValueError(
            f"`name` must say where: {kind}:PATH. Received: name={name!r}"
        )
    root = expanded(data_dir or ".")
    return kind, (root / expanded(path)).resolve()


def _check_resized(kind: str, name: str, resize: Resize | None) -> None:
    """Refuses to resize what has one size: its images are as published."""
    if resize is not None and kind != "image_folder":
        raise ValueError(
            "`resize` needs image_folder:PATH, or image files. "
            f"Received: {name}"
        )


def _written(path: Path) -> int:
    """Returns when a file was written; a changed file is read again."""
    return path.stat().st_mtime_ns if path.exists() else 0


@lru_cache(maxsize=4)
def _contents(
    kind: str, path: Path, written: int, resize: Resize | None
) -> readers.Contents:
    if resize is not None:
        return readers.folder_contents(path, resize)
    return _FROM_DISK[kind](path)


@lru_cache(maxsize=4)
def _open_path(
    kind: str, path: Path, split: str, written: int, resize: Resize | None
) -> Source:
    if kind == "npz":
        return readers.npz_source(path, split)
    contents = _contents(kind, path, written, resize)
    return readers.folder_source(path, split, contents, resize)


@lru_cache(maxsize=4)
def _open(name: str, split: str, root: Path | None) -> Source:
    base = name.partition("/")[0]
    if base == "fashion_mini":
        return readers.npz_source(_BUNDLED, split)
    if base == "imagenet2012":
        return readers.imagenet_source(split, root)
    readers.check_variant(name, base)
    augmented = REGISTRY[base].augmentation is not None
    return readers.tfds_source(name, split, root, augmented)
