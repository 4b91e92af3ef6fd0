"""Data for several devices, without TensorFlow's tuner of pipelines.

The end of an iterator waits for the tuner's thread, which sleeps for up to a
minute and often misses that it is told to stop: TensorFlow sets the flag only
after it has woken the thread. The iterators of several devices mostly lose
that race. On two logical CPUs each epoch of a minute was followed by half a
minute in which nothing was done (TensorFlow 2.21).
"""

import functools
from typing import Any

import tensorflow as tf
from tensorflow.python.data.ops import multi_device_iterator_ops

_MAKER = "_create_device_dataset"


def on_several_devices(data: Any) -> Any:
    """Returns the data with a pipeline that is not tuned.

    Its parallel parts then have a thread a core. What TensorFlow adds for each
    device, a queue of fixed length, has nothing to tune: from the first call
    on it is not tried any more in this process.

    Args:
        data: What `fit` accepts; all but a `tf.data.Dataset` stays as it is.

    Example:

    >>> import tensorflow as tf
    >>> from rs_keras.trainers._distributed import autotune
    >>> data = autotune.on_several_devices(tf.data.Dataset.range(3))
    >>> data.options().autotune.enabled, len(list(data))
    (False, 3)
    """
    _for_each_device()
    return _untuned(data) if isinstance(data, tf.data.Dataset) else data


def _untuned(data: tf.data.Dataset) -> tf.data.Dataset:
    options = tf.data.Options()
    options.autotune.enabled = False
    return data.with_options(options)


@functools.cache
def _for_each_device() -> None:
    make = getattr(multi_device_iterator_ops, _MAKER, None)
    if make is None:
        return

    def made(*args: Any, **kwargs: Any) -> tf.data.Dataset:
        return _untuned(make(*args, **kwargs))

    setattr(multi_device_iterator_ops, _MAKER, made)
