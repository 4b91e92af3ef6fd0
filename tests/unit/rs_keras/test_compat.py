"""Each private interface still does what it is used for.

A failure names what a release of TensorFlow, Keras or Python has moved; the
function of that name in `rs_keras/_compat.py` is the one place to mend.
"""

import argparse
import contextlib
import gc
import logging
import subprocess
import sys
import threading
import weakref
from types import SimpleNamespace

import keras
import numpy as np
import pytest
import tensorflow as tf

from rs_keras import _compat
from rs_keras.trainers import SGD
from rs_keras.trainers import Gaussian


@contextlib.contextmanager
def says(sentence):
    """Fails with a sentence, whatever goes wrong within it."""
    try:
        yield
    except Exception as error:
        pytest.fail(f"{sentence} ({type(error).__name__}: {error})")


def test_the_command_line_imports_it_without_tensorflow():
    code = (
        "import sys, rs_keras._compat, rs_keras.cli\n"
        "print(sorted({'tensorflow', 'keras', 'grpc'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"


def test_log_errors_only_puts_the_level_back():
    logger = tf.get_logger()
    level = logger.level
    with _compat.log_errors_only():
        assert logger.level == logging.ERROR
    assert logger.level == level


def tuned_queues():
    """Whether TensorFlow would tune the queue of each of a strategy's devices.

    They are the only data sets that are iterated over in Python.
    """
    found = []
    iterate = tf.data.Dataset.__iter__

    def noted(data):
        found.append(data.options().autotune.enabled is not False)
        return iterate(data)

    strategy = tf.distribute.MirroredStrategy(["CPU:0"])
    data = strategy.experimental_distribute_dataset(tf.data.Dataset.range(2))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tf.data.Dataset, "__iter__", noted)
        iterator = iter(data)
    assert [int(value) for value in iterator] == [0, 1]
    return found


def test_device_queues_without_autotune():
    sentence = "TensorFlow makes the queues of several devices another way"
    assert tuned_queues() == [True], sentence
    with says(sentence), _compat.device_queues_without_autotune():
        assert tuned_queues() == [False], sentence


def test_other_threads_and_later_iterators_are_tuned():
    found, entered, leave = [], threading.Event(), threading.Event()

    def other():
        found.extend(tuned_queues())
        with _compat.device_queues_without_autotune():
            entered.set()
            leave.wait(60)

    thread = threading.Thread(target=other)
    with _compat.device_queues_without_autotune():
        thread.start()
        assert entered.wait(60)
    found.extend(tuned_queues())
    leave.set()
    thread.join()
    found.extend(tuned_queues())
    assert found == [True] * 3


@pytest.mark.parametrize("jit_compile", [True, False])
def test_is_compiled_by_xla(jit_compile):
    found = []

    @tf.function(jit_compile=jit_compile)
    def traced():
        found.append(_compat.is_compiled_by_xla())
        return tf.zeros([])

    with says("TensorFlow no longer says that a graph is one for XLA"):
        traced()
    assert found == [jit_compile], "TensorFlow marks graphs for XLA otherwise"


def test_a_session_runs_by_the_call_below():
    graph = tf.Graph()
    with graph.as_default():
        x = tf.compat.v1.placeholder(tf.float32, [None], "x")
        tf.add(x, 1.0, "y")
    graph.finalize()
    session = tf.compat.v1.Session(graph=graph)
    feeds = {"x:0": np.float32([1, 2])}
    options = tf.compat.v1.RunOptions(timeout_in_ms=60_000)
    with says("TensorFlow has changed the call below `Session.run`"):
        _compat.prepare_session(session)
        (found,) = _compat.run_session(session, feeds, ["y"], options)
        assert found.tolist() == [2.0, 3.0]
    # Neither cast nor checked in Python: the runtime says what is wrong.
    wrong = {"x:0": np.float64([1, 2])}
    with pytest.raises(tf.errors.InvalidArgumentError, match="double"):
        _compat.run_session(session, wrong, ["y:0"])
    session.close()


def test_dismantle_graph():
    sentence = "TensorFlow no longer takes the cycles of a graph apart"
    graph = tf.Graph()
    with graph.as_default():
        tf.constant(1.0)
    alive = weakref.ref(graph)
    gc.disable()
    try:
        with says(sentence):
            _compat.dismantle_graph(graph)
        del graph
        assert alive() is None, sentence
    finally:
        gc.enable()


def dense():
    return keras.layers.Dense(2)


def test_flat_layers():
    inner = keras.Sequential([keras.Input([4, 2]), dense()])
    wrapped = keras.layers.TimeDistributed(dense())
    model = keras.Sequential([keras.Input([4, 3]), wrapped, inner])
    with says("Keras no longer lists the layers within layers"):
        found = _compat.flat_layers(model)
    expected = [model, wrapped, wrapped.layer, inner, inner.layers[0]]
    assert {id(one) for one in expected} <= {id(one) for one in found}, (
        "Keras no longer lists the layers within layers"
    )


def test_casts_inputs():
    sentence = "Keras no longer says which layers cast their inputs"
    model = keras.Sequential([keras.Input([3]), dense()])
    functional = keras.Model(model.inputs, model.outputs)
    with says(sentence):
        assert _compat.casts_inputs(model.layers[0]), sentence
        assert not _compat.casts_inputs(functional), sentence


def test_has_added_losses():
    sentence = "Keras keeps the losses that a call adds elsewhere"

    class Penalized(keras.layers.Layer):
        def call(self, inputs):
            self.add_loss(tf.reduce_sum(inputs))
            return inputs

    by_call, of_weights = (
        Penalized(),
        keras.layers.Dense(2, kernel_regularizer="l2"),
    )
    for layer in (by_call, of_weights):
        layer(np.ones([1, 2], "float32"))
        assert layer.losses
    with says(sentence):
        assert _compat.has_added_losses(by_call), sentence
        assert not _compat.has_added_losses(of_weights), sentence


def test_run_layers():
    sentence = "Keras runs the layers of Functional models in another way"
    images, rate = keras.Input([4]), keras.layers.Dropout(0.5)
    model = keras.Model(images, dense()(rate(images)))
    seen = []

    def run(layer, *args, **kwargs):
        seen.append((layer, kwargs.get("training")))
        return layer(*args, **kwargs)

    rows = np.ones([2, 4], "float32")
    with says(sentence):
        found = _compat.run_layers(model, rows, run, training=False)
    np.testing.assert_array_equal(found, model(rows), sentence)
    told = [(layer, training) for layer, training in seen if layer is rate]
    assert told == [(rate, False)] and len(seen) == 2, sentence


def test_is_chain_of_layers():
    sentence = "Keras keeps the layers of Functional models elsewhere"
    images, twice = keras.Input([2]), dense()
    model = keras.Model(images, dense()(images))
    deferred = keras.Sequential([dense()])
    with says(sentence):
        assert _compat.is_chain_of_layers(model), sentence
        assert not _compat.is_chain_of_layers(deferred), sentence
        deferred.build([None, 2])
        assert _compat.is_chain_of_layers(deferred), sentence
        model = keras.Model(images, twice(twice(images)))
        assert not _compat.is_chain_of_layers(model), sentence


def test_has_mask():
    sentence = "Keras attaches masks in another way"
    masked = keras.layers.Masking()(tf.zeros([1, 2, 3]))
    with says(sentence):
        assert _compat.has_mask(masked), sentence
        assert not _compat.has_mask(tf.zeros([1, 2, 3])), sentence


def test_what_compile_makes():
    sentence = "Keras keeps what `compile` makes elsewhere"
    model = keras.Sequential([keras.Input([3]), dense()])
    model.compile("sgd", "mse")
    with says(sentence):
        assert _compat.loss_tracker(model).name == "loss", sentence
        assert _compat.compiled_metrics(model) is None, sentence
        model.compile("sgd", "mse", metrics=["mae"])
        metrics = _compat.compiled_metrics(model)
        metrics.update_state(np.zeros([1, 2]), np.full([1, 2], 3.0))
        assert float(metrics.result()["mae"]) == 3.0, sentence


def test_what_an_optimizer_knows_of_a_variable():
    sentence = "Keras' optimizers keep what they know of variables elsewhere"
    kernel, bias = keras.Variable([1.0], name="w"), keras.Variable([1.0])
    optimizer = keras.optimizers.SGD(momentum=0.9, weight_decay=0.1)
    optimizer.exclude_from_weight_decay([bias])
    optimizer.build([kernel, bias])
    with says(sentence):
        assert _compat.decays(optimizer, kernel), sentence
        assert not _compat.decays(optimizer, bias), sentence
        assert _compat.slot_of(optimizer, bias) == 1, sentence


def test_a_hook_that_keras_has_not_is_refused():
    with pytest.raises(RuntimeError) as caught:

        class Mine(keras.Model):
            @_compat.keras_hook
            def _no_such(self):
                pass

    # Python 3.11 wraps it in one of its own.
    error = caught.value.__cause__ or caught.value
    assert "Mine._no_such overrides a method of Keras" in str(error)


def test_keras_calls_the_hooks(monkeypatch):
    """What overrides them is called, by `fit` and by a layer's call."""
    called = []

    def noting(name):
        def hook(self, *args, **kwargs):
            called.append(name)
            return getattr(super(kind, self), name)(*args, **kwargs)

        return _compat.keras_hook(hook)

    names = ["_maybe_symbolic_build", "_get_metrics_result_or_logs"]
    kind = type("Noting", (Gaussian,), {name: noting(name) for name in names})
    layers = [keras.Input([4, 4, 1]), keras.layers.Flatten(), dense()]
    trainer = kind(keras.Sequential(layers), sigma=0.5)
    trainer.compile("sgd")
    trainer.fit(np.zeros([2, 4, 4, 1]), np.arange(2), verbose=0)
    assert set(called) == set(names), f"Keras' `fit` calls only {called}"

    called.clear()
    names = ["_moments"]
    kind = type(
        "Noting",
        (keras.layers.BatchNormalization,),
        {"_moments": noting("_moments")},
    )
    kind()(np.zeros([2, 3], "float32"), training=True)
    assert called == names, "Keras' batch normalisation has other moments"


def test_an_optimizers_decay_is_replaced():
    """w - 0.1 * 0.5 * w, once; Keras' own step would take as much again."""
    variable = keras.Variable([1.0])
    optimizer = SGD(0.1, momentum=0.0, weight_decay=0.5)
    optimizer.apply([keras.ops.zeros([1])], [variable])
    np.testing.assert_allclose(
        variable,
        [0.95],
        rtol=1e-6,
        err_msg="Keras' optimizers decay weights by another method",
    )


class Asked(tf.distribute.MultiWorkerMirroredStrategy):
    """A strategy without workers that notes how it is asked to reduce."""

    def __init__(self):
        self.axes = []

    @property
    def extended(self):
        return SimpleNamespace(_in_multi_worker_mode=lambda: True)

    def reduce(self, reduce_op, value, axis=None):
        self.axes.append(axis)
        return value


def test_keras_reduces_what_a_step_reports_along_an_axis():
    """Keras issue 20585, which `replicas.reports` works around."""
    asked = Asked()
    with says("Keras reduces what steps report elsewhere: look whether it is"):
        from keras.src.backend.tensorflow.trainer import reduce_per_replica

        reduce_per_replica({"loss": tf.zeros([])}, asked, reduction="auto")
    assert asked.axes == [0], (
        "Keras reduces scalars of several workers without an axis now: "
        "`trainers/_distributed/replicas.py: reports` can go"
    )


def test_what_a_parser_was_given():
    sentence = "argparse keeps the arguments of a parser elsewhere"
    parser = argparse.ArgumentParser(prog="prog")
    group = parser.add_argument_group("files")
    helping = "of %(prog)s (default: %(default)s)"
    out = group.add_argument("--out", nargs="+", default="a", help=helping)
    with says(sentence):
        assert out in _compat.arguments_of(parser), sentence
        assert _compat.arguments_of(group) == [out], sentence
        assert _compat.groups_of(parser)[-1] is group, sentence
    sentence = "argparse writes help otherwise"
    with says(sentence):
        assert _compat.help_of(parser, out) == "of prog (default: a)", sentence
        usage = _compat.usage_of(parser)
        assert usage == "prog [-h] [--out OUT [OUT ...]]\n", sentence
        assert _compat.values_of(out) == "OUT [OUT ...]", sentence
