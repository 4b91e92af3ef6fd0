"""What Keras lacks for training on several workers.

Under `tf.distribute.MultiWorkerMirroredStrategy`, `fit` of Keras 3 reduces
what a step returns with `strategy.reduce("MEAN", value, axis=0)`. Steps return
scalars, which have no axis 0, and `fit` fails (keras issue 20585). A vector of
one number has one, and its mean is the number. (The issue's other half, a
batch on several replicas taken for a tensor when a model is built, does not
come up: `SmoothTrainer` builds itself from the batch that it checks.) A test
of `_compat` says when Keras does without the axis: then `reports` can go.

References:
- [Keras issue 20585](https://github.com/keras-team/keras/issues/20585)
"""

from typing import Any

import tensorflow as tf

from rs_keras import distribution


def reports(results: dict[str, Any]) -> dict[str, Any]:
    """Returns what a step returns, in a form that this Keras can reduce.

    Args:
        results: Scalars by name.
    """
    strategy = tf.distribute.get_strategy()
    if not distribution.has_workers(strategy):
        return results
    return {
        name: tf.reshape(tf.convert_to_tensor(value), [1])
        for name, value in results.items()
    }


def by_rows(strategy: tf.distribute.Strategy, data: Any) -> Any:
    """Returns a data set of which each worker takes its rows of each batch.

    A data set that is read from files, TensorFlow shares out by files: then a
    batch would hold other examples than on one device.

    Args:
        strategy: Of the workers.
        data: What `fit` accepts; all but a `tf.data.Dataset` stays as it is.
    """
    if not distribution.has_workers(strategy):
        return data
    if not isinstance(data, tf.data.Dataset):
        return data
    options = tf.data.Options()
    policy = tf.data.experimental.AutoShardPolicy.DATA
    options.experimental_distribute.auto_shard_policy = policy
    return data.with_options(options)
