"""Trainers that earlier layouts of the package saved still load.

`trainer__catrs__before_0.1.keras` was written by the layout before 0.1 (commit
8488825), whose synchronised layer was in `rs_keras.trainers.batch_norm`: two
steps of CATRS on random images, seed 5.
"""

from pathlib import Path

import keras
import numpy as np

from rs_keras import trainers
from rs_keras.classifiers import load_classifier
from rs_keras.classifiers import trained_sigma

FILE = Path(__file__).parents[2] / "golden" / "trainer__catrs__before_0.1.keras"
IMAGES = np.linspace(0, 1, 2 * 36, dtype=np.float32).reshape(2, 6, 6, 1)
# What the layout before 0.1 computed of them.
LOGITS = [[0.020944, 0.019305, -0.007545], [0.036495, 0.031096, -0.004210]]


def test_the_classifier_is_loaded():
    np.testing.assert_allclose(load_classifier(FILE)(IMAGES), LOGITS, atol=1e-6)
    assert trained_sigma(FILE) == 0.25


def test_the_trainer_is_loaded_and_goes_on():
    trainer = keras.saving.load_model(FILE)
    assert type(trainer) is trainers.CATRS
    assert (trainer.sigma, trainer.num_noise, trainer.seed) == (0.25, 2, 5)
    assert trainers.is_synchronized(trainer.model)
    assert type(trainer.optimizer) is trainers.SGD
    assert int(trainer.step.numpy()) == int(trainer.optimizer.iterations) == 2
    np.testing.assert_allclose(trainer(IMAGES), LOGITS, atol=1e-6)
    history = trainer.fit(IMAGES, np.array([0, 1]), verbose=0)
    assert np.isfinite(history.history["loss"]).all()
    assert int(trainer.step.numpy()) == 3
