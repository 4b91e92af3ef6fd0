"""TF_CONFIG, what workers tell each other, and the patch for Keras."""

import json
import time

import keras
import numpy as np
import pytest
import tensorflow as tf
from kits import distributed
from kits import golden_cases as golden

from rs_keras import distribution
from rs_keras import trainers
from rs_keras.trainers._distributed import batch_norm
from rs_keras.trainers.runs import snapshots

TWO = ["a.example:2222", "b.example:2222"]


def config(cluster_=None, task="worker", index=0):
    jobs = {"worker": TWO} if cluster_ is None else cluster_
    return json.dumps({"cluster": jobs, "task": {"type": task, "index": index}})


@pytest.mark.parametrize(
    "text, wanted",
    [
        (config(index=1), (1, 2)),
        (config({"chief": ["c:1"], "worker": TWO}, index=1), (2, 3)),
        (config({"chief": ["c:1"], "worker": TWO}, "chief"), (0, 3)),
        (config({"worker": ["[::1]:80"]}), (0, 1)),
    ],
    ids=["workers", "behind_a_chief", "chief", "alone"],
)
def test_tf_config_tells_a_worker_its_rank(monkeypatch, text, wanted):
    monkeypatch.setenv("TF_CONFIG", text)
    member = distribution.member_from_environment()
    assert member == wanted
    assert member.is_chief == (wanted[0] == 0)


@pytest.mark.parametrize(
    "text, message",
    [
        ("", "`TF_CONFIG` must be .*Received: none, it is not set"),
        ("{", "`TF_CONFIG` must be .*Received: '{'"),
        ('{"cluster": {}}', "`TF_CONFIG` must be "),
        ("[]", "`TF_CONFIG` must be "),
        (config(index=2), r"no such task: worker 2, .*\{'worker': 2\}"),
        (config(index=-1), "no such task: worker -1"),
        (config(task="chief"), "no such task: chief 0"),
        (config({"worker": TWO, "ps": ["c:1"]}), "no jobs but .*Received: ps"),
        (config({"worker": ["a"]}), "host:port. Received: 'a'"),
        (config({"worker": ["a:b"]}), "host:port. Received: 'a:b'"),
        (config({"worker": ["a:65536"]}), "host:port. Received: 'a:65536'"),
        (config({"worker": ["a:1", "a:1"]}), "each worker once"),
        (config({"chief": TWO}, "chief"), "one chief"),
    ],
    ids=[
        *("unset", "no_json", "no_task", "list", "high", "low", "no_chief"),
        *("servers", "no_port", "bad_port", "high_port", "twice", "chiefs"),
    ],
)
def test_tf_config_that_names_no_worker(monkeypatch, text, message):
    monkeypatch.setenv("TF_CONFIG", text)
    with pytest.raises(ValueError, match=message):
        distribution.strategy_of("multi_worker")


@pytest.mark.parametrize(
    "arguments, message",
    [
        (("mirror",), "mirrored"),
        (("mirrored", 0), "`timeout` must be"),
        (("mirrored", 1, 0), "`replicas` must be"),
        (("one", 1, 2), "`replicas` must be None but.*'one', replicas=2"),
        (("multi_worker", 1, 2), "`replicas` must be None but.*'multi_worker'"),
    ],
    ids=["name", "timeout", "replicas", "replicas_one", "replicas_workers"],
)
def test_bad_strategies_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        distribution.strategy_of(*arguments)


def test_the_chief_does_not_wait_for_ever(monkeypatch):
    ports = distributed.free_ports(2)
    addresses = [f"127.0.0.1:{port}" for port in ports]
    monkeypatch.setenv("TF_CONFIG", config({"worker": addresses}))
    begun = time.monotonic()
    with pytest.raises(ConnectionError, match=f"timed out.*{addresses[1]}"):
        distribution.strategy_of("multi_worker", timeout=0.5)
    assert time.monotonic() - begun < 30


@pytest.mark.parametrize(
    "strategy",
    [None, tf.distribute.OneDeviceStrategy("CPU:0")],
    ids=["none", "one device"],
)
def test_a_cluster_of_one(strategy):
    assert distribution.member_of(strategy) == (0, 1)
    assert not distribution.has_workers(strategy)
    assert distribution.gather(strategy, b"x") == [b"x"]
    assert distribution.from_chief(strategy, None) is None
    assert distribution.from_chief(strategy, b"") == b""
    assert distribution.largest(strategy, [2.0, -1.0]) == [2.0, -1.0]
    assert distribution.everywhere(strategy, lambda: 3) == 3
    distribution.agree(strategy, {"data": 1})
    with pytest.raises(OSError, match="gone"):
        distribution.everywhere(strategy, lambda: raise_(OSError("gone")))


def raise_(error):
    raise error


@pytest.mark.parametrize(
    "make, classes, message",
    [
        (trainers.Stability, 3, "was taken of a Gaussian.*by a Stability"),
        (trainers.Gaussian, 4, "does not fit this trainer"),
    ],
    ids=["method", "architecture"],
)
def test_a_snapshot_of_something_else(tmp_path, make, classes, message):
    images = np.zeros([4, 8, 8, 1], np.float32)
    data = tf.data.Dataset.from_tensor_slices((images, [0, 1, 2, 0])).batch(4)

    def fit(make, classes):
        trainer = make(golden.tiny(classes=classes), 0.25)
        trainer.compile(trainers.SGD(0.1), run_eagerly=True)
        path = tmp_path / "snapshot.npz"
        snapshots.fit(trainer, lambda *_: data, 1, path, verbose=0)

    fit(trainers.Gaussian, 3)
    with pytest.raises(ValueError, match=message):
        fit(make, classes)


def test_synchronized_is_a_copy_that_computes_the_same():
    inputs = keras.Input([6, 6, 2])
    inner = keras.Sequential(
        [keras.Input([6, 6, 2]), keras.layers.BatchNormalization(momentum=0.5)]
    )
    model = keras.Model(inputs, keras.layers.ReLU()(inner(inputs)))
    images = np.random.default_rng(0).normal(2, 3, [5, 6, 6, 2])
    model(images, training=True)
    copy = batch_norm.synchronized(model)
    assert batch_norm.is_synchronized(copy)
    assert not batch_norm.is_synchronized(model)
    for training in (True, False):
        wanted = model(images, training=training)
        np.testing.assert_array_equal(copy(images, training=training), wanted)
    for one, other in zip(copy.weights, model.weights, strict=True):
        np.testing.assert_array_equal(one.numpy(), other.numpy())


@pytest.mark.parametrize(
    "model", [keras.Sequential([keras.layers.Dense(2)]), "lenet"], ids=str
)
def test_synchronized_needs_a_model_that_is_built(model):
    with pytest.raises(ValueError, match="`model` must be a Keras model"):
        batch_norm.synchronized(model)
