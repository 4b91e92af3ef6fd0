"""What every trainer must do, each row of the table the same."""

import functools
import inspect

import keras
import numpy as np
import pytest
import tensorflow as tf
from kits import golden_cases as golden

from rs_keras import adversaries
from rs_keras import trainers
from rs_keras.trainers import SGD

# Arguments that make a method quick; a method without an entry has those of
# `SMALL` that it takes.
SMALL = {"num_noise": 2, "steps": 2}
ARGUMENTS = {
    "Stability": {"weight": 1.5},
    "SmoothAdv": {"warmup_epochs": 3},
    "MACER": {"num_noise": 4, "weight": 0.5},
    "Consistency": {"adversary": adversaries.PGD(2, 0.5, order="project_clip")},
    "SmoothMix": {"one_step_max_norm": 0.5},
}


def small(method):
    """Returns a maker of a method's trainers with the arguments above."""
    taken = inspect.signature(method).parameters
    arguments = {name: SMALL[name] for name in SMALL if name in taken}
    own = ARGUMENTS.get(method.__name__, {})
    return functools.partial(method, **arguments | own)


TABLE = {
    **{
        method.__module__.rpartition(".")[2]: small(method)
        for method in vars(trainers.methods).values()
        if inspect.isclass(method)
    },
    "smoothadv_ddn": functools.partial(
        trainers.SmoothAdv,
        num_noise=2,
        adversary=adversaries.DDN(2, 0.5, init_norm=0.3),
    ),
}
RNG = np.random.default_rng(0)
# Bright images of class 1, dark ones of class 0, some of either for class 2.
LABELS = RNG.integers(0, 3, 10)
IMAGES = RNG.uniform(0, 0.4, (10, 8, 8, 1)).astype(np.float32)
IMAGES += (0.6 * (LABELS == 1))[:, None, None, None].astype(np.float32)
every_trainer = pytest.mark.parametrize("make", TABLE.values(), ids=TABLE)


def compiled(make, seed=0, network=None, **kwargs):
    """Returns a compiled trainer of a new network, always the same."""
    network = network or golden.tiny()
    trainer = make(network, sigma=0.25, seed=seed)
    optimizer = SGD(0.05, weight_decay=1e-3)
    trainer.compile(optimizer=optimizer, metrics=["accuracy"], **kwargs)
    return trainer


def eager(make, seed=0, network=None):
    """As `compiled`, to be stepped by hand without tracing anything."""
    trainer = compiled(make, seed, network, run_eagerly=True)
    trainer.build_variables()
    return trainer


def weights_after(trainer, steps=2):
    for _ in range(steps):
        trainer.train_step((IMAGES, LABELS))
    return [weight.numpy() for weight in trainer.model.weights]


def distance(one, other):
    return max(np.abs(a - b).max() for a, b in zip(one, other, strict=True))


@every_trainer
def test_seed_and_step_decide_the_noise(make):
    base = weights_after(eager(make))
    assert distance(base, weights_after(eager(make))) == 0
    assert distance(base, weights_after(eager(make, seed=1))) > 0
    trainer = eager(make)
    draws = [trainer.draw(IMAGES, [0, step])["noise"] for step in (0, 1)]
    assert np.abs(draws[0] - draws[1]).min() > 0


@every_trainer
def test_halves_of_a_draw_are_the_whole(make):
    trainer = eager(make)
    whole = trainer.draw(IMAGES, [3, 4])
    head = trainer.draw(IMAGES[:4], [3, 4])
    tail = trainer.draw(IMAGES[4:], [3, 4], first=4)
    for name, value in whole.items():
        axis = 0 if name == "mix" else 1
        joined = np.concatenate([head[name], tail[name]], axis)
        np.testing.assert_array_equal(joined, value)


@every_trainer
def test_a_step_descends_the_weighted_mean_of_the_losses(make):
    importance = np.arange(10, dtype=np.float32) / 5
    decay = 1e-3
    trainer, twin = eager(make), eager(make)
    draw = twin.draw(IMAGES, [0, 0])
    with tf.GradientTape() as tape:
        parts = twin.losses_of(IMAGES, LABELS, draw)
        assert set(parts) == set(trainer.loss_names)
        loss = sum(
            tf.reduce_sum(importance * part) / 10 for part in parts.values()
        )
    variables = [v.value for v in twin.model.trainable_variables]
    slopes = tape.gradient(loss, variables)
    results = trainer.train_step((IMAGES, LABELS, importance))
    assert float(results["loss"]) == pytest.approx(float(loss), rel=1e-5)
    for name, part in parts.items():
        mean = float((importance * part.numpy()).mean())
        found = float(results[name])
        assert found == pytest.approx(mean, rel=1e-5, abs=1e-7)
    pairs = zip(trainer.model.trainable_variables, variables, strict=True)
    for (found, old), slope in zip(pairs, slopes, strict=True):
        wanted = old - 0.05 * (slope + decay * old)
        np.testing.assert_allclose(found.numpy(), wanted, atol=1e-6)
    statistics = (t.model.non_trainable_variables for t in (trainer, twin))
    for one, other in zip(*statistics, strict=True):
        np.testing.assert_allclose(one.numpy(), other.numpy(), atol=1e-6)


@every_trainer
def test_an_attack_leaves_no_trace(make):
    trainer = eager(make)
    before = [weight.numpy() for weight in trainer.weights]
    trainer.attack(IMAGES, LABELS, trainer.draw(IMAGES, [0, 0]))
    after = [weight.numpy() for weight in trainer.weights]
    assert distance(before, after) == 0


@every_trainer
def test_a_saved_run_goes_on_as_if_it_had_not_stopped(make, tmp_path):
    trainer = eager(make)
    trainer.warmup_factor.assign(0.5)
    weights_after(trainer)
    trainer.save(tmp_path / "trainer.keras")
    again = keras.saving.load_model(tmp_path / "trainer.keras")
    assert type(again) is type(trainer)
    assert int(again.step.numpy()) == 2
    assert float(again.warmup_factor.numpy()) == 0.5
    configs = [one.get_config() for one in (trainer, again)]
    # A network that was loaded spells its own configuration out further.
    assert len({len(config.pop("model")) for config in configs}) == 1
    assert configs[0] == configs[1]
    assert distance(weights_after(trainer), weights_after(again)) == 0


@every_trainer
def test_ways_of_running_agree(make):
    # Three batches of 4, 4 and 2, the last one in an execution of its own.
    def weights(**kwargs):
        trainer = compiled(make, **kwargs)
        trainer.fit(IMAGES, LABELS, batch_size=4, shuffle=False, verbose=0)
        assert int(trainer.step.numpy()) == 3
        return [weight.numpy() for weight in trainer.model.weights]

    plain = weights(steps_per_execution=2)
    assert distance(plain, weights(run_eagerly=True)) < 1e-4


@pytest.mark.parametrize(
    "name", ["smoothadv_ddn", "macer", "consistency", "smoothmix", "catrs"]
)
def test_xla_computes_the_same(name):
    make = TABLE[name]
    trainer = eager(make)
    draw = trainer.draw(IMAGES, [0, 0])

    @tf.function(jit_compile=True)
    def losses(images, labels, draw):
        return trainer.losses_of(images, labels, draw)

    found = losses(tf.constant(IMAGES), tf.constant(LABELS), draw)
    wanted = eager(make).losses_of(IMAGES, LABELS, draw)
    for name, value in wanted.items():
        np.testing.assert_allclose(found[name], value, atol=2e-4)


def test_a_step_compiles_with_xla():
    # What XLA makes of the random bits is its own: losses agree as means do.
    trainer = compiled(TABLE["smoothmix"], jit_compile=True)
    losses = [trainer.train_on_batch(IMAGES, LABELS)[0] for _ in range(2)]
    wanted = eager(TABLE["smoothmix"]).train_step((IMAGES, LABELS))["ce"]
    assert losses[0] == pytest.approx(float(wanted), rel=0.2)
    assert losses[1] < losses[0]


@every_trainer
@pytest.mark.parametrize("dtype", ["mixed_float16", "mixed_bfloat16"])
def test_mixed_precision(make, dtype):
    keras.config.set_dtype_policy(dtype)
    try:
        network = golden.tiny()
    finally:
        keras.config.set_dtype_policy("float32")
    trainer = eager(make, network=network)
    scaled = isinstance(trainer.optimizer, keras.optimizers.LossScaleOptimizer)
    assert scaled == (dtype == "mixed_float16")
    start = [weight.numpy() for weight in trainer.model.weights]
    base = weights_after(eager(make), steps=1)
    found = weights_after(trainer, steps=1)
    moved = distance(start, base)
    assert distance(base, found) < 0.5 * moved


@every_trainer
def test_the_loss_goes_down_in_one_trace(make, monkeypatch):
    trainer = compiled(make)
    traces, step = [], trainer.train_step
    monkeypatch.setattr(
        trainer, "train_step", lambda data: traces.append(data) or step(data)
    )
    batches = {"batch_size": 10, "verbose": 0, "shuffle": False}
    history = trainer.fit(IMAGES, LABELS, epochs=15, **batches).history
    assert history["ce"][-1] < 0.8 * history["ce"][0]
    assert set(history) == {"loss", "accuracy", *trainer.loss_names}
    assert len(traces) == 1


REDUCTIONS = {
    "smoothmix": functools.partial(
        trainers.SmoothMix, num_noise=1, eta=0.0, one_step_adversary=False
    ),
    "smoothadv": functools.partial(trainers.SmoothAdv, num_noise=1, steps=0),
    "consistency": functools.partial(
        trainers.Consistency, num_noise=1, weight=0.0, entropy_weight=0.0
    ),
    # MACER adds 1e-10 inside its logarithm.
    "macer": functools.partial(trainers.MACER, num_noise=1, weight=0.0),
}


@pytest.mark.parametrize("make", REDUCTIONS.values(), ids=REDUCTIONS)
def test_reduces_to_gaussian(make):
    base = eager(functools.partial(trainers.Gaussian, num_noise=1))
    wanted = base.losses_of(IMAGES, LABELS, base.draw(IMAGES, [5, 6]))["ce"]
    trainer = eager(make)
    draw = trainer.draw(IMAGES, [5, 6])
    parts = trainer.losses_of(IMAGES, LABELS, draw)
    np.testing.assert_allclose(sum(parts.values()), wanted, rtol=1e-5)
