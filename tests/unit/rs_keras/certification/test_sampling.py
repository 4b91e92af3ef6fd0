"""The shape of the counting loop: what may run at the same time does."""

from dataclasses import replace

import keras
import numpy as np
import pytest
import tensorflow as tf

from rs_keras.certification.sampling import Sampler
from rs_keras.certification.sampling import noise_distance
from rs_keras.noise import normal

SHAPE = (4, 4, 1)
NETWORK, NOISE = "MatMul", "StatelessRandomNormalV2"


def sampler(**kwargs):
    keras.utils.set_random_seed(1)
    network = keras.Sequential(
        [
            keras.Input(SHAPE),
            keras.layers.Flatten(),
            keras.layers.Dense(3, use_bias=False),
        ]
    )
    return Sampler(network, 0.5, 3, SHAPE, 8, **kwargs)


def loop_body(function):
    graph = function.graph.as_graph_def()
    whiles = [node for node in graph.node if node.op.endswith("While")]
    (loop,) = whiles
    name = loop.attr["body"].func.name
    (body,) = [f for f in graph.library.function if f.signature.name == name]
    return body


def behind(body, op):
    """Operations that nodes of one kind wait for, itself included."""
    nodes = {node.name: node for node in body.node_def}
    todo = [node.name for node in body.node_def if node.op == op]
    assert todo, f"no {op} in the loop"
    seen = set()
    while todo:
        name = todo.pop()
        if name not in seen:
            seen.add(name)
            inputs = [i.lstrip("^").split(":")[0] for i in nodes[name].input]
            todo += [i for i in inputs if i in nodes]
    return {nodes[name].op for name in seen}


def test_the_next_noise_is_made_while_the_network_runs():
    rows = tf.TensorSpec([None], tf.int64)
    found = sampler()
    traced = tf.function(found.count).get_concrete_function(
        tf.TensorSpec([None, *SHAPE]),
        tf.TensorSpec([None, 2], tf.int64),
        rows,
        rows,
    )
    body = loop_body(traced)
    assert NOISE not in behind(body, NETWORK)
    assert NETWORK not in behind(body, NOISE)


def test_rows_that_draw_nothing_are_stepped_over():
    """Whole passes, parts of one, none and less than none, in any order."""
    found = sampler()
    n = np.array([0, 17, -3, 8, 0, 1])
    images = np.random.default_rng(2).random((6, *SHAPE), np.float32)
    seeds = np.arange(12).reshape(6, 2)
    first = np.array([5, 0, 0, 3, 0, 2**40])
    counts = found.count(*map(tf.constant, (images, seeds, first, n))).numpy()
    weights = found.logits.get_weights()[0]
    for row in range(6):
        if n[row] <= 0:
            assert not counts[row].any()
            continue
        eps = normal(SHAPE, seeds[row], first[row], int(n[row])).numpy()
        noisy = images[row].ravel() + 0.5 * eps.reshape(n[row], -1)
        votes = np.argmax(noisy @ weights, 1)
        assert counts[row].tolist() == np.bincount(votes, minlength=3).tolist()


@pytest.mark.parametrize("batch_size", [1, 64])
def test_counts_do_not_depend_on_the_size_of_a_pass(batch_size):
    n = np.array([0, 17, -3, 8, 90, 1])
    images = np.random.default_rng(2).random((6, *SHAPE), np.float32)
    rows = images, np.arange(12).reshape(6, 2), 3 + 0 * n, n
    rows = list(map(tf.constant, rows))
    one = sampler()
    other = replace(one, batch_size=batch_size)
    np.testing.assert_array_equal(other.count(*rows), one.count(*rows))
    beta = tf.constant(1.0, tf.float64)
    np.testing.assert_allclose(
        other.soft_sums(*rows, beta), one.soft_sums(*rows, beta), rtol=1e-6
    )


def test_no_rows_give_no_rows():
    empty = sampler().count(
        tf.zeros([0, *SHAPE]),
        tf.zeros([0, 2], tf.int64),
        tf.zeros([0], tf.int64),
        tf.zeros([0], tf.int64),
    )
    assert empty.shape == (0, 3)


def test_nothing_is_known_of_the_distance_of_another_noise():
    assert noise_distance("float", 0.5, SHAPE) == 0.0
    with pytest.raises(ValueError, match="must be one of float, grid"):
        noise_distance("grid-strict", 0.5, SHAPE)
