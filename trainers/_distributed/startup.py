"""The start of `fit`: checks of the job and its data, data per replica."""

import contextlib
import hashlib
import json
from dataclasses import replace
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from rs_keras import _compat
from rs_keras import distribution
from rs_keras.datasets.elements import is_arrays
from rs_keras.trainers._distributed.batch_norm import is_synchronized
from rs_keras.trainers._step.data_forms import KERAS_BATCH
from rs_keras.trainers._step.data_forms import DataForm


def prepare(
    trainer: Any, x: Any, y: Any, form: DataForm, more: dict[str, Any]
) -> tuple[Any, Any]:
    """Checks the data of `fit`, on every worker, and returns them to train on.

    Args:
        trainer: A `SmoothTrainer`.
        x: As in `fit`.
        y: As in `fit`.
        form: How the data are read.
        more: Further arguments of `fit`; its `validation_data` may be replaced,
            and `shuffle` where the data come shuffled.

    Returns:
        What to pass on to Keras in place of `x` and `y`.

    Raises:
        ValueError: If images or targets are not what they should be, a batch
            has fewer rows than there are replicas, workers have different
            data, trainers or versions, replicas had to wait for each other
            within a loop, or a call makes several steps on several devices.
            Each worker raises it.
    """
    strategy = trainer.distribute_strategy
    several = distribution.member_of(strategy).size > 1
    is_array = hasattr(x, "shape") or (y is None and is_arrays(x))
    facts: dict[str, Any] = _facts(trainer) if several else {}

    def check(images: Any, targets: Any) -> None:
        trainer.check_batch(images, targets)
        size = form.batch_size or KERAS_BATCH
        rows = size if is_array else len(images)
        count = strategy.num_replicas_in_sync
        # Of a data set that is spread already, this is one replica's part.
        spread = isinstance(x, tf.distribute.DistributedDataset)
        if rows < count and not spread:
            raise ValueError(
                "`batch_size` must be at least the number of replicas, "
                f"{count}. Received: a batch of {rows}"
            )
        if several:
            facts["data"] = _digest(images, targets)

    def check_all() -> tuple[Any, Any]:
        _check_loop(trainer)
        check_steps(strategy, trainer.steps_per_execution)
        if several and is_array and more.get("shuffle", True):
            raise ValueError(
                "`shuffle` must be False for arrays on several workers: each "
                "would shuffle in an order of its own. Give a data set that is "
                "shuffled with a seed, such as `datasets.stream`, or "
                "shuffle=False"
            )
        training = form.checked(x, y, check)
        validation = more.get("validation_data")
        if validation is not None:
            validation = _validation(trainer, validation, form, more)
        return training, validation

    (data, targets), validation = distribution.everywhere(strategy, check_all)
    distribution.agree(strategy, facts)
    if validation is not None:
        more["validation_data"] = shared_out(strategy, validation)
    if isinstance(data, tf.data.Dataset) and data is not x:
        # Keras would warn that it does not shuffle it.
        more["shuffle"] = False
    return shared_out(strategy, data), targets


def _validation(
    trainer: Any, data: Any, form: DataForm, more: dict[str, Any]
) -> Any:
    """Returns the checked `validation_data` of `fit`."""
    size = more.get("validation_batch_size") or form.batch_size
    own = replace(form, batch_size=size, order=None)
    if not is_arrays(data):
        return evaluated(trainer, data, None, own)[0]
    images, targets = evaluated(trainer, data[0], data[1], own)
    return (images, targets, *data[2:])


def evaluated(trainer: Any, x: Any, y: Any, form: DataForm) -> tuple[Any, Any]:
    """Checks the data of `evaluate` and returns them as Keras takes them.

    Args:
        trainer: A `SmoothTrainer`.
        x: As in `evaluate`.
        y: As in `evaluate`.
        form: How the data are read.

    Raises:
        ValueError: If images or targets are not what they should be.
    """

    def check(images: Any, targets: Any) -> None:
        trainer.check_batch(images, targets, training=False)

    return form.checked(x, y, check)


def shared_out(strategy: tf.distribute.Strategy, data: Any) -> Any:
    """Returns data that Keras can distribute over the replicas.

    By default TensorFlow distributes the files of a data set over workers; a
    batch would then hold other examples than on one device. Here each worker
    takes its rows of each batch.

    TensorFlow's tuner of pipelines is off under several devices. The end of an
    iterator waits for the tuner's thread, which sleeps for up to a minute and
    often misses that it is told to stop: TensorFlow sets the flag only after
    it has woken the thread. The iterators of several devices mostly lose that
    race. On two logical CPUs each epoch of a minute was followed by half a
    minute in which nothing was done (TensorFlow 2.21). Without the tuner,
    parallel parts have one thread per core.

    Args:
        strategy: Of the training.
        data: What `fit` accepts; all but a `tf.data.Dataset` stays as it is.

    Example:

    >>> import tensorflow as tf
    >>> from rs_keras.trainers._distributed import startup
    >>> strategy = tf.distribute.MirroredStrategy(["CPU:0"])
    >>> len(list(startup.shared_out(strategy, tf.data.Dataset.range(3))))
    3
    """
    if not isinstance(data, tf.data.Dataset):
        return data
    options = tf.data.Options()
    if distribution.has_workers(strategy):
        policy = tf.data.experimental.AutoShardPolicy.DATA
        options.experimental_distribute.auto_shard_policy = policy
    if distribution.local_replicas(strategy) > 1:
        options.autotune.enabled = False
    return data.with_options(options)


def device_queues(
    strategy: tf.distribute.Strategy,
) -> contextlib.AbstractContextManager[None]:
    """Returns the context in which `fit` iterates over several devices.

    What TensorFlow adds for each device, a queue of fixed length, has nothing
    to tune, and is not tuned there; see `shared_out`.
    """
    if distribution.local_replicas(strategy) == 1:
        return contextlib.nullcontext()
    return _compat.device_queues_without_autotune()


def _check_loop(trainer: Any) -> None:
    """Raises if replicas would have to synchronise within a loop."""
    several = trainer.distribute_strategy.num_replicas_in_sync > 1
    if several and trainer.sigma.loops and is_synchronized(trainer.model):
        raise ValueError(
            "`model` must have no synchronised batch normalisation where "
            "`sigma` is a PerExampleSigma and there are several replicas: they "
            "cannot wait for each other within its loop"
        )


def check_steps(strategy: tf.distribute.Strategy | None, steps: int) -> None:
    """Raises where Keras' loop over steps would break without a clear error.

    Keras asks for the next batch within the loop, on each device.

    Args:
        strategy: Of the training; None for none.
        steps: A call of the graph.

    Raises:
        ValueError: If there are several, on several devices.
    """
    devices = distribution.local_replicas(strategy)
    if devices > 1 and steps > 1:
        raise ValueError(
            "`steps_per_execution` must be 1 on several devices: Keras cannot "
            f"loop over their steps. Received: {steps} on {devices}"
        )


def _facts(trainer: Any) -> dict[str, Any]:
    """Returns what the workers' trainers must have in common."""
    config = trainer.get_config()
    for name in ("model", "name"):
        config.pop(name, None)
    shapes = [[list(v.shape), str(v.dtype)] for v in trainer.model.variables]
    return {
        "trainer": type(trainer).__name__,
        "settings": json.loads(json.dumps(config, default=str)),
        "network": _digest(json.dumps(shapes)),
    }


def _digest(*values: Any) -> str:
    """Returns a short hash of values."""
    digest = hashlib.blake2b(digest_size=8)
    for value in keras.tree.flatten(values):
        array = np.asarray(value)
        digest.update(f"{array.shape} {array.dtype}".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()
