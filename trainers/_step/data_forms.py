"""Data of `fit` and `evaluate`, in any library's form, as Keras takes them."""

import itertools
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from rs_keras.datasets import elements

Check = Callable[..., None]

# What `keras.Model.fit` makes of arrays when it is not told.
KERAS_BATCH = 32


@dataclass(frozen=True)
class DataForm:
    """How the data of one call are read.

    Attributes:
        batch_size: Of what comes image by image; None for that of Keras.
        class_names: The words of classes 0, 1, ..., where labels are words.
        image_shape: (H, W, C) of the model's input, None for what may vary.
        num_classes: Of the model, where it is known.
        order: From the number of examples and of the epoch to the numbers of
            the examples, in the order of training; None for their own order.
    """

    batch_size: int | None = None
    class_names: Sequence[str] | None = None
    image_shape: tuple[int | None, ...] | None = None
    num_classes: int | None = None
    order: Callable[[int, int], np.ndarray] | None = None

    @property
    def read(self) -> elements.ElementReader:
        """The reader of single elements."""
        return elements.ElementReader(
            self.class_names, self.image_shape, self.num_classes
        )

    def checked(self, x: Any, y: Any, check: Check) -> tuple[Any, Any]:
        """Runs `check` on the first batch and returns what Keras takes.

        Arrays are checked from end to end. A generator is handed back with the
        batch that was taken from it put in front.

        Args:
            x: What `fit` accepts as its first argument.
            y: What `fit` accepts as its second.
            check: Called with images and targets.

        Returns:
            What to pass on to Keras in place of `x` and `y`.
        """
        if y is None and elements.is_arrays(x):
            if len(x) == 3:
                raise ValueError(
                    "`x` must be a pair of arrays (X, Y); give weights as "
                    "`sample_weight`. Received: three arrays"
                )
            x, y = x
        if hasattr(x, "shape"):
            x, y = self.read.images(x), self._numbers(y)
            check(x, y)
            return x, y
        if x is None or y is not None or isinstance(x, _OF_KERAS):
            batch = x[0] if isinstance(x, keras.utils.PyDataset) else None
            if isinstance(x, tf.distribute.DistributedDataset):
                batch = next(iter(x), None)
            self._check(check, batch)
            return x, y
        if isinstance(x, tf.data.Dataset):
            x = self._dataset(x)
            self._check(check, next(iter(x), None))
        elif isinstance(x, Iterator):
            batches = self._batches(iter(x))
            first = next(batches, None)
            self._check(check, first)
            # Keras takes generators, and no other iterators.
            x = (each for each in itertools.chain([first], batches) if each)
        else:
            x = self._from_library(x, check)
        return x, y

    def _numbers(self, y: Any) -> Any:
        """Returns targets with words as class numbers; others as they are."""
        if isinstance(y, dict):
            label = self._numbers(y["label"]) if "label" in y else None
            return y if label is None else {**y, "label": label}
        words = y is not None and np.asarray(y).dtype.kind in "OSU"
        return elements.class_numbers(y, self.class_names) if words else y

    def _dataset(self, data: tf.data.Dataset) -> tf.data.Dataset:
        """Returns a data set of batches of pairs."""
        data = elements.mapped(data, self.class_names)
        spec = data.element_spec
        if isinstance(spec, tuple) and len(spec) > 1:
            label = elements.labels_in(spec[1])
            # One label, and no axis for several: an image by itself.
            if getattr(getattr(label, "shape", None), "rank", None) == 0:
                data = data.batch(self.batch_size or KERAS_BATCH)
        return data

    def _from_library(self, data: Any, check: Check) -> tf.data.Dataset:
        """Returns a data set that reads `data` anew in each epoch."""
        if not (hasattr(data, "__iter__") or elements.is_sequence(data)):
            raise ValueError(
                "`x` must be images, or a data set of images and labels. "
                f"Received: {type(data).__name__}"
            )
        first = next(self._batches(elements.elements_of(data)), None)
        if first is None:
            raise ValueError("`x` must hold at least one image. Received: none")
        self._check(check, first)
        epochs = itertools.count()

        def batches() -> Iterator[tuple]:
            order = None
            if self.order is not None and elements.is_sequence(data):
                order = self.order(len(data), next(epochs)).tolist()
            return self._batches(elements.elements_of(data, order))

        def spec(value: Any) -> tf.TensorSpec:
            array = np.asarray(value)
            return tf.TensorSpec([None, *array.shape[1:]], array.dtype)

        signature = keras.tree.map_structure(spec, first)
        made = tf.data.Dataset.from_generator(
            batches, output_signature=signature
        )
        if hasattr(data, "__len__"):
            # Else Keras warns at the end of each epoch that data ran out.
            steps = self._steps(data)
            made = made.apply(tf.data.experimental.assert_cardinality(steps))
        return made.prefetch(tf.data.AUTOTUNE)

    def _steps(self, data: Any) -> int:
        """Returns how many batches there are of what tells its length."""
        first = next(elements.elements_of(data))
        if not elements.is_single(*elements.parts_of(first)[:2]):
            return len(data)
        return -(-len(data) // (self.batch_size or KERAS_BATCH))

    def _batches(self, data: Iterator[Any]) -> Iterator[tuple]:
        """Yields batches; images that come one by one are put together."""
        rows: list[tuple] = []
        for element in data:
            single = elements.is_single(*elements.parts_of(element)[:2])
            images, targets, weights = self.read(element)
            batch: tuple = (images, targets)
            batch = batch if weights is None else (*batch, weights)
            if not single:
                yield batch
                continue
            rows.append(batch)
            if len(rows) == (self.batch_size or KERAS_BATCH):
                yield _joined(rows)
                rows = []
        if rows:
            yield _joined(rows)

    @staticmethod
    def _check(check: Check, batch: Any) -> None:
        if batch is not None:
            images, targets, _ = keras.utils.unpack_x_y_sample_weight(batch)
            check(*keras.tree.map_structure(_local, (images, targets)))


# What Keras reads as it is.
_OF_KERAS = (keras.utils.PyDataset, tf.distribute.DistributedDataset)


def _joined(rows: Sequence[tuple]) -> tuple:
    """Joins batches of one image; they must have one shape."""
    shapes = {images.shape for images, *_ in rows}
    if len(shapes) > 1:
        raise ValueError(
            "`images` must have one size within a batch: resize them. "
            f"Received: {', '.join(str(s[1:]) for s in sorted(shapes))}"
        )
    return keras.tree.map_structure(lambda *parts: np.concatenate(parts), *rows)


def _local(value: Any) -> Any:
    """Takes this worker's first part of a value spread over replicas."""
    if isinstance(value, tf.distribute.DistributedValues):
        return tf.distribute.get_strategy().experimental_local_results(value)[0]
    return value
