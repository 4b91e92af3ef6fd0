"""Gaussian against the authors' code."""

import numpy as np
import pytest
from kits import golden_cases as golden

from rs_keras.trainers import Gaussian


@pytest.mark.parametrize("name, dtype", golden.cases("gaussian"))
def test_gaussian_golden_steps(name, dtype):
    case = golden.load("gaussian", name)
    loss, _, gradients = golden.tolerances(dtype)
    trainer = Gaussian(
        golden.network(case, dtype),
        sigma=case["hparams"]["sigma"],
        num_noise=case["hparams"]["m"],
    )
    result = golden.step(trainer, case)
    golden.compare_step(trainer, case, result, "", gradients, loss)
    assert set(result[0]) == {"ce"}


def test_noise_in_halves_is_the_whole():
    trainer = Gaussian(golden.tiny(), sigma=0.5, num_noise=3)
    images = np.zeros([7, 8, 8, 1], np.float32)
    whole = trainer.draw(images, [4, 9])["noise"].numpy()
    halves = [
        trainer.draw(images[:3], [4, 9])["noise"],
        trainer.draw(images[3:], [4, 9], first=3)["noise"],
    ]
    np.testing.assert_array_equal(np.concatenate(halves, 1), whole)
    assert whole.shape == (3, 7, 8, 8, 1)
    # 1344 samples: the standard error of their deviation is 2% of sigma.
    assert abs(whole.std() - 0.5) < 0.05
    assert len(np.unique(whole)) > 1300
