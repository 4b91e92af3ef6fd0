"""What can only be seen in a process that has just begun."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def start(code, **environment):
    return subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def said_by(*processes):
    """What each prints; all must end well."""
    said = [process.communicate() for process in processes]
    for process, (_, errors) in zip(processes, said, strict=True):
        assert process.returncode == 0, errors[-2000:]
    return [out for out, _ in said]


@pytest.fixture(scope="module")
def lines():
    """What two processes print that hash names with other seeds."""
    code = """
import sys
import time
import tensorflow
import keras
before = time.process_time()
from rs_keras import Certifier
own = time.process_time() - before
from rs_keras import datasets, models
from rs_keras.classifiers.precision import compute_dtype
layers = [
    keras.layers.Dense(2, dtype=name)
    for name in ("mixed_float16", "mixed_bfloat16")
]
print(compute_dtype(keras.Sequential(layers)))
datasets.load("fashion_mini")
print("tensorflow_datasets" in sys.modules)
print("tensorflow_probability" in sys.modules)
print(own / before)
from rs_keras import bounds
float(bounds.radius(0.99, 1.0))
print("tensorflow_probability" in sys.modules)
"""
    processes = [start(code, PYTHONHASHSEED=seed) for seed in "12"]
    return [text.split() for text in said_by(*processes)]


def test_of_two_equally_narrow_types_one_is_told(lines):
    assert [dtype for dtype, *_ in lines] == ["bfloat16"] * 2


def test_tensorflow_datasets_is_imported_when_it_is_needed(lines):
    assert [imported for _, imported, *_ in lines] == ["False"] * 2


def test_tensorflow_probability_is_imported_with_the_first_bound(lines):
    assert [line[2] for line in lines] == ["False"] * 2
    assert [line[4] for line in lines] == ["True"] * 2


def test_importing_the_certifier_adds_little_to_tensorflow_and_keras(lines):
    # In processor time: a hundredth, and a fifth if everything were imported.
    assert all(float(line[3]) < 0.1 for line in lines)


def test_set_worker_timeout():
    """In a process of its own: TensorFlow makes the setting once."""
    code = """
from rs_keras import _compat
_compat.import_tensorflow()
from tensorflow.python.eager import context
_compat.set_worker_timeout({"chief": ["a:1"], "worker": ["b:1", "c:1"]}, 2.5)
config = context.context().coordination_service
print(config.cluster_register_timeout_in_ms, config.service_leader)
print([(job.name, job.num_tasks) for job in config.coordinated_job_list])
"""
    process = start(code)
    out, errors = process.communicate()
    expected = (
        "2500 /job:chief/replica:0/task:0\n[('chief', 1), ('worker', 2)]\n"
    )
    assert out == expected, (
        "TensorFlow's context has another way to set how long workers wait "
        f"for each other: {errors[-1000:]}"
    )


def test_a_replica_without_images_leaves_finite_statistics():
    """That replicas train as one device is seen in `test_scale_training`."""
    code = """
import numpy as np, tensorflow as tf
cpu = tf.config.list_physical_devices("CPU")[0]
two = [tf.config.LogicalDeviceConfiguration()] * 2
tf.config.set_logical_device_configuration(cpu, two)
import keras
from rs_keras.trainers import SGD, Gaussian
rng = np.random.default_rng(0)
# The last batch has one image: the second replica gets none.
x, y = rng.random((9, 6, 6, 1), dtype="float32"), rng.integers(0, 3, 9)
with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
    model = keras.Sequential([
        keras.Input((6, 6, 1)),
        keras.layers.Conv2D(4, 3), keras.layers.BatchNormalization(),
        keras.layers.Flatten(), keras.layers.Dense(3)])
    trainer = Gaussian(model, 0.25, num_noise=2)
    trainer.compile(optimizer=SGD(0.1), metrics=["accuracy"])
history = trainer.fit(x, y, batch_size=4, shuffle=False, verbose=0,
                      validation_data=(x, y)).history
assert all(np.isfinite(w.numpy()).all() for w in trainer.weights)
assert np.isfinite(list(history.values())).all()
"""
    said_by(start(code))


def test_commands_leave_tensorflow_to_be_configured():
    """Replicas and threads are set after the imports."""
    code = """
import rs_keras.cli.certify, rs_keras.cli.decide, rs_keras.cli.train
import rs_keras.cli.serve
import tensorflow as tf
tf.config.threading.set_intra_op_parallelism_threads(1)
print("in time")
"""
    assert said_by(start(code)) == ["in time\n"]
