"""Soft labels: the votes of a smoothed teacher on each training example."""

import hashlib
import itertools
import json
import os
from collections.abc import Iterable
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from tqdm import tqdm

from rs_keras import _npz
from rs_keras import datasets
from rs_keras._atomic_files import written_whole
from rs_keras._checks import check_count
from rs_keras._checks import check_distributions
from rs_keras._checks import check_images
from rs_keras.certification.certifier import Certifier
from rs_keras.classifiers.adapters import sigma_for
from rs_keras.classifiers.checkpoints import opened
from rs_keras.classifiers.fingerprint import fingerprint
from rs_keras.logs.file_format import differences
from rs_keras.logs.file_format import json_values
from rs_keras.logs.selection import selected
from rs_keras.noise.draws import fold_in

# Of the teacher, as in the paper.
_SIGMA = 0.25
# So many images between two writes.
_CHUNK = 32


def smoothed_labels(
    model: Any,
    dataset: str | tf.data.Dataset | Iterable,
    sigma: float | None = None,
    n: int = 10_000,
    path: str | os.PathLike[str] | None = None,
    seed: int = 0,
    *,
    split: str = "train",
    data_dir: str | Path | None = None,
    limit: int | None = None,
    progress: bool = True,
    strategy: tf.distribute.Strategy | None = None,
) -> np.ndarray:
    """Returns the votes of a smoothed classifier on each example of a data set.

    Formula, with n draws of eps ~ Normal(0, I) an example:

        label[i, c] = (number of draws with argmax f(x_i + sigma * eps) == c)
                      / n

    CAT-RS trains on these: there the teacher is a Gaussian model with sigma =
    0.25, whatever the student's, and n = 10,000. Example i is drawn with
    `fold_in(seed, i)`.

    With `path`, votes are written to `<path>.part` while the call runs, and to
    `path` when it is complete. An interrupted call resumes where it stopped; a
    call whose file is complete reads it.

    Args:
        model: As in `rs_keras.Certifier`.
        dataset: A name as in `rs_keras.datasets.load`, or what yields (image,
            label), batched or not, in the same order each time.
        sigma: Of the teacher's noise, > 0. When None, 0.25, or a trainer's own
            (see `rs_keras.Certifier`).
        n: Draws per example, >= 1.
        path: A `.npz` file; None keeps the labels in memory only.
        seed: Of the noise.
        split: Of a data set given by name.
        data_dir: As in `rs_keras.datasets.load`.
        limit: Stops after so many examples; None for no limit.
        progress: Whether to show a bar.
        strategy: As in `rs_keras.Certifier`.

    Returns:
        float32 [N, num_classes], rows that sum to 1; for
        `rs_keras.datasets.attach(..., soft_label=...)`.

    Raises:
        ValueError: If an argument is out of range, the data set yields another
            order each time, or the file was made under other settings (names
            each).
        OSError: If the file cannot be written.

    Example:

    >>> import tensorflow as tf
    >>> import rs_keras
    >>> data = tf.data.Dataset.from_tensor_slices(
    ...     (tf.fill([3, 4, 4, 2], 0.5), tf.zeros([3], tf.int64)))
    >>> labels = rs_keras.smoothed_labels(
    ...     lambda x: x[:, 0, 0] - 0.5, data, n=1_000, progress=False)
    >>> labels.shape, bool(abs(labels - 0.5).max() < 0.1)
    ((3, 2), True)

    References:
    - [Jeong et al., 2023](https://arxiv.org/abs/2212.09000), section 3
    """
    check_count("n", n)
    model, sigma = opened(model, sigma)
    sigma = sigma_for(model, sigma, _SIGMA)
    certifier = Certifier(model, sigma, strategy=strategy)
    name = None
    if isinstance(dataset, str):
        name = f"{dataset}/{split}"
        dataset = datasets.load(dataset, split, None, data_dir, training=False)
    if limit is not None:
        check_count("limit", limit)
    settings = {
        "sigma": certifier.sigma,
        "n": n,
        "seed": seed,
        "dataset": name,
        "limit": limit,
        "first_image": digest(_first_image(dataset)),
        "model": fingerprint(model),
    }
    # Files without it are of float32.
    if certifier.dtype != "float32":
        settings["dtype"] = certifier.dtype
    settings = json_values(settings)
    if path is not None and Path(path).exists():
        labels, old = _read(Path(path))
        _check_same(Path(path), old, settings)
        return labels
    votes = _Votes(path, settings)
    for first, images in _chunks(dataset, limit, len(votes.rows), progress):
        seeds = [fold_in(seed, first + i) for i in range(len(images))]
        votes.add(certifier.sample(images, n, np.stack(seeds)))
    return votes.finish(n)


def read_labels(
    path: str | os.PathLike[str], dataset: str | None = None
) -> np.ndarray:
    """Reads the file that `smoothed_labels` wrote.

    Args:
        path: An `.npz` file with `soft_label`, rows that sum to 1.
        dataset: Name of the data set whose training split the labels have to
            be of, where the file says what they are of; None for any.

    Returns:
        float32 [N, num_classes].

    Raises:
        ValueError: If it holds no such array, or is of another data set.
        OSError: If it cannot be read.

    Example:

    >>> import tensorflow as tf
    >>> import rs_keras
    >>> from rs_keras.teacher import read_labels
    >>> data = tf.data.Dataset.from_tensor_slices(
    ...     (tf.ones([3, 4, 4, 2]) * [1.0, 0.0], tf.zeros([3], tf.int64)))
    >>> votes = rs_keras.smoothed_labels(
    ...     lambda x: x[:, 0, 0], data, n=100, path="soft.npz", progress=False)
    >>> labels = read_labels("soft.npz")
    >>> labels.shape, bool((labels == votes).all())
    ((3, 2), True)
    """
    labels, settings = _read(Path(path))
    known = settings.get("dataset") or ""
    # Files on disk have more than one name.
    is_named = dataset is not None and known and ":" not in f"{known}{dataset}"
    if is_named and known != f"{dataset}/train":
        raise ValueError(
            f"{path} holds the soft labels of {known}, not of {dataset}/train"
        )
    return labels


def _read(path: Path) -> tuple[np.ndarray, dict[str, Any]]:
    """Returns the labels and their settings."""
    complaint = f"{path} holds no soft labels (an .npz file with `soft_label`)"
    with _npz.opened(path, complaint) as archive:
        labels = archive["soft_label"]
        settings = json.loads(str(archive.get("settings", "{}")))
    if labels.dtype.kind != "f":
        raise ValueError(
            f"{path}: `soft_label` must be floats. Received: {labels.dtype}"
        )
    try:
        check_distributions(labels, len(labels))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    return labels.astype(np.float32), settings


def digest(array: np.ndarray) -> str:
    """Returns a hash of an array's type, shape and values.

    Example:

    >>> import numpy as np
    >>> from rs_keras.teacher import digest
    >>> digest(np.zeros(4)) == digest(np.zeros(4))
    True
    >>> digest(np.zeros(4)) == digest(np.zeros([2, 2]))
    False
    """
    head = f"{array.dtype}{array.shape}".encode()
    return hashlib.blake2b(head + array.tobytes(), digest_size=16).hexdigest()


def _first_image(dataset: tf.data.Dataset | Iterable) -> np.ndarray:
    """Returns the first image, which has to be the same each time."""
    first, again = (next(selected(dataset), None) for _ in range(2))
    if first is None or again is None:
        raise ValueError(
            "`dataset` must yield at least one example, each time it is "
            "iterated. Received: none"
        )
    check_images(first[1])
    if not np.array_equal(first[1], again[1]):
        raise ValueError(
            "`dataset` must yield the same order each time, without "
            "augmentation: load it with training=False, or give its name. "
            "Received: two different first images"
        )
    return first[1]


def _chunks(
    dataset: tf.data.Dataset | Iterable,
    limit: int | None,
    done: int,
    progress: bool,
) -> Iterator[tuple[int, np.ndarray]]:
    """Yields (number of the first, images) of the examples from `done` on."""
    examples = selected(dataset, 1, limit)
    skipped = sum(1 for _ in itertools.islice(examples, done))
    if skipped < done:
        raise ValueError(
            f"`dataset` must yield the {done} examples that there are votes "
            f"of already. Received: {skipped}"
        )
    bar = tqdm(
        total=_size(dataset, limit),
        initial=done,
        unit="image",
        disable=not progress,
    )
    with bar:
        while chunk := list(itertools.islice(examples, _CHUNK)):
            yield chunk[0][0], np.concatenate([image for _, image, _ in chunk])
            bar.update(len(chunk))


def _size(dataset: Any, limit: int | None) -> int | None:
    """How many examples there are to come; None where nobody knows."""
    image = getattr(dataset, "element_spec", [None])[0]
    if getattr(image, "shape", [0] * 4)[3:] != []:  # a batch of images
        return limit
    size = int(dataset.cardinality())
    return min(size, limit or size) if size > 0 else limit


def _check_same(path: Path, old: dict[str, Any], new: dict[str, Any]) -> None:
    differing = differences(old, new)
    if differing:
        raise ValueError(
            f"{path} was made under other settings; choose another name, or "
            f"the same settings. Differing: {differing}"
        )


class _Votes:
    """Rows of votes, in a file that grows until they are complete.

    The file begins with a line of settings, the number of classes among them;
    then come int64 rows. A row that was cut off is dropped.
    """

    def __init__(
        self, path: str | os.PathLike[str] | None, settings: dict[str, Any]
    ) -> None:
        self.rows: list[np.ndarray] = []
        self._settings = settings
        self._path = None if path is None else Path(path)
        if self._path is None:
            return
        if self._path.suffix != ".npz":
            raise ValueError(
                f"`path` must end in .npz. Received: path={str(path)!r}"
            )
        self._part = Path(f"{self._path}.part")
        self._path.parent.mkdir(parents=True, exist_ok=True)
        if self._part.exists():
            self._resume()

    def _resume(self) -> None:
        """Reads the rows of a run that was stopped."""
        head, newline, body = self._part.read_bytes().partition(b"\n")
        if not newline:
            self._part.unlink()
            return
        try:
            settings = json.loads(head)
            classes = settings.pop("classes")
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ValueError(
                f"{self._part} is not a file of votes; delete it to start "
                f"over: {error!r}"
            ) from error
        _check_same(self._part, settings, self._settings)
        count = len(body) // (8 * classes)
        self.rows = list(
            np.frombuffer(body, "<i8", count * classes).reshape(count, classes)
        )
        os.truncate(self._part, len(head) + 1 + 8 * classes * count)

    def add(self, counts: np.ndarray) -> None:
        """Appends rows, and has them written."""
        if self._path is not None:
            with self._part.open("ab") as file:
                if not file.tell():
                    head = {**self._settings, "classes": counts.shape[1]}
                    file.write(json.dumps(head).encode() + b"\n")
                file.write(counts.astype("<i8").tobytes())
        self.rows.extend(counts)

    def finish(self, n: int) -> np.ndarray:
        """Returns the frequencies; their file replaces that of the votes."""
        labels = (np.stack(self.rows) / n).astype(np.float32)
        if self._path is not None:
            settings = json.dumps(self._settings)
            with written_whole(self._path) as temporary:
                with temporary.open("wb") as file:
                    np.savez_compressed(
                        file, soft_label=labels, settings=settings
                    )
            self._part.unlink(missing_ok=True)
        return labels
