"""Runs that are stopped and resumed against runs that never were."""

import json
import os
import signal

import keras
import numpy as np
import pytest
import tensorflow as tf

from rs_keras.trainers import SGD
from rs_keras.trainers import Gaussian
from rs_keras.trainers import SmoothMix
from rs_keras.trainers.runs import snapshot_file
from rs_keras.trainers.runs import snapshots

SIZE, BATCH, EPOCHS = 22, 4, 3
STEPS = 6

RNG = np.random.default_rng(0)
IMAGES = RNG.random((SIZE, 8, 8, 1), np.float32)
LABELS = RNG.integers(0, 3, SIZE)


def passes(epoch, first_step):
    order = np.random.default_rng([7, epoch]).permutation(SIZE)
    data = tf.data.Dataset.from_tensor_slices((IMAGES[order], LABELS[order]))
    return data.batch(BATCH).skip(first_step)


def trainer_of(kind=Gaussian, policy="float32", **compiled):
    keras.utils.set_random_seed(3)
    keras.config.set_dtype_policy(policy)
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input([8, 8, 1]),
            layers.Conv2D(4, 3),
            layers.BatchNormalization(),
            layers.ReLU(),
            # Its state is not in Keras' own files.
            layers.Dropout(0.5),
            layers.Flatten(),
            layers.Dense(3, dtype="float32"),
        ]
    )
    keras.config.set_dtype_policy("float32")
    trainer = kind(model, sigma=0.5, num_noise=2)
    trainer.compile(SGD(0.1, weight_decay=1e-4), metrics=["acc"], **compiled)
    return trainer


class Stop(keras.callbacks.Callback):
    """Dies after so many steps, or epochs."""

    def __init__(self, steps=None, epochs=None):
        super().__init__()
        self.left = steps
        self.epochs = epochs

    def on_train_batch_end(self, batch, logs=None):
        if self.left is not None:
            self.left -= 1
            if self.left == 0:
                raise RuntimeError("killed")

    def on_epoch_end(self, epoch, logs=None):
        if epoch + 1 == self.epochs:
            raise RuntimeError("killed")


def run(folder, trainer, stop=None, **options):
    """Trains, and returns everything that could differ."""
    callbacks = [
        keras.callbacks.CSVLogger(folder / "log.csv"),
        keras.callbacks.ReduceLROnPlateau("loss", patience=1, min_delta=1.0),
        keras.callbacks.EarlyStopping(
            "loss", patience=9, restore_best_weights=True
        ),
        stop or Stop(),
    ]
    options = {"every_seconds": 0, "verbose": 0, **options}
    try:
        history = snapshots.fit(
            trainer,
            passes,
            EPOCHS,
            folder / "snapshot.npz",
            callbacks=callbacks,
            validation_data=(IMAGES, LABELS),
            **options,
        )
    except RuntimeError:
        return None
    values = [v.numpy() for v in [*trainer.variables]]
    values += [v.numpy() for v in trainer.optimizer.variables]
    text = (folder / "log.csv").read_bytes()
    return values, history.epoch, history.history, text


def assert_same(one, other):
    for a, b in zip(one[0], other[0], strict=True):
        np.testing.assert_array_equal(a, b)
    assert one[1:] == other[1:]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return run(tmp_path_factory.mktemp("whole"), trainer_of())


@pytest.mark.parametrize(
    "stop",
    [Stop(steps=2), Stop(steps=9), Stop(steps=12), Stop(epochs=2)],
    ids=["first-epoch", "mid-epoch", "last-step", "epoch-end"],
)
def test_a_resumed_run_is_the_whole_one(stop, whole, tmp_path):
    assert run(tmp_path, trainer_of(), stop) is None
    assert_same(run(tmp_path, trainer_of()), whole)


def test_killed_twice_in_an_epoch(whole, tmp_path):
    run(tmp_path, trainer_of(), Stop(steps=8))
    run(tmp_path, trainer_of(), Stop(steps=2))
    assert_same(run(tmp_path, trainer_of()), whole)


def test_a_stop_between_snapshots_repeats_the_steps(whole, tmp_path):
    run(tmp_path, trainer_of(), Stop(steps=9), every_seconds=1e9)
    assert_same(run(tmp_path, trainer_of()), whole)


@pytest.mark.parametrize(
    "kind, policy, compiled",
    [
        (SmoothMix, "float32", {}),
        (Gaussian, "mixed_float16", {}),
        (Gaussian, "float32", {"steps_per_execution": 4}),
    ],
    ids=["warm-up", "loss-scale", "steps-per-execution"],
)
def test_any_trainer_resumes_from_a_snapshot(kind, policy, compiled, tmp_path):
    folders = tmp_path / "a", tmp_path / "b"
    for folder in folders:
        folder.mkdir()
    build = lambda: trainer_of(kind, policy, **compiled)  # noqa: E731
    one = run(folders[0], build())
    # Under four steps an execution, a batch ends when four do.
    stop = Stop(steps=3 if compiled else 9)
    assert run(folders[1], build(), stop) is None
    assert_same(run(folders[1], build()), one)


def test_the_steps_are_those_of_plain_fit(tmp_path):
    wanted = trainer_of()
    for epoch in range(2):
        wanted.fit(
            passes(epoch, 0),
            initial_epoch=epoch,
            epochs=epoch + 1,
            shuffle=False,
            verbose=0,
        )
    trainer = trainer_of()
    snapshots.fit(trainer, passes, 2, tmp_path / "s.npz", verbose=0)
    for a, b in zip(trainer.variables, wanted.variables, strict=True):
        np.testing.assert_array_equal(a.numpy(), b.numpy())


def test_a_finished_run_is_not_run_again(whole, tmp_path):
    run(tmp_path, trainer_of())
    trainer = trainer_of()
    found = run(tmp_path, trainer, Stop(steps=1))
    assert_same(found, whole)


def test_an_early_stop_is_for_good(tmp_path):
    path = tmp_path / "s.npz"

    def again():
        stop = keras.callbacks.EarlyStopping(
            "loss", patience=0, min_delta=100.0
        )
        return snapshots.fit(
            trainer_of(), passes, 9, path, callbacks=[stop], verbose=0
        )

    assert again().epoch == [0, 1]
    assert again().epoch == [0, 1]


@pytest.mark.parametrize(
    "moment, step, stopped_at",
    [
        ("train_batch_end", 9, (1, 3)),
        ("train_batch_begin", 8, (1, 3)),
        ("train_batch_end", 12, (2, 0)),
        ("test_begin", 12, (2, 0)),
    ],
    ids=["in_step", "between_steps", "last_step", "evaluation"],
)
def test_ctrl_c_keeps_what_was_done(moment, step, stopped_at, whole, tmp_path):
    def interrupt(self, *_, **_logs):
        if int(self.model.step.numpy()) == step:
            os.kill(os.getpid(), signal.SIGINT)

    stop = type("CtrlC", (Stop,), {f"on_{moment}": interrupt})()
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, trainer_of(), stop, every_seconds=1e9)
    with np.load(tmp_path / "snapshot.npz") as archive:
        state = json.loads(str(archive["state"]))
    assert (state["epoch"], state["step"]) == stopped_at
    again = run(tmp_path, trainer_of(), type("CtrlC", (Stop,), {})())
    assert_same(again, whole)


def test_a_second_ctrl_c_does_not_wait(tmp_path):
    class Twice(Stop):
        def on_train_batch_begin(self, batch, logs=None):
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, trainer_of(), Twice())
    assert not (tmp_path / "snapshot.npz").exists()


def test_ctrl_c_is_answered(tmp_path, capfd):
    class CtrlC(Stop):
        def on_train_batch_begin(self, batch, logs=None):
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, trainer_of(), CtrlC())
    assert "stopping after this step" in capfd.readouterr().err


def test_ctrl_c_is_not_forgotten_when_a_worker_is_lost(tmp_path):
    class Lost(Stop):
        def on_train_batch_begin(self, batch, logs=None):
            os.kill(os.getpid(), signal.SIGINT)
            raise tf.errors.UnavailableError(None, None, "gone")

    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, trainer_of(), Lost())


def test_callbacks_see_one_run_and_global_numbers(tmp_path, capsys):
    seen = []

    class Watch(keras.callbacks.Callback):
        def on_train_begin(self, logs=None):
            seen.append("begin")

        def on_epoch_begin(self, epoch, logs=None):
            seen.append((epoch, self.params["epochs"], self.params["steps"]))

        def on_train_end(self, logs=None):
            seen.append("end")

    snapshots.fit(
        trainer_of(),
        passes,
        2,
        tmp_path / "s.npz",
        callbacks=[Watch()],
        verbose=2,
    )
    assert seen == ["begin", (0, 2, STEPS), (1, 2, STEPS), "end"]
    printed = capsys.readouterr().out
    assert "Epoch 1/2" in printed and f"{STEPS}/{STEPS}" in printed


def test_own_callbacks_keep_what_they_name(tmp_path):
    class Count(keras.callbacks.Callback):
        state_attributes = ("batches",)
        batches = 0

        def on_train_batch_end(self, batch, logs=None):
            self.batches += 1

    counts = []
    for stop in (Stop(steps=9), Stop()):
        count = Count()
        counts.append(count)
        try:
            snapshots.fit(
                trainer_of(),
                passes,
                EPOCHS,
                tmp_path / "s.npz",
                callbacks=[count, stop],
                every_seconds=0,
                verbose=0,
            )
        except RuntimeError:
            pass
    # The ninth step died before its snapshot: it was made twice, seen once.
    assert counts[1].batches == EPOCHS * STEPS


def test_data_that_do_not_tell_their_length(tmp_path):
    def silent(epoch, first_step):
        return passes(epoch, first_step).filter(lambda x, y: True)

    with pytest.raises(ValueError, match="`steps` must be given"):
        snapshots.fit(trainer_of(), silent, 1, tmp_path / "s.npz", verbose=0)
    history = snapshots.fit(
        trainer_of(), silent, 1, tmp_path / "s.npz", steps=STEPS, verbose=0
    )
    assert history.epoch == [0]


# -- what is refused ----------------------------------------------------------


@pytest.fixture(scope="module")
def snapshot(tmp_path_factory):
    path = tmp_path_factory.mktemp("snapshot") / "s.npz"
    settings = {"sigma": 0.5, "trainer": {"eta": 1.0}, "seed": 0}
    snapshots.fit(trainer_of(), passes, 1, path, settings=settings, verbose=0)
    return path, settings


def test_a_snapshot_of_other_settings_names_them(snapshot):
    path, settings = snapshot
    settings = {**settings, "sigma": 0.25, "trainer": {"eta": 5.0}}
    with pytest.raises(
        ValueError,
        match="sigma: stored 0.5, given 0.25; "
        r"trainer.eta: stored 1.0, given 5.0$",
    ):
        snapshots.fit(
            trainer_of(), passes, 2, path, settings=settings, verbose=0
        )


def test_a_snapshot_is_not_written_over(snapshot):
    path, settings = snapshot
    with pytest.raises(FileExistsError, match="holds a run already"):
        snapshots.fit(trainer_of(), passes, 2, path, resume=False, verbose=0)


def test_a_snapshot_of_another_network_is_refused(snapshot):
    path, settings = snapshot
    model = keras.Sequential(
        [keras.Input([8, 8, 1]), keras.layers.Flatten(), keras.layers.Dense(3)]
    )
    trainer = Gaussian(model, sigma=0.5)
    trainer.compile(SGD(0.1))
    with pytest.raises(ValueError, match="does not fit this trainer"):
        snapshots.fit(trainer, passes, 2, path, settings=settings, verbose=0)


def test_other_callbacks_leave_their_files_alone(snapshot, tmp_path):
    path, settings = snapshot
    log = tmp_path / "log.csv"
    log.write_text("precious")
    with pytest.raises(ValueError, match="`callbacks`.*History.*CSVLogger"):
        snapshots.fit(
            trainer_of(),
            passes,
            2,
            path,
            callbacks=[keras.callbacks.CSVLogger(log)],
            settings=settings,
            verbose=0,
        )
    assert log.read_text() == "precious"


@pytest.mark.parametrize("text", [b"", b"no archive", b"PK\x03\x04 cut"])
def test_a_file_that_is_no_snapshot_is_refused(text, tmp_path):
    path = tmp_path / "s.npz"
    path.write_bytes(text)
    with pytest.raises(ValueError, match="is not a snapshot"):
        snapshots.fit(trainer_of(), passes, 1, path, verbose=0)


def test_a_damaged_snapshot_gives_way_to_the_one_before(tmp_path, capsys):
    """Two epochs, the second snapshot damaged: the second is made again."""
    path = tmp_path / "s.npz"
    snapshots.fit(trainer_of(), passes, 2, path, verbose=0)
    path.write_bytes(path.read_bytes()[:-100])
    trainer = trainer_of()
    history = snapshots.fit(trainer, passes, 2, path, verbose=0)
    assert history.epoch == [0, 1]
    told = capsys.readouterr().err
    assert "s.npz is not a snapshot" in told and "s.before.npz" in told
    once = trainer_of()
    snapshots.fit(once, passes, 2, tmp_path / "other.npz", verbose=0)
    for one, other in zip(
        once.get_weights(), trainer.get_weights(), strict=True
    ):
        np.testing.assert_array_equal(one, other)
    for name in (path, snapshot_file.before(path)):
        name.write_bytes(b"gone")
    with pytest.raises(ValueError, match="s.npz is not a snapshot"):
        snapshots.fit(trainer_of(), passes, 3, path, verbose=0)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"epochs": 0}, "`epochs`"),
        ({"every_seconds": -1}, "`every_seconds`"),
    ],
    ids=["epochs", "every_seconds"],
)
def test_bad_arguments_of_snapshots_are_refused(options, message, tmp_path):
    options = {"epochs": 1, **options}
    with pytest.raises(ValueError, match=message):
        snapshots.fit(
            trainer_of(), passes, path=tmp_path / "s.npz", verbose=0, **options
        )


def test_a_run_without_data_is_refused(tmp_path):
    def none(epoch, first_step):
        return passes(epoch, first_step).take(0)

    with pytest.raises(ValueError, match="at least one batch"):
        snapshots.fit(trainer_of(), none, 1, tmp_path / "s.npz", verbose=0)
