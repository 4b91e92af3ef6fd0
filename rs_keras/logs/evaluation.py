"""Certifying or deciding a data set, into a log that resumes."""

import json
import os
import time
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from functools import partial
from itertools import islice
from typing import Any
from typing import NamedTuple
from typing import Protocol

import keras
import numpy as np
import tensorflow as tf
from tqdm import tqdm

import rs_keras
from rs_keras import distribution
from rs_keras._checks import check_count
from rs_keras.certification.certificate import ABSTAIN
from rs_keras.certification.certificate import Certificate
from rs_keras.certification.sequential.decision import Decision
from rs_keras.classifiers.fingerprint import fingerprint
from rs_keras.logs.examples import compared
from rs_keras.logs.examples import first_example
from rs_keras.logs.examples import is_hashed
from rs_keras.logs.examples import warn_without_hashes
from rs_keras.logs.file_format import read_settings
from rs_keras.logs.hashes import EXAMPLE
from rs_keras.logs.hashes import FIRST
from rs_keras.logs.log import CertificationLog
from rs_keras.logs.writer import LogWriter
from rs_keras.noise.draws import example_seed
from rs_keras.noise.draws import fresh_seeds

# Columns of the logs beside those that all logs have: the samples drawn for an
# image, and the share of the bounding ones that voted for its class.
EXTRA = ("n", "p_top")


class _Certifies(Protocol):
    """A `Certifier`, or a client that certifies on servers."""

    @property
    def model(self) -> Any: ...

    def settings(self, *args: Any, **kwargs: Any) -> dict[str, Any]: ...

    def decision_settings(
        self, *args: Any, **kwargs: Any
    ) -> dict[str, Any]: ...

    def certify(self, *args: Any, **kwargs: Any) -> Certificate: ...

    def decide(self, *args: Any, **kwargs: Any) -> Decision: ...


def certify_dataset(
    certifier: _Certifies,
    dataset: tf.data.Dataset | Iterable,
    path: str | os.PathLike[str],
    skip: int = 1,
    max_examples: int | None = None,
    seed: int | str | None = None,
    name: str | None = None,
    progress: bool = True,
    shard: tuple[int, int] | None = None,
    **certify_arguments: Any,
) -> CertificationLog:
    """_Certifies every `skip`-th example of a data set, and logs each.

    The log is one line an example, flushed; beside it, `<path>.json` holds the
    settings. Stopped at any moment, the same call goes on where it was; under
    other settings, with other weights or on other examples, it refuses. (A
    function without `variables` has none to compare: that it is the same is up
    to you.) Examples that the log holds are compared as the data set yields
    them, by a hash of image and label, before the next one is certified. (Of a
    log without hashes, from an older version, only the labels are: a warning
    says so.)

    Args:
        certifier: The certifier; or a client of it, which has several examples
            in hand at a time and logs them as they are finished.
        dataset: Yields (image, label), batched or not; in the same order each
            time.
        path: The log (TSV).
        skip: Takes examples 0, skip, 2 * skip, ..., >= 1.
        max_examples: Stops after so many of them; None for no limit. It may
            grow from one call to the next.
        seed: Example idx is drawn with `fold_in(seed, idx)`; "keyed" takes the
            seed of the image itself. None is fresh entropy, or the seed of the
            log that is continued.
        name: What the data set is called in the settings.
        progress: Whether to show a bar with the running ACR and time left.
        shard: (i, m): of the examples chosen so far, worker i of m takes number
            i, i + m, i + 2 * m, ... into a log of its own. It needs a `seed`.
            `CertificationLog.merge` makes one log of them.
        **certify_arguments: See `Certifier.certify`.

    Returns:
        The whole log.

    Raises:
        ValueError: For arguments out of range, or a log of other settings or
            other examples (names the first that differs).
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

    def line(found: Certificate) -> _Line:
        drawn = int(found.n[0] + found.selection_counts.sum())
        # Soft predictions may select another class than the votes.
        abstains = found.label[0] == ABSTAIN
        votes = found.selection_counts[0]
        chosen = votes.argmax() if abstains else found.label[0]
        share = found.counts[0, chosen] / max(1, found.counts[0].sum())
        own = {} if found.sigma is None else {"sigma": float(found.sigma[0])}
        label, radius = int(found.label[0]), float(found.radius[0])
        return _Line(label, radius, drawn, share, own)

    settings = partial(certifier.settings, **certify_arguments)
    each = getattr(certifier, "certify_each", None)
    each = partial(each or _one_by_one(certifier.certify), **certify_arguments)
    examples = _Examples(
        dataset, skip, max_examples, seed, name, progress, shard
    )
    return _logged(each, line, certifier, settings, examples, path)


def decide_dataset(
    certifier: _Certifies,
    dataset: tf.data.Dataset | Iterable,
    path: str | os.PathLike[str],
    radius: float | Sequence[float],
    skip: int = 1,
    max_examples: int | None = None,
    seed: int | str | None = None,
    name: str | None = None,
    progress: bool = True,
    shard: tuple[int, int] | None = None,
    **decide_arguments: Any,
) -> CertificationLog:
    """Decides every `skip`-th example of a data set, and logs each.

    The log's radius is the largest asked for that is certified (0, and -1 for
    the label, where none is), so its certified accuracy is right at the radii
    asked for, and an ACR of it would mean nothing.

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

    def line(found: Decision) -> _Line:
        # A classifier without one finite answer casts no vote.
        share = found.counts[0].max() / max(1, found.counts[0].sum())
        drawn = int(found.n[0])
        return _Line(int(found.label[0]), float(found.radius[0]), drawn, share)

    arguments = {"radius": radius, **decide_arguments}
    settings = partial(certifier.decision_settings, **arguments)
    each = getattr(certifier, "decide_each", None)
    each = partial(each or _one_by_one(certifier.decide), **arguments)
    examples = _Examples(
        dataset, skip, max_examples, seed, name, progress, shard
    )
    return _logged(each, line, certifier, settings, examples, path)


class _Line(NamedTuple):
    """What is logged of an example."""

    predict: int
    radius: float
    n: int
    share: float
    own: Mapping[str, float] = {}


class _Examples(NamedTuple):
    """Which examples are examined, and with which noise."""

    dataset: tf.data.Dataset | Iterable
    skip: int
    max_examples: int | None
    seed: int | str | None
    name: str | None
    progress: bool
    shard: tuple[int, int] | None = None


# (idx, label, hash), an image [1, H, W, C] and its seed.
_Keyed = tuple[tuple[int, int, str], np.ndarray, Any]


def _one_by_one(examine: Callable[..., Any]) -> Callable[..., Any]:
    """Returns `examine` for many: what `certify_each` of a client is."""

    def each(examples: Iterable[_Keyed], **arguments: Any) -> Iterator[Any]:
        for key, image, seed in examples:
            yield key, examine(image, seed=seed, **arguments)

    return each


def _logged(
    each: Callable[[Iterable[_Keyed]], Iterator[Any]],
    line_of: Callable[[Any], _Line],
    certifier: _Certifies,
    settings_of: Callable[..., dict[str, Any]],
    given: _Examples,
    path: str | os.PathLike[str],
) -> CertificationLog:
    """Examines what is not in the log yet, line after line."""
    settings = settings_of()
    skip, max_examples = check_count("skip", given.skip), given.max_examples
    if max_examples is not None:
        max_examples = check_count("max_examples", max_examples)
    first, shape, stream = first_example(_examples(given.dataset))
    if settings["noise"] == "grid" and "total_variation" not in settings:
        settings = settings_of(image_shape=shape)
    settings = {**settings, **_origin(certifier, skip, given.name)}
    if given.shard is not None:
        settings["shard"] = _checked(given.shard, given.seed)
    strategy = getattr(certifier, "strategy", None)
    seed = settings["seed"] = _seed_of(path, given.seed, strategy)
    # In the format of the authors, a sigma of its own is a column.
    extra = [*EXTRA]
    if settings.get("scope") == "per_input_sigma":
        extra.append("sigma")
    hashed = is_hashed(path, first)
    if hashed:
        settings[FIRST] = first
        extra.append(EXAMPLE)
    chosen = _selected(stream, skip, max_examples, given.shard)
    with LogWriter(path, settings, extra, checksum=hashed) as writer:
        if not hashed:
            warn_without_hashes(path)
        radii = list(writer.previous.radius * writer.previous.correct)
        missing = (
            ((idx, label, found), image, example_seed(seed, idx))
            for idx, image, label, found in compared(chosen, writer)
        )
        bar = tqdm(
            each(missing),
            total=_total(given.dataset, skip, max_examples, given.shard),
            initial=len(writer.done),
            unit="image",
            disable=not given.progress,
        )
        begun = time.perf_counter()
        for (idx, label, example), found in bar:
            line = line_of(found)
            # Since the last line: a fleet has several images in hand.
            seconds = time.perf_counter() - begun
            own = {EXAMPLE: example} if hashed else {}
            writer.write(
                idx,
                label,
                line.predict,
                line.radius,
                seconds,
                n=line.n,
                p_top=f"{line.share:.6f}",
                **line.own,
                **own,
            )
            radii.append(line.radius * (line.predict == label))
            bar.set_postfix(ACR=f"{np.mean(radii):.3f}")
            begun = time.perf_counter()
    return CertificationLog.read(path)


def _checked(shard: Sequence[int], seed: int | str | None) -> list[int]:
    """Returns a shard as JSON has it."""
    number, count = shard
    count = check_count("shard[1]", count)
    if not 0 <= number < count:
        raise ValueError(
            f"`shard` must be (i, m) with 0 <= i < m. Received: {shard}"
        )
    if seed is None:
        raise ValueError(
            "`seed` must be given for a shard: all workers have to draw under "
            "the same. Received: seed=None"
        )
    return [number, count]


def selected(
    dataset: tf.data.Dataset | Iterable,
    skip: int = 1,
    max_examples: int | None = None,
    shard: tuple[int, int] | None = None,
) -> Iterator[tuple[int, np.ndarray, int]]:
    """Yields (idx, image [1, H, W, C], label) of every `skip`-th example.

    Args:
        dataset: Yields (image, label), batched or not; a label may be a dict
            with `label`.
        skip: See `certify_dataset`.
        max_examples: See `certify_dataset`.
        shard: See `certify_dataset`.

    Raises:
        ValueError: If the data set yields no such pairs, or an argument is out
            of range.

    Example:

    >>> import numpy as np
    >>> from rs_keras.logs import selected
    >>> data = [(np.zeros([4, 4, 1]), label) for label in (7, 2, 1, 0, 4)]
    >>> [(idx, label) for idx, image, label in selected(data, skip=2)]
    [(0, 7), (2, 1), (4, 4)]
    """
    skip = check_count("skip", skip)
    if max_examples is not None:
        max_examples = check_count("max_examples", max_examples)
    yield from _selected(_examples(dataset), skip, max_examples, shard)


def _selected(
    examples: Iterable[tuple[np.ndarray, np.ndarray]],
    skip: int,
    max_examples: int | None,
    shard: tuple[int, int] | None,
) -> Iterator[tuple[int, np.ndarray, int]]:
    chosen = islice(enumerate(examples), 0, None, skip)
    number, count = shard or (0, 1)
    own = islice(islice(chosen, max_examples), number, None, count)
    for idx, (image, label) in own:
        yield idx, image[None], int(label)


def _examples(
    dataset: tf.data.Dataset | Iterable,
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    for element in dataset:
        if not isinstance(element, tuple | list) or len(element) < 2:
            raise ValueError(
                "`dataset` must yield pairs (image, label). "
                f"Received: {type(element).__name__}"
            )
        images, targets = element[:2]
        labels = targets["label"] if isinstance(targets, dict) else targets
        images, labels = np.asarray(images), np.asarray(labels)
        if images.ndim == 3:
            images, labels = images[None], labels[None]
        yield from zip(images, labels, strict=True)


def _total(
    dataset: tf.data.Dataset | Iterable,
    skip: int,
    max_examples: int | None,
    shard: tuple[int, int] | None,
) -> int | None:
    """The number of examples to do, where it is known without a pass."""
    total = max_examples
    if isinstance(dataset, tf.data.Dataset):
        size = int(dataset.cardinality())
        batched = dataset.element_spec[0].shape.rank == 4
        if size >= 0 and not batched:
            total = min(-(-size // skip), max_examples or size)
    if total is None or shard is None:
        return total
    return len(range(shard[0], total, shard[1]))


def _seed_of(
    path: str | os.PathLike[str],
    seed: int | str | None,
    strategy: tf.distribute.Strategy | None,
) -> Any:
    """The seed given, that of the log to be continued, or a fresh one.

    Of several workers, which make each draw together, the chief's.
    """
    if seed == "keyed":
        return seed
    if seed is not None:
        seed = check_count("seed", seed, -(2**63))
        # Refuses one that does not fit before there is a log of it.
        example_seed(seed, 0)
        return seed
    kept = read_settings(path).get("seed")
    mine = fresh_seeds(1)[0].tolist() if kept is None else kept
    told = distribution.from_chief(strategy, json.dumps(mine).encode())
    return json.loads(told or b"null")


def _origin(
    certifier: _Certifies, skip: int, name: str | None
) -> dict[str, Any]:
    return {
        "dataset": name,
        "skip": skip,
        # Not of a model that went on training beside the copy that votes.
        "model": fingerprint(getattr(certifier, "computing", certifier.model)),
        "versions": {
            "rs_keras": rs_keras.__version__,
            "tensorflow": tf.__version__,
            "keras": keras.__version__,
        },
    }
