"""Each private interface still does what it is used for.

A failure names what a release of TensorFlow, Keras or Python has moved; the
function of that name in `rs_keras/_compat.py` is the one place to mend.
"""

import argparse
import contextlib
import gc
import importlib.util
import logging
import subprocess
import sys
import threading
import weakref
from pathlib import Path
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


@pytest.mark.parametrize("jit_compile", [True, False])
def test_must_be_compiled_by_xla(jit_compile):
    sentence = "TensorFlow marks functions for XLA by another attribute"
    traced = tf.function(lambda x: x + 1.0, jit_compile=jit_compile)
    with says(sentence):
        function = traced.get_concrete_function(tf.TensorSpec([2]))
        attributes = function.function_def.attr
        is_marked = _compat.must_be_compiled_by_xla(attributes)
    assert is_marked is jit_compile, sentence


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


def attributes_of(model):
    """The attributes of a model and its layers, by place and name."""
    parts = enumerate([model, *model.layers])
    return {
        (place, name): value
        for place, part in parts
        for name, value in vars(part).items()
    }


def test_is_bookkeeping():
    """Calls and training change no attribute but the listed ones."""
    sentence = "Keras records calls and training in other attributes"
    model = keras.Sequential([keras.Input([3]), dense(), dense()])
    before = attributes_of(model)
    model.compile("sgd", "mse", metrics=["mae"])
    x, y = np.zeros([2, 3], "float32"), np.zeros([2, 2], "float32")
    model.fit(x, y, verbose=0)
    model.evaluate(x, y, verbose=0)
    model.predict(x, verbose=0)
    model(keras.Input([3]))
    after = attributes_of(model)
    changed = {
        name
        for place, name in before.keys() | after.keys()
        if before.get((place, name)) is not after.get((place, name))
    }
    assert "_loss_tracker" in changed, sentence
    unknown = {n for n in changed if not _compat.is_bookkeeping(n, True)}
    assert not unknown, sentence


def test_bookkeeping_of_other_objects_is_tracking_alone():
    assert not _compat.is_bookkeeping("loss", is_layer=False)
    assert _compat.is_bookkeeping("_self_setattr_tracking", is_layer=False)
    sentence = "TensorFlow tracks objects in attributes of other names"
    module = tf.Module()
    module.parts = [tf.Variable(0.0)]
    tf.train.Checkpoint(module=module)
    assert any(name.startswith("_self_") for name in vars(module)), sentence


CALLBACKS = {
    "History": lambda: keras.callbacks.History(),
    "EarlyStopping": lambda: keras.callbacks.EarlyStopping("loss"),
    "ReduceLROnPlateau": lambda: keras.callbacks.ReduceLROnPlateau("loss"),
    "ModelCheckpoint": lambda: keras.callbacks.ModelCheckpoint("m.keras"),
    "TensorBoard": lambda: keras.callbacks.TensorBoard("logs"),
}


@pytest.mark.parametrize("name", CALLBACKS)
def test_callback_attributes(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    callback = CALLBACKS[name]()
    model = keras.Sequential([keras.Input([3]), dense()])
    model.compile("sgd", "mse")
    data = np.zeros([2, 3], "float32"), np.zeros([2, 2], "float32")
    model.fit(*data, epochs=2, verbose=0, callbacks=[callback])
    attributes = _compat.callback_attributes(callback)
    assert attributes
    missing = [part for part in attributes if not hasattr(callback, part)]
    assert not missing, "Keras' callbacks keep their states elsewhere"


def test_other_callbacks_have_no_attributes_here():
    assert _compat.callback_attributes(keras.callbacks.Callback()) == ()


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


def test_a_graph_of_layers_is_run_with_others_in_their_place():
    add, twice = keras.layers.Add(), keras.layers.ReLU()
    x = keras.Input([2])
    y = twice(x)
    inner = keras.Sequential([keras.Input([2]), keras.layers.Dropout(0.5)])
    model = keras.Model(x, inner(add([y, twice(y)])))
    sentence = "Keras keeps the calls of a Functional model another way"
    with says(sentence):
        assert _compat.has_graph(model) and _compat.has_graph(inner), sentence
        found = _compat.calls_of(model)
        calls = sorted(
            (op.name, sorted(f.name if f else "the end" for f in after))
            for op, after in found
        )
    assert calls == sorted(
        [
            (add.name, [inner.name]),
            (inner.name, ["the end"]),
            (twice.name, [add.name]),
            (twice.name, sorted([twice.name, add.name])),
        ]
    ), sentence

    def run(layer, *args, **kwargs):
        return args[0] + 4.0 if layer is twice else layer(*args, **kwargs)

    with says(sentence):
        output = _compat.run_graph(model, tf.ones([1, 2]), run, training=False)
    # (1 + 4) + (1 + 4 + 4)
    assert output.numpy().tolist() == [[14.0, 14.0]], sentence
    assert not _compat.has_graph(keras.Sequential([add])), sentence


def test_functional_of():
    """Of models that run their graph of layers, whatever its ends."""
    images = keras.Input([2])
    model = keras.Model(images, [dense()(images), dense()(images)])
    inner = keras.Sequential([images, dense()])

    class Twice(keras.Sequential):
        def call(self, inputs):
            return 2.0 * super().call(inputs)

    class Pipeline(keras.Model):
        """As the classifiers of KerasHub, which check what they are given."""

        __module__ = "keras_hub.src.utils.pipeline_model"

        def __call__(self, *args, **kwargs):
            return super().__call__(*args, **kwargs)

    class Other(Pipeline):
        def __call__(self, *args, **kwargs):
            return 2.0 * super().__call__(*args, **kwargs)

    overridden = keras.Sequential([images, dense()])
    overridden.call = lambda inputs: inputs
    outputs = dense()(images)
    with says("Keras keeps the graphs of models elsewhere"):
        assert _compat.functional_of(model) is model
        assert not _compat.has_graph(model)
        assert _compat.functional_of(inner).outputs == inner.outputs
        assert _compat.has_graph(inner)
        assert _compat.has_graph(Pipeline(images, outputs))
    others = Twice([images, dense()]), Other(images, outputs), overridden
    for other in (*others, dense(), print):
        assert _compat.functional_of(other) is None


def test_a_layer_casts_its_inputs_as_a_model_does():
    layer = keras.layers.ReLU()
    assert _compat.casts_inputs(layer)
    x = keras.Input([2])
    _compat.cast_inputs_as(layer, keras.Model(x, x))
    assert not _compat.casts_inputs(layer)
    sentence = "Keras casts the inputs of layers another way"
    assert layer(tf.ones([1], tf.float64)).dtype == tf.float64, sentence


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


def test_run_graph_tells_the_mode():
    sentence = "Keras runs the layers of Functional models in another way"
    images, rate = keras.Input([4]), keras.layers.Dropout(0.5)
    model = keras.Model(images, dense()(rate(images)))
    seen = []

    def run(layer, *args, **kwargs):
        seen.append((layer, kwargs.get("training")))
        return layer(*args, **kwargs)

    rows = np.ones([2, 4], "float32")
    with says(sentence):
        found = _compat.run_graph(model, rows, run, training=False)
    np.testing.assert_array_equal(found, model(rows), sentence)
    assert seen == [(rate, False), (model.layers[-1], False)], sentence


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


def test_fit_tells_that_it_evaluates():
    told = []

    class Watched(keras.Sequential):
        def evaluate(self, *args, **kwargs):
            told.append(_compat.is_evaluation_of_fit(kwargs))
            return super().evaluate(*args, **kwargs)

    model = Watched([keras.layers.Dense(1)])
    model.compile(loss="mse", run_eagerly=True)
    data = np.zeros([2, 1]), np.zeros([2, 1])
    model.fit(*data, validation_data=data, verbose=0)
    model.evaluate(*data, verbose=0)
    assert told == [True, False]


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
    sentence = "argparse writes help otherwise"
    with says(sentence):
        assert _compat.values_of(out) == "OUT [OUT ...]", sentence


def test_what_the_documentation_prints_of_a_parser():
    root = Path(__file__).parents[3]
    spec = importlib.util.spec_from_file_location(
        "commands", root / "docs" / "site" / "commands.py"
    )
    commands = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(commands)
    parser = argparse.ArgumentParser(prog="prog")
    helping = "of %(prog)s (default: %(default)s)"
    out = parser.add_argument("--out", default="a", help=helping)
    sentence = "argparse writes help otherwise"
    with says(sentence):
        assert commands.usage_of(parser) == "prog [-h] [--out OUT]\n", sentence
        assert commands.help_of(parser, out) == "of prog (default: a)", sentence


def test_a_symbolic_tensor_knows_what_made_it():
    """Also an inner model, and an operation that is no layer."""
    images = keras.Input([3])
    inner = keras.Sequential([keras.Input([3]), keras.layers.Dense(2)])
    outside = inner(images)
    with says("Keras keeps the history of a symbolic tensor elsewhere"):
        assert _compat.producer_of(outside) == (inner, [images])
        operation, inputs = _compat.producer_of(keras.ops.relu(outside))
        assert not isinstance(operation, keras.Layer)
        assert inputs[0] is outside
