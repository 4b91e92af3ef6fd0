"""L-infinity radii: exact arithmetic, and logs in that norm."""

from decimal import Decimal
from decimal import localcontext

import numpy as np
import pytest

from rs_keras import CertificationLog
from rs_keras.bounds import linf_log
from rs_keras.bounds import linf_radius


@pytest.mark.parametrize("shape", [(28, 28, 1), (32, 32, 3), (224, 224, 3)])
def test_radius_is_the_exact_one_rounded_down(shape):
    radii = np.random.default_rng(0).uniform(0, 4, 50)
    with localcontext() as context:
        context.prec = 50
        size = Decimal(int(np.prod(shape))).sqrt()
        exact = [Decimal(radius) / size for radius in radii.tolist()]
        for found, wanted in zip(
            linf_radius(radii, shape).tolist(), exact, strict=True
        ):
            assert Decimal(found) <= wanted
            assert Decimal(found) > wanted * (1 - Decimal("1e-15"))


def test_zero_stays_zero():
    assert linf_radius(0.0, (28, 28, 1)) == 0


def test_corner_of_the_cube_is_inside_the_ball():
    # The L-infinity ball's farthest point has every value at the radius.
    corner = np.full((8, 8, 3), linf_radius(0.7, (8, 8, 3)))
    assert np.linalg.norm(corner) <= 0.7


def test_log():
    log = CertificationLog([0], [1], [1], [0.56], [True], [1.0], "one")
    found = linf_log(log, (28, 28, 1))
    assert found.acr() == pytest.approx(0.02) and "L-infinity" in found.name
    with pytest.raises(ValueError, match="L-infinity radii already"):
        linf_log(found, (28, 28, 1))


@pytest.mark.parametrize(
    "radius, shape, message",
    [
        (-1.0, (2, 2, 1), "`radius` must be >= 0"),
        (np.inf, (2, 2, 1), "`radius` must be >= 0 and finite"),
        (1.0, (2, 0, 1), "`image_shape`"),
        (1.0, (), "`image_shape` must be"),
    ],
    ids=["negative", "infinite", "zero", "empty"],
)
def test_bad_arguments(radius, shape, message):
    with pytest.raises(ValueError, match=message):
        linf_radius(radius, shape)
