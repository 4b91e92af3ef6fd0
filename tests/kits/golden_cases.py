"""Builds the networks of tests/golden and compares a trainer with a case.

The layouts of files and networks are described in tests/golden/README.md.
"""

import json
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

GOLDEN = Path(__file__).parents[1] / "golden"


def names(method):
    """Returns the names of a method's cases, without the method."""
    found = sorted(GOLDEN.glob(f"{method}__*.npz"))
    return [path.stem.split("__", 1)[1] for path in found]


def load(method, name):
    """Returns a case as a dict of arrays, `hparams` as a dict."""
    with np.load(GOLDEN / f"{method}__{name}.npz") as archive:
        case = dict(archive)
    case["hparams"] = json.loads(str(case["hparams"]))
    return case


def network(case, dtype="float64"):
    """Returns the case's network with the case's weights."""
    layers = keras.layers
    if case["hparams"]["arch"] == "tiny_cnn":
        stack = [
            layers.Conv2D(6, 3, activation="relu", dtype=dtype),
            layers.MaxPooling2D(2, dtype=dtype),
            layers.Conv2D(8, 3, activation="relu", dtype=dtype),
        ]
    else:
        std = np.array([0.20, 0.20, 0.20])
        mean = np.array([0.49, 0.48, 0.45])
        stack = [
            layers.Rescaling(1 / std, -mean / std, dtype=dtype),
            layers.Conv2D(8, 3, use_bias=False, dtype=dtype),
            layers.BatchNormalization(epsilon=1e-5, momentum=0.9, dtype=dtype),
            layers.ReLU(dtype=dtype),
            layers.AveragePooling2D(2, dtype=dtype),
        ]
    model = keras.Sequential(
        [
            keras.Input(case["hparams"]["input_shape"], dtype=dtype),
            *stack,
            layers.Flatten(dtype=dtype),
            layers.Dense(case["hparams"]["num_classes"], dtype=dtype),
        ]
    )
    # The trainer computes in the type that the model says it has.
    model.dtype_policy = keras.DTypePolicy(dtype)
    count = len(model.weights)
    model.set_weights([case[f"w{i}"] for i in range(count)])
    return model


def step(trainer, case, targets=None, **extra):
    """Returns the losses, their mean and its gradients on a case's draws."""
    targets = case["y"] if targets is None else targets
    draw = {"noise": case["noise"], **extra}
    with tf.GradientTape() as tape:
        parts = trainer.losses_of(case["x"], targets, draw)
        loss = tf.reduce_mean(tf.add_n(list(parts.values())))
    variables = [v.value for v in trainer.model.trainable_variables]
    gradients = tape.gradient(loss, variables)
    parts = {name: value.numpy() for name, value in parts.items()}
    return parts, loss.numpy(), [g.numpy() for g in gradients]


def near(actual, wanted, tolerance):
    """Asserts max |error| <= tolerance * max |wanted|."""
    actual, wanted = np.asarray(actual), np.asarray(wanted)
    assert actual.shape == wanted.shape
    error = np.abs(actual - wanted).max()
    assert error <= tolerance * np.abs(wanted).max(), error


def compare_step(trainer, case, result, suffix="", gradients=1e-9, loss=1e-9):
    """Asserts that loss, gradients and moving statistics are the case's."""
    _, found, slopes = result
    near(found, case[f"loss{suffix}"], loss)
    weights = trainer.model.weights
    wanted = [case[f"g{i}{suffix}"] for i in range(len(weights))]
    wanted = [g for g, w in zip(wanted, weights, strict=True) if w.trainable]
    for slope, target in zip(slopes, wanted, strict=True):
        near(slope, target, gradients)
    if case["hparams"]["arch"] == "tiny_bn":
        mean, variance = trainer.model.non_trainable_variables
        # The file has the last moving mean under PyTorch's rule alone.
        near(mean.numpy(), case["moving_mean_after"], 1e-4 if suffix else loss)
        near(variance.numpy(), case["moving_var_after_popvar"], loss)


def tolerances(dtype):
    """Returns (losses, adversarial result, gradients) for a number type."""
    return (1e-9,) * 3 if dtype == "float64" else (1e-5, 1e-5, 1e-4)


def cases(method):
    """Returns every case in float64 and the first one in float32, to run."""
    found = names(method)
    return [(name, "float64") for name in found] + [(found[0], "float32")]


def label(value):
    """Returns a readable test id."""
    return str(value)


def tiny(shape=(8, 8, 1), classes=3, seed=0, **kwargs):
    """Returns a small network with batch normalisation."""
    keras.utils.set_random_seed(seed)
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input(shape),
            layers.Conv2D(4, 3, **kwargs),
            layers.BatchNormalization(),
            layers.ReLU(),
            layers.Flatten(),
            layers.Dense(classes),
        ]
    )
