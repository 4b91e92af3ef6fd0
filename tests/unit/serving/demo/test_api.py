"""Examples that the demo offers for a model."""

import pytest

from rs_keras.serving.demo.api import examples_for

CLOTHES = "T-shirt/top Trouser Pullover Dress Coat Sandal Shirt Sneaker Bag"


@pytest.mark.parametrize(
    "shape, names, count",
    [
        ((28, 28, 1), None, 10),
        ((28, 28, 1), [*CLOTHES.split(), "Ankle boot"], 10),
        ((28, 28, 1), list("0123456789"), 0),
        ((32, 32, 3), None, 0),
    ],
)
def test_the_demo_offers_examples_of_the_models_kind(shape, names, count):
    found = examples_for(shape, names)
    assert len(found) == count
    assert all(image.shape == shape for _, image in found)
