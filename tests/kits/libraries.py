"""Data sets as other libraries yield them, without the libraries."""

import numpy as np
from PIL import Image


def torch_tensor(array):
    """Returns a stand-in for a tensor of PyTorch."""
    cls = type("Tensor", (_Tensor,), {"__module__": "torch"})
    return cls(np.ascontiguousarray(array))


class _Tensor:
    """What is read of a tensor: its shape, and its values on the host."""

    def __init__(self, array):
        self._array = array
        self.shape, self.dtype = array.shape, array.dtype

    def __len__(self):
        return len(self._array)

    def detach(self):
        return self

    cpu = detach

    def __array__(self, dtype=None, copy=None):
        return self._array.astype(dtype or self._array.dtype)


class DataLoader:
    """Batches of tensors, channels first, anew in each epoch."""

    def __init__(self, images, labels, batch_size=4):
        self.arrays = np.moveaxis(images, -1, 1), labels
        self.batch_size = batch_size

    def __len__(self):
        return -(-len(self.arrays[1]) // self.batch_size)

    def __iter__(self):
        for start in range(0, len(self.arrays[1]), self.batch_size):
            rows = slice(start, start + self.batch_size)
            yield [torch_tensor(array[rows]) for array in self.arrays]


class MapStyle:
    """A data set of PyTorch: (picture, int) by number, not iterable."""

    def __init__(self, images, labels):
        self.images, self.labels = images, labels

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, number):
        image = Image.fromarray(as_bytes(self.images[number, ..., 0]))
        return image, int(self.labels[number])


class Rows:
    """A data set of the Hugging Face hub: rows with a picture."""

    def __init__(self, images, labels):
        self._pairs = MapStyle(images, labels)

    def __len__(self):
        return len(self._pairs)

    def __getitem__(self, number):
        image, label = self._pairs[number]
        return {"img": image, "label": label}

    def __iter__(self):
        return (self[number] for number in range(len(self)))


def as_bytes(values):
    """Returns pixels in [0, 1] as uint8."""
    return np.round(np.asarray(values) * 255).astype(np.uint8)
