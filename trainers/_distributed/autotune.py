"""Data for several devices, without TensorFlow's tuner of pipelines.

The end of an iterator waits for the tuner's thread, which sleeps for up to a
minute and often misses that it is told to stop: TensorFlow sets the flag only
after it has woken the thread. The iterators of several devices mostly lose
that race. On two logical CPUs each epoch of a minute was followed by half a
minute in which nothing was done (TensorFlow 2.21).
"""

import contextlib
from typing import Any

import tensorflow as tf

from rs_keras import _compat
from rs_keras import distribution


def on_several_devices(data: Any) -> Any:
    """Returns the data with a pipeline that is not tuned.

    Its parallel parts then have a thread a core.

    Args:
        data: What `fit` accepts; all but a `tf.data.Dataset` stays as it is.

    Example:

    >>> import tensorflow as tf
    >>> from rs_keras.trainers._distributed import autotune
    >>> data = autotune.on_several_devices(tf.data.Dataset.range(3))
    >>> data.options().autotune.enabled, len(list(data))
    (False, 3)
    """
    if not isinstance(data, tf.data.Dataset):
        return data
    options = tf.data.Options()
    options.autotune.enabled = False
    return data.with_options(options)


def device_queues(
    strategy: tf.distribute.Strategy,
) -> contextlib.AbstractContextManager[None]:
    """Returns the context in which `fit` iterates over several devices.

    What TensorFlow adds for each device, a queue of fixed length, has nothing
    to tune, and is not tuned there.
    """
    if distribution.local_replicas(strategy) == 1:
        return contextlib.nullcontext()
    return _compat.device_queues_without_autotune()
