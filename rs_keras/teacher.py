"""Soft labels: what a smoothed teacher answers to each training example."""

import hashlib
import itertools
import json
import os
import zlib
from collections.abc import Iterable
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any
from zipfile import BadZipFile

import numpy as np
import tensorflow as tf
from tqdm import tqdm

from rs_keras import datasets
from rs_keras._atomic_files import written_whole
from rs_keras._checks import check_count
from rs_keras._checks import check_distributions
from rs_keras._checks import check_images
from rs_keras.certification.certifier import Certifier
from rs_keras.classifiers.adapters import fingerprint
from rs_keras.classifiers.adapters import sigma_for
from rs_keras.logs.evaluation import selected
from rs_keras.logs.file_format import differences
from rs_keras.logs.file_format import json_values
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
    """Returns how a smoothed classifier votes on each example of a data set.

    Formula, with n draws of eps ~ Normal(0, I) an example:

        label[i, c] = (number of draws with argmax f(x_i + sigma * eps) == c)
                      / n

    CAT-RS trains on these: there the teacher is a Gaussian model with sigma =
    0.25, whatever the student's, and n = 10,000. Example i is drawn with
    `fold_in(seed, i)`.

    With `path` the votes are written as they come, to `<path>.part`, and when
    all are there, to `path`. A call that was stopped goes on where it was; one
    whose file is complete reads it.

    Args:
        model: As in `rs_keras.Certifier`.
        dataset: A name as in `rs_keras.datasets.load`, or what yields (image,
            label), batched or not, in the same order each time.
        sigma: Of the teacher's noise, > 0. When None, 0.25, or a trainer's own
            (see `rs_keras.Certifier`).
        n: Draws an example, >= 1.
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
    sigma = sigma_for(model, sigma, _SIGMA)
    certifier = Certifier(model, sigma, strategy=strategy)
    if isinstance(dataset, str):
        name: str | None = f"{dataset}/{split}"
        dataset = datasets.load(dataset, split, None, data_dir, training=False)
    else:
        name = None
    if limit is not None:
        check_count("limit", limit)
    start = _start(dataset)
    is_short = certifier.dtype != "float32"
    settings = json_values(
        {
            "sigma": certifier.sigma,
            "n": n,
            "seed": seed,
            "dataset": name,
            "limit": limit,
            "first_image": digest(start),
            "model": fingerprint(model),
            # Files from before this was told are of float32.
            **({"dtype": certifier.dtype} if is_short else {}),
        }
    )
    if path is not None and Path(path).exists():
        return _read_complete(Path(path), settings)
    with _Votes(path, settings) as votes:
        chunks = _chunks(dataset, limit, len(votes.rows), progress)
        for first, images in chunks:
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
    labels, made = _read(Path(path))
    known = made.get("dataset") or ""
    # Files on disk have more than one name.
    if dataset is not None and known and ":" not in known + dataset:
        if known != f"{dataset}/train":
            raise ValueError(
                f"{path} holds the soft labels of {known}, not of "
                f"{dataset}/train"
            )
    return labels


def _read(path: Path) -> tuple[np.ndarray, dict[str, Any]]:
    """Returns the labels and the settings that they were made under."""
    try:
        # NumPy leaves a file open that it finds broken.
        with path.open("rb") as file, np.load(file) as archive:
            labels = archive["soft_label"]
            made = json.loads(str(archive.get("settings", "{}")))
    except (
        AttributeError,  # one array, not an archive
        BadZipFile,
        EOFError,
        KeyError,
        TypeError,
        ValueError,
        zlib.error,
    ) as error:
        raise ValueError(
            f"{path} holds no soft labels (an .npz file with `soft_label`): "
            f"{error}"
        ) from error
    if labels.dtype.kind != "f":
        raise ValueError(
            f"{path}: `soft_label` must be floats. Received: {labels.dtype}"
        )
    try:
        check_distributions(labels, len(labels))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    return labels.astype(np.float32), made


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
    array = np.ascontiguousarray(array)
    found = hashlib.blake2b(digest_size=16)
    found.update(f"{array.dtype}{array.shape}".encode())
    found.update(array.tobytes())
    return found.hexdigest()


def _start(dataset: tf.data.Dataset | Iterable) -> np.ndarray:
    """Returns the first image, which has to be the same each time."""
    firsts = [next(selected(dataset), None) for _ in range(2)]
    if firsts[0] is None or firsts[1] is None:
        raise ValueError(
            "`dataset` must yield at least one example, each time it is "
            "iterated. Received: none"
        )
    check_images(firsts[0][1])
    if not np.array_equal(firsts[0][1], firsts[1][1]):
        raise ValueError(
            "`dataset` must yield the same order each time, without "
            "augmentation: load it with training=False, or give its name. "
            "Received: two different first images"
        )
    return firsts[0][1]


def _chunks(
    dataset: tf.data.Dataset | Iterable,
    limit: int | None,
    done: int,
    progress: bool,
) -> Iterator[tuple[int, np.ndarray]]:
    """Yields (number of the first, images) of the examples from `done` on."""
    size = getattr(dataset, "cardinality", lambda: -1)()
    batched = getattr(dataset, "element_spec", [None])[0]
    known = int(size) > 0 and getattr(batched, "shape", [0] * 4)[3:] == []
    total = min(int(size), limit or int(size)) if known else limit
    examples = selected(dataset, 1, limit)
    passed = sum(1 for _ in itertools.islice(examples, done))
    if passed < done:
        raise ValueError(
            f"`dataset` must yield the {done} examples that there are votes "
            f"of already. Received: {passed}"
        )
    with tqdm(
        total=total, initial=done, unit="image", disable=not progress
    ) as bar:
        while chunk := list(itertools.islice(examples, _CHUNK)):
            yield chunk[0][0], np.concatenate([image for _, image, _ in chunk])
            bar.update(len(chunk))


def _read_complete(path: Path, settings: dict[str, Any]) -> np.ndarray:
    labels, made = _read(path)
    _check_same(path, made, settings)
    return labels


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
        self._file: Any = None
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
        head, newline, body = self._part.read_bytes().partition(b"\n")
        if not newline:
            return
        try:
            made = json.loads(head)
            classes = made.pop("classes")
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ValueError(
                f"{self._part} is no file of votes; delete it to begin anew: "
                f"{error!r}"
            ) from error
        _check_same(self._part, made, self._settings)
        whole = len(body) // (8 * classes)
        rows = np.frombuffer(body, "<i8", whole * classes)
        self.rows = list(rows.reshape(whole, classes))
        self._file = self._part.open("r+b")
        self._file.truncate(len(head) + 1 + 8 * classes * whole)
        self._file.seek(0, os.SEEK_END)

    def add(self, counts: np.ndarray) -> None:
        """Appends rows, and has them written."""
        self.rows.extend(counts)
        if self._path is None:
            return
        if self._file is None:
            self._file = self._part.open("wb")
            head = {**self._settings, "classes": counts.shape[1]}
            self._file.write(json.dumps(head).encode() + b"\n")
        self._file.write(counts.astype("<i8").tobytes())
        self._file.flush()

    def finish(self, n: int) -> np.ndarray:
        """Returns the frequencies; the file of votes gives way to theirs."""
        labels = (np.stack(self.rows) / n).astype(np.float32)
        if self._path is not None:
            made = json.dumps(self._settings)
            with written_whole(self._path) as temporary:
                with temporary.open("wb") as file:
                    np.savez_compressed(file, soft_label=labels, settings=made)
            self._part.unlink(missing_ok=True)
        return labels

    def __enter__(self) -> "_Votes":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._file is not None:
            self._file.close()
