"""The step, the checks before it, and the watch over it."""

import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf
from kits import golden_cases as golden

from rs_keras.trainers import MACER
from rs_keras.trainers import SGD
from rs_keras.trainers import Gaussian
from rs_keras.trainers import SmoothAdv
from rs_keras.trainers import SmoothMix
from rs_keras.trainers.callbacks import SaveModel

RNG = np.random.default_rng(0)
IMAGES = RNG.random((10, 8, 8, 1), dtype=np.float32)
LABELS = RNG.integers(0, 3, 10)


def trainer_of(network=None, make=Gaussian, rate=0.05, **kwargs):
    """Returns a trainer that is stepped eagerly unless told otherwise."""
    trainer = make(network or golden.tiny(), 0.25, num_noise=2)
    options = {"metrics": ["accuracy"], "run_eagerly": True, **kwargs}
    trainer.compile(optimizer=SGD(rate), **options)
    return trainer


def fit(trainer, *data, **kwargs):
    options = {"batch_size": 4, "shuffle": False, "verbose": 0, **kwargs}
    if len(data) == 1:
        del options["batch_size"]
    return trainer.fit(*data, **options).history


def test_a_trainers_metrics_by_hand():
    trainer = trainer_of(weighted_metrics=["accuracy"])
    trainer.build_variables()
    draw = trainer.draw(IMAGES, [0, 0])
    logits = trainer.noisy_logits(IMAGES, draw["noise"], training=True)
    right = np.argmax(logits, -1) == LABELS
    weights = np.arange(10, dtype=np.float32)
    results = trainer.train_step((IMAGES, LABELS, weights))
    assert float(results["accuracy"]) == pytest.approx(right.mean())
    wanted = (right * weights).sum() / (2 * weights.sum())
    assert float(results["weighted_accuracy"]) == pytest.approx(wanted)


def test_a_short_last_batch_counts_by_its_size():
    # At rate 0 the weights stay, so the epoch's mean is that of all images.
    trainer = trainer_of(golden.tiny(), rate=0.0)
    found = fit(trainer, IMAGES, LABELS)["ce"][0]
    parts = []
    for step, rows in enumerate(np.split(np.arange(10), [4, 8])):
        draw = trainer.draw(IMAGES[rows], [0, step])
        parts.append(trainer.losses_of(IMAGES[rows], LABELS[rows], draw)["ce"])
    assert found == pytest.approx(np.concatenate(parts).mean(), rel=1e-5)


def test_regularization_counts_once():
    network = golden.tiny(kernel_regularizer=keras.regularizers.L2(0.1))
    trainer = trainer_of(network)
    trainer.build_variables()
    kernel = network.layers[0].kernel.numpy()
    results = trainer.train_step((IMAGES, LABELS))
    extra = float(results["loss"] - results["ce"])
    assert extra == pytest.approx(0.1 * (kernel**2).sum(), rel=1e-4)
    moved = kernel - network.layers[0].kernel.numpy()
    free = trainer_of()
    free.build_variables()
    free.train_step((IMAGES, LABELS))
    moved -= kernel - free.model.layers[0].kernel.numpy()
    # The slope of 0.1 w**2 is 0.2 w, times the rate 0.05.
    np.testing.assert_allclose(moved, 0.01 * kernel, atol=1e-6)


def test_evaluation_has_one_noise_and_leaves_training_alone():
    trainer = trainer_of()
    results = [
        trainer.evaluate(
            IMAGES, LABELS, batch_size=size, verbose=0, return_dict=True
        )
        for size in (3, 10)
    ]
    assert set(results[0]) == {"loss", "accuracy"}
    assert results[0] == pytest.approx(results[1], rel=1e-5)
    fit(trainer, IMAGES, LABELS, validation_data=(IMAGES, LABELS))
    alone = trainer_of()
    fit(alone, IMAGES, LABELS)
    for one, other in zip(trainer.weights, alone.weights, strict=True):
        if "evaluated" not in one.path:
            np.testing.assert_array_equal(one.numpy(), other.numpy())


@pytest.mark.parametrize("kind", ["list", "one", "container"])
def test_warm_up_follows_the_epoch(kind):
    seen = []
    watch = keras.callbacks.LambdaCallback(
        on_epoch_begin=lambda epoch, logs: seen.append(
            float(trainer.warmup_factor.numpy())
        )
    )
    make = SmoothAdv
    trainer = make(golden.tiny(), 0.25, num_noise=1, steps=1, warmup_epochs=4)
    trainer.compile(optimizer=SGD(0.01), run_eagerly=True)
    assert float(trainer.warmup_factor.numpy()) == 1
    container = keras.callbacks.CallbackList(
        [watch, keras.callbacks.History()], model=trainer, epochs=6, steps=1
    )
    given = {"list": [watch], "one": watch, "container": container}[kind]
    options = {"epochs": 6, "initial_epoch": 1, "callbacks": given}
    fit(trainer, IMAGES[:2], LABELS[:2], **options)
    assert seen == [0.5, 0.75, 1.0, 1.0, 1.0]


def test_a_resumed_fit_is_as_never_stopped(tmp_path):
    def save_first(epoch, logs):
        if epoch == 0:
            whole.save(tmp_path / "half.keras")

    whole = trainer_of(make=SmoothMix)
    saving = keras.callbacks.LambdaCallback(on_epoch_end=save_first)
    fit(whole, IMAGES, LABELS, epochs=2, callbacks=[saving])
    again = keras.saving.load_model(tmp_path / "half.keras")
    fit(again, IMAGES, LABELS, epochs=2, initial_epoch=1)
    for one, other in zip(whole.weights, again.weights, strict=True):
        np.testing.assert_array_equal(one.numpy(), other.numpy())


@pytest.mark.parametrize(
    "images, labels, message",
    [
        (IMAGES * 255, LABELS, r"`images` must lie in \[0, 1\].*divide by 255"),
        (IMAGES - 0.5, LABELS, r"`images` must lie in \[0, 1\]"),
        (IMAGES * np.nan, LABELS, "`images` must be finite"),
        ((IMAGES * 255).astype("int32"), LABELS, "`images` must be floats"),
        (IMAGES[..., 0], LABELS, "`images` must have shape"),
        (IMAGES[:, :7], LABELS, "`images` must have shape"),
        (IMAGES, LABELS + 1, r"`labels` must be in \[0, 3\).*max=3"),
        (IMAGES, LABELS - 1, r"`labels` must be in \[0, 3\).*min=-1"),
        (IMAGES, LABELS + 0.5, "`labels` must be whole numbers"),
        (IMAGES, np.eye(3)[LABELS] / 2, "`labels` must be one class number"),
        (IMAGES, np.eye(4)[LABELS], "`labels` must be one-hot rows of as many"),
    ],
    ids=[
        *("bytes", "negative", "nan", "integers", "rank", "size"),
        *("high", "low", "fraction", "soft", "one_hot"),
    ],
)
@pytest.mark.parametrize("kind", ["arrays", "dataset", "generator"])
def test_bad_data_is_refused_before_the_first_step(
    images, labels, message, kind
):
    trainer = trainer_of()
    data = {
        "arrays": lambda: (images, labels),
        "dataset": lambda: (
            tf.data.Dataset.from_tensor_slices((images, labels)).batch(10),
        ),
        "generator": lambda: ((batch for batch in [(images, labels)]),),
    }[kind]()
    with pytest.raises(ValueError, match=message):
        fit(trainer, *data)
    assert int(trainer.step.numpy()) == 0


@pytest.mark.parametrize("kind", ["tuple", "dataset"])
def test_bad_validation_data_is_refused_as_well(kind):
    bad = (IMAGES, LABELS + 1)
    if kind == "dataset":
        bad = tf.data.Dataset.from_tensor_slices(bad).batch(10)
    with pytest.raises(ValueError, match="`labels` must be in"):
        fit(trainer_of(), IMAGES, LABELS, validation_data=bad)


def test_a_generator_keeps_its_first_batch():
    batches = ((IMAGES[i : i + 2], LABELS[i : i + 2]) for i in range(0, 8, 2))
    trainer = trainer_of()
    fit(trainer, batches, steps_per_epoch=4)
    assert int(trainer.step.numpy()) == 4
    alone = trainer_of()
    fit(alone, IMAGES[:8], LABELS[:8], batch_size=2)
    for one, other in zip(trainer.weights, alone.weights, strict=True):
        np.testing.assert_array_equal(one.numpy(), other.numpy())


class Bare(keras.Model):
    """A subclassed network, which tells nothing before it is called."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.flatten = keras.layers.Flatten()
        self.dense = keras.layers.Dense(3)

    def call(self, x):
        return self.dense(self.flatten(x))


@pytest.mark.parametrize(
    "make",
    [
        Bare,
        lambda: keras.Sequential(
            [keras.layers.Flatten(), keras.layers.Dense(3)]
        ),
    ],
    ids=["subclass", "sequential"],
)
def test_a_network_that_is_not_built_yet(make):
    trainer = trainer_of(make(), steps_per_execution=2, run_eagerly=False)
    with pytest.raises(ValueError, match="`labels` must be in"):
        fit(trainer, IMAGES, LABELS + 1)
    fit(trainer, IMAGES, {"label": LABELS})
    assert int(trainer.step.numpy()) == 3
    other = trainer_of(make())
    other.train_on_batch(IMAGES, LABELS)
    assert other.built and other.optimizer.built


class BlowUp(keras.layers.Layer):
    """Returns NaN once its switch is on."""

    def __init__(self):
        super().__init__()
        self.switch = self.add_weight(initializer="zeros", trainable=False)

    def call(self, x):
        return x / (1.0 - self.switch) * (1.0 - self.switch)


def test_a_loss_that_is_not_finite_stops_the_run(tmp_path):
    layer = BlowUp()
    layers = [keras.layers.Flatten(), keras.layers.Dense(3), layer]
    network = keras.Sequential([keras.Input((8, 8, 1)), *layers])
    trainer = trainer_of(network, make=SmoothMix)
    turn_on = keras.callbacks.LambdaCallback(
        on_train_batch_begin=lambda batch, logs: layer.switch.assign(
            float(batch == 2)
        )
    )
    path = str(tmp_path / "{batch}.weights.h5")
    save = keras.callbacks.ModelCheckpoint(
        path, save_weights_only=True, save_freq=1
    )
    message = r"not finite at step 3 .*ce=nan"
    with pytest.raises(FloatingPointError, match=message):
        fit(trainer, IMAGES, LABELS, callbacks=[turn_on, save])
    saved = sorted(item.name for item in tmp_path.iterdir())
    assert len(saved) == 2


def test_weights_that_break_in_the_last_step_are_not_saved(tmp_path):
    # The loss is finite, the slopes times the rate of the second epoch not.
    layers = [keras.layers.Rescaling(1e4), keras.layers.Flatten()]
    network = keras.Sequential(
        [keras.Input((8, 8, 1)), *layers, keras.layers.Dense(3)]
    )
    trainer = trainer_of(network)
    rates = keras.callbacks.LearningRateScheduler([1e-9, 1e38].__getitem__)
    save = SaveModel(tmp_path / "model.keras")
    with pytest.raises(FloatingPointError, match="weights.*epoch 2: .*kernel"):
        fit(
            trainer,
            IMAGES,
            LABELS,
            batch_size=10,
            epochs=2,
            callbacks=[rates, save],
        )
    kept = keras.saving.load_model(tmp_path / "model.keras")
    assert int(kept.step.numpy()) == 1
    assert all(np.isfinite(w).all() for w in kept.model.get_weights())


def test_labels_have_to_be_among_the_targets():
    targets = {"soft_label": np.full([len(IMAGES), 3], 1 / 3)}
    with pytest.raises(ValueError, match="`label` must be among .*soft_label"):
        trainer_of().check_batch(IMAGES, targets)


@pytest.mark.parametrize("make", [Gaussian, MACER])
def test_one_logit_tells_nothing_apart(make):
    with pytest.raises(ValueError, match="`num_classes=2` must be given"):
        trainer_of(golden.tiny(classes=1), make=make)


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"sigma": 0.0}, "`sigma` must be a finite number > 0"),
        ({"sigma": np.inf}, "`sigma` must be a finite number > 0"),
        ({"num_noise": 0}, "`num_noise` must be a whole number >= 1"),
        ({"num_noise": 2**15}, "`num_noise` must be <= 16384"),
        ({"warmup_epochs": -1}, "`warmup_epochs` must be"),
        ({"seed": -1}, "`seed` must be a whole number >= 0"),
        ({"seed": 2**63}, r"`seed` must be < 2\*\*63"),
        ({"model": 7}, "`model` must be a Keras model"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
)
def test_bad_arguments_of_trainers_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        Gaussian(**{"model": golden.tiny(), "sigma": 0.5, **arguments})


def test_images_of_unknown_size_are_refused():
    trainer = trainer_of()
    spec = tf.TensorSpec([None, None, None, 1])
    draw = tf.function(lambda images: trainer.draw(images, [0, 0]))
    with pytest.raises(ValueError, match="`images` must have a known height"):
        draw.get_concrete_function(spec)


def test_two_trainers_of_one_seed_share_their_noise():
    makes = itertools.product((Gaussian, SmoothMix), (2, 3))
    draws = [
        make(golden.tiny(), 0.25, num_noise=m).draw(IMAGES, [1, 2])["noise"][:2]
        for make, m in makes
    ]
    for draw in draws[1:]:
        np.testing.assert_array_equal(draw, draws[0])
