"""Ball memory: stores certified balls, which determine all later answers.

Inside a returned ball the answers are constant because they are looked up, not
because of a bound. This protects only images that were certified before they
were attacked.
"""

import os
import threading
from collections.abc import Callable
from collections.abc import Mapping
from typing import Any

import numpy as np

from rs_keras import _npz
from rs_keras._atomic_files import written_whole
from rs_keras._checks import check_images
from rs_keras.certification.certificate import ABSTAIN

Certify = Callable[[np.ndarray], tuple[int, float]]

# Distances are sums of squares in float64: within 1e-12, relatively. What is
# handed out keeps further away from other balls than what counts as inside
# reaches, so that no image can count as inside two balls of different classes.
_INSIDE = 1e-12
_APART = 4e-12

# Of the float32 product that sorts out far balls: above 192 coordinates times
# the rounding of each.
_SKETCH_MARGIN = 4e-5
_SKETCH_SIDE = 8

# Rows of a block of stored images: growing must not copy them all.
_BLOCK = 2_048

_FORMAT = 2

# What NumPy raises for files that are cut short, damaged or of another kind.


class BallMemory:
    """Certifies images, and answers inside certified balls consistently.

    The memory-based procedure for input-dependent smoothing, in a form whose
    invariants hold: open balls (x_i, c_i, R_i) are only ever added, those of
    different classes do not meet, and any later image in ball i is answered
    c_i. To a new image x with own = certify(x):

    - inside a ball of class c, it answers c, with the radius that is left in
      it, or with the own one where own says c too, if that is larger;
    - where x itself is stored, the same class again, with radius 0 at least;
    - else own, shrunk until it meets no ball of another class.

    What this is worth: the guarantee comes from the memory, not from the
    network. It protects x only if x was asked before the attacked image was;
    answers depend on the order of the questions; whoever asks first can plant
    a ball. Fixed sigma is the only guarantee without such conditions.

    Args:
        certify: From one image [H, W, C] to (label, radius); label -1
            abstains.
        strict: Whether images on which `certify` abstained are kept, too: no
            later ball may then contain them. An attacker can use that to
            keep balls small.

    Example:

    >>> import numpy as np
    >>> from rs_keras.per_input_sigma import BallMemory
    >>> memory = BallMemory(lambda image: (int(image.mean() > 0.5), 0.5))
    >>> memory.query(np.full([2, 2, 1], 0.75, np.float32))
    (1, 0.5)
    >>> label, radius = memory.query(np.full([2, 2, 1], 0.45, np.float32))
    >>> label, round(radius, 3)
    (0, 0.1)

    References:
    - [Alfarra et al., 2022](https://arxiv.org/abs/2012.04351)
    """

    def __init__(self, certify: Certify, strict: bool = False) -> None:
        self.certify = certify
        self.strict = bool(strict)
        self._shape: tuple[int, ...] | None = None
        self._blocks: list[np.ndarray] = []
        self._size = 0
        self._labels = np.zeros(0, np.int64)
        self._radii = np.zeros(0)
        self._sketches = np.zeros((0, 0), np.float32)
        self._squares = np.zeros(0)
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return self._size

    @property
    def labels(self) -> np.ndarray:
        """int64 [N], classes of the balls; -1 for strictly kept points."""
        return self._labels[: self._size].copy()

    @property
    def radii(self) -> np.ndarray:
        """float64 [N], radii of the balls."""
        return self._radii[: self._size].copy()

    def query(self, image: Any) -> tuple[int, float]:
        """Answers for one image, and remembers.

        Args:
            image: [H, W, C] in [0, 1], the same shape each time.

        Returns:
            The label (-1: abstains) and the L2 radius within which every later
            question gets this label.

        Raises:
            ValueError: If the image or what `certify` says is out of range.
        """
        pixels = check_images(np.asarray(image)[None], self._shape)[0]
        label, radius = self._checked(*self.certify(pixels))
        with self._lock:
            answer, reach = self._answer(pixels, label, radius)
            if answer != ABSTAIN or self.strict:
                self._append(pixels, answer, reach)
        return answer, reach

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes all balls to a file, whole or not at all.

        Raises:
            OSError: If the file cannot be written.

        Example:

        >>> import numpy as np
        >>> from rs_keras import BallMemory
        >>> def certify(image):
        ...     return int(image.mean() > 0.5), 0.5
        >>> memory = BallMemory(certify)
        >>> memory.query(np.full([2, 2, 1], 0.75, np.float32))
        (1, 0.5)
        >>> memory.save("balls.npz")
        >>> again = BallMemory.load("balls.npz", certify)
        >>> len(again), again.labels, again.radii
        (1, array([1]), array([0.5]))
        """
        with self._lock:
            size = self._size
            arrays: dict[str, Any] = {
                "format": np.array(_FORMAT),
                "strict": np.array(self.strict),
                "shape": np.array(self._shape or (), np.int64),
                "labels": self.labels,
                "radii": self.radii,
            }
            blocks = list(self._blocks)
        # Rows are only ever added: these are views, and never change.
        for first, block in zip(_starts(size), blocks, strict=True):
            arrays[f"images_{first}"] = block[: size - first]
        with written_whole(path) as temporary, open(temporary, "wb") as file:
            np.savez(file, **arrays)

    @classmethod
    def load(
        cls, path: str | os.PathLike[str], certify: Certify
    ) -> "BallMemory":
        """Reads what `save` wrote; asks `certify` from then on.

        Raises:
            ValueError: If the file is not a ball memory.
            OSError: If the file does not exist.
        """
        with _npz.opened(path, f"{path}: not a ball memory") as file:
            return cls._read(file, certify)

    @classmethod
    def _read(
        cls, file: Mapping[str, np.ndarray], certify: Certify
    ) -> "BallMemory":
        if int(file["format"]) != _FORMAT:
            raise ValueError(f"format {file['format']}, not {_FORMAT}")
        memory = cls(certify, bool(file["strict"]))
        labels, radii = file["labels"], file["radii"]
        shape = tuple(int(side) for side in file["shape"])
        for first in _starts(len(labels)):
            images = file[f"images_{first}"]
            # Rounded now, the balls might meet.
            if images.dtype != np.float32:
                raise ValueError(f"images of type {images.dtype}, not float32")
            rows = slice(first, first + _BLOCK)
            images = check_images(images.reshape(-1, *shape))
            for image, *ball in zip(
                images, labels[rows], radii[rows], strict=True
            ):
                memory._append(image, *memory._checked(*ball))
        return memory

    @staticmethod
    def _checked(label: int, radius: float) -> tuple[int, float]:
        label, radius = int(label), float(radius)
        if label < ABSTAIN or not (np.isfinite(radius) and radius >= 0):
            raise ValueError(
                "`certify` must return a label >= -1 and a finite radius >= 0. "
                f"Received: label={label}, radius={radius}"
            )
        return (label, 0.0) if label == ABSTAIN else (label, radius)

    def _answer(
        self, pixels: np.ndarray, label: int, radius: float
    ) -> tuple[int, float]:
        """The answer for an image whose own certificate is (label, radius)."""
        near, distances = self._near(pixels, radius)
        labels, radii = self._labels[near], self._radii[near]
        inside = distances * (1 - _INSIDE) < radii
        if inside.any():
            kept = int(labels[inside][0])
            left = radii[inside] - distances[inside] * (1 + _APART)
            room = max(0.0, float(left.max()))
            if label != kept:
                return kept, room
            free = _free(labels, radii, distances, kept)
            return kept, max(room, min(radius, free))
        same = distances == 0
        if same.any():
            return int(labels[same][0]), 0.0
        return label, min(radius, _free(labels, radii, distances, label))

    def _near(
        self, pixels: np.ndarray, radius: float
    ) -> tuple[np.ndarray, np.ndarray]:
        """Balls that a ball around `pixels` could meet, and how far they are.

        Averages over blocks of pixels, times the root of the block's size, are
        coordinates in an orthonormal basis of a subspace: distances there are
        never larger than in full. So what is too far there is too far.
        """
        if not self._size:
            return np.zeros(0, np.int64), np.zeros(0)
        sketch = _sketch(pixels)
        squares = self._squares[: self._size] + float(sketch @ sketch)
        product = self._sketches[: self._size] @ sketch
        squared_distances = squares * (1 - _SKETCH_MARGIN) - 2.0 * product
        reach = self._radii[: self._size] + radius
        # Equality counts: the image itself may be stored with radius 0.
        near = np.flatnonzero(squared_distances <= reach * reach)
        difference = self._stored(near).astype(np.float64)
        difference -= pixels.reshape(-1)
        return near, np.sqrt(np.einsum("ij,ij->i", difference, difference))

    def _stored(self, rows: np.ndarray) -> np.ndarray:
        """float32 [len(rows), H * W * C]."""
        if not self._blocks:
            return np.zeros((0, 0), np.float32)
        out = np.empty((len(rows), self._blocks[0].shape[1]), np.float32)
        for number in np.unique(rows // _BLOCK):
            in_block = rows // _BLOCK == number
            out[in_block] = self._blocks[number][rows[in_block] % _BLOCK]
        return out

    def _append(self, pixels: np.ndarray, label: int, radius: float) -> None:
        row = self._size
        if self._shape is None:
            self._shape = pixels.shape
        if row % _BLOCK == 0:
            self._blocks.append(np.empty((_BLOCK, pixels.size), np.float32))
        self._blocks[-1][row % _BLOCK] = pixels.reshape(-1)
        sketch = _sketch(pixels)
        if row == len(self._radii):
            capacity = max(1_024, 2 * row)
            self._labels = _grown(self._labels, (capacity,))
            self._radii = _grown(self._radii, (capacity,))
            self._squares = _grown(self._squares, (capacity,))
            wide = (capacity, sketch.size)
            self._sketches = _grown(self._sketches, wide)
        self._labels[row], self._radii[row] = label, radius
        self._sketches[row], self._squares[row] = sketch, sketch @ sketch
        self._size = row + 1


def _starts(size: int) -> range:
    """The first row of each block."""
    return range(0, size, _BLOCK)


def _free(
    labels: np.ndarray, radii: np.ndarray, distances: np.ndarray, label: int
) -> float:
    """How far a ball of this class may reach before it meets another class."""
    other = labels != label
    gaps = distances[other] * (1 - _APART) - radii[other]
    return max(0.0, float(gaps.min(initial=np.inf)))


def _sketch(pixels: np.ndarray) -> np.ndarray:
    """Block sums over blocks' root sizes: at most 8 x 8 x C coordinates."""
    sums, sizes = pixels.astype(np.float64), np.ones(pixels.shape[:2])
    for axis in (0, 1):
        side = pixels.shape[axis]
        ends = np.linspace(0, side, min(side, _SKETCH_SIDE) + 1)
        starts = np.unique(ends[:-1].astype(int))
        sums = np.add.reduceat(sums, starts, axis=axis)
        sizes = np.add.reduceat(sizes, starts, axis=axis)
    return (sums / np.sqrt(sizes)[..., None]).astype(np.float32).reshape(-1)


def _grown(array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    larger = np.zeros(shape, array.dtype)
    if len(array):
        larger[: len(array)] = array
    return larger
