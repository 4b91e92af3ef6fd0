"""Certification and decisions of a data set, into a log that resumes."""

import os
import time
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
from functools import partial
from itertools import groupby
from itertools import islice
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from tqdm import tqdm

import rs_keras
from rs_keras.certification.certificate import ABSTAIN
from rs_keras.certification.certificate import Certificate
from rs_keras.certification.sequential.decision import Decision
from rs_keras.certification.smoothing import SmoothedClassifier
from rs_keras.classifiers.adapters import class_count
from rs_keras.classifiers.adapters import image_shape
from rs_keras.classifiers.fingerprint import fingerprint
from rs_keras.datasets.elements import ElementReader
from rs_keras.datasets.photographs import split_name
from rs_keras.logs.examples import compared
from rs_keras.logs.examples import first_example
from rs_keras.logs.examples import is_hashed
from rs_keras.logs.examples import warn_without_hashes
from rs_keras.logs.file_format import EXAMPLE
from rs_keras.logs.file_format import FIRST
from rs_keras.logs.log import CertificationLog
from rs_keras.logs.rules import ATTACK
from rs_keras.logs.selection import Selection
from rs_keras.logs.writer import LogWriter
from rs_keras.noise.draws import example_seed

# Columns beside those of all logs: the number of draws, and the share of the
# estimation round that voted for the class.
EXTRA = ("n", "p_top")


def certify_dataset(
    certifier: Any,
    dataset: tf.data.Dataset | Iterable,
    path: str | os.PathLike[str],
    skip: int = 1,
    max_examples: int | None = None,
    seed: int | str | None = None,
    name: str | None = None,
    progress: bool = True,
    shard: tuple[int, int] | None = None,
    class_names: Sequence[str] | None = None,
    **certify_arguments: Any,
) -> CertificationLog:
    """Certifies every `skip`-th example of a data set, and logs each.

    The log has one line per example, flushed as it is written; beside it,
    `<path>.json` holds the settings. With small n, one call draws for several
    examples; the log is the same but for its times. If interrupted, the same
    call resumes the log. It refuses a log of other settings, other weights or
    other examples. (The weights of a function without `variables` cannot be
    compared.) The examples of the log are compared with those of the data set,
    by a hash of image and label, before another one is certified. (A log of an
    older version has no hashes: only the labels are compared, with a warning.)

    Args:
        certifier: A `Certifier`, or a `CertificationClient`, which processes
            several examples concurrently and logs each when it is finished.
        dataset: Yields (image, label), batched or not, in the same order each
            time; or rows with both, as tensorflow-datasets and the Hugging Face
            hub have them; or is a pair of arrays (X, Y). See
            `rs_keras.datasets.ElementReader`.
        path: The log (TSV).
        skip: Takes examples 0, skip, 2 * skip, ...; >= 1.
        max_examples: Maximum number of examples; None for no limit. It may be
            larger when a log is resumed.
        seed: Example idx is drawn with `fold_in(seed, idx)`; "keyed" computes
            the seed from the image. None is fresh entropy, or the seed of a
            log that is resumed.
        name: Name of the data set in the settings.
        progress: Whether to show a bar with the running ACR and time left.
        shard: (i, m): worker i of m takes number i, i + m, i + 2 * m, ... of
            these examples into a log of its own. It needs a `seed`.
            `CertificationLog.merge` joins the logs.
        class_names: The words of classes 0, 1, ..., where labels are words.
        **certify_arguments: See `Certifier.certify`.

    Returns:
        The whole log.

    Raises:
        ValueError: For arguments out of range, or a log of other settings or
            examples (names the first difference).
        OSError: If the log cannot be written.

    Example:

    >>> import tempfile
    >>> import tensorflow as tf
    >>> from rs_keras import Certifier
    >>> from rs_keras import certify_dataset
    >>> certifier = Certifier(lambda x: x[:, 0, 0, :2] - 0.5, sigma=0.25)
    >>> data = tf.data.Dataset.from_tensor_slices(
    ...     (tf.ones([4, 8, 8, 3]), tf.zeros([4], tf.int64)))
    >>> log = certify_dataset(certifier, data, tempfile.mkdtemp() + "/log.tsv",
    ...                       skip=2, n=500, seed=7, progress=False)
    >>> log.idx
    array([0, 2])
    """

    def row(certificate: Certificate) -> dict[str, Any]:
        label = int(certificate.label[0])
        votes = certificate.counts[0]
        selection = certificate.selection_counts[0]
        # Soft predictions may select another class than the votes.
        chosen = selection.argmax() if label == ABSTAIN else label
        columns = {
            "predict": label,
            "radius": float(certificate.radius[0]),
            "n": int(certificate.n[0] + selection.sum()),
            "p_top": f"{votes[chosen] / max(1, votes.sum()):.6f}",
        }
        if certificate.sigma is not None:
            columns["sigma"] = float(certificate.sigma[0])
        return columns

    return log_results(
        certifier,
        path,
        Selection(
            dataset,
            skip,
            max_examples,
            shard,
            seed=seed,
            name=name,
            progress=progress,
            read=reader_for(certifier, class_names),
        ),
        settings_of=partial(certifier.settings, **certify_arguments),
        results_of=_results_of(certifier, "certify", certify_arguments),
        row_of=row,
    )


def decide_dataset(
    certifier: Any,
    dataset: tf.data.Dataset | Iterable,
    path: str | os.PathLike[str],
    radius: float | Sequence[float],
    skip: int = 1,
    max_examples: int | None = None,
    seed: int | str | None = None,
    name: str | None = None,
    progress: bool = True,
    shard: tuple[int, int] | None = None,
    class_names: Sequence[str] | None = None,
    **decide_arguments: Any,
) -> CertificationLog:
    """Decides every `skip`-th example of a data set, and logs each.

    The log's radius is the largest of the given ones that is certified (0, with
    label -1, if none is). Its certified accuracy is therefore right at the
    given radii, and its ACR has no meaning.

    Arguments, result and errors are those of `certify_dataset`, with

    Args:
        radius: See `Certifier.decide`.
        **decide_arguments: See `Certifier.decide`.

    Example:

    >>> import tensorflow as tf
    >>> from rs_keras import Certifier
    >>> from rs_keras.logs import decide_dataset
    >>> certifier = Certifier(lambda x: x[:, 0, 0, :2], sigma=0.25)
    >>> images = tf.constant([[1.0, 0.0], [0.5, 0.5]])[:, None, None]
    >>> data = tf.data.Dataset.from_tensor_slices((images, [0, 0]))
    >>> log = decide_dataset(certifier, data, "decided.tsv", radius=0.25,
    ...                      n_max=2_000, seed=7, progress=False)
    >>> log.certified_accuracy(0.25).item()
    0.5
    """

    def row(decision: Decision) -> dict[str, Any]:
        # A classifier without one finite answer casts no vote.
        votes = decision.counts[0]
        return {
            "predict": int(decision.label[0]),
            "radius": float(decision.radius[0]),
            "n": int(decision.n[0]),
            "p_top": f"{votes.max() / max(1, votes.sum()):.6f}",
        }

    arguments = {"radius": radius, **decide_arguments}
    return log_results(
        certifier,
        path,
        Selection(
            dataset,
            skip,
            max_examples,
            shard,
            seed=seed,
            name=name,
            progress=progress,
            read=reader_for(certifier, class_names),
        ),
        settings_of=partial(certifier.decision_settings, **arguments),
        results_of=_results_of(certifier, "decide", arguments),
        row_of=row,
    )


def reader_for(
    certifier: Any, class_names: Sequence[str] | None
) -> ElementReader:
    """Returns the reader of examples for the certifier's classifier."""
    model = certifier.model
    classes = getattr(certifier, "num_classes", None) or class_count(model)
    return ElementReader(class_names, image_shape(model), classes)


# A call draws for several images where they have few draws each: so few that
# an interruption loses a second or two of work at most.
_DRAWS_TOGETHER = 1 << 14
_MOST_TOGETHER = 32

# (idx, label, hash), an image [1, H, W, C] and its seed.
_Example = tuple[tuple[int, int, str], np.ndarray, Any]
_Results = Callable[[Iterable[_Example]], Iterator[Any]]


def _results_of(
    certifier: Any, operation: str, arguments: dict[str, Any]
) -> _Results:
    """Returns the function from examples to (key, result) of each.

    A client has one of its own, which works on several examples at a time.
    """
    each = getattr(certifier, f"{operation}_each", None)
    if each is not None:
        return partial(each, **arguments)
    together = operation == "certify" and (
        isinstance(certifier, SmoothedClassifier) and certifier.strategy is None
    )

    def examine(images: np.ndarray, seed: Any) -> Any:
        return getattr(certifier, operation)(images, seed=seed, **arguments)

    def results(examples: Iterable[_Example]) -> Iterator[tuple[Any, Any]]:
        draws = arguments.get("n0", 100) + arguments.get("n", 100_000)
        size = min(_MOST_TOGETHER, _DRAWS_TOGETHER // draws)
        if together and size > 1:
            yield from _examined_together(examine, size, examples)
        else:
            for key, image, seed in examples:
                yield key, examine(image, seed=seed)

    return results


def _examined_together(
    examine: Callable[..., Certificate],
    size: int,
    examples: Iterable[_Example],
) -> Iterator[tuple[Any, Certificate]]:
    """Yields (key, certificate) of each example, `size` of them a call.

    No count depends on which images share a call: each has its own seed, and
    no pass of the network holds draws of two.
    """
    # Arrays of two types would be joined in a third, bytes as numbers.
    groups = groupby(examples, key=lambda e: (e[1].shape, e[1].dtype))
    for _, alike in groups:
        while group := list(islice(alike, size)):
            keys, images, seeds = zip(*group, strict=True)
            keyed = isinstance(seeds[0], str)
            found = examine(
                np.concatenate(images),
                seed=seeds[0] if keyed else np.concatenate(seeds),
            )
            yield from zip(keys, found, strict=True)


def log_results(
    certifier: Any,
    path: str | os.PathLike[str],
    examined: Selection,
    settings_of: Callable[..., dict[str, Any]],
    results_of: _Results,
    row_of: Callable[[Any], dict[str, Any]],
    columns: Sequence[str] = EXTRA,
) -> CertificationLog:
    """Certifies, decides or attacks the examples that the log lacks.

    Args:
        certifier: See `certify_dataset`.
        path: The log.
        examined: The examples.
        settings_of: Returns the settings of the results; takes `image_shape`.
        results_of: From examples to (key, result) of each.
        row_of: From a result to the columns of its row, but for label and time.
        columns: The further columns among these.

    Returns:
        The whole log.
    """
    settings = settings_of()
    first, shape, examples = first_example(examined.examples())
    if settings["noise"] == "grid" and "total_variation" not in settings:
        settings = settings_of(image_shape=shape)
    strategy = getattr(certifier, "strategy", None)
    resize = split_name(examined.name or "")[1]
    settings = {
        **settings,
        "dataset": examined.name,
        **(resize.settings() if resize else {}),
        "skip": examined.skip,
        # Of the copy that votes; the model may have been trained since.
        "model": fingerprint(getattr(certifier, "computing", certifier.model)),
        "versions": {
            "rs_keras": rs_keras.__version__,
            "tensorflow": tf.__version__,
            "keras": keras.__version__,
        },
        **examined.shard_setting(),
        "seed": examined.root_seed(path, strategy),
    }
    # Of an attack, the perturbations' mean norm.
    running = "norm" if settings.get("scope") == ATTACK else "ACR"
    seed, extra = settings["seed"], [*columns]
    if settings.get("scope") == "per_input_sigma":
        # A further column, as in the authors' format.
        extra.append("sigma")
    hashed = is_hashed(path, first)
    if hashed:
        settings[FIRST] = first
        extra.append(EXAMPLE)
    with LogWriter(path, settings, extra, checksum=hashed) as writer:
        if not hashed:
            warn_without_hashes(path)
        radii = list(writer.previous.radius * writer.previous.correct)
        missing = (
            ((idx, label, digest), image, example_seed(seed, idx))
            for idx, image, label, digest in compared(
                examined.select(examples), writer
            )
        )
        bar = tqdm(
            results_of(missing),
            total=examined.total(),
            initial=len(writer.done),
            unit="image",
            disable=not examined.progress,
        )
        last_row_at = time.perf_counter()
        for (idx, label, digest), result in bar:
            row = row_of(result)
            radii.append(row["radius"] * (row["predict"] == label))
            if hashed:
                row[EXAMPLE] = digest
            # Since the last row: several images may be processed at a time.
            row["time"] = time.perf_counter() - last_row_at
            writer.write(idx, label, **row)
            bar.set_postfix({running: f"{np.mean(radii):.3f}"})
            last_row_at = time.perf_counter()
    return CertificationLog.read(path)
