"""The states of callbacks, stored and restored."""

import json

import keras
import numpy as np
import pytest
import tensorflow as tf

from rs_keras.trainers.runs import callback_states


@pytest.mark.parametrize("dtype", ["float32", "int64", "bfloat16"])
@pytest.mark.parametrize("shape", [(), (2, 3)], ids=["scalar", "matrix"])
def test_best_weights_come_back_as_they_were(dtype, shape, tmp_path):
    best = tf.cast(tf.fill(shape, 3), dtype).numpy()
    stop = keras.callbacks.EarlyStopping()
    stop.best_weights, stop.best = [best], 0.5
    states, arrays = callback_states.gather([stop])
    np.savez(tmp_path / "a.npz", **arrays)
    other = keras.callbacks.EarlyStopping()
    with np.load(tmp_path / "a.npz") as kept:
        callback_states.restore(
            [other], json.loads(json.dumps(states)), dict(kept)
        )
    [found] = other.best_weights
    assert found.dtype == best.dtype and found.shape == shape
    np.testing.assert_array_equal(found, best)
    assert other.best == 0.5
