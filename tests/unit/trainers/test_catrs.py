"""CAT-RS against the authors' code."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from kits import golden_cases as golden

from rs_keras.adversaries import NoiseAscent
from rs_keras.trainers import CATRS
from rs_keras.trainers import catrs


def trainer_of(case, dtype="float64", **changes):
    hparams = case["hparams"]
    arguments = {
        "num_noise": hparams["m"],
        "steps": hparams["T"],
        "epsilon": hparams["eps"],
        "weight": hparams["lbd"],
        "confidence_mask": hparams["confidence_mask"],
    }
    return CATRS(
        golden.network(case, dtype), hparams["sigma"], **arguments | changes
    )


@pytest.mark.parametrize("name, dtype", golden.cases("catrs"))
def test_catrs_golden_steps(name, dtype):
    case = golden.load("catrs", name)
    loss, found, gradients = golden.tolerances(dtype)
    # Keras records the biased variance: tests/golden/README.md.
    suffix = "_popvar" if case["hparams"]["arch"] == "tiny_bn" else ""
    targets = {"label": case["y"], "soft_label": case["soft"]}
    draw = {"noise": case["noise"], "uniform": case["uniform"]}
    trainer = trainer_of(case, dtype)
    before = [w.numpy() for w in trainer.model.weights]
    result = trainer.attack(case["x"], targets, draw)["adv_noise"]
    golden.near(result, case[f"adv_noise{suffix}"], found)
    for weight, value in zip(trainer.model.weights, before, strict=True):
        np.testing.assert_array_equal(weight.numpy(), value)
    result = golden.step(trainer, case, targets, uniform=case["uniform"])
    golden.compare_step(trainer, case, result, suffix, gradients, loss)
    parts = result[0]
    golden.near(parts["ce"], case[f"loss_xent{suffix}"], loss)
    worst = case["mask"] * case[f"loss_kl_max{suffix}"]
    golden.near(parts["worst"], case["hparams"]["lbd"] * worst, loss)


def test_without_a_teacher_the_target_is_the_mean_noisy_prediction():
    case = golden.load("catrs", "tiny_cnn__base")
    trainer = trainer_of(case)
    draw = {"noise": case["noise"], "uniform": case["uniform"]}
    logits = case["check_logits_train"]
    odds = np.exp(logits - logits.max(-1, keepdims=True))
    soft = (odds / odds.sum(-1, keepdims=True)).mean(0)
    targets = {"label": case["y"], "soft_label": soft}
    plain = trainer.losses_of(case["x"], case["y"], draw)
    taught = trainer.losses_of(case["x"], targets, draw)
    for name, value in plain.items():
        np.testing.assert_allclose(value, taught[name], rtol=1e-9)


def mixed_batch(count, policy):
    """A trainer without state, and 10 images, of which `count` are easy."""
    policy("float64")
    keras.utils.set_random_seed(1)
    layers = [
        keras.Input([8, 8, 1]),
        keras.layers.Conv2D(4, 3, activation="tanh"),
        keras.layers.Flatten(),
        keras.layers.Dense(3),
    ]
    network = keras.Sequential(layers)
    trainer = CATRS(network, 0.5, 3, steps=2, confidence_mask=True)
    rng = np.random.default_rng(2)
    labels, easy = np.arange(10) % 3, rng.permutation(10) < count
    # The teacher is as sure of these as it is not of the others.
    soft = np.eye(3)[np.where(easy, labels, (labels + 1) % 3)]
    draw = {"noise": rng.normal(size=[3, 10, 8, 8, 1])}
    draw["uniform"] = np.full([3, 10], 0.5)
    targets = {"label": labels, "soft_label": soft}
    return trainer, easy, (rng.uniform(size=[10, 8, 8, 1]), targets, draw)


def watched(monkeypatch):
    """A list that each attack adds its number of images to."""
    find, attacked = NoiseAscent.__call__, []

    def counted(self, classify, noise, *rest):
        attacked.append(noise.shape[1])
        return find(self, classify, noise, *rest)

    monkeypatch.setattr(NoiseAscent, "__call__", counted)
    return attacked


def losses_and_gradients(trainer, batch):
    with tf.GradientTape() as tape:
        losses = trainer.losses_of(*batch)
        total = tf.reduce_sum(losses["ce"] + losses["worst"])
    variables = trainer.trainable_variables
    return losses, tape.gradient(total, [v.value for v in variables])


@pytest.mark.parametrize("count", [0, 1, 4, 5, 9, 10])
def test_images_that_do_not_count_are_not_attacked(count, policy, monkeypatch):
    trainer, easy, batch = mixed_batch(count, policy)
    attacked = watched(monkeypatch)
    losses, gradients = losses_and_gradients(trainer, batch)
    assert losses["ce"].numpy().all()
    np.testing.assert_array_equal(losses["worst"].numpy() > 0, easy)
    # Accelerators attack all.
    monkeypatch.setattr(catrs, "only_cpus", lambda: False)
    wanted = losses_and_gradients(trainer, batch)
    tf.nest.map_structure(
        lambda one, other: golden.near(one, other.numpy(), 1e-12),
        (losses, gradients),
        wanted,
    )
    # By fours, of ten.
    assert attacked == [min(10, max(1, -(-count // 4)) * 4), 10]


def test_xla_attacks_all_images(policy, monkeypatch):
    trainer, _, batch = mixed_batch(5, policy)
    wanted = trainer.losses_of(*batch)
    attacked = watched(monkeypatch)
    found = tf.function(trainer.losses_of, jit_compile=True)(*batch)
    assert attacked == [10]
    for name, value in wanted.items():
        golden.near(found[name], value.numpy(), 1e-9)


def test_uniform_is_addressed_by_position():
    trainer = CATRS(golden.tiny(), 0.5, num_noise=3)
    images = np.zeros([5, 8, 8, 1], np.float32)
    whole = trainer.draw(images, [1, 2])["uniform"].numpy()
    half = trainer.draw(images[2:], [1, 2], first=2)["uniform"].numpy()
    assert whole.shape == (3, 5)
    np.testing.assert_array_equal(whole[:, 2:], half)


def test_from_an_epoch_on_the_radius_is_doubled():
    case = golden.load("catrs", "tiny_cnn__base")
    targets = {"label": case["y"], "soft_label": case["soft"]}
    draw = {"noise": case["noise"], "uniform": case["uniform"]}

    def found(epoch, **changes):
        trainer = trainer_of(case, **changes)
        trainer.begin_epoch(epoch)
        result = trainer.attack(case["x"], targets, draw)
        return result["adv_noise"].numpy()

    np.testing.assert_array_equal(found(2, doubled_from=3), found(0))
    # Twice the hand-given radius, not twice the factor.
    np.testing.assert_array_equal(
        found(3, doubled_from=3), found(0, epsilon=2 * case["hparams"]["eps"])
    )
    assert not np.array_equal(found(3, doubled_from=3), found(0))
    with pytest.raises(ValueError, match="`doubled_from` must be"):
        trainer_of(case, doubled_from=-1)


def test_confidence_mask_must_be_a_flag():
    with pytest.raises(ValueError, match="`confidence_mask` must be True or"):
        CATRS(golden.tiny(), 0.5, confidence_mask="no")


@pytest.mark.parametrize(
    "soft, message",
    [
        (None, "`soft_label` must be among the targets"),
        (np.full([4, 3], 0.5), "`soft_label` must sum to 1"),
        (np.array([[2.0, -1.0, 0.0]] * 4), "`soft_label` must be prob"),
        (np.ones([3, 1]), "`soft_label` must be one distribution"),
        # One column would be broadcast over the classes.
        (np.ones([4, 1]), r"`soft_label`.*\[4, 3\].*\[4, 1\]"),
        (np.full([4, 5], 0.2), r"`soft_label`.*\[4, 3\].*\[4, 5\]"),
    ],
    ids=["missing", "sum", "negative", "rows", "column", "columns"],
)
def test_catrs_refuses_bad_soft_labels(soft, message):
    trainer = CATRS(golden.tiny(), 0.5, confidence_mask=True)
    targets = {"label": np.zeros(4, int)}
    if soft is not None:
        targets["soft_label"] = soft
    with pytest.raises(ValueError, match=message):
        trainer.check_batch(np.zeros([4, 8, 8, 1], np.float32), targets)
