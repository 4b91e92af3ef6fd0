"""Thumbnails of examples, in one image for a whole page."""

import base64
import io
import math
from collections.abc import Iterable
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING
from typing import Any

import numpy as np

from rs_keras._checks import check_count
from rs_keras.datasets.registry import check_name
from rs_keras.datasets.registry import info
from rs_keras.logs.log import CertificationLog

if TYPE_CHECKING:
    from PIL.Image import Image

# Larger images are shrunk to this many pixels.
_SIDE = 64

# Bytes. Larger sheets are compressed with losses.
_LOSSLESS = 1_200_000
_JPEG_QUALITY = 85


@dataclass(frozen=True)
class Thumbnails:
    """Pictures of some examples of a data set.

    Attributes:
        pictures: uint8 [m, h, w, C] with one channel or three.
        idx: int64 [m], the examples' numbers in the data set.
        label: int64 [m], their labels.
        class_names: In the order of the labels; None if they have no names.
        image_shape: (H, W, C) of the images themselves.

    Example:

    >>> from rs_keras import CertificationLog
    >>> from rs_keras.report import Thumbnails
    >>> some = Thumbnails.of_dataset("fashion_mini/test", [0, 1])
    >>> some.idx, some.image_shape
    (array([0, 1]), (28, 28, 1))
    >>> sheet = some.sheet()
    >>> sheet["columns"], sheet["tile"], sheet["url"][:22]
    (2, [28, 28], 'data:image/png;base64,')
    >>> wrong = [some.label[0] + 1]
    >>> some.check_labels(
    ...     CertificationLog([0], wrong, wrong, [0.5], [1], [1.0]))
    Traceback (most recent call last):
    ValueError: `data` must be the data set that the log is of. Received: ...
    """

    pictures: np.ndarray
    idx: np.ndarray
    label: np.ndarray
    class_names: Sequence[str] | None
    image_shape: tuple[int, ...]

    @classmethod
    def of_dataset(
        cls,
        name: str,
        idx: Iterable[int],
        data_dir: str | None = None,
    ) -> "Thumbnails":
        """Reads examples of a data set.

        Args:
            name: DATASET/SPLIT as in the settings of a log ("mnist/test"), or
                DATASET for its test split.
            idx: Numbers of the examples, >= 0; those past the end are left out.
            data_dir: As in `rs_keras.datasets.load`.

        Raises:
            ValueError: If there is no such data set or split.
            OSError: If its data is neither there nor to be had.

        Example:

        >>> from rs_keras.report import Thumbnails
        >>> some = Thumbnails.of_dataset("fashion_mini/test", [0, 999])
        >>> some.pictures.shape, some.class_names[some.label[0]]
        ((2, 28, 28, 1), 'Ankle boot')
        """
        from rs_keras import datasets

        data, split = split_name(name)
        chosen = set(idx)
        # Nothing is read past the last of them.
        size = 1 + max(chosen, default=-1)
        rows = datasets.load(data, split=split, data_dir=data_dir)
        examples = [
            (i, _shrunk(image), int(label))
            for i, (image, label) in enumerate(rows.take(size))
            if i in chosen
        ]
        known = info(data, data_dir)
        return cls(
            np.stack([picture for _, picture, _ in examples])
            if examples
            else np.zeros((0, *known.image_shape), np.uint8),
            np.array([i for i, _, _ in examples], np.int64),
            np.array([label for _, _, label in examples], np.int64),
            known.class_names,
            known.image_shape,
        )

    def check_labels(self, log: CertificationLog) -> None:
        """Raises ValueError if these are not the images that a log is of."""
        labels = dict(zip(log.idx.tolist(), log.label.tolist(), strict=True))
        for i, label in zip(
            self.idx.tolist(), self.label.tolist(), strict=True
        ):
            if labels.get(i, label) not in (label, -1):
                raise ValueError(
                    "`data` must be the data set that the log is of. Received: "
                    f"example {i} with label {label}, which is {labels[i]} in "
                    f"{log.name}"
                )

    def sheet(self) -> dict[str, Any]:
        """Returns all pictures in one, row by row, as a data URL.

        Lossless (PNG) unless that is too large for a page.
        """
        count, height, width = self.pictures.shape[:3]
        columns = max(1, math.ceil(math.sqrt(count)))
        rows = math.ceil(count / columns)
        canvas = np.zeros(
            (rows * height, columns * width, self.pictures.shape[3]), np.uint8
        )
        for i, picture in enumerate(self.pictures):
            top, left = i // columns * height, i % columns * width
            canvas[top : top + height, left : left + width] = picture
        return {
            "url": _data_url(_image(canvas)),
            "columns": columns,
            "tile": [height, width],
            "idx": self.idx.tolist(),
        }


def split_name(name: str) -> tuple[str, str]:
    """Returns the data set and the split that DATASET/SPLIT names.

    Raises:
        ValueError: If there is no such data set.

    Example:

    >>> from rs_keras.report.thumbnails import split_name
    >>> split_name("cifar10_corrupted/fog_3/test"), split_name("mnist")
    (('cifar10_corrupted/fog_3', 'test'), ('mnist', 'test'))
    """
    data, slash, split = name.rpartition("/")
    if slash and split in ("train", "test"):
        check_name(data)
        return data, split
    check_name(name)
    return name, "test"


def chosen_examples(log: CertificationLog, count: int) -> np.ndarray:
    """Returns the numbers of the examples to show, where not all are shown.

    Those that are wrong or abstained first, up to half of all, smallest radius
    last; then the others, evenly spread over the order of their radii.

    Args:
        log: The log.
        count: >= 1.

    Returns:
        int64, at most `count` numbers.
    """
    check_count("count", count)
    if len(log) <= count:
        return log.idx
    order = np.argsort(-log.radius, kind="stable")
    missed = order[~log.correct[order]]
    missed = missed[_spread(len(missed), count // 2)]
    right = order[log.correct[order]]
    right = right[_spread(len(right), count - len(missed))]
    return log.idx[np.concatenate([missed, right])]


def _spread(total: int, count: int) -> np.ndarray:
    """Returns at most `count` places in range(total), evenly spread."""
    return np.unique(np.linspace(0, total - 1, min(total, count)).astype(int))


def _shrunk(image: Any) -> np.ndarray:
    from PIL.Image import Resampling

    pixels = np.rint(np.asarray(image) * 255).astype(np.uint8)
    if max(pixels.shape[:2]) <= _SIDE:
        return pixels
    picture = _image(pixels)
    picture.thumbnail((_SIDE, _SIDE), Resampling.LANCZOS)
    return np.asarray(picture).reshape(*picture.size[::-1], -1)


def _image(pixels: np.ndarray) -> "Image":
    from PIL import Image

    return Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels)


def _data_url(image: "Image") -> str:
    file = io.BytesIO()
    image.save(file, "PNG", optimize=True)
    kind = "png"
    if file.tell() > _LOSSLESS:
        file = io.BytesIO()
        image.save(file, "JPEG", quality=_JPEG_QUALITY)
        kind = "jpeg"
    text = base64.b64encode(file.getvalue()).decode("ascii")
    return f"data:image/{kind};base64,{text}"
