"""Data sets as tf.data: splits, training epochs, held-out examples."""

import itertools
from collections.abc import Callable
from dataclasses import KW_ONLY
from dataclasses import dataclass
from dataclasses import field
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from rs_keras._checks import check_count
from rs_keras.datasets.registry import check_name
from rs_keras.datasets.registry import info
from rs_keras.datasets.registry import open_split
from rs_keras.datasets.sources import Plan
from rs_keras.datasets.sources import Source
from rs_keras.datasets.sources import chosen_places
from rs_keras.datasets.sources import limited
from rs_keras.datasets.sources import without

# Batch size of a pass whose images are then yielded one by one.
_UNBATCHED = 256


@dataclass(frozen=True)
class Epochs:
    """The epochs of a data set: batches as a function of (epoch, step).

    Attributes:
        name: As in `load`.
        batch_size: >= 1.
        data_dir: As in `load`.
        seed: Of the order and the augmentation, >= 0.
        split: As in `load`.
        training: Whether epochs are shuffled and augmented.
        example_id: As in `load`.
        drop_remainder: As in `load`.
        limit: Use the first so many examples of the split's own order only;
            None for all. Not for ImageNet.
        held_out: Leave out so many examples: those of
            `held_out(name, held_out, ...)`. Not for ImageNet.
        source: The examples, opened.

    Raises:
        ValueError: As in `load`, or for `held_out` with `example_id`.
        OSError: As in `load`.

    Example:

    >>> from rs_keras import datasets
    >>> epochs = datasets.Epochs("fashion_mini", 500, limit=1_200)
    >>> epochs.steps, len(epochs.epoch(0)), len(epochs.epoch(0, first_step=1))
    (3, 3, 2)
    >>> images, labels = next(iter(epochs.stream(first_epoch=2)))
    >>> images.shape.as_list(), epochs.source.size
    ([500, 28, 28, 1], 1200)
    """

    name: str
    batch_size: int
    data_dir: str | Path | None = None
    seed: int = 0
    _: KW_ONLY
    split: str = "train"
    training: bool = True
    example_id: bool = False
    drop_remainder: bool = False
    limit: int | None = None
    held_out: int = 0
    source: Source = field(init=False, repr=False)

    def __post_init__(self) -> None:
        check_name(self.name)
        check_count("batch_size", self.batch_size)
        check_count("seed", self.seed, minimum=0)
        if self.held_out and self.example_id:
            raise ValueError(
                "`held_out` must be 0 with `example_id`: places would be those "
                f"in the rest. Received: held_out={self.held_out}"
            )
        # Opened at once: it cannot be read inside a graph.
        source = open_split(self.name, self.split, self.data_dir)
        source = limited(without(source, self.held_out), self.limit)
        object.__setattr__(self, "source", source)

    @property
    def steps(self) -> int:
        """Number of batches in an epoch."""
        full, remainder = divmod(self.source.size, self.batch_size)
        return full + bool(remainder and not self.drop_remainder)

    def epoch(self, number: int, first_step: int = 0) -> tf.data.Dataset:
        """Returns the batches (images, labels) of an epoch, from a step on."""
        check_count("epoch", number, minimum=0)
        return self._finish(self.batches(number, (number, first_step)))

    def stream(
        self, first_epoch: int = 0, first_step: int = 0
    ) -> tf.data.Dataset:
        """Returns the batches of all epochs from one on, without end."""
        check_count("first_epoch", first_epoch, minimum=0)
        start = (first_epoch, first_step)
        numbers = tf.data.Dataset.range(first_epoch, np.iinfo(np.int64).max)
        return self._finish(
            numbers.flat_map(lambda number: self.batches(number, start))
        )

    def batches(
        self, epoch: Any, start: tuple[int, int] = (0, 0)
    ) -> tf.data.Dataset:
        """Returns an epoch's batches (images, labels, places in the split).

        Args:
            epoch: May be a tensor.
            start: (epoch, step): that epoch starts at that step.

        Example:

        >>> from rs_keras import datasets
        >>> epochs = datasets.Epochs("fashion_mini", 4, training=False)
        >>> images, labels, places = next(iter(epochs.batches(0)))
        >>> places.numpy()
        array([0, 1, 2, 3])
        """
        check_count("first_step", start[1], minimum=0)
        plan = Plan(
            self.batch_size,
            self.seed,
            self.training,
            self.drop_remainder,
            start,
        )
        return self.source.batches(plan, epoch)

    def _finish(self, batches: tf.data.Dataset) -> tf.data.Dataset:
        targets = _targets(self.example_id)
        return batches.map(targets).prefetch(tf.data.AUTOTUNE)


def load(
    name: str,
    split: str = "test",
    batch_size: int | None = None,
    data_dir: str | Path | None = None,
    seed: int = 0,
    *,
    training: bool | None = None,
    example_id: bool = False,
    drop_remainder: bool = False,
) -> tf.data.Dataset:
    """Loads one split of a data set.

    Args:
        name: "mnist", "fashion_mnist", "cifar10", "cifar100", "svhn_cropped",
            "imagenet2012", "mnist_corrupted/CORRUPTION" or
            "cifar10_corrupted/CORRUPTION_SEVERITY", read with
            tensorflow-datasets and fetched if need be; "fashion_mini", 4,000
            and 1,000 images of Fashion-MNIST that come with this package;
            "npz:PATH", a NumPy archive with `x_train`, `y_train`, `x_test`
            and `y_test`, or with `images` and `labels` for whatever split is
            asked for (images [N, H, W] or [N, H, W, C], uint8 or floats in
            [0, 1]; optionally `class_names`); "image_folder:PATH", a folder
            PATH/SPLIT/CLASS/FILE (or PATH/CLASS/FILE for whatever split is
            asked for) of images of one size; with "?resize=H,W&fit=crop" (or
            pad, stretch) behind PATH, of photographs of any size.
        split: "train" or "test" (ImageNet's validation split).
        batch_size: None for single examples.
        data_dir: Where tensorflow-datasets keeps its files; by default the
            environment variable TFDS_DATA_DIR, else ~/tensorflow_datasets.
            For "imagenet2012" also a folder with train/CLASS/FILE and
            val/CLASS/FILE. Relative `npz:` and `image_folder:` paths start
            here, by default at the working directory.
        seed: Of the order and the augmentation of training passes, >= 0.
        training: Whether passes are shuffled and augmented; by default those
            of the training split are. The k-th pass through the returned data
            set is `epoch(name, k, ...)`; where the number of the epoch must be
            certain, use `epoch` or `stream`.
        example_id: Yield {"label", "example_id"} in place of the label;
            example_id is the place in the split's own order.
        drop_remainder: Leave out a last batch that is not full.

    Returns:
        A data set of (image, label): float32 [H, W, C] in [0, 1] and int64,
        or batches of them. Passes of other splits are in the data set's own
        order.

    Raises:
        ValueError: For an unknown name (the nearest is named), split or
            variant, a batch size below 1, or data that is malformed.
        OSError: If data is neither there nor to be had; says what to do.

    Example:

    >>> from rs_keras import datasets
    >>> image, label = next(iter(datasets.load("fashion_mini")))
    >>> datasets.info("fashion_mini").class_names[int(label)]
    'Ankle boot'
    """
    training = split == "train" if training is None else bool(training)
    epochs = Epochs(
        name,
        _UNBATCHED if batch_size is None else batch_size,
        data_dir,
        seed,
        split=split,
        training=training,
        drop_remainder=drop_remainder,
    )
    if training:
        # Every iterator takes the next number from here.
        numbers = itertools.count()
        passes = tf.data.Dataset.from_generator(
            lambda: [next(numbers)],
            output_signature=tf.TensorSpec([], tf.int64),
        )
        data = passes.flat_map(epochs.batches)
        steps = tf.data.experimental.assert_cardinality(epochs.steps)
        data = data.apply(steps)
    else:
        data = epochs.batches(0)
    data = data.map(_targets(example_id))
    if batch_size is None:
        data = data.unbatch()
        if not drop_remainder:
            size = tf.data.experimental.assert_cardinality(epochs.source.size)
            data = data.apply(size)
    return data.prefetch(tf.data.AUTOTUNE)


def epoch(
    name: str,
    epoch: int,
    batch_size: int,
    data_dir: str | Path | None = None,
    seed: int = 0,
    first_step: int = 0,
    **options: Any,
) -> tf.data.Dataset:
    """Pass number `epoch` through a training split, or the rest of it.

    Args:
        name: As in `load`.
        epoch: >= 0. Order and augmentation are a function of (seed, epoch).
        batch_size: >= 1.
        data_dir: As in `load`.
        seed: As in `load`.
        first_step: The first batch to yield; those before it are left out,
            those after it are the same as without.
        **options: `split`, `training`, `example_id`, `drop_remainder`,
            `limit`, `held_out`; see `Epochs`.

    Returns:
        A data set of batches (images, labels).

    Raises:
        ValueError: As in `Epochs`, or for an `epoch` or `first_step` below 0.
        OSError: As in `load`.

    Example:

    >>> import numpy as np
    >>> from rs_keras import datasets
    >>> whole = list(datasets.epoch("fashion_mini", 3, 500, seed=1))
    >>> rest = datasets.epoch("fashion_mini", 3, 500, seed=1, first_step=6)
    >>> images, labels = next(iter(rest))
    >>> bool(np.array_equal(images, whole[6][0]))
    True
    """
    epochs = Epochs(name, batch_size, data_dir, seed, **options)
    return epochs.epoch(epoch, first_step)


def stream(
    name: str,
    batch_size: int,
    data_dir: str | Path | None = None,
    seed: int = 0,
    first_epoch: int = 0,
    first_step: int = 0,
    **options: Any,
) -> tf.data.Dataset:
    """All passes from `first_epoch` on, one after the other, without end.

    For `fit(stream(...), steps_per_epoch=steps(...), shuffle=False)`, with the
    same first epoch as `initial_epoch`: Keras then keeps one iterator for all
    epochs, so that epoch e sees exactly `epoch(name, e, ...)`.

    Args:
        name: As in `load`.
        batch_size: >= 1.
        data_dir: As in `load`.
        seed: As in `load`.
        first_epoch: The epoch to start with, >= 0.
        first_step: The batch of that epoch to start with, >= 0.
        **options: As in `epoch`.

    Returns:
        An endless data set of batches (images, labels).

    Raises:
        ValueError: As in `Epochs`, or for a `first_epoch` or `first_step`
            below 0.
        OSError: As in `load`.

    Example:

    >>> from rs_keras import datasets
    >>> data = datasets.stream("fashion_mini", 1_000, first_epoch=2)
    >>> len(list(data.take(datasets.steps("fashion_mini", 1_000))))
    4
    """
    epochs = Epochs(name, batch_size, data_dir, seed, **options)
    return epochs.stream(first_epoch, first_step)


def steps(
    name: str,
    batch_size: int,
    data_dir: str | Path | None = None,
    **options: Any,
) -> int:
    """Number of batches in a pass; arguments as in `epoch`.

    Example:

    >>> from rs_keras import datasets
    >>> datasets.steps("fashion_mini", 256)
    16
    """
    return Epochs(name, batch_size, data_dir, **options).steps


def arrays(
    name: str, split: str = "test", data_dir: str | Path | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """A split as two arrays, in its own order, without augmentation.

    Args:
        name: As in `load`; ImageNet is too large.
        split: As in `load`.
        data_dir: As in `load`.

    Returns:
        Images, float32 [N, H, W, C] in [0, 1], and labels, int64 [N].

    Raises:
        ValueError: As in `load`, or for ImageNet.
        OSError: As in `load`.

    Example:

    >>> from rs_keras import datasets
    >>> images, labels = datasets.arrays("fashion_mini", "train")
    >>> images.shape, labels.shape
    ((4000, 28, 28, 1), (4000,))
    """
    if name == "imagenet2012":
        raise ValueError(
            "`name` must be a data set that fits into memory; use `load`. "
            "Received: name='imagenet2012'"
        )
    epochs = Epochs(name, _UNBATCHED, data_dir, split=split, training=False)
    size, shape = epochs.source.size, info(name, data_dir).image_shape
    images = np.empty((size, *shape), np.float32)
    labels = np.empty(size, np.int64)
    for image, label, place in epochs.batches(0).as_numpy_iterator():
        images[place], labels[place] = image, label
    return images, labels


def held_out(
    name: str,
    count: int,
    data_dir: str | Path | None = None,
    *,
    split: str = "train",
) -> tuple[np.ndarray, np.ndarray]:
    """Examples kept out of training, to choose between trained models.

    A random choice, always the same, in the split's own order.
    `stream(..., held_out=count)` yields the others.

    Args:
        name: As in `arrays`.
        count: How many, >= 1 and <= N.
        data_dir: As in `load`.
        split: As in `load`.

    Returns:
        As `arrays`.

    Raises:
        ValueError: As in `arrays`, or for a `count` out of range.
        OSError: As in `load`.

    Example:

    >>> from rs_keras import datasets
    >>> images, labels = datasets.held_out("fashion_mini", 100)
    >>> len(images), len(set(labels.tolist()))
    (100, 10)
    """
    check_count("count", count)
    images, labels = arrays(name, split, data_dir)
    if count > len(images):
        raise ValueError(
            f"`count` must be <= {len(images)}, the number of examples. "
            f"Received: count={count}"
        )
    rows = chosen_places(len(images), count)
    return images[rows], labels[rows]


def attach(data: tf.data.Dataset, **columns: Any) -> tf.data.Dataset:
    """Adds arrays with one row per example to the targets, by `example_id`.

    Args:
        data: What `load`, `epoch` or `stream` give with `example_id=True`,
            batched or not.
        **columns: Name and array [N, ...], row i for the example whose
            `example_id` is i.

    Returns:
        The data set with targets {"label", NAME, ...}.

    Raises:
        ValueError: If the targets carry no `example_id`, or no column or an
            empty one is given.

    Example:

    >>> import numpy as np
    >>> from rs_keras import datasets
    >>> soft = np.full([4_000, 10], 0.1, np.float32)
    >>> data = datasets.epoch("fashion_mini", 0, 64, example_id=True)
    >>> images, targets = next(iter(datasets.attach(data, soft_label=soft)))
    >>> sorted(targets), targets["soft_label"].shape.as_list()
    (['label', 'soft_label'], [64, 10])
    """
    spec = data.element_spec[1]
    if not isinstance(spec, dict) or "example_id" not in spec:
        raise ValueError(
            "`data` must have targets with an `example_id`: load it with "
            f"example_id=True. Received: targets {spec}"
        )
    given = {key: np.asarray(column) for key, column in columns.items()}
    if not given or not all(c.ndim and len(c) for c in given.values()):
        shapes = {key: list(column.shape) for key, column in given.items()}
        raise ValueError(
            "`columns` must be at least one array with one row per example. "
            f"Received: {shapes or 'none'}"
        )
    with tf.device("CPU"):
        tensors = {key: tf.constant(column) for key, column in given.items()}

    def join(image: tf.Tensor, targets: dict) -> tuple[tf.Tensor, dict]:
        index = targets["example_id"]
        rows = {key: tf.gather(t, index) for key, t in tensors.items()}
        return image, {"label": targets["label"], **rows}

    return data.map(join, num_parallel_calls=tf.data.AUTOTUNE)


def _targets(example_id: bool) -> Callable[..., tuple]:
    """Returns the function from (images, labels, places) to what users see."""

    def targets(images: Any, labels: Any, places: Any) -> tuple:
        if example_id:
            return images, {"label": labels, "example_id": places}
        return images, labels

    return targets
