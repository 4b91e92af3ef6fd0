"""MACER against the authors' code."""

import numpy as np
import pytest
from kits import golden_cases as golden

from rs_keras.trainers import MACER


def trainer_of(case, dtype="float64", **kwargs):
    hparams = case["hparams"]
    return MACER(
        golden.network(case, dtype),
        hparams["sigma"],
        num_noise=hparams["m"],
        weight=hparams["lbd"],
        beta=hparams["beta"],
        gamma=hparams["gamma"],
        **kwargs,
    )


@pytest.mark.parametrize("name, dtype", golden.cases("macer"))
def test_macer_golden_steps(name, dtype):
    case = golden.load("macer", name)
    loss, _, gradients = golden.tolerances(dtype)
    trainer = trainer_of(case, dtype)
    result = golden.step(trainer, case)
    golden.compare_step(trainer, case, result, "", gradients * 10, loss)
    ce, robustness = (result[0][key] for key in ("ce", "robustness"))
    golden.near(ce.sum(), case["classification_loss"], loss)
    wanted = case["hparams"]["lbd"] * case["robustness_loss"]
    golden.near(robustness.sum(), wanted, loss)
    np.testing.assert_array_equal(robustness > 0, case["kept"])


def test_deferred_epochs_leave_the_robustness_out():
    case = golden.load("macer", golden.names("macer")[0])
    trainer = trainer_of(case, deferred_epochs=2)
    assert [trainer.warmup(epoch) for epoch in (0, 1, 2)] == [0, 0, 1]
    trainer.warmup_factor.assign(trainer.warmup(0))
    parts = trainer.losses_of(case["x"], case["y"], {"noise": case["noise"]})
    assert not parts["robustness"].numpy().any()
    assert parts["ce"].numpy().all()
