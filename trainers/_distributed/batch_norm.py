"""Batch normalisation over the whole global batch, whatever the replicas."""

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from rs_keras import _compat
from rs_keras.trainers._distributed import replicas


@keras.saving.register_keras_serializable("rs_keras")
class SynchronizedBatchNormalization(keras.layers.BatchNormalization):
    """Batch normalisation by the statistics of all replicas' rows.

    With x all rows of all replicas and s the moving mean, the same everywhere,

        mean     = s + mean(x - s)
        variance = mean((x - s)**2) - mean(x - s)**2

    in one all-reduce of 2 * channels + 1 numbers (Keras' `synchronized=True`
    makes three, takes no s, which costs digits, and counts the row of zeros
    that stands in for an empty batch as an image). On one replica it is Keras'
    layer.

    The arguments are those of `keras.layers.BatchNormalization`.

    Example:

    >>> import numpy as np
    >>> from rs_keras.trainers._distributed import batch_norm
    >>> layer = batch_norm.SynchronizedBatchNormalization()
    >>> layer(np.ones([2, 4, 4, 3], "float32"), training=True).shape
    TensorShape([2, 4, 4, 3])
    """

    @_compat.keras_hook
    def _moments(self, inputs: tf.Tensor, mask: Any) -> tuple[Any, Any]:
        if mask is not None or replicas.count() == 1:
            return super()._moments(inputs, mask)
        shape = np.ones(len(inputs.shape), int)
        shape[self.axis] = -1
        axes = np.flatnonzero(shape == 1).tolist()
        shift = tf.cast(tf.stop_gradient(self.moving_mean.value), inputs.dtype)
        shifted = inputs - tf.reshape(shift, shape)
        sizes = tf.gather(tf.shape(inputs), axes)
        rows = tf.cast(tf.reduce_prod(sizes), inputs.dtype)
        sums = [tf.reduce_sum(shifted, axes), tf.reduce_sum(shifted**2, axes)]
        # At least 1, so that an evaluation without rows is not NaN.
        total = replicas.sum_over_replicas(tf.concat([*sums, [rows]], 0))
        means = total[:-1] / tf.maximum(total[-1], 1)
        mean, square = tf.split(means, 2)
        return shift + mean, tf.maximum(square - mean**2, 0)


def synchronized(model: keras.Model) -> keras.Model:
    """Returns a model with its batch normalisations synchronised.

    Without it, each replica normalises by its own part of the batch, as is
    usual: the default, because a network with many such layers would wait for
    all replicas as many times in each pass.

    Args:
        model: Functional or Sequential, and built.

    Returns:
        A new model of the same weights; `model` is left as it is.

    Raises:
        ValueError: If `model` is neither, or is not built.

    Example:

    >>> import keras
    >>> from rs_keras.trainers._distributed import batch_norm
    >>> model = keras.Sequential([keras.Input([4, 4, 1]),
    ...                           keras.layers.BatchNormalization()])
    >>> type(batch_norm.synchronized(model).layers[0]).__name__
    'SynchronizedBatchNormalization'
    """
    if not (isinstance(model, keras.Model) and model.built):
        raise ValueError(
            "`model` must be a Keras model that is built. "
            f"Received: {type(model).__name__}"
        )
    clone = keras.models.clone_model(
        model, clone_function=_cloned, recursive=True
    )
    _compat.copy_weights(clone, model)
    return clone


def is_synchronized(model: keras.Model) -> bool:
    """Returns whether a model has layers whose replicas wait for each other.

    Example:

    >>> import keras
    >>> from rs_keras.trainers._distributed import batch_norm
    >>> model = keras.Sequential([keras.Input([4, 4, 1]),
    ...                           keras.layers.BatchNormalization()])
    >>> batch_norm.is_synchronized(model)
    False
    >>> batch_norm.is_synchronized(batch_norm.synchronized(model))
    True
    """
    return any(
        isinstance(layer, SynchronizedBatchNormalization)
        or getattr(layer, "synchronized", False)
        for layer in _compat.flat_layers(model)
    )


def _cloned(layer: keras.Layer) -> keras.Layer:
    cls = layer.__class__
    if cls is keras.layers.BatchNormalization:
        cls = SynchronizedBatchNormalization
    return cls.from_config(layer.get_config())
