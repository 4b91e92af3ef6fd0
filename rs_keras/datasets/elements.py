"""Elements of other libraries' data sets, as images and class numbers.

tensorflow-datasets yields rows {"image", "label"}, the Hugging Face hub rows or
pairs with pictures of Pillow, PyTorch batches of tensors with channels first,
Keras whole arrays. Each becomes (images [B, H, W, C], targets, weights).
"""

import difflib
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

# What rows call the image and the label, in the order in which names are tried.
IMAGE_NAMES = ("image", "img", "images")
LABEL_NAMES = ("label", "labels", "fine_label")
# Further columns that trainers know; all others are left out.
_TARGETS = ("soft_label", "example_id")

# Numbers of channels of a picture: grey, colour, colour with alpha.
_CHANNELS = (1, 3, 4)

Batch = tuple[np.ndarray, Any, Any]


@dataclass(frozen=True)
class ElementReader:
    """Reads elements of any of these forms; each is an image, or a batch.

    (image, label), (image, label, weight) or a row {"image", "label"}. An image
    is an array [H, W, C], a picture of Pillow or a tensor of PyTorch, whose
    channels may stand first, as PyTorch has them. Labels are class numbers
    ([B] or [B, 1]), one-hot rows [B, num_classes], or words.

    Attributes:
        class_names: The words of classes 0, 1, ...; needed for words alone.
        image_shape: The (H, W, C) of the model's images, None for what may
            vary; None where it is not known.
        num_classes: Labels are below it; None where it is not known.

    Example:

    >>> import numpy as np
    >>> from rs_keras.datasets.elements import ElementReader
    >>> read = ElementReader(class_names=["cat", "dog"])
    >>> row = {"image": np.zeros([8, 8, 3]), "label": "dog"}
    >>> images, labels, weights = read(row)
    >>> images.shape, labels
    ((1, 8, 8, 3), array([1]))
    """

    class_names: Sequence[str] | None = None
    image_shape: tuple[int | None, ...] | None = None
    num_classes: int | None = None

    def __call__(self, element: Any) -> Batch:
        """Returns images [B, H, W, C], targets and weights of an element.

        Args:
            element: See the class.

        Returns:
            An image alone is a batch of one. Targets are int64 [B], or a dict
            that has them as `label`.

        Raises:
            ValueError: For an element of another form, or labels that are no
                class numbers.
        """
        images, targets, weights = parts_of(element)
        images, single = self.images(images), is_single(images, targets)
        if single:
            images = images[None]
        columns = targets if isinstance(targets, dict) else {"label": targets}
        columns = {name: _array(value) for name, value in columns.items()}
        if single:
            columns = {name: value[None] for name, value in columns.items()}
            weights = None if weights is None else _array(weights)[None]
        columns["label"] = class_numbers(
            columns["label"], self.class_names, self.num_classes
        )
        if len(columns["label"]) != len(images):
            raise ValueError(
                "`dataset` must yield as many labels as images. Received: "
                f"{len(images)} images, {len(columns['label'])} labels"
            )
        return (
            images,
            columns if isinstance(targets, dict) else columns["label"],
            weights,
        )

    def images(self, images: Any) -> np.ndarray:
        """Returns an image, or a batch, as an array with channels last."""
        if _is_picture(images):
            return self._pixels(images)
        array = _array(images)
        if not _is_torch(images) or array.ndim not in (3, 4):
            return array
        shape, wanted = array.shape[-3:], self.image_shape
        if wanted is not None and None not in wanted:
            first = shape != wanted and (*shape[1:], shape[0]) == wanted
        else:
            first = shape[0] in _CHANNELS and shape[-1] not in _CHANNELS
        return np.moveaxis(array, -3, -1) if first else array

    def _pixels(self, picture: Any) -> np.ndarray:
        """Returns uint8 [H, W, C]; alpha is dropped, palettes are looked up."""
        grey = picture.mode in ("1", "L", "LA")
        if self.image_shape is not None and self.image_shape[-1] in (1, 3):
            grey = self.image_shape[-1] == 1
        pixels = np.asarray(picture.convert("L" if grey else "RGB"))
        return pixels[..., None] if grey else pixels


def parts_of(element: Any) -> tuple[Any, Any, Any]:
    """Returns image, targets and weight of an element, each as it is.

    Args:
        element: A row or a pair; see `ElementReader`.

    Raises:
        ValueError: If it is neither, or a row without image or label.

    Example:

    >>> from rs_keras.datasets.elements import parts_of
    >>> parts_of({"img": "pixels", "label": 3, "id": "a17"})
    ('pixels', 3, None)
    """
    if isinstance(element, dict):
        kept = {name: element[name] for name in _TARGETS if name in element}
        image = element[_name_in(element, IMAGE_NAMES)]
        label = element[_name_in(element, LABEL_NAMES)]
        return image, {"label": label, **kept} if kept else label, None
    if not isinstance(element, tuple | list) or len(element) not in (2, 3):
        raise ValueError(
            "`dataset` must yield pairs (image, label), or rows that have "
            f"both. Received: {type(element).__name__}"
        )
    image, targets, weight = element if len(element) == 3 else (*element, None)
    # Raises where there are none.
    labels_in(targets)
    return image, targets, weight


def _name_in(row: dict, names: Sequence[str]) -> str:
    for name in names:
        if name in row:
            return name
    raise ValueError(
        f"`dataset` must yield rows with {' or '.join(names)}. Received: "
        f"{', '.join(map(str, row))}"
    )


def labels_in(targets: Any) -> Any:
    """Returns the labels of `targets`, which are labels or a dict with them.

    Raises:
        ValueError: If the dict has none.

    Example:

    >>> from rs_keras.datasets.elements import labels_in
    >>> labels_in([3, 1]), labels_in({"label": [3, 1], "example_id": [0, 1]})
    ([3, 1], [3, 1])
    """
    if not isinstance(targets, dict):
        return targets
    if "label" not in targets:
        raise ValueError(
            "`label` must be among the targets. Received: "
            f"{', '.join(map(str, targets))}"
        )
    return targets["label"]


def is_single(images: Any, targets: Any) -> bool:
    """Whether an element, in parts, is one image and not a batch of them.

    Example:

    >>> import numpy as np
    >>> from rs_keras.datasets.elements import is_single
    >>> is_single(np.zeros([8, 8, 3]), 1)
    True
    >>> is_single(np.zeros([5, 8, 8, 3]), [0, 1, 0, 1, 1])
    False
    """
    labels = labels_in(targets)
    if _is_picture(images):
        return True
    if tf.is_tensor(images) or hasattr(images, "shape"):
        rank = len(images.shape)
    else:
        rank = np.ndim(images)
    labels_rank = len(getattr(labels, "shape", np.shape(labels)))
    if rank != 3 or not labels_rank or images.shape[-1] in _CHANNELS:
        return rank == 3
    # A batch of images without channels has a label each: not one image.
    return len(labels) != len(images)


def class_numbers(
    labels: Any,
    class_names: Sequence[str] | None = None,
    num_classes: int | None = None,
) -> np.ndarray:
    """Returns labels as class numbers, int64 [B].

    Args:
        labels: Whole numbers [B] or [B, 1], one-hot rows [B, num_classes], or
            words.
        class_names: The words of classes 0, 1, ...
        num_classes: Labels are below it; None for any.

    Raises:
        ValueError: That names `labels` or `class_names`.

    Example:

    >>> from rs_keras.datasets.elements import class_numbers
    >>> class_numbers([[0, 0, 1], [1, 0, 0]]), class_numbers([[4], [7]])
    (array([2, 0]), array([4, 7]))
    >>> class_numbers(["dog", "cat"], class_names=["cat", "dog"])
    array([1, 0])
    """
    array = _array(labels)
    if array.dtype.kind in "OSU" and array.size:
        array = _numbers_of_words(array.reshape(-1), class_names)
    array = _whole_numbers(array, num_classes)
    if num_classes is not None and array.max(initial=0) >= num_classes:
        raise ValueError(
            f"`labels` must be in [0, {num_classes}), the classes of `model`. "
            f"Received: min={array.min()}, max={array.max()}"
        )
    return array


def _whole_numbers(array: np.ndarray, num_classes: int | None) -> np.ndarray:
    if array.ndim == 2 and array.shape[1] > 1:
        if not is_one_hot(array):
            raise ValueError(
                "`labels` must be one class number an image, or one-hot rows. "
                f"Received: shape={list(array.shape)}"
            )
        if num_classes not in (None, array.shape[1]):
            raise ValueError(
                "`labels` must be one-hot rows of as many columns as there are "
                f"classes, {num_classes}. Received: shape={list(array.shape)}"
            )
        return array.argmax(1)
    if array.dtype.kind not in "iu":
        whole = array.dtype.kind == "f" and (array == np.round(array)).all()
        if not whole:
            raise ValueError(
                f"`labels` must be whole numbers. Received: dtype={array.dtype}"
            )
    if array.ndim != 1 and array.shape[1:] != (1,):
        raise ValueError(
            "`labels` must be one class number an image. "
            f"Received: shape={list(array.shape)}"
        )
    return array.reshape(-1).astype(np.int64)


def is_one_hot(rows: np.ndarray) -> bool:
    """Whether each row [num_classes] is zeros but for a single one.

    Example:

    >>> import numpy as np
    >>> from rs_keras.datasets.elements import is_one_hot
    >>> is_one_hot(np.eye(3)), is_one_hot(np.full([2, 2], 0.5))
    (True, False)
    """
    if rows.ndim != 2 or rows.dtype.kind not in "biuf":
        return False
    binary = ((rows == 0) | (rows == 1)).all()
    return bool(binary and ((rows == 1).sum(1) == 1).all())


def _numbers_of_words(
    words: np.ndarray, class_names: Sequence[str] | None
) -> np.ndarray:
    texts = [w.decode() if isinstance(w, bytes) else str(w) for w in words]
    if class_names is None:
        raise ValueError(
            "`class_names` must be given for labels that are words. "
            f"Received: label={texts[0]!r}"
        )
    names = [str(name) for name in class_names]
    numbers = {name: number for number, name in enumerate(names)}
    for text in texts:
        if text not in numbers:
            near = difflib.get_close_matches(text, names, 1)
            hint = f". Did you mean {near[0]!r}?" if near else ""
            raise ValueError(
                "`labels` must be among `class_names`. "
                f"Received: label={text!r}{hint}"
            )
    return np.array([numbers[text] for text in texts], np.int64)


def elements_of(data: Any, order: Iterable[int] | None = None) -> Iterator[Any]:
    """Yields the elements of a data set of any kind.

    Args:
        data: An iterable; a sequence with `__len__` and `__getitem__` (as the
            data sets of PyTorch are); or a pair of whole arrays (X, Y), whose
            elements are the pairs of their rows.
        order: The numbers of the elements to yield, for a sequence or arrays;
            None for all.

    Example:

    >>> import numpy as np
    >>> from rs_keras.datasets.elements import elements_of
    >>> pairs = list(elements_of((np.zeros([3, 8, 8, 1]), np.array([5, 0, 4]))))
    >>> len(pairs), pairs[2][0].shape, int(pairs[2][1])
    (3, (8, 8, 1), 4)
    """
    if is_arrays(data):
        count, read = len(data[0]), _rows_of(data)
    elif is_sequence(data) and (
        order is not None or not hasattr(data, "__iter__")
    ):
        count, read = len(data), data.__getitem__
    else:
        yield from data
        return
    for number in range(count) if order is None else order:
        yield read(int(number))


def _rows_of(arrays: Sequence[Any]) -> Callable[[int], Any]:
    def read(number: int) -> tuple:
        return tuple(array[number] for array in arrays)

    return read


def is_arrays(data: Any) -> bool:
    """Whether `data` is a pair (X, Y) of arrays, not a sequence of pairs.

    Example:

    >>> import numpy as np
    >>> from rs_keras.datasets.elements import is_arrays
    >>> image = np.zeros([8, 8, 1])
    >>> is_arrays((image[None], np.array([1]))), is_arrays([(image, 1)] * 2)
    (True, False)
    """
    if not isinstance(data, tuple | list) or len(data) not in (2, 3):
        return False
    if len(getattr(data[0], "shape", ())) != 4:
        return False
    return not isinstance(data[1], tuple | dict) and (
        len(data[1]) == len(data[0])
    )


def is_sequence(data: Any) -> bool:
    """Whether elements can be read by number; a dict's cannot.

    Example:

    >>> from rs_keras.datasets.elements import is_sequence
    >>> is_sequence([1, 2]), is_sequence({1, 2}), is_sequence({0: 1})
    (True, False, False)
    """
    return (
        hasattr(data, "__len__")
        and hasattr(data, "__getitem__")
        and not isinstance(data, dict)
    )


def mapped(
    data: tf.data.Dataset, class_names: Sequence[str] | None = None
) -> tf.data.Dataset:
    """Returns a `tf.data.Dataset` of rows or words as one of pairs of numbers.

    Args:
        data: Its elements are pairs, or rows {"image", "label"}.
        class_names: See `ElementReader`.

    Raises:
        ValueError: For rows without image or label, or words without
            `class_names`.

    Example:

    >>> import tensorflow as tf
    >>> from rs_keras.datasets.elements import mapped
    >>> rows = {"image": tf.zeros([2, 8, 8, 1]), "label": ["dog", "cat"]}
    >>> data = mapped(tf.data.Dataset.from_tensor_slices(rows), ["cat", "dog"])
    >>> [int(label) for image, label in data]
    [1, 0]
    """
    spec = data.element_spec
    if isinstance(spec, dict):
        parts_of(spec)
        data = data.map(lambda row: parts_of(row)[:2])
        spec = data.element_spec
    if not isinstance(spec, tuple) or len(spec) < 2:
        return data
    if getattr(labels_in(spec[1]), "dtype", None) != tf.string:
        return data
    if class_names is None:
        raise ValueError(
            "`class_names` must be given for labels that are words. "
            "Received: class_names=None"
        )
    return data.map(_with_numbers(list(map(str, class_names))))


def _with_numbers(names: list[str]) -> Callable[..., tuple]:
    """Returns the function from (images, words, ...) to class numbers."""

    def numbers(words: tf.Tensor) -> tf.Tensor:
        found = tf.equal(words[..., None], tf.constant(names))
        known = tf.reduce_all(tf.reduce_any(found, -1))
        check = tf.debugging.Assert(
            known, ["`labels` must be among `class_names`. Received:", words]
        )
        with tf.control_dependencies([check] if check is not None else []):
            return tf.argmax(found, -1)

    def convert(images: Any, targets: Any, *weights: Any) -> tuple:
        if isinstance(targets, dict):
            targets = {**targets, "label": numbers(targets["label"])}
        else:
            targets = numbers(targets)
        return images, targets, *weights

    return convert


def _array(values: Any) -> np.ndarray:
    """Returns an array; of a tensor of PyTorch on any device, too."""
    if _is_torch(values):
        values = values.detach().cpu()
    return np.asarray(values)


def _is_torch(values: Any) -> bool:
    return type(values).__module__.partition(".")[0] == "torch"


def _is_picture(image: Any) -> bool:
    """Whether an image is one of Pillow, which need not be imported."""
    return hasattr(image, "convert") and hasattr(image, "mode")
