"""Before the first step on several replicas: enough rows, and one same job."""

import hashlib
import json
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from rs_keras import distribution
from rs_keras.trainers._distributed import autotune
from rs_keras.trainers._distributed import multi_worker
from rs_keras.trainers._distributed.batch_norm import is_synchronized
from rs_keras.trainers._step import data_checks

# What `keras.Model.fit` makes of arrays when it is not told.
_KERAS_BATCH = 32


def look_at(
    trainer: Any, x: Any, y: Any, batch_size: int | None, more: dict[str, Any]
) -> Any:
    """Checks the data of `fit`, on every worker, and returns them to train on.

    Args:
        trainer: A `SmoothTrainer`.
        x: As in `fit`.
        y: As in `fit`.
        batch_size: As in `fit`.
        more: Further arguments of `fit`; its `validation_data` may be replaced.

    Returns:
        What to pass on to Keras in place of `x`.

    Raises:
        ValueError: If images or targets are not what they should be, a batch
            has fewer rows than there are replicas, workers have different
            data, trainers or versions, replicas had to wait for each other
            within a loop, or a call makes several steps on several devices.
            Each worker raises it.
    """
    strategy = trainer.distribute_strategy
    several = distribution.member_of(strategy).size > 1
    facts: dict[str, Any] = _facts(trainer) if several else {}

    def check(images: Any, targets: Any) -> None:
        trainer.check_batch(images, targets)
        of_arrays = batch_size or _KERAS_BATCH
        rows = of_arrays if hasattr(x, "shape") else len(images)
        _check_rows(strategy, x, rows)
        if several:
            facts["data"] = _digest(images, targets)

    def look() -> Any:
        _check_loop(trainer)
        check_steps(strategy, trainer.steps_per_execution)
        if several and hasattr(x, "shape") and more.get("shuffle", True):
            _refuse_shuffle()
        found = data_checks.look_at(x, y, check)
        data_checks.look_at_validation(more, trainer.check_batch)
        return found

    found = distribution.everywhere(strategy, look)
    distribution.agree(strategy, facts)
    validation = more.get("validation_data")
    if validation is not None:
        more["validation_data"] = shared_out(strategy, validation)
    return shared_out(strategy, found)


def shared_out(strategy: tf.distribute.Strategy, data: Any) -> Any:
    """Returns data that Keras may share out among the replicas."""
    data = multi_worker.by_rows(strategy, data)
    if distribution.local_replicas(strategy) == 1:
        return data
    return autotune.on_several_devices(data)


def _check_rows(strategy: tf.distribute.Strategy, x: Any, rows: int) -> None:
    count = strategy.num_replicas_in_sync
    # Of a data set that is spread already, this is one replica's part.
    spread = isinstance(x, tf.distribute.DistributedDataset)
    if rows < count and not spread:
        raise ValueError(
            f"`batch_size` must be at least the number of replicas, {count}. "
            f"Received: a batch of {rows}"
        )


def _check_loop(trainer: Any) -> None:
    """Raises if replicas had to wait for each other within a loop."""
    if trainer.distribute_strategy.num_replicas_in_sync == 1:
        return
    if trainer.sigma.loops and is_synchronized(trainer.model):
        raise ValueError(
            "`model` must have no synchronised batch normalisation where "
            "`sigma` is a PerExampleSigma and there are several replicas: they "
            "cannot wait for each other within its loop"
        )


def check_steps(strategy: tf.distribute.Strategy | None, steps: int) -> None:
    """Raises where Keras' loop over steps breaks, in a way that tells nobody.

    It looks for the next batch within the loop, on each device.

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


def _refuse_shuffle() -> None:
    raise ValueError(
        "`shuffle` must be False for arrays on several workers: each would "
        "shuffle in an order of its own. Give a data set that is shuffled "
        "with a seed, such as `datasets.stream`, or shuffle=False"
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
    """Returns a short text that tells values apart."""
    found = hashlib.blake2b(digest_size=8)
    for value in keras.tree.flatten(values):
        array = np.asarray(value)
        found.update(f"{array.shape} {array.dtype}".encode())
        found.update(np.ascontiguousarray(array).tobytes())
    return found.hexdigest()
