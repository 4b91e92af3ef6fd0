"""No attack breaks a certificate within its radius; outside, attacks succeed.

`make attacks` does the same on thousands of images.
"""

import numpy as np
import pytest
from kits.attacked_certificates import METHODS
from kits.attacked_certificates import Outcome
from kits.attacked_certificates import attack_inside
from kits.linear import Linear

from rs_keras import Certifier
from rs_keras import datasets
from rs_keras import models


@pytest.fixture(scope="module")
def certifier():
    """Digits' network: what it says of clothes is certified all the same."""
    return Certifier(models.pretrained("mnist-gaussian-1.00"), 0.5)


@pytest.fixture(scope="module")
def clothes():
    return datasets.arrays("fashion_mini", "test")[0][:24]


@pytest.mark.parametrize("part", [0, 1], ids=["smallest", "pgd"])
def test_no_certificate_of_a_network_is_broken(certifier, clothes, part):
    outcome = Outcome()
    images = clothes[12 * part : 12 * part + 12]
    attack_inside(certifier, images, METHODS[part], outcome, seed=1)
    assert outcome.broken == 0
    # Otherwise it would not be a test.
    assert outcome.certified >= 4


def test_the_same_attack_succeeds_further_out(certifier, clothes):
    outcome = Outcome()
    attack_inside(
        certifier,
        clothes[:6],
        METHODS[0],
        outcome,
        seed=1,
        scale=4.0,
        votes=2_000,
    )
    assert 2 * outcome.suspected >= outcome.certified > 0


@pytest.fixture(scope="module")
def near_the_boundary():
    linear = Linear()
    rng = np.random.default_rng(2)
    images = rng.uniform(0.2, 0.8, size=(300, 4, 4, 1)).astype(np.float32)
    radius = linear.radius(images)
    return linear, images[(radius > 0.08) & (radius < 0.25)][:40]


def test_certificates_that_are_nearly_tight_hold(near_the_boundary):
    linear, images = near_the_boundary
    certifier = Certifier(linear, 0.1)
    outcome = Outcome()
    attack_inside(
        certifier, images, METHODS[0], outcome, seed=3, n=2_000, alpha=1e-6
    )
    assert outcome.certified == 40 and outcome.suspected == outcome.broken == 0


def test_certificates_of_a_fifth_too_much_are_broken(near_the_boundary):
    """The test of the test: radii of 10,000 votes, times 1.2."""
    linear, images = near_the_boundary
    outcome = Outcome()
    attack_inside(
        Certifier(linear, 0.1),
        images[:8],
        METHODS[0],
        outcome,
        seed=3,
        n=10_000,
        scale=1.2,
        votes=50_000,
    )
    assert outcome.broken >= 6
