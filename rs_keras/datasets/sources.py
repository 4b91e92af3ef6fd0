"""Sources of examples, in memory or on disk, and passes through them.

A source is one split: `batches(plan, epoch)` is its epoch number `epoch`, as
batches of (float32 images in [0, 1], int64 labels, int64 places in the split).
`epoch` may be a tensor, so that epochs can follow each other inside one tf.data
graph.
"""

from collections.abc import Callable
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from functools import lru_cache
from typing import Any
from typing import Protocol

import numpy as np
import tensorflow as tf

from rs_keras import noise
from rs_keras._checks import check_count
from rs_keras.datasets import augmentation

# Domain separation: the same seed given to a trainer or to a certification
# makes unrelated draws.
_ORDER, _AUGMENTATION, _FILES, _BUFFER = range(4)
_DATA = 0x64617461

# Encoded ImageNet images are about 110 kB: half a gigabyte.
_SHUFFLED_RECORDS = 4096
_SHARDS_READ_AT_ONCE = 16


@dataclass(frozen=True)
class Plan:
    """How to pass through a source.

    Attributes:
        batch_size: Of every batch but the last one.
        seed: Of the order and of the augmentation.
        training: Shuffle and augment; else keep the split's own order.
        drop_remainder: Leave out a last batch that is not full.
        start: (epoch, step): that epoch starts at that step.
    """

    batch_size: int
    seed: int
    training: bool
    drop_remainder: bool
    start: tuple[int, int]

    def key(self, use: int) -> np.ndarray:
        """The seed, int64 [2], of one use."""
        return noise.fold_in((self.seed, _DATA, 0), use)

    def first_step(self, epoch: Any) -> tf.Tensor:
        """The step that pass number `epoch` starts at."""
        first_epoch, first_step = self.start
        starts = tf.equal(tf.cast(epoch, tf.int64), first_epoch)
        return tf.where(starts, tf.constant(first_step, tf.int64), 0)

    def permutation(self, count: int, epoch: Any, use: int) -> tf.Tensor:
        """The order, int64 [count], of pass number `epoch`."""
        if not self.training:
            return tf.range(count, dtype=tf.int64)
        # Among a million float64 numbers no two are likely to be equal.
        numbers = noise.uniform([count], self.key(use), epoch, 1, tf.float64)
        return tf.cast(tf.argsort(numbers[0], stable=True), tf.int64)


class Source(Protocol):
    """One split of a data set."""

    @property
    def size(self) -> int:
        """Number of examples."""

    def batches(self, plan: Plan, epoch: Any) -> tf.data.Dataset:
        """Pass number `epoch`: (images, labels, places in the split)."""

    def __hash__(self) -> int:
        """By identity: a source is opened once and cached."""


@dataclass(frozen=True, eq=False)
class ArraySource:
    """A split held in memory; whole batches are gathered at once.

    Attributes:
        images: uint8 or float32 [N, H, W, C].
        labels: int64 [N].
        augmented: Crop and flip when training.
    """

    images: np.ndarray
    labels: np.ndarray
    augmented: bool

    @property
    def size(self) -> int:
        """Number of examples."""
        return len(self.labels)

    @cached_property
    def _tensors(self) -> tuple[tf.Tensor, tf.Tensor]:
        # One copy for all passes, made outside of graphs, and in host memory.
        with tf.init_scope(), tf.device("CPU"):
            return tf.constant(self.images), tf.constant(self.labels)

    def batches(self, plan: Plan, epoch: Any) -> tf.data.Dataset:
        """Pass number `epoch`: (images, labels, places in the split)."""
        images, labels = self._tensors
        order = plan.permutation(self.size, epoch, _ORDER)
        augmented = self.augmented and plan.training
        if augmented:
            # Draw number epoch * N + i belongs to example i.
            first = tf.cast(epoch, tf.int64) * self.size
            numbers = noise.uniform(
                [augmentation.CROP_AND_FLIP_NUMBERS],
                plan.key(_AUGMENTATION),
                first,
                self.size,
            )

        def gather(step: tf.Tensor) -> tuple[tf.Tensor, ...]:
            start = step * plan.batch_size
            index = order[start : start + plan.batch_size]
            if plan.drop_remainder:
                index = tf.ensure_shape(index, [plan.batch_size])
            batch = tf.gather(images, index)
            if augmented:
                batch = augmentation.crop_and_flip(
                    batch, tf.gather(numbers, index)
                )
            if batch.dtype == tf.uint8:
                batch = tf.cast(batch, tf.float32) / 255.0
            return batch, tf.gather(labels, index), index

        full, remainder = divmod(self.size, plan.batch_size)
        steps = full + bool(remainder and not plan.drop_remainder)
        return tf.data.Dataset.range(plan.first_step(epoch), steps).map(
            gather, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True
        )


def chosen_places(size: int, count: int) -> np.ndarray:
    """Returns `count` places in range(size), rising, always the same ones.

    At random, because data sets may be sorted by class.
    """
    order = np.random.Generator(np.random.Philox(0)).permutation(size)
    return np.sort(order[:count])


@lru_cache(maxsize=2)
def without(source: Source, count: int) -> Source:
    """Returns the source of all examples but `count`, see `chosen_places`.

    Raises:
        ValueError: For a count that leaves none, or a source that is not in
            memory.
    """
    if not count:
        return source
    check_count("held_out", count, 0)
    if not isinstance(source, ArraySource):
        raise ValueError(
            "`held_out` needs a data set that fits into memory. "
            f"Received: held_out={count}"
        )
    if count >= source.size:
        raise ValueError(
            f"`held_out` must be < {source.size}, the number of examples. "
            f"Received: held_out={count}"
        )
    kept = np.ones(source.size, bool)
    kept[chosen_places(source.size, count)] = False
    return ArraySource(
        source.images[kept], source.labels[kept], source.augmented
    )


@lru_cache(maxsize=2)
def limited(source: Source, limit: int | None) -> Source:
    """Returns the source of the first `limit` examples; of all for None.

    Raises:
        ValueError: For a limit below 1, or a source that is not in memory.
    """
    if limit is None:
        return source
    check_count("limit", limit)
    if not isinstance(source, ArraySource):
        raise ValueError(
            "`limit` needs a data set that fits into memory. "
            f"Received: limit={limit}"
        )
    return ArraySource(
        source.images[:limit], source.labels[:limit], source.augmented
    )


@dataclass(frozen=True, eq=False)
class StreamedSource:
    """A split that is read from the disk and decoded image by image.

    Attributes:
        rows: From (plan, epoch) to (file name or bytes, label, place), one by
            one.
        size: Number of examples.
        decode: From a file name or bytes to float32 [H, W, C] in [0, 1].
        augment: From the same and random numbers to the same; replaces `decode`
            in training; None for no augmentation.
    """

    rows: Callable[[Plan, Any], tf.data.Dataset]
    size: int
    decode: Callable[[tf.Tensor], tf.Tensor]
    augment: Callable[[tf.Tensor, tf.Tensor], tf.Tensor] | None = None

    def batches(self, plan: Plan, epoch: Any) -> tf.data.Dataset:
        """Pass number `epoch`: (images, labels, places in the split)."""
        augment = self.augment if plan.training else None
        key = plan.key(_AUGMENTATION)

        def example(
            raw: tf.Tensor, label: tf.Tensor, index: tf.Tensor
        ) -> tuple[tf.Tensor, ...]:
            if augment is None:
                return self.decode(raw), label, index
            number = tf.cast(epoch, tf.int64) * self.size + index
            shape = [augmentation.RESIZED_CROP_NUMBERS]
            numbers = noise.uniform(shape, key, number, 1)[0]
            return augment(raw, numbers), label, index

        # Skipped before they are decoded.
        rows = self.rows(plan, epoch)
        rows = rows.skip(plan.first_step(epoch) * plan.batch_size)
        return rows.map(
            example, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True
        ).batch(plan.batch_size, plan.drop_remainder)


def file_rows(
    paths: Sequence[str], labels: np.ndarray
) -> Callable[[Plan, Any], tf.data.Dataset]:
    """Rows from one image file per example, in an exact random order."""

    def rows(plan: Plan, epoch: Any) -> tf.data.Dataset:
        order = plan.permutation(len(paths), epoch, _ORDER)
        return tf.data.Dataset.from_tensor_slices(
            (tf.gather(list(paths), order), tf.gather(labels, order), order)
        )

    return rows


def record_rows(
    files: Sequence[str],
    lengths: Sequence[int],
    parse: Callable[[tf.Tensor], tuple[tf.Tensor, tf.Tensor]],
) -> Callable[[Plan, Any], tf.data.Dataset]:
    """Rows from record files, which can only be read sequentially.

    Training reads several files at once, in a random order, through a shuffle
    buffer. The order is a function of (seed, epoch), and close to uniform if
    the files were shuffled when they were written.

    Args:
        files: TFRecord files.
        lengths: How many examples each of them holds.
        parse: From a record to (encoded image, label).
    """
    offsets = np.cumsum([0, *lengths[:-1]], dtype=np.int64)

    def read(file: tf.Tensor, offset: tf.Tensor) -> tf.data.Dataset:
        return tf.data.TFRecordDataset(file).enumerate(offset)

    def row(
        index: tf.Tensor, record: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        return (*parse(record), index)

    def rows(plan: Plan, epoch: Any) -> tf.data.Dataset:
        order = plan.permutation(len(files), epoch, _FILES)
        shards = tf.data.Dataset.from_tensor_slices(
            (tf.gather(list(files), order), tf.gather(offsets, order))
        )
        if not plan.training:
            return shards.flat_map(read).map(row)
        records = shards.interleave(
            read,
            cycle_length=_SHARDS_READ_AT_ONCE,
            num_parallel_calls=tf.data.AUTOTUNE,
            deterministic=True,
        )
        key = plan.key(_BUFFER)
        records = records.shuffle(
            _SHUFFLED_RECORDS,
            seed=tf.constant(key[0]) ^ (tf.cast(epoch, tf.int64) + key[1]),
            reshuffle_each_iteration=False,
        )
        return records.map(row)

    return rows
