"""One step on several replicas: where each stands in the global batch.

Keras keeps the moving statistics of batch normalisation apart on each replica
and saves the first one's. Layers that synchronise them see the row of zeros
that stands in for an empty batch as one image more.
"""

from typing import Any
from typing import NamedTuple

import tensorflow as tf


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


def snapshot(variables: list) -> list[tf.Tensor]:
    """Returns the values that a replica without rows has to keep."""
    if count() == 1:
        return []
    return [tf.identity(variable.value) for variable in variables]


def keep_if_empty(
    rows: tf.Tensor, variables: list, before: list[tf.Tensor]
) -> None:
    """Undoes, on a replica that got no rows, what it recorded.

    Args:
        rows: The replica's batch, as it came.
        variables: Its moving statistics, after the step.
        before: As from `snapshot`, before the step.
    """
    if not before:
        return
    empty = tf.equal(tf.shape(rows)[0], 0)
    for variable, old in zip(variables, before, strict=True):
        variable.assign(tf.where(empty, old, variable.value))
