"""The private interfaces of TensorFlow, Keras and argparse that are used here.

All of them, and nothing else: elsewhere only public interfaces are called.
Each has a test in `tests/unit/rs_keras/test_compat.py` that says what broke
when a release moves it. Libraries are imported inside the functions, since the
command line does without TensorFlow until a command needs it.
"""

import argparse
import contextlib
import logging
import os
import threading
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

# -- Keras: its backend -------------------------------------------------------


def check_backend() -> None:
    """Refuses to work under another backend of Keras than TensorFlow's.

    Raises:
        ValueError: That says how to choose it.

    Example:

    >>> from rs_keras._compat import check_backend
    >>> check_backend()
    """
    import keras

    backend = keras.backend.backend()
    if backend != "tensorflow":
        raise ValueError(
            "rs-keras needs the TensorFlow backend of Keras: set "
            "KERAS_BACKEND=tensorflow in the environment before Keras is "
            f"imported. Received: backend={backend!r}"
        )


# -- TensorFlow: what it prints ----------------------------------------------


def import_tensorflow() -> None:
    """Imports TensorFlow with the process' standard error turned away.

    Its C++ part notes processor features and missing GPU drivers before any
    log level applies. They would bury the one line that matters on a command
    line. What fails raises, as ever.

    Example:

    >>> import sys
    >>> from rs_keras._compat import import_tensorflow
    >>> import_tensorflow()
    >>> "tensorflow" in sys.modules
    True
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    try:
        kept = os.dup(2)
    except OSError:
        # There is no standard error to keep clean.
        import tensorflow  # noqa: F401

        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        import tensorflow  # noqa: F401
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


@contextlib.contextmanager
def log_errors_only() -> Iterator[None]:
    """Keeps TensorFlow from saying that sessions are old and files written."""
    import tensorflow as tf

    logger = tf.get_logger()
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


# -- TensorFlow: training ----------------------------------------------------


def set_worker_timeout(jobs: Mapping[str, list[str]], timeout: float) -> None:
    """Lets workers wait for each other `timeout` seconds; an hour by default.

    `MultiWorkerMirroredStrategy` makes this setting itself, without a time,
    unless the context has it already; there is no argument for it.

    Args:
        jobs: Addresses of the workers, by job, as in `TF_CONFIG`.
        timeout: > 0.
    """
    from tensorflow.python.distribute import collective_all_reduce_strategy
    from tensorflow.python.eager import context

    # Where this message is defined depends on the version of TensorFlow.
    messages = collective_all_reduce_strategy.coordination_config_pb2
    tasks = [
        messages.CoordinatedJob(name=job, num_tasks=len(names))
        for job, names in jobs.items()
    ]
    first = "chief" if "chief" in jobs else "worker"
    context.context().configure_coordination_service(
        service_type="standalone",
        service_leader=f"/job:{first}/replica:0/task:0",
        cluster_register_timeout_in_ms=int(timeout * 1000),
        coordinated_jobs=tasks,
    )


_autotune_lock = threading.Lock()
# Threads in the context below, each as often as it has entered it.
_autotune_threads: list[int] = []
_create_device_dataset: Any = None


@contextlib.contextmanager
def device_queues_without_autotune() -> Iterator[None]:
    """Makes iterators over several devices whose queues are not tuned.

    For each device TensorFlow adds a data set of its own to the one that is
    shared out, a queue of fixed length, and gives it default options: options
    of the data set do not reach it, and no public setting does. So the
    function that makes it is replaced within the context; other threads get
    what it makes as it is.
    """
    global _create_device_dataset
    from tensorflow.python.data.ops import multi_device_iterator_ops as module

    thread = threading.get_ident()
    with _autotune_lock:
        if not _autotune_threads:
            _create_device_dataset = module._create_device_dataset
            module._create_device_dataset = _device_dataset
        _autotune_threads.append(thread)
    try:
        yield
    finally:
        with _autotune_lock:
            _autotune_threads.remove(thread)
            if not _autotune_threads:
                module._create_device_dataset = _create_device_dataset


def _device_dataset(*args: Any, **kwargs: Any) -> Any:
    import tensorflow as tf

    data = _create_device_dataset(*args, **kwargs)
    if threading.get_ident() not in _autotune_threads:
        return data
    options = tf.data.Options()
    options.autotune.enabled = False
    return data.with_options(options)


def is_compiled_by_xla() -> bool:
    """Returns whether the graph that is being traced is one for XLA.

    Such a graph needs tensors whose sizes are known; TensorFlow tells its own
    operations alone that they are in one.
    """
    import tensorflow as tf
    from tensorflow.python.ops import control_flow_util

    graph = tf.compat.v1.get_default_graph()
    return bool(control_flow_util.GraphOrParentsInXlaContext(graph))


def must_be_compiled_by_xla(attributes: Mapping[str, Any]) -> bool:
    """Returns whether a node or function was traced with `jit_compile=True`.

    Args:
        attributes: The `attr` of a `NodeDef` or a `FunctionDef`.
    """
    mark = "_XlaMustCompile"
    return mark in attributes and bool(attributes[mark].b)


# -- TensorFlow: sessions ----------------------------------------------------


def prepare_session(session: Any) -> None:
    """Hands a session its whole graph, as `Session.run` does before it runs."""
    session._extend_graph()


def run_session(
    session: Any,
    feeds: Mapping[str, Any],
    fetches: Sequence[str],
    options: Any = None,
) -> list[Any]:
    """Runs a prepared session by the call below `Session.run`.

    `Session.run` casts what is fed and checks shapes in Python; a server must
    leave both to the runtime, whose errors clients know.

    Args:
        session: A `tf.compat.v1.Session`.
        feeds: Arrays by tensor name.
        fetches: Names of tensors; a bare operation means its output 0.
        options: A `tf.compat.v1.RunOptions`.

    Returns:
        Arrays; a scalar string is `bytes`.
    """
    from tensorflow.python.client import pywrap_tf_session as c_api
    from tensorflow.python.framework.c_api_util import tf_output

    def endpoint(name: str) -> Any:
        operation, _, index = name.partition(":")
        operation = session.graph.get_operation_by_name(operation)
        return tf_output(operation._c_op, int(index or 0))

    buffer = None
    if options is not None:
        buffer = c_api.TF_NewBufferFromString(options.SerializeToString())
    try:
        return c_api.TF_SessionRun_wrapper(
            session._session,
            buffer,
            {endpoint(name): value for name, value in feeds.items()},
            [endpoint(name) for name in fetches],
            [],
            None,
        )
    finally:
        if buffer is not None:
            c_api.TF_DeleteBuffer(buffer)


def dismantle_graph(graph: Any) -> None:
    """Frees a graph that nobody uses any more.

    It is large and full of cycles; a garbage collection finds them, but stops
    every thread for some 0.3 s.
    """
    from tensorflow.python.framework import ops

    ops.dismantle_graph(graph)


# -- Keras -------------------------------------------------------------------

# Attributes in which Keras records a layer's calls, its training and its
# connections, which are visible in the layers themselves.
_LAYER_BOOKKEEPING = frozenset(
    """
    _tracker _trainable_variables _non_trainable_variables _metrics
    _seed_generators _lock _auto_config build quantize _saved_model_inputs_spec
    _saved_model_arg_spec _tracked _inbound_nodes _outbound_nodes _path
    _parent_path _called _losses _loss_ids _losses_override _call_signature
    call_signature_parameters _call_context_args _call_has_context_arg
    _build_shapes_dict _input_spec _nodes _nodes_by_depth _operations_by_depth
    _inputs _outputs _inputs_struct _outputs_struct supports_jit
    _run_eagerly _jit_compile compiled loss optimizer steps_per_execution
    _initial_epoch _compute_loss_has_training_arg _compile_loss
    _compile_metrics _compile_config _compiled_trainable_state _loss_tracker
    train_function test_function predict_function
    unrolled_steps_per_execution stop_training history stop_evaluating
    stop_predicting _eval_epoch_iterator
    """.split()
)


def is_bookkeeping(name: str, is_layer: bool) -> bool:
    """Returns whether an attribute says nothing about what a layer computes.

    TensorFlow tracks objects in attributes that start with "_self_"; Keras
    records calls and training in attributes of layers.

    Args:
        name: Of the attribute.
        is_layer: Whether the object that has it is a Keras layer.
    """
    is_keras_own = is_layer and name in _LAYER_BOOKKEEPING
    return is_keras_own or name.startswith("_self_")


# The attributes that Keras' callbacks change during training, except settings
# that they adjust on first use.
_CALLBACK_ATTRIBUTES = {
    "History": "epoch history",
    "EarlyStopping": "wait stopped_epoch best best_weights best_epoch",
    "ReduceLROnPlateau": "best wait cooldown_counter",
    "ModelCheckpoint": """
        best _batches_seen_since_last_saving _last_batch_seen
    """,
    "TensorBoard": "_global_train_batch _global_test_batch",
}


def callback_attributes(callback: Any) -> tuple[str, ...]:
    """Returns the attributes in which a callback of Keras keeps its state.

    Callbacks have no method that returns it. Empty for other callbacks.
    """
    from keras import callbacks

    for name, attributes in _CALLBACK_ATTRIBUTES.items():
        if isinstance(callback, getattr(callbacks, name)):
            return tuple(attributes.split())
    return ()


def flat_layers(model: Any) -> list[Any]:
    """Returns a model and all layers in it, those of nested models as well.

    `Model.layers` gives the outermost ones alone, and layers that hold others
    have no such list.
    """
    return list(model._flatten_layers())


def casts_inputs(layer: Any) -> bool:
    """Returns whether a layer casts its inputs to the type it computes in.

    Functional models hand on what they are given.
    """
    return bool(layer._convert_input_args)


def functional_of(model: Any) -> Any:
    """Returns the graph of layers that calling a model runs, or None.

    Functional and Sequential models have one, unless a subclass or an
    attribute overrides what they do; Sequential ones once they know the shape
    of their input.

    Args:
        model: A model, a layer, or anything else.

    Returns:
        The Functional model that `model` is, or has inside.

    Example:

    >>> import keras
    >>> from rs_keras._compat import functional_of
    >>> images = keras.Input([3])
    >>> model = keras.Model(images, keras.layers.Dense(2)(images))
    >>> functional_of(model) is model
    True
    >>> functional_of(keras.Sequential([keras.layers.Dense(2)])) is None
    True
    """
    import keras
    from keras.src.models.functional import Functional

    if not isinstance(model, keras.Model) or "call" in vars(model):
        return None
    # Keras' own, or that of KerasHub, which checks the input before.
    mro = type(model).__mro__
    home = next(base for base in mro if "__call__" in vars(base))
    if home.__module__.partition(".")[0] not in ("keras", "keras_hub"):
        return None
    if type(model).call is keras.Sequential.call:
        return model._functional
    return model if type(model).call is Functional.call else None


def has_graph(model: Any) -> bool:
    """Returns whether a model runs a graph of layers from one tensor to one."""
    graph = functional_of(model)
    return graph is not None and len(graph.inputs) == len(graph.outputs) == 1


def calls_of(model: Any) -> list[tuple[Any, list[Any]]]:
    """Returns the calls in a model's graph, and where their outputs go.

    Args:
        model: For which `has_graph`.

    Returns:
        For each call its layer, and the layers that take its output; None
        among them for the model's own output.
    """
    depths = functional_of(model)._nodes_by_depth.values()
    nodes = [node for depth in depths for node in depth if not node.is_input]
    followers: dict[int, list[Any]] = {}
    for node in nodes:
        for tensor in node.input_tensors:
            followers.setdefault(id(tensor), []).append(node.operation)
    for tensor in model.outputs:
        followers.setdefault(id(tensor), []).append(None)
    return [
        (
            node.operation,
            [
                layer
                for tensor in node.outputs
                for layer in followers.get(id(tensor), [])
            ],
        )
        for node in nodes
    ]


def run_graph(
    model: Any, images: Any, run: Callable[..., Any], training: bool
) -> Any:
    """Calls a model's layers one by one, each by `run(layer, *args, **kwargs)`.

    `Functional.call` does so with functions of its own, and takes no others.

    Args:
        model: For which `has_graph`.
        images: Its input.
        run: Returns the layer's outputs.
        training: Is among `kwargs` of all layers, since those whose `call`
            does not take it hand it on to the layers in them.

    Returns:
        The model's one output.
    """
    import keras

    def caller(layer: Any) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            # Operations that are no layers have no modes.
            if "training" in getattr(layer, "_call_context_args", ()):
                kwargs["training"] = training
            return run(layer, *args, **kwargs)

        return call

    graph = functional_of(model)
    inputs = graph._standardize_inputs(images)
    outputs = graph._run_through_graph(inputs, operation_fn=caller)
    (output,) = keras.tree.flatten(outputs)
    return output


def cast_inputs_as(layer: Any, model: Any) -> None:
    """Lets a layer cast its inputs if a model does; see `casts_inputs`."""
    layer._convert_input_args = model._convert_input_args


def has_added_losses(layer: Any) -> bool:
    """Returns whether the layer's last call left an `add_loss` behind.

    `Layer.losses` also holds the penalties of weights, which do not depend on
    the images of a pass.
    """
    return bool(layer._losses)


def is_chain_of_layers(model: Any) -> bool:
    """Returns whether `run_graph` computes what calling the model does.

    So it is if each layer is called once: a layer's second call would drop
    the losses that the first has added.
    """
    if not has_graph(model) or model.activity_regularizer is not None:
        return False
    called = [id(layer) for layer, _ in calls_of(model)]
    return len(set(called)) == len(called)


def has_mask(tensor: Any) -> bool:
    """Returns whether Keras has attached a mask to a tensor."""
    return getattr(tensor, "_keras_mask", None) is not None


def loss_tracker(model: Any) -> Any:
    """Returns the metric that `compile` makes for the loss that is reported.

    `Model.metrics` lists it without saying which one it is.
    """
    return model._loss_tracker


def compiled_metrics(model: Any) -> Any:
    """Returns the container of what `compile` was given to measure, or None.

    Its variables are made before the first step is traced.
    """
    return model._compile_metrics


def decays(optimizer: Any, variable: Any) -> bool:
    """Returns whether a variable is not excluded from weight decay.

    What `exclude_from_weight_decay` was told is kept in private.
    """
    return bool(optimizer._use_weight_decay(variable))


def slot_of(optimizer: Any, variable: Any) -> int:
    """Returns where an optimizer's lists of slots have that of a variable."""
    return int(optimizer._get_variable_index(variable))


def is_evaluation_of_fit(arguments: Mapping[str, Any]) -> bool:
    """Returns whether `evaluate` is called by `fit`, from its arguments.

    `fit` hands on an iterator that it keeps; no public argument says so.
    """
    return bool(arguments.get("_use_cached_eval_dataset", False))


class keras_hook:
    """Marks a method that Keras calls, and that has an underscore in Keras.

    A class that overrides a method which no parent has any more would go on
    without its effect; this fails when the class is made.

    Raises:
        RuntimeError: If no parent has the method.
    """

    def __init__(self, method: Callable) -> None:
        self._method = method

    def __set_name__(self, owner: type, name: str) -> None:
        if not hasattr(super(owner, owner), name):
            raise RuntimeError(
                f"{owner.__name__}.{name} overrides a method of Keras that "
                "this release does not have"
            )
        setattr(owner, name, self._method)


def producer_of(tensor: Any) -> tuple[Any, list[Any]]:
    """Returns what made a symbolic tensor, and the tensors it was made of.

    Args:
        tensor: An output of a Functional model.

    Returns:
        The layer or operation, and its inputs.

    Example:

    >>> import keras
    >>> from rs_keras._compat import producer_of
    >>> images = keras.Input([3])
    >>> layer = keras.layers.Dense(2)
    >>> made, inputs = producer_of(layer(images))
    >>> made is layer, inputs[0] is images
    (True, True)
    """
    node = _node_of(tensor)
    return node.operation, list(node.input_tensors)


def is_called_with_more(tensor: Any) -> bool:
    """Returns whether what made a symbolic tensor was given more than a tensor.

    Args:
        tensor: An output of a Functional model.

    Example:

    >>> import keras
    >>> from rs_keras._compat import is_called_with_more
    >>> images, softmax = keras.Input([3]), keras.layers.Softmax()
    >>> is_called_with_more(softmax(images))
    False
    >>> is_called_with_more(softmax(images, mask=images > 0))
    True
    """
    arguments = _node_of(tensor).arguments
    given = [*arguments.args[1:], *arguments.kwargs.values()]
    return any(value is not None for value in given)


def _node_of(tensor: Any) -> Any:
    """Returns the call that made a symbolic tensor."""
    history = tensor._keras_history
    return history.operation._inbound_nodes[history.node_index]


def copy_weights(copy: Any, model: Any) -> None:
    """Gives the clone of a model its weights.

    Layers take over statistics that are among them: Keras has them do so when
    it loads a file, and not in `set_weights`, after which an adapted
    `Normalization` would subtract 0.

    Args:
        copy: A model of the same layers.
        model: A model that is built.
    """
    copy.set_weights(model.get_weights())
    for layer in flat_layers(copy):
        if hasattr(layer, "mean") and hasattr(layer, "finalize_state"):
            layer.finalize_state()


# -- argparse ----------------------------------------------------------------


def arguments_of(parser: Any) -> list[Any]:
    """Returns the arguments that a parser or a group of one was given.

    argparse has no way to list them; an error that names a file is to say by
    which argument it came, and the documentation has a table of them.
    """
    return list(getattr(parser, "_group_actions", parser._actions))


def values_of(argument: Any) -> str:
    """Returns how an argument's values are written, such as `[FILE ...]`.

    argparse writes them where it prints a whole page.
    """
    formatter = argparse.HelpFormatter("")
    return formatter._format_args(argument, argument.dest.upper())
