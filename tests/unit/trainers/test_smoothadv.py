"""SmoothAdv with PGD and DDN against the authors' code."""

import numpy as np
import pytest
from kits import golden_cases as golden

from rs_keras.adversaries import DDN
from rs_keras.trainers import SmoothAdv


def check(case, dtype, adversary, levels_off=0):
    loss, found, gradients = golden.tolerances(dtype)
    hparams = case["hparams"]
    trainer = SmoothAdv(
        golden.network(case, dtype),
        hparams["sigma"],
        num_noise=hparams["m"],
        adversary=adversary,
        epsilon=hparams["eps"],
        steps=hparams["T"],
    )
    adv = trainer.attack(case["x"], case["y"], {"noise": case["noise"]})["adv"]
    off = np.abs(adv - case["adv"]) > found
    assert off.sum() <= levels_off
    result = golden.step(trainer, case)
    golden.compare_step(trainer, case, result, "", gradients, loss)


@pytest.mark.parametrize("name, dtype", golden.cases("smoothadv_pgd"))
def test_smoothadv_golden_steps_with_pgd(name, dtype):
    check(golden.load("smoothadv_pgd", name), dtype, "pgd")


@pytest.mark.parametrize("name, dtype", golden.cases("smoothadv_ddn"))
def test_smoothadv_golden_steps_with_ddn(name, dtype):
    case = golden.load("smoothadv_ddn", name)
    hparams = case["hparams"]
    adversary = "ddn"
    if hparams["init_norm"] != hparams["eps"]:
        adversary = DDN(
            hparams["T"],
            hparams["eps"],
            gamma=hparams["ddn_gamma"],
            init_norm=hparams["init_norm"],
        )
    check(case, dtype, adversary)


def test_the_radius_is_warmed_up():
    case = golden.load("smoothadv_pgd", golden.names("smoothadv_pgd")[0])
    trainer = SmoothAdv(golden.network(case), 0.5, 1, epsilon=0.5, steps=2)
    assert trainer.warmup(0) == 0.1
    trainer.warmup_factor.assign(0.5)
    draw = {"noise": case["noise"][:1]}
    adv = trainer.attack(case["x"], case["y"], draw)["adv"]
    norms = np.linalg.norm((adv - case["x"]).numpy().reshape(8, -1), axis=1)
    assert norms.max() == pytest.approx(0.25, abs=1e-6)
