"""Readers of data sets: NumPy archives, folders, tensorflow-datasets."""

import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from rs_keras import _npz
from rs_keras._checks import check_choice
from rs_keras._checks import check_images
from rs_keras.datasets import augmentation
from rs_keras.datasets.photographs import Resize
from rs_keras.datasets.photographs import opened
from rs_keras.datasets.photographs import read_photograph
from rs_keras.datasets.sources import ArraySource
from rs_keras.datasets.sources import Source
from rs_keras.datasets.sources import StreamedSource
from rs_keras.datasets.sources import file_rows
from rs_keras.datasets.sources import record_rows

# What tensorflow-datasets or a folder may call the split that we call "test".
_TEST_NAMES = ("test", "validation", "val")
_IMAGE_SUFFIXES = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".png"})


@dataclass(frozen=True)
class Contents:
    """Splits, shape and classes of a data set outside the registry."""

    splits: tuple[str, ...]
    image_shape: tuple[int, int, int]
    class_names: tuple[str, ...]


# -- NumPy archives ----------------------------------------------------------


def npz_splits(path: Path) -> dict[str, tuple[str, str]]:
    """Returns the names of the two arrays of each split of an archive."""
    names = _npz_arrays(path, [])[1]
    splits = {
        split: (f"x_{split}", f"y_{split}")
        for split in ("train", "test")
        if {f"x_{split}", f"y_{split}"} <= names
    }
    if not splits and {"images", "labels"} <= names:
        splits = dict.fromkeys(("train", "test"), ("images", "labels"))
    if not splits:
        raise ValueError(
            "`name`: an npz file must hold x_train and y_train, x_test and "
            "y_test, or images and labels. "
            f"Received: {path} with {', '.join(sorted(names)) or 'nothing'}"
        )
    return splits


def npz_contents(path: Path) -> Contents:
    """Reads the shape and the classes of an archive."""
    splits = npz_splits(path)
    pairs = {split: _npz_pair(path, keys) for split, keys in splits.items()}
    shapes = {images.shape[1:] for images, _ in pairs.values()}
    if len(shapes) > 1:
        raise ValueError(
            "`name`: the splits of an npz file must have images of one shape. "
            f"Received: {path} with {sorted(shapes)}"
        )
    highest = max(int(labels.max()) for _, labels in pairs.values())
    names = tuple(str(label) for label in range(highest + 1))
    if "class_names" in _npz_arrays(path, [])[1]:
        (given,) = _npz_arrays(path, ["class_names"])[0]
        names = tuple(str(name) for name in given)
        if len(names) <= highest:
            raise ValueError(
                "`name`: class_names of an npz file must name every label. "
                f"Received: {path} with {len(names)} names, label {highest}"
            )
    return Contents(tuple(splits), shapes.pop(), names)


def npz_source(path: Path, split: str) -> Source:
    """Opens one split of an archive."""
    splits = npz_splits(path)
    check_choice("split", split, splits)
    return ArraySource(*_npz_pair(path, splits[split]), augmented=False)


def _npz_arrays(
    path: Path, keys: Sequence[str]
) -> tuple[list[np.ndarray], set[str]]:
    """Returns the arrays of these names, and which names there are."""
    if not path.is_file():
        raise FileNotFoundError(
            f"`name`: there is no file {path}. Received: name='npz:{path}'"
        )
    complaint = (
        "`name`: an npz file must be an archive of plain arrays, as "
        f"numpy.savez writes it. Received: {path}"
    )
    with _npz.opened(path, complaint) as archive:
        return [archive[key] for key in keys], set(archive.files)


def _npz_pair(
    path: Path, keys: tuple[str, str]
) -> tuple[np.ndarray, np.ndarray]:
    images, labels = _npz_arrays(path, keys)[0]
    if images.ndim == 3:
        images = images[..., None]
    try:
        checked = check_images(images)
    except ValueError as error:
        raise ValueError(f"`name`: {keys[0]} in {path}: {error}") from None
    whole = labels.dtype.kind in "iu" and labels.shape == images.shape[:1]
    if not whole or labels.min() < 0:
        raise ValueError(
            f"`name`: {keys[1]} in {path} must hold one whole number >= 0 for "
            f"each of the {len(images)} images. "
            f"Received: shape={list(labels.shape)}, dtype={labels.dtype}"
        )
    # uint8 stays so: a quarter of the memory, and faster to gather.
    kept = images if images.dtype == np.uint8 else checked
    return kept, labels.astype(np.int64)


# -- folders of images -------------------------------------------------------


def folder_contents(path: Path, resize: Resize | None = None) -> Contents:
    """Reads the shapes of all images of a folder, without decoding them."""
    splits = _folder_splits(path)
    names = _folder_classes(splits)
    shapes: dict[tuple[int, int, int], str] = {}
    for split in dict.fromkeys(splits.values()):
        for file in _folder_files(split, names)[0]:
            shapes.setdefault(_image_shape(file), file)
    # Grey and coloured images of one size: all are read as coloured.
    sizes = {shape[:2]: file for shape, file in shapes.items()}
    if resize is not None:
        sizes = {(resize.height, resize.width): ""}
    if len(sizes) > 1:
        (first, one), (second, other) = list(sizes.items())[:2]
        raise ValueError(
            "`name`: all images of a folder must have the same size, or be "
            "resized (--resize H,W; image_folder:PATH?resize=H,W&fit=crop). "
            f"Received: {one} of {first}, {other} of {second}"
        )
    channels = max(shape[2] for shape in shapes)
    return Contents(tuple(splits), (*next(iter(sizes)), channels), names)


def folder_source(
    path: Path, split: str, contents: Contents, resize: Resize | None = None
) -> Source:
    """Opens one split of a folder whose images all have one size, or get it."""
    folder = _folder_splits(path)[check_choice("split", split, contents.splits)]
    files, labels = _folder_files(folder, contents.class_names)
    shape = contents.image_shape

    def decode(file: tf.Tensor) -> tf.Tensor:
        if resize is not None:
            pixels = tf.numpy_function(
                lambda name: read_photograph(name.decode(), shape[-1], resize),
                [file],
                tf.uint8,
            )
            pixels = tf.ensure_shape(pixels, shape)
            return tf.cast(pixels, tf.float32) / 255.0
        image = augmentation.decode(tf.io.read_file(file), shape[-1])
        return tf.ensure_shape(image, shape)

    return StreamedSource(file_rows(files, labels), len(files), decode)


def _folder_splits(path: Path) -> dict[str, Path]:
    """Returns the folder of each split; one without splits serves as both."""
    if not path.is_dir():
        raise FileNotFoundError(
            f"`name`: there is no folder {path}. "
            f"Received: name='image_folder:{path}'"
        )
    splits = {"train": path / "train"} if (path / "train").is_dir() else {}
    for name in reversed(_TEST_NAMES):
        if (path / name).is_dir():
            splits["test"] = path / name
    return splits or {"train": path, "test": path}


def _folder_classes(splits: dict[str, Path]) -> tuple[str, ...]:
    """Returns the classes of all splits, so that labels agree."""
    folders = [f for split in splits.values() for f in split.iterdir()]
    names = {f.name for f in folders if f.is_dir() and f.name[0] != "."}
    if len(names) < 2:
        raise ValueError(
            "`name`: an image folder must hold one folder a class, at least "
            "two, either directly or inside train/ and test/. "
            f"Received: {', '.join(sorted(names)) or 'none'} in "
            f"{', '.join(str(s) for s in dict.fromkeys(splits.values()))}"
        )
    return tuple(sorted(names))


def _folder_files(
    folder: Path, classes: Sequence[str]
) -> tuple[list[str], np.ndarray]:
    """Returns the image files, by class and name, and their labels."""
    examples = [
        (str(file), label)
        for label, name in enumerate(classes)
        for file in sorted((folder / name).glob("*"))
        if file.suffix.lower() in _IMAGE_SUFFIXES
    ]
    if not examples:
        raise ValueError(
            "`name`: an image folder must hold "
            f"{', '.join(sorted(_IMAGE_SUFFIXES))} files. "
            f"Received: none in {folder}/*/"
        )
    return [file for file, _ in examples], np.array([y for _, y in examples])


def _image_shape(file: str) -> tuple[int, int, int]:
    """Returns (H, W, C) from the head of an image file."""
    with opened(file) as image:
        grey = image.mode in ("1", "L", "I", "I;16")
        return image.height, image.width, 1 if grey else 3


# -- tensorflow-datasets -----------------------------------------------------


def tfds_source(
    name: str, split: str, data_dir: Path | None, augmented: bool
) -> Source:
    """Reads one split of a small data set into memory."""
    import tensorflow_datasets as tfds

    builder = _prepared(name, data_dir)
    config = tfds.ReadConfig(
        interleave_cycle_length=1, try_autocache=False, skip_prefetch=True
    )
    data = builder.as_dataset(
        split=split, batch_size=-1, shuffle_files=False, read_config=config
    )
    images, labels = data["image"].numpy(), data["label"].numpy()
    return ArraySource(images, labels.astype(np.int64), augmented)


def imagenet_source(split: str, data_dir: Path | None) -> Source:
    """Opens ImageNet: folders of JPEG files, or tensorflow-datasets' files."""
    if data_dir is not None and (data_dir / "train").is_dir():
        folders = _folder_splits(data_dir)
        check_choice("split", split, folders)
        names = _folder_classes(folders)
        files, labels = _folder_files(folders[split], names)
        return StreamedSource(
            file_rows(files, labels),
            len(files),
            lambda file: augmentation.resized_centre(tf.io.read_file(file)),
            lambda file, numbers: augmentation.resized_crop(
                tf.io.read_file(file), numbers
            ),
        )
    builder = _prepared("imagenet2012", data_dir)
    info = builder.info.splits["train" if split == "train" else "validation"]
    return StreamedSource(
        record_rows(
            [str(file) for file in info.filepaths],
            info.shard_lengths,
            partial(_parse, builder.info.features),
        ),
        info.num_examples,
        augmentation.resized_centre,
        augmentation.resized_crop,
    )


def _parse(features: Any, record: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Parses a record, but leaves its image encoded."""
    import tensorflow_datasets as tfds

    decoders = {"image": tfds.decode.SkipDecoding()}
    example = features.deserialize_example(record, decoders=decoders)
    return example["image"], tf.cast(example["label"], tf.int64)


def check_variant(name: str, base: str) -> None:
    """Raises a ValueError if `base` has variants and `name` is none of them."""
    import tensorflow_datasets as tfds

    configs = tfds.builder_cls(base).BUILDER_CONFIGS
    if configs:
        check_choice("name", name, [f"{base}/{c.name}" for c in configs])


def _prepared(name: str, data_dir: Path | None) -> Any:
    """Returns a builder whose files are on the disk, fetched if need be."""
    import tensorflow_datasets as tfds

    builder = tfds.builder(name, data_dir=data_dir and str(data_dir))
    if builder.is_prepared():
        return builder
    advice = (
        f"Put a prepared copy at {builder.data_path} (or say where it is with "
        "`data_dir` or TFDS_DATA_DIR), or prepare it where there is a network: "
        f"tfds build {name} --data_dir {builder.data_dir_root}"
    )
    if name == "imagenet2012":
        raise FileNotFoundError(
            "`name`: imagenet2012 is not prepared, and its licence forbids to "
            "fetch it. Put ILSVRC2012_img_train.tar and ILSVRC2012_img_val.tar "
            f"into {builder.data_dir_root}/downloads/manual and run tfds "
            f"build imagenet2012 --data_dir {builder.data_dir_root}; or give "
            "as `data_dir` a folder with train/<class>/ and val/<class>/."
        )
    missing = f"`name`: {name} is not prepared and cannot be fetched"
    for url in list(builder.url_infos)[:1]:
        if not _reachable(url):
            raise FileNotFoundError(f"{missing}: no way to {url}. {advice}")
    try:
        builder.download_and_prepare()
    except Exception as error:
        raise FileNotFoundError(f"{missing}: {error}. {advice}") from error
    return builder


def _reachable(url: str) -> bool:
    """Whether a server answers; retries of a download take many minutes."""
    request = urllib.request.Request(url, method="HEAD")
    try:
        with urllib.request.urlopen(request, timeout=20):
            return True
    except urllib.error.HTTPError:
        # The server answers; the download itself may still fail.
        return True
    except OSError:
        return False
