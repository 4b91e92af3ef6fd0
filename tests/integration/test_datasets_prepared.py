"""Real data sets, where tensorflow-datasets has them already."""

import os
from pathlib import Path

import numpy as np
import pytest

from rs_keras import datasets

PREPARED = Path(
    os.environ.get("TFDS_DATA_DIR", "~/tensorflow_datasets")
).expanduser()


@pytest.fixture
def prepared():
    """Skips a test where a real data set has not been laid out."""

    def need(name):
        if not (PREPARED / name).is_dir():
            pytest.skip(f"{name} is not prepared in {PREPARED}")
        return name

    return need


def test_fashion_mini_is_fashion_mnist(prepared):
    name = prepared("fashion_mnist")
    for split in ("train", "test"):
        mine = datasets.arrays("fashion_mini", split)
        whole = datasets.arrays(name, split)
        known = {(x.tobytes(), int(y)) for x, y in zip(*whole, strict=True)}
        assert all(
            (x.tobytes(), int(y)) in known for x, y in zip(*mine, strict=True)
        )


def test_real_test_splits_have_their_publishers_order(prepared):
    # The first labels that tensorflow-datasets documents by its own order.
    data = datasets.load(prepared("mnist"))
    labels = [int(label) for _, label in data.take(10)]
    assert labels == [2, 0, 4, 8, 7, 6, 0, 6, 3, 1]


@pytest.mark.parametrize("name", ["cifar10", "fashion_mnist"])
def test_only_colour_images_are_augmented(name, prepared):
    import tensorflow_datasets as tfds

    whole = tfds.load(prepared(name), split="train", batch_size=-1)
    data = datasets.epoch(name, 0, 64, example_id=True)
    images, targets = next(iter(data))
    place = targets["example_id"].numpy()
    np.testing.assert_array_equal(
        targets["label"], whole["label"].numpy()[place]
    )
    own = whole["image"].numpy()[place] / np.float32(255)
    same = (images.numpy() == own).all((1, 2, 3))
    assert same.all() if name == "fashion_mnist" else same.mean() < 0.1
