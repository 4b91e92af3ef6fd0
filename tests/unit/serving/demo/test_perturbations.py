"""Perturbed images at the distances that were asked for."""

import numpy as np
import pytest
from kits.demo import SHAPE
from kits.demo import an_image

from rs_keras.serving.demo.perturbations import at_distance


@pytest.mark.parametrize("far", [0.0, 0.01, 1.0, 5.0])
def test_distances_are_kept_though_pixels_are_clipped(far):
    rng = np.random.default_rng(1)
    image = rng.choice([0.0, 0.3, 1.0], size=(8, 8, 1)).astype("float32")
    direction = rng.normal(size=image.shape)
    found = at_distance(image, direction, far)
    change = found.astype(float) - image
    # The farthest point this way has every free pixel at 0 or 1.
    corner = np.where(direction > 0, 1.0, 0.0) - image
    most = np.sqrt((corner**2).sum())
    assert np.sqrt((change**2).sum()) == pytest.approx(min(far, most), abs=1e-6)
    assert (change * direction >= 0).all()
    assert found.dtype == np.float32


def test_no_direction_leads_nowhere():
    image = an_image()
    assert (at_distance(image, np.zeros(SHAPE), 1.0) == image).all()
