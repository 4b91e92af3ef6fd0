"""Data sets as tf.data: images in [0, 1], labels, the papers' augmentation.

A training pass is a function of (seed, epoch): its order and its augmentation
are drawn from these two numbers and the places of the examples, never from
what ran before. So a run that stops and resumes sees what it would have seen.

Example:

>>> from rs_keras import datasets
>>> data = datasets.load("fashion_mini", split="test", batch_size=100)
>>> images, labels = next(iter(data))
>>> images.shape.as_list(), images.dtype.name, labels.dtype.name
([100, 28, 28, 1], 'float32', 'int64')
"""

from rs_keras.datasets.elements import ElementReader
from rs_keras.datasets.loading import Epochs
from rs_keras.datasets.loading import arrays
from rs_keras.datasets.loading import attach
from rs_keras.datasets.loading import epoch
from rs_keras.datasets.loading import held_out
from rs_keras.datasets.loading import load
from rs_keras.datasets.loading import steps
from rs_keras.datasets.loading import stream
from rs_keras.datasets.registry import REGISTRY
from rs_keras.datasets.registry import DatasetInfo
from rs_keras.datasets.registry import info
from rs_keras.datasets.registry import names

__all__ = [
    "REGISTRY",
    "DatasetInfo",
    "ElementReader",
    "Epochs",
    "arrays",
    "attach",
    "epoch",
    "held_out",
    "info",
    "load",
    "names",
    "steps",
    "stream",
]
