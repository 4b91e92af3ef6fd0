"""Losses that the training methods share: functions of logits.

Logits of noisy copies are [m, B, C] throughout, m copies of B images.
"""

from typing import Any

import tensorflow as tf

from rs_keras.datasets.elements import labels_in


def labels_of(targets: Any) -> tf.Tensor:
    """Returns the labels, int64 [B], of `targets` (a tensor or a dict).

    Args:
        targets: Labels [B] or [B, 1], one-hot rows [B, num_classes], or a dict
            that has them as `label`.

    Returns:
        int64 [B].

    Example:

    >>> from rs_keras.losses import labels_of
    >>> labels_of({"label": [3, 1], "soft_label": None}).numpy()
    array([3, 1])
    """
    labels = tf.convert_to_tensor(labels_in(targets))
    if labels.shape.rank == 2 and (labels.shape[-1] or 1) > 1:
        return tf.argmax(labels, -1)
    return tf.reshape(tf.cast(labels, tf.int64), [-1])


def cross_entropy(labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
    """-log softmax(logits)[label], for labels [B] and logits [..., B, C].

    Args:
        labels: int64 [B].
        logits: [..., B, C].

    Returns:
        A tensor [..., B].

    Example:

    >>> import tensorflow as tf
    >>> from rs_keras.losses import cross_entropy
    >>> loss = cross_entropy(tf.constant([0, 1]), tf.zeros([3, 2, 4]))
    >>> bool(abs(loss - tf.math.log(4.0)).numpy().max() < 1e-6)
    True
    """
    labels = tf.broadcast_to(labels, tf.shape(logits)[:-1])
    return tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)


def smoothed(logits: tf.Tensor) -> tf.Tensor:
    """mean(softmax(logits), axis=0): the soft smoothed prediction [B, C].

    Args:
        logits: Of noisy copies, [m, B, C].

    Returns:
        Distributions [B, C].

    Example:

    >>> import tensorflow as tf
    >>> from rs_keras.losses import smoothed
    >>> p = tf.constant([[[0.9, 0.1]], [[0.7, 0.3]]])  # two copies of one image
    >>> smoothed(tf.math.log(p)).numpy().round(3)
    array([[0.8, 0.2]], dtype=float32)
    """
    return tf.reduce_mean(tf.nn.softmax(logits), axis=0)


def divergence(target: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
    """KL(target || softmax(logits)), for target [B, C], logits [..., B, C].

    Classes of probability 0 count 0, in the value and in the gradient.

    Args:
        target: Distributions [B, C]. Gradients flow through them.
        logits: [..., B, C].

    Returns:
        A tensor [..., B].

    Example:

    >>> import tensorflow as tf
    >>> from rs_keras.losses import divergence
    >>> certain = tf.constant([[1.0, 0.0]])
    >>> found = divergence(certain, tf.zeros([3, 1, 2]))  # log(2), three times
    >>> found.shape.as_list(), round(float(found[0, 0]), 4)
    ([3, 1], 0.6931)
    """
    log_ratio = tf.math.xlogy(target, target) - (
        target * tf.nn.log_softmax(logits)
    )
    return tf.reduce_sum(log_ratio, axis=-1)
