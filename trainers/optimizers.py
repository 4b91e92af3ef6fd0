"""Stochastic gradient descent as the papers ran it."""

from typing import Any

import keras
import tensorflow as tf

from rs_keras import _compat
from rs_keras._checks import check_not_negative


@keras.saving.register_keras_serializable("rs_keras")
class SGD(keras.optimizers.SGD):
    """SGD with momentum and weight decay as PyTorch computes them.

    For every variable w with gradient g, the momentum buffer v at 0 first:

        g = g + weight_decay * w
        v = momentum * v + g
        w = w - learning_rate * (g + momentum * v if nesterov else v)

    Keras' own SGD differs twice: its decay bypasses the momentum, and its
    buffer holds the learning rate, so that a drop of the rate only reaches
    the next gradients. Every variable decays, biases and batch normalisation
    included, unless `exclude_from_weight_decay` says otherwise.

    Args:
        learning_rate: > 0, or a schedule.
        momentum: In [0, 1].
        nesterov: Whether to look ahead.
        weight_decay: >= 0 or None.
        **kwargs: As in `keras.optimizers.SGD`.

    Raises:
        ValueError: If `momentum` or `weight_decay` is out of range.

    Example:

    >>> import keras
    >>> from rs_keras.trainers import SGD
    >>> optimizer = SGD(0.1, momentum=0.5, weight_decay=0.1)
    >>> w = keras.Variable([1.0])
    >>> optimizer.apply([keras.ops.ones([1])], [w])
    >>> round(float(w[0]), 6)  # 1 - 0.1 * (1 + 0.1 * 1)
    0.89

    References:
    - [Sutskever et al., 2013](https://proceedings.mlr.press/v28/sutskever13)
    """

    def __init__(
        self,
        learning_rate: Any = 0.01,
        momentum: float = 0.9,
        nesterov: bool = False,
        weight_decay: float | None = None,
        **kwargs: Any,
    ) -> None:
        if weight_decay is not None:
            check_not_negative("weight_decay", weight_decay)
        super().__init__(
            learning_rate=learning_rate,
            momentum=momentum,
            nesterov=nesterov,
            weight_decay=weight_decay,
            **kwargs,
        )

    @_compat.keras_hook
    def _apply_weight_decay(self, variables: list) -> None:
        """Does nothing: `update_step` has the decay in its gradient."""

    def update_step(
        self, gradient: tf.Tensor, variable: Any, learning_rate: Any
    ) -> None:
        """Updates one variable."""
        rate = tf.cast(learning_rate, variable.dtype)
        gradient = tf.cast(gradient, variable.dtype)
        if self.weight_decay and _compat.decays(self, variable):
            gradient += tf.cast(self.weight_decay, variable.dtype) * variable
        step = gradient
        if self.momentum:
            momentum = tf.cast(self.momentum, variable.dtype)
            buffer = self.momentums[_compat.slot_of(self, variable)]
            step = momentum * buffer + gradient
            self.assign(buffer, step)
            if self.nesterov:
                step = gradient + momentum * step
        self.assign_sub(variable, rate * step)
