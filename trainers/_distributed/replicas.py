"""One step on several replicas: positions in the global batch, and sums.

Keras keeps the moving statistics of batch normalisation apart on each replica
and saves the first one's, and a replica without rows turns them into NaN. Here
a step ends with their mean over the replicas, each weighted by its rows: one
set of statistics, of all the data, that a checkpoint holds in full.
"""

import contextlib
import threading
from collections.abc import Iterator
from typing import Any
from typing import NamedTuple

import tensorflow as tf

from rs_keras import distribution


class Place(NamedTuple):
    """Where a replica's rows stand in the global batch.

    Attributes:
        first: The number of rows on the replicas before this one.
        total: The number of rows on all replicas.
    """

    first: Any
    total: Any


def count() -> int:
    """Returns the number of replicas that step together."""
    return int(tf.distribute.get_strategy().num_replicas_in_sync)


def place_of(rows: tf.Tensor) -> Place:
    """Returns the place of this replica's batch, from the real sizes.

    A last batch need not divide evenly: a replica may get fewer rows, or
    none.
    """
    size = tf.shape(rows, out_type=tf.int64)[0]
    context = tf.distribute.get_replica_context()
    if context is None or count() == 1:
        return Place(tf.constant(0, tf.int64), size)
    mine = context.replica_id_in_sync_group
    own = tf.one_hot(mine, count(), dtype=tf.int64) * size
    sizes = context.all_reduce(tf.distribute.ReduceOp.SUM, own)
    before = tf.cumsum(sizes, exclusive=True)
    return Place(tf.gather(before, mine), tf.reduce_sum(sizes))


def never_empty(values: Any) -> Any:
    """Returns tensors with a row of zeros where a replica got no rows.

    Convolutions have no gradient on an empty batch. What comes out for the
    row is cut off again before it is counted.
    """
    if count() == 1:
        return values
    return tf.nest.map_structure(_padded, values)


def _padded(rows: tf.Tensor) -> tf.Tensor:
    missing = tf.cast(tf.equal(tf.shape(rows)[0], 0), tf.int32)
    after = [missing] + [0] * (len(rows.shape) - 1)
    padded = tf.pad(rows, tf.stack([tf.zeros_like(after), after], axis=1))
    padded.set_shape([None, *rows.shape[1:]])
    return padded


def average(variables: list, rows: tf.Tensor, place: Place) -> None:
    """Sets variables to their mean over the replicas, weighted by rows.

    Formula, over replicas r with n[r] rows:

        variable = sum(n[r] * variable[r]) / sum(n[r])

    Args:
        variables: Moving statistics, which replicas keep apart. Those that are
            no floats stay as they are.
        rows: The replica's batch, as it came; none count for nothing.
        place: Of the batch.
    """
    context = tf.distribute.get_replica_context()
    chosen = [v for v in variables if tf.as_dtype(v.dtype).is_floating]
    if context is None or count() == 1 or not chosen:
        return
    size = tf.shape(rows, out_type=tf.int64)[0]
    weighted = []
    for variable in chosen:
        value = tf.convert_to_tensor(variable.value)
        weight = tf.cast(size / place.total, value.dtype)
        # Not a product with 0: what an empty batch leaves may be NaN.
        weighted.append(tf.where(size > 0, weight * value, 0))
    means = context.all_reduce(tf.distribute.ReduceOp.SUM, weighted)
    for variable, mean in zip(chosen, means, strict=True):
        variable.assign(mean)


_steps = threading.local()


@contextlib.contextmanager
def counting(rows: tf.Tensor) -> Iterator[None]:
    """Lets `counted` leave out this replica's batch if it is padding.

    Args:
        rows: The replica's batch, as it came.
    """
    _steps.real = tf.shape(rows)[0] > 0
    try:
        yield
    finally:
        _steps.real = None


def sum_over_replicas(total: tf.Tensor) -> tf.Tensor:
    """Adds up a sum over a batch, over all replicas that have one.

    Args:
        total: Of this replica. Padding counts for nothing, within `counting`.

    Returns:
        The sum on all replicas; `total` itself where there are no others.
    """
    context = tf.distribute.get_replica_context()
    if context is None or count() == 1:
        return total
    real = getattr(_steps, "real", None)
    if real is not None:
        total = tf.where(real, total, tf.zeros_like(total))
    return context.all_reduce(tf.distribute.ReduceOp.SUM, total)


def reports(results: dict[str, Any]) -> dict[str, Any]:
    """Returns what a step returns, in a form that Keras can reduce.

    Under `tf.distribute.MultiWorkerMirroredStrategy`, `fit` of Keras 3 reduces
    it with `strategy.reduce("MEAN", value, axis=0)`. Steps return scalars,
    which have no axis 0, and `fit` fails. A vector of one number has one, and
    its mean is the number. (The issue's other half, a batch on several
    replicas taken for a tensor when a model is built, does not come up:
    `SmoothTrainer` builds itself from the batch that it checks.) A test of
    `_compat` says when Keras does without the axis: then this can go.

    Args:
        results: Scalars by name.

    References:
    - [Keras issue 20585](https://github.com/keras-team/keras/issues/20585)
    """
    if not distribution.has_workers(tf.distribute.get_strategy()):
        return results
    return {
        name: tf.reshape(tf.convert_to_tensor(value), [1])
        for name, value in results.items()
    }
