import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from rs_keras import Certificate
from rs_keras import Certifier


def certificate(**settings):
    one = np.ones(1)
    given = {"sigma": 0.5, "alpha": 0.001, "noise": "float", **settings}
    return Certificate(
        label=one.astype(int),
        radius=one * 0.83899,
        p_lower=one,
        counts=one[None],
        selection_counts=one[None],
        n=one,
        seed=one[None],
        settings=given,
    )


@pytest.mark.parametrize(
    ("alpha", "said", "share"),
    [
        (0.001, "99.9%", "0.999"),
        (0.05, "95%", "0.95"),
        (0.5, "50%", "0.5"),
        # 0.666...: the last digit rounded up would be too much.
        (1 / 3, "66.6666666666%", "0.666666666666"),
        (1e-13, "99.9999999999%", "0.999999999999"),
        (1e-300, "99.9999999999%", "0.999999999999"),
        (1 - 1e-11, "0.000000001%", "0.00000000001"),
    ],
)
def test_confidence_is_rounded_down(alpha, said, share):
    found = certificate(alpha=alpha)
    assert f"with {said} confidence" in found.sentence()
    assert f"with probability at least {share} over" in found.statement()


def test_the_radius_is_rounded_down():
    assert "smaller than 0.838 in L2" in certificate().sentence()


def test_a_sigma_chosen_for_the_image_is_told():
    """Nothing is certified of a classifier that would choose anew."""
    given = {"scope": "per_input_sigma", "sigma": None}
    found = dataclasses.replace(certificate(**given), sigma=np.array([0.26]))
    assert found.sentence().startswith(
        "class 1 at sigma = 0.26, chosen for this image; no change of the image"
    )
    assert "can alter this answer at this one sigma, with 99.9" in (
        found.sentence()
    )
    none = dataclasses.replace(found, label=np.array([-1]))
    assert "no class wins at sigma = 0.26, chosen for" in none.sentence()


def test_another_type_is_another_classifier():
    assert "bfloat16" in certificate(dtype="bfloat16").statement()
    for given in ({"dtype": "float32"}, {}):
        assert "as computed in" not in certificate(**given).statement()


def test_an_image_off_the_grid_is_not_the_one_that_is_certified():
    """Why the statement of noise="grid" speaks of the rounded image.

    The mean of 784 pixels is compared with a level of 98.2 / 255; one level is
    28 / 255 = 0.110 in L2. The image, at 99.51, is rounded to 100, and that is
    1.8 levels above the threshold. An image at 98 is 1.51 levels away from it.
    """

    def model(x):
        score = tf.reduce_mean(x, [1, 2, 3]) - 98.2 / 255
        return tf.stack([-score, score], -1)

    def grey(level):
        return np.full([1, 28, 28, 1], level / 255, np.float32)

    certifier = Certifier(model, sigma=0.1, noise="grid")
    found = certifier.certify(grey(99.51), n=20_000, seed=1)
    assert found.label[0] == 1
    assert certifier.predict(grey(98), n=20_000, seed=2).label[0] == 0
    assert np.linalg.norm(grey(98) - grey(99.51)) < found.radius[0]
    assert np.linalg.norm(grey(98) - grey(100)) > found.radius[0]
    assert "the radius is around that one" in found.statement()
