"""Stability against the authors' code."""

import pytest
from kits import golden_cases as golden

from rs_keras.trainers import Stability


@pytest.mark.parametrize("name, dtype", golden.cases("stability"))
def test_stability_golden_steps(name, dtype):
    case = golden.load("stability", name)
    loss, _, gradients = golden.tolerances(dtype)
    hparams = case["hparams"]
    trainer = Stability(
        golden.network(case, dtype), hparams["sigma"], weight=hparams["lbd"]
    )
    result = golden.step(trainer, case)
    golden.compare_step(trainer, case, result, "", gradients, loss)
    parts = result[0]
    golden.near(parts["ce"].mean(), case["loss_xent"], loss)
    wanted = hparams["lbd"] * case["loss_stab"]
    golden.near(parts["stability"].mean(), wanted, loss)
