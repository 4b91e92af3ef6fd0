"""The base class of adversaries, and the tensor functions they are made of.

An adversary is a small object with its hyper-parameters. Called with a
function from images to logits, it climbs the loss and returns adversarial
images. The classifier should run in inference mode, on noise that stays the
same throughout: its logits are [m, B, C] for m noisy copies of B images.

An exactly zero gradient makes no step (the references draw a random direction
there). The projection onto a ball divides by the norm + 1e-7 and only where
the norm is larger than the radius, as PyTorch's `renorm` does.
"""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from rs_keras._config import arguments_of
from rs_keras.losses import smoothed

Classify = Callable[[tf.Tensor], tf.Tensor]

# The references add this to the norm of a gradient that they divide by it.
GRADIENT_FLOOR = 1e-8


def norms(x: tf.Tensor) -> tf.Tensor:
    """sqrt(sum(x**2)) over the last three axes, kept with size 1.

    Args:
        x: [..., H, W, C].

    Returns:
        A tensor [..., 1, 1, 1].

    Example:

    >>> import tensorflow as tf
    >>> from rs_keras import adversaries
    >>> lengths = adversaries.norms(tf.ones([5, 2, 2, 1]))
    >>> lengths.shape.as_list(), lengths.numpy().ravel().tolist()
    ([5, 1, 1, 1], [2.0, 2.0, 2.0, 2.0, 2.0])
    """
    return tf.sqrt(
        tf.reduce_sum(tf.square(x), axis=[-3, -2, -1], keepdims=True)
    )


def unit(gradient: tf.Tensor, floor: float = 0.0) -> tf.Tensor:
    """gradient / (norms(gradient) + floor); zero where that is 0 / 0.

    Args:
        gradient: [..., H, W, C].
        floor: Added to the norms, >= 0.

    Returns:
        A tensor like `gradient`.

    Example:

    >>> import tensorflow as tf
    >>> from rs_keras import adversaries
    >>> gradients = tf.constant([[3.0, 4.0], [0.0, 0.0]])[:, None, None]
    >>> adversaries.unit(gradients)[:, 0, 0].numpy().round(3)
    array([[0.6, 0.8], [0. , 0. ]], dtype=float32)
    """
    return tf.math.divide_no_nan(gradient, norms(gradient) + floor)


def project(delta: tf.Tensor, radius: Any) -> tf.Tensor:
    """Projects each [H, W, C] of `delta` onto the L2 ball, as torch's renorm.

    Args:
        delta: [..., H, W, C].
        radius: A number, or a tensor that broadcasts against the norms.

    Returns:
        A tensor like `delta`, with norms <= `radius`.

    Example:

    >>> import tensorflow as tf
    >>> from rs_keras import adversaries
    >>> delta = tf.fill([1, 2, 2, 1], 1.0)
    >>> bool(abs(adversaries.project(delta, 1.0)[0, 0, 0, 0] - 0.5) < 1e-6)
    True
    """
    radius = tf.cast(radius, delta.dtype)
    norm = norms(delta)
    return delta * tf.where(norm > radius, radius / (norm + 1e-7), 1.0)


def smoothed_loss(logits: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    """-log max(mean_j softmax(logits_j)[label], 1e-20), [B].

    Args:
        logits: Of noisy copies, [m, B, C].
        labels: Integers [B].

    Returns:
        A tensor [B].

    Example:

    >>> import tensorflow as tf
    >>> from rs_keras import adversaries
    >>> p = tf.constant([[[0.9, 0.1]], [[0.7, 0.3]]])  # two copies, mean 0.8
    >>> loss = adversaries.smoothed_loss(tf.math.log(p), tf.constant([0]))
    >>> tf.exp(-loss).numpy().round(3)
    array([0.8], dtype=float32)
    """
    chosen = tf.gather(smoothed(logits), labels, axis=1, batch_dims=1)
    return -tf.math.log(tf.maximum(chosen, 1e-20))


def gradient_of(loss_of: Classify, x: tf.Tensor) -> tf.Tensor:
    """Returns the gradient of sum(loss_of(x)) in x; weights are not watched.

    Args:
        loss_of: From a tensor like `x` to losses.
        x: Where to take it.

    Returns:
        A tensor like `x`.

    Example:

    >>> import tensorflow as tf
    >>> from rs_keras import adversaries
    >>> adversaries.gradient_of(tf.square, tf.constant([1.0, 3.0])).numpy()
    array([2., 6.], dtype=float32)
    """
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(x)
        loss = tf.reduce_sum(loss_of(x))
    return tape.gradient(loss, x)


def repeat(step: Callable, state: tuple, times: int) -> tuple:
    """Returns the state after `times` calls of step(i, *state).

    The calls are written out one after the other: in a `tf.while_loop` the
    same passes took a third longer (LeNet, two cores), for a graph that is
    traced only a little faster.

    Args:
        step: From the number of the step and the state to the next state.
        state: To begin with, a tuple.
        times: How often, >= 0.

    Returns:
        A tuple like `state`.

    Example:

    >>> from rs_keras import adversaries
    >>> def step(i, total, last):
    ...     return total + int(i), int(i)
    >>> adversaries.repeat(step, (0, None), times=4)
    (6, 3)
    """
    for i in range(times):
        state = step(tf.constant(i), *state)
    return state


class Adversary:
    """What all adversaries share: their arguments are their configuration.

    Every argument of `__init__` is an attribute of the same name.

    Example:

    >>> from rs_keras import adversaries
    >>> class Brighter(adversaries.Adversary):
    ...     def __init__(self, by):
    ...         self.by = by
    ...
    ...     def __call__(self, classify, images, labels):
    ...         return images + self.by
    >>> config = Brighter(by=0.125).get_config()
    >>> config
    {'by': 0.125}
    >>> Brighter.from_config(config)(None, 0.5, None)
    0.625
    """

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments of `__init__`."""
        return arguments_of(self, Adversary)

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "Adversary":
        """Returns the adversary that `get_config` described."""
        return cls(**config)
