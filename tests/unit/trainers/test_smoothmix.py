"""SmoothMix against the authors' code."""

import numpy as np
import pytest
from kits import golden_cases as golden

from rs_keras.trainers import SmoothMix


def trainer_of(case, dtype="float64"):
    hparams = case["hparams"]
    trainer = SmoothMix(
        golden.network(case, dtype),
        hparams["sigma"],
        num_noise=hparams["m"],
        steps=hparams["T"],
        step_size=hparams["alpha"],
        eta=hparams["eta"],
        one_step_adversary=hparams["mix_step"] == 1,
        max_norm=hparams["maxnorm"],
        one_step_max_norm=hparams["maxnorm_s"],
        warmup_epochs=hparams["warmup_epochs"],
    )
    trainer.warmup_factor.assign(trainer.warmup(hparams["epoch"]))
    return trainer


@pytest.mark.parametrize("name, dtype", golden.cases("smoothmix"))
def test_smoothmix_golden_steps(name, dtype):
    case = golden.load("smoothmix", name)
    loss, found, gradients = golden.tolerances(dtype)
    hparams = case["hparams"]
    trainer = trainer_of(case, dtype)
    assert trainer.warmup(hparams["epoch"]) == hparams["warmup_v"]
    draw = {"noise": case["noise"], "mix": case["mix"]}
    result = trainer.attack(case["x"], case["y"], draw)
    golden.near(result["adv"], case["adv"], found)
    golden.near(result["init"], case["init"], found)
    result = golden.step(trainer, case, mix=case["mix"])
    golden.compare_step(trainer, case, result, "", gradients, loss)
    parts = result[0]
    golden.near(parts["ce"], case["loss_xent"].mean(0), loss)
    wanted = case["correct"] * case["loss_mix"].mean(0)
    wanted = hparams["eta"] * hparams["warmup_v"] * wanted
    golden.near(parts["mixup"], wanted, loss)


def test_mix_is_half_a_uniform_addressed_by_position():
    trainer = SmoothMix(golden.tiny(), 0.5, num_noise=1)
    images = np.zeros([1000, 8, 8, 1], np.float32)
    whole = trainer.draw(images, [1, 2])["mix"].numpy()
    half = trainer.draw(images[400:], [1, 2], first=400)["mix"].numpy()
    np.testing.assert_array_equal(whole[400:], half)
    # The mean of 1000 numbers from [0, 1/2) has standard error 0.0046.
    assert 0 <= whole.min() and whole.max() < 0.5
    assert abs(whole.mean() - 0.25) < 0.02


def test_one_step_adversary_must_be_a_flag():
    with pytest.raises(ValueError, match="`one_step_adversary` must be True"):
        SmoothMix(golden.tiny(), 0.5, one_step_adversary="no")
