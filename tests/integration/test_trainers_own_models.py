"""Sweeps of a user's own `build(hp)`, and the page that shows them."""

import re
import textwrap
from pathlib import Path

import keras_tuner
import numpy as np
import pytest
from kits import golden_cases as golden

from rs_keras import Certifier
from rs_keras import models
from rs_keras.trainers import SGD
from rs_keras.trainers import Gaussian
from rs_keras.trainers.callbacks import CertifyCallback
from rs_keras.trainers.tuning import CertifiedHyperModel

# Keras Tuner 1.4.8 asks for a thread's name in the old way.
pytestmark = [
    pytest.mark.filterwarnings("ignore:currentThread:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:getName:DeprecationWarning"),
]

PAGE = Path(__file__).resolve().parents[2] / "docs" / "tuning.md"
RNG = np.random.default_rng(0)
IMAGES = RNG.random((80, 8, 8, 1), dtype=np.float32)
LABELS = RNG.integers(0, 3, 80)
HELD_OUT = IMAGES[:4], LABELS[:4]


def build(hp):
    trainer = Gaussian(golden.tiny(), 0.25)
    rate = hp.Float("rate", 0.01, 0.1)
    trainer.compile(optimizer=SGD(rate), run_eagerly=True)
    return trainer


def test_a_users_own_build_is_certified_in_each_trial(tmp_path):
    model = CertifiedHyperModel(build, HELD_OUT, n=100, cap=0.5)
    assert model.objectives[:2] == ("val_acr", "val_capped_acr")
    tuner = keras_tuner.RandomSearch(
        model,
        keras_tuner.Objective("val_acr", "max"),
        max_trials=2,
        directory=tmp_path,
        seed=1,
    )
    tuner.search(IMAGES[4:], LABELS[4:], epochs=2, verbose=0)
    trials = list(tuner.oracle.trials.values())
    assert [trial.status for trial in trials] == ["COMPLETED"] * 2
    for trial in trials:
        assert set(model.objectives) <= set(trial.metrics.metrics)
        assert trial.score >= 0


def test_a_trial_that_breaks_has_failed():
    class Broken(Gaussian):
        def fit(self, *args, **kwargs):
            raise FloatingPointError("nan")

    def broken(hp):
        return Broken(golden.tiny(), 0.25)

    model = CertifiedHyperModel(broken, HELD_OUT, n=100)
    hp = keras_tuner.HyperParameters()
    with pytest.raises(keras_tuner.errors.FailedTrialError, match="nan"):
        model.fit(hp, model.build(hp), IMAGES, LABELS)


def test_what_is_no_function_is_refused():
    with pytest.raises(ValueError, match="`build` must be a function"):
        CertifiedHyperModel("lenet", HELD_OUT)


def test_the_pages_optuna_study_runs():
    pytest.importorskip(
        "optuna", reason="optuna is not installed (extra: frameworks)"
    )
    code = re.search(
        r"\n(    import optuna\n.*?)\n\n\S", PAGE.read_text(), re.S
    )
    names = {
        "Gaussian": Gaussian,
        "SGD": SGD,
        "models": models,
        "images": RNG.random((80, 28, 28, 1), dtype=np.float32),
        "labels": LABELS,
    }
    exec(textwrap.dedent(code.group(1)), names)
    assert len(names["study"].trials) == 2
    assert names["study"].best_value >= 0


def test_the_callback_takes_arrays_as_certification_does():
    trainer = build(keras_tuner.HyperParameters())
    callback = CertifyCallback(HELD_OUT, n=100, radii=[0.0])
    history = trainer.fit(IMAGES, LABELS, callbacks=[callback], verbose=0)
    certifier = Certifier(trainer)
    found = certifier.certify(HELD_OUT[0], n=100, seed=0, runner_up=False)
    assert len(found) == 4 and "val_acr" in history.history
