"""Oracle: a general solver of quadratic programs, and hand calculations."""

import numpy as np
import pytest
import scipy.optimize

from rs_keras import attacks

SHAPE = (2, 3, 1)


def cases(count=20, spread=2.0):
    """Images with pixels at 0 and at 1, too, and directions with zeros."""
    rng = np.random.default_rng(3)
    centre = np.clip(rng.uniform(-0.3, 1.3, size=(count, *SHAPE)), 0, 1)
    direction = rng.normal(scale=spread, size=(count, *SHAPE))
    direction[rng.uniform(size=direction.shape) < 0.1] = 0
    return zip(centre, direction, rng.uniform(0.05, 1.2, count), strict=True)


def solved(objective, gradient, start, *constraints):
    found = scipy.optimize.minimize(
        objective,
        start,
        jac=gradient,
        bounds=[(0, 1)] * start.size,
        constraints=constraints,
        method="SLSQP",
        options={"ftol": 1e-12, "maxiter": 500},
    )
    return found.x


@pytest.mark.parametrize("case", list(cases()), ids=range(20))
def test_the_projection_is_the_nearest_point(case):
    centre, direction, radius = case
    image = centre + direction
    c, z = centre.ravel(), image.ravel()
    wanted = solved(
        lambda x: ((x - z) ** 2).sum(),
        lambda x: 2 * (x - z),
        c,
        {
            "type": "ineq",
            "fun": lambda x: radius**2 - ((x - c) ** 2).sum(),
            "jac": lambda x: -2 * (x - c),
        },
    )
    found = attacks.project(centre, image[None], radius)[0]
    # The solver leaves the constraint a little.
    np.testing.assert_allclose(found.ravel(), wanted, atol=1e-4)
    assert np.linalg.norm(found.ravel() - c) <= radius
    assert ((found.ravel() - z) ** 2).sum() < ((wanted - z) ** 2).sum() + 1e-5


@pytest.mark.parametrize("case", list(cases(spread=0.5)), ids=range(20))
def test_the_point_of_a_plane_is_the_nearest(case):
    centre, normal, _ = case
    c, g = centre.ravel(), normal.ravel()
    # A rise that some point of the box has.
    most = (np.where(g > 0, 1 - c, c) * np.abs(g)).sum()
    rise = 0.6 * most
    wanted = solved(
        lambda x: ((x - c) ** 2).sum(),
        lambda x: 2 * (x - c),
        c,
        {
            "type": "eq",
            "fun": lambda x: g @ (x - c) - rise,
            "jac": lambda x: g,
        },
    )
    found = attacks.nearest_on_plane(centre, normal, rise)
    np.testing.assert_allclose(found.ravel(), wanted, atol=1e-4)
    assert g @ (found.ravel() - c) == pytest.approx(rise, abs=1e-6)


def test_a_plane_out_of_reach_gives_the_corner():
    centre = np.full(SHAPE, 0.25)
    normal = np.array([1.0, -1.0, 0.0, 2.0, 0.0, -3.0]).reshape(SHAPE)
    found = attacks.nearest_on_plane(centre, normal, rise=100.0)
    wanted = [1.0, 0.0, 0.25, 1.0, 0.25, 0.0]
    np.testing.assert_allclose(found.ravel(), wanted)


def test_images_stay_in_the_ball_and_the_box_after_rounding():
    rng = np.random.default_rng(0)
    for size in (4, 28, 64):
        centre = rng.choice([0.0, 0.5, 1.0], size=(size, size, 1))
        centre = centre.astype(np.float32)
        towards = rng.normal(size=(50, size, size, 1))
        radii = 10.0 ** rng.uniform(-6, 1, 50)
        for found in (
            attacks.project(centre, centre + 100 * towards, radii),
            attacks.along(centre, towards, radii),
        ):
            assert found.dtype == np.float32
            assert found.min() >= 0 and found.max() <= 1
            moved = found.astype(np.float64) - centre
            norms = np.sqrt((moved**2).sum((1, 2, 3)))
            assert (norms <= radii).all()
            # And nearly on the sphere, where the box has so much room.
            corner = np.where(towards > 0, 1 - centre, centre)
            room = np.sqrt((corner**2).sum((1, 2, 3)))
            wide = (radii > 1e-3) & (radii < 0.5 * room)
            assert (norms[wide] > 0.999 * radii[wide]).all()


def test_what_is_inside_already_stays():
    centre = np.full(SHAPE, 0.5, np.float32)
    inside = centre + np.float32(0.125)
    found = attacks.project(centre, inside[None], 1.0)[0]
    np.testing.assert_array_equal(found, inside)
    np.testing.assert_array_equal(
        attacks.along(centre, np.zeros((1, *SHAPE)), 1.0)[0], centre
    )


def test_distances_are_computed_in_float64():
    centre = np.zeros((1, 1, 2), np.float32)
    images = np.array([[[[3e-30, 4e-30]]]], np.float32)
    assert attacks.distances(centre, images) == pytest.approx(5e-30, rel=1e-6)
