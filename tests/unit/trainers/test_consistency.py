"""Consistency, with and without an adversary, against the authors' code."""

import pytest
from kits import golden_cases as golden

from rs_keras.adversaries import PGD
from rs_keras.trainers import Consistency


def trainer_of(case, dtype, adversary=None):
    hparams = case["hparams"]
    return Consistency(
        golden.network(case, dtype),
        hparams["sigma"],
        num_noise=hparams["m"],
        weight=hparams["lbd"],
        entropy_weight=hparams["eta"],
        adversary=adversary,
    )


def compare_parts(case, parts, loss):
    hparams = case["hparams"]
    golden.near(parts["ce"].mean(), case["loss_xent"], loss)
    wanted = hparams["lbd"] * case["loss_kl"].mean(0)
    golden.near(parts["consistency"], wanted, loss)
    golden.near(parts["entropy"], hparams["eta"] * case["loss_ent"], loss)


@pytest.mark.parametrize("name, dtype", golden.cases("consistency"))
def test_consistency_golden_steps(name, dtype):
    case = golden.load("consistency", name)
    loss, _, gradients = golden.tolerances(dtype)
    trainer = trainer_of(case, dtype)
    result = golden.step(trainer, case)
    golden.compare_step(trainer, case, result, "", gradients, loss)
    compare_parts(case, result[0], loss)


@pytest.mark.parametrize("name, dtype", golden.cases("consistency_smoothadv"))
def test_consistency_golden_steps_with_an_adversary(name, dtype):
    case = golden.load("consistency_smoothadv", name)
    loss, found, gradients = golden.tolerances(dtype)
    hparams = case["hparams"]
    adversary = PGD(hparams["T"], hparams["eps"], order="project_clip")
    trainer = trainer_of(case, dtype, adversary)
    adv = trainer.attack(case["x"], case["y"], {"noise": case["noise"]})["adv"]
    golden.near(adv, case["adv"], found)
    result = golden.step(trainer, case)
    golden.compare_step(trainer, case, result, "", gradients, loss)
    compare_parts(case, result[0], loss)
