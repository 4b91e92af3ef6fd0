"""SGD against a NumPy loop of PyTorch's rule."""

import keras
import numpy as np
import pytest

from rs_keras.trainers import SGD

# The rate drops in the middle, where Keras' own momentum would lag behind.
RATES = [0.1, 0.1, 0.01, 0.01, 0.01]
GRADIENTS = np.random.default_rng(0).normal(size=(5, 3))
START = np.array([1.0, -2.0, 0.5])


def by_hand(momentum, nesterov, decay):
    w, v = START.copy(), np.zeros(3)
    for rate, gradient in zip(RATES, GRADIENTS, strict=True):
        g = gradient + decay * w
        v = momentum * v + g
        w = w - rate * (g + momentum * v if nesterov else v)
    return w


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("decay", [None, 0.1])
def test_sgd_follows_pytorch(momentum, nesterov, decay):
    optimizer = SGD(0.1, momentum, nesterov, weight_decay=decay)
    w = keras.Variable(START, dtype="float64")
    for rate, gradient in zip(RATES, GRADIENTS, strict=True):
        optimizer.learning_rate = rate
        optimizer.apply([keras.ops.convert_to_tensor(gradient)], [w])
    wanted = by_hand(momentum, nesterov, decay or 0.0)
    np.testing.assert_allclose(w.numpy(), wanted, rtol=1e-6)


def test_a_schedule_and_an_excluded_variable():
    schedule = keras.optimizers.schedules.PiecewiseConstantDecay(
        [2], [0.1, 0.01]
    )
    optimizer = SGD(schedule, weight_decay=0.1)
    kernel = keras.Variable(START, dtype="float64", name="kernel")
    bias = keras.Variable(START, dtype="float64", name="bias")
    optimizer.exclude_from_weight_decay(var_names=["bias"])
    for gradient in GRADIENTS:
        gradient = keras.ops.convert_to_tensor(gradient)
        optimizer.apply([gradient, gradient], [kernel, bias])
    # The schedule counts steps from 0 and drops after number 2.
    rates, RATES[2] = list(RATES), 0.1
    try:
        wanted = [by_hand(0.9, False, decay) for decay in (0.1, 0.0)]
    finally:
        RATES[:] = rates
    np.testing.assert_allclose(kernel.numpy(), wanted[0], rtol=1e-6)
    np.testing.assert_allclose(bias.numpy(), wanted[1], rtol=1e-6)


def test_sgd_is_rebuilt_from_its_config():
    optimizer = SGD(0.2, momentum=0.8, nesterov=True, weight_decay=5e-4)
    config = keras.saving.serialize_keras_object(optimizer)
    again = keras.saving.deserialize_keras_object(config)
    assert type(again) is SGD
    assert again.get_config() == optimizer.get_config()


def test_weights_cannot_decay_backwards():
    with pytest.raises(ValueError, match="`weight_decay` must be .* >= 0"):
        SGD(0.1, weight_decay=-1e-4)
