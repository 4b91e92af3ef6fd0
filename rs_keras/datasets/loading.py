"""Passes through a data set, as tf.data."""

import itertools
from collections.abc import Callable
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
from rs_keras.datasets.sources import limited
from rs_keras.datasets.sources import without

# Batches of a pass that is asked for image by image.
_UNBATCHED = 256


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
            asked for) of images of one size.
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
    check_name(name)
    wanted = _UNBATCHED if batch_size is None else batch_size
    training = split == "train" if training is None else bool(training)
    plan = _plan(wanted, seed, training, drop_remainder)
    source = open_split(name, split, data_dir)
    if training:
        # Every iterator takes the next number from here.
        numbers = itertools.count()
        passes = tf.data.Dataset.from_generator(
            lambda: [next(numbers)],
            output_signature=tf.TensorSpec([], tf.int64),
        )
        data = passes.flat_map(lambda number: source.batches(plan, number))
        steps = _steps(source, plan)
        data = data.apply(tf.data.experimental.assert_cardinality(steps))
    else:
        data = source.batches(plan, 0)
    data = data.map(_targets(example_id))
    if batch_size is None:
        data = data.unbatch()
        size = tf.data.experimental.assert_cardinality(source.size)
        data = data if drop_remainder else data.apply(size)
    return data.prefetch(tf.data.AUTOTUNE)


def epoch(
    name: str,
    epoch: int,
    batch_size: int,
    data_dir: str | Path | None = None,
    seed: int = 0,
    first_step: int = 0,
    *,
    split: str = "train",
    training: bool = True,
    example_id: bool = False,
    drop_remainder: bool = False,
    limit: int | None = None,
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
        split: As in `load`.
        training: As in `load`.
        example_id: As in `load`.
        drop_remainder: As in `load`.
        limit: Passes through the first so many examples of the split's own
            order only; None for all. Not for ImageNet.

    Returns:
        A data set of batches (images, labels).

    Raises:
        ValueError: As in `load`, or for an `epoch` or `first_step` below 0.
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
    check_name(name)
    number = check_count("epoch", epoch, minimum=0)
    start = (number, check_count("first_step", first_step, minimum=0))
    plan = _plan(batch_size, seed, training, drop_remainder, start)
    source = limited(open_split(name, split, data_dir), limit)
    data = source.batches(plan, number)
    return data.map(_targets(example_id)).prefetch(tf.data.AUTOTUNE)


def stream(
    name: str,
    batch_size: int,
    data_dir: str | Path | None = None,
    seed: int = 0,
    first_epoch: int = 0,
    first_step: int = 0,
    *,
    split: str = "train",
    example_id: bool = False,
    drop_remainder: bool = False,
    limit: int | None = None,
    held_out: int = 0,
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
        split: As in `load`.
        example_id: As in `load`.
        drop_remainder: As in `load`.
        limit: As in `epoch`.
        held_out: Leave out so many examples: those of
            `held_out(name, held_out, ...)`. Not for ImageNet.

    Returns:
        An endless data set of batches (images, labels).

    Raises:
        ValueError: As in `load`, or for a `first_epoch` or `first_step`
            below 0, or `held_out` that leaves none or goes with `example_id`.
        OSError: As in `load`.

    Example:

    >>> from rs_keras import datasets
    >>> data = datasets.stream("fashion_mini", 1_000, first_epoch=2)
    >>> len(list(data.take(datasets.steps("fashion_mini", 1_000))))
    4
    """
    check_name(name)
    start = (
        check_count("first_epoch", first_epoch, minimum=0),
        check_count("first_step", first_step, minimum=0),
    )
    plan = _plan(batch_size, seed, True, drop_remainder, start)
    if held_out and example_id:
        raise ValueError(
            "`held_out` must be 0 with `example_id`: places would be those in "
            f"the rest. Received: held_out={held_out}"
        )
    source = without(open_split(name, split, data_dir), held_out)
    source = limited(source, limit)
    epochs = tf.data.Dataset.range(start[0], np.iinfo(np.int64).max)
    data = epochs.flat_map(lambda number: source.batches(plan, number))
    return data.map(_targets(example_id)).prefetch(tf.data.AUTOTUNE)


def steps(
    name: str,
    batch_size: int,
    data_dir: str | Path | None = None,
    *,
    split: str = "train",
    drop_remainder: bool = False,
    limit: int | None = None,
) -> int:
    """Number of batches in a pass; arguments as in `epoch`.

    Example:

    >>> from rs_keras import datasets
    >>> datasets.steps("fashion_mini", 256)
    16
    """
    check_name(name)
    plan = _plan(batch_size, 0, False, drop_remainder)
    return _steps(limited(open_split(name, split, data_dir), limit), plan)


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
    check_name(name)
    source = open_split(name, split, data_dir)
    shape = info(name, data_dir).image_shape
    images = np.empty((source.size, *shape), np.float32)
    labels = np.empty(source.size, np.int64)
    plan = _plan(_UNBATCHED, 0, training=False, drop_remainder=False)
    for image, label, place in source.batches(plan, 0).as_numpy_iterator():
        images[place], labels[place] = image, label
    return images, labels


def attach(data: tf.data.Dataset, **columns: Any) -> tf.data.Dataset:
    """Adds arrays with one row an example to the targets, by `example_id`.

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
    held = {key: np.asarray(column) for key, column in columns.items()}
    if not held or not all(c.ndim and len(c) for c in held.values()):
        shapes = {key: list(column.shape) for key, column in held.items()}
        raise ValueError(
            "`columns` must be at least one array with a row an example. "
            f"Received: {shapes or 'none'}"
        )
    with tf.device("CPU"):
        tensors = {key: tf.constant(column) for key, column in held.items()}

    def join(image: tf.Tensor, targets: dict) -> tuple[tf.Tensor, dict]:
        index = targets["example_id"]
        rows = {key: tf.gather(t, index) for key, t in tensors.items()}
        return image, {"label": targets["label"], **rows}

    return data.map(join, num_parallel_calls=tf.data.AUTOTUNE)


def _plan(
    batch_size: int,
    seed: int,
    training: bool,
    drop_remainder: bool,
    start: tuple[int, int] = (0, 0),
) -> Plan:
    return Plan(
        check_count("batch_size", batch_size),
        check_count("seed", seed, minimum=0),
        training,
        drop_remainder,
        start,
    )


def _steps(source: Source, plan: Plan) -> int:
    full, rest = divmod(source.size, plan.batch_size)
    return full + bool(rest and not plan.drop_remainder)


def _targets(example_id: bool) -> Callable[..., tuple]:
    """Returns the step from (images, labels, places) to what users see."""

    def targets(images: Any, labels: Any, places: Any) -> tuple:
        if example_id:
            return images, {"label": labels, "example_id": places}
        return images, labels

    return targets
