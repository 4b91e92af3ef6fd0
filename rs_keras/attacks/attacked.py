"""The smoothed classifier as attacks see it: votes and gradients."""

from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from rs_keras import noise as noise_lib
from rs_keras.adversaries.base import gradient_of
from rs_keras.certification.certifier import Certifier
from rs_keras.losses import smoothed

# The goal of a row that any other class than the label will do for.
ANY = -1

# A probability below gives the gradient of this one: its logarithm is finite.
_FLOOR = 1e-20

# Logits that spread more are scaled down to this deviation: a softmax that is 0
# or 1 to the last bit has no gradient.
_STEEPEST = 3.0

# Noisy copies that one pass holds, in passes of the certifier: they need memory
# for the gradient, and small networks are faster on more rows.
_PASSES = 2


class AttackedClassifier:
    """What attacks may ask of a smoothed classifier.

    Draws are shared by all images of a call: votes of images that lie close
    together then differ by what lies between them, not by the noise.

    Args:
        certifier: Of the classifier.
        shape: (H, W, C) of the images.

    Attributes:
        certifier: The certifier.
        shape: (H, W, C).
        num_classes: How many classes there are.

    Raises:
        ValueError: If it is another kind of certifier.

    Example:

    >>> import numpy as np
    >>> from rs_keras import Certifier
    >>> from rs_keras import attacks
    >>> certifier = Certifier(lambda x: x[:, 0, 0, :2], sigma=0.5)
    >>> image = np.array([0.75, 0.25], np.float32).reshape(1, 1, 2)
    >>> attacked = attacks.AttackedClassifier(certifier, image.shape)
    >>> int(attacked.votes(image[None], n=1_000, seed=[7, 0]).argmax())
    0
    >>> rise = attacked.gradients(image[None], [0], seed=[7, 0], noises=16)[1]
    >>> bool(rise[0, 0, 0, 0] < 0), bool(rise[0, 0, 0, 1] > 0)
    (True, True)
    """

    def __init__(self, certifier: Certifier, shape: Sequence[int]) -> None:
        check_certifier(certifier)
        self.certifier = certifier
        self.shape = tuple(shape)
        sampler = certifier.sampler(self.shape)
        self.num_classes = sampler.num_classes
        self._logits = sampler.logits
        self._copies_a_pass = _PASSES * sampler.batch_size
        self._graphs: dict[tuple[str, int], Callable] = {}

    def votes(
        self, images: np.ndarray, n: int, seed: Any, first: int = 0
    ) -> np.ndarray:
        """Counts the votes of images, all under the same noise.

        Args:
            images: float32 [K, H, W, C], in [0, 1].
            n: Draws an image.
            seed: int64 [2].
            first: Number of the first draw.

        Returns:
            int64 [K, num_classes].
        """
        seeds = np.tile(np.asarray(seed, np.int64), (len(images), 1))
        return self.certifier.sample(images, n, seeds, first)

    def gradients(
        self,
        images: np.ndarray,
        labels: Any,
        seed: Any,
        goals: Any = ANY,
        noises: int = 32,
        objective: str = "cross_entropy",
    ) -> tuple[np.ndarray, np.ndarray]:
        """Returns an objective that attacks raise, and its gradients.

        With p = mean_j softmax(f(image + sigma * eps_j)) over `noises` draws:
        "cross_entropy" is -log p_label, or log p_goal where there is a goal
        ([Salman et al., 2019](https://arxiv.org/abs/1906.04584)); "margin" is
        log p_goal - log p_label, the goal the likeliest other class where
        there is none.

        Args:
            images: float32 [K, H, W, C].
            labels: Classes to leave: an integer, or [K].
            seed: int64 [2], of the noise: the same for all images.
            goals: Classes to reach, likewise; -1 for any other class.
            noises: m in the paper, >= 1.
            objective: "cross_entropy" or "margin".

        Returns:
            float32 [K], and float32 [K, H, W, C].

        Raises:
            ValueError: If the model has no gradients.
        """
        count = len(images)
        labels = np.broadcast_to(np.asarray(labels, np.int64), count)
        goals = np.broadcast_to(np.asarray(goals, np.int64), count)
        graph = self._graph(objective, noises)
        rows = max(1, self._copies_a_pass // noises)
        parts = [
            graph(
                tf.constant(images[i : i + rows]),
                tf.constant(labels[i : i + rows]),
                tf.constant(goals[i : i + rows]),
                tf.constant(np.asarray(seed, np.int64)),
            )
            for i in range(0, count, rows)
        ]
        values, slopes = zip(*parts, strict=True)
        return np.concatenate(values), np.concatenate(slopes)

    def _graph(self, objective: str, noises: int) -> Callable:
        """Returns the graph of `gradients`, traced once."""
        key = objective, noises
        if key not in self._graphs:
            rise = _OBJECTIVES[objective]
            shape, sigma = list(self.shape), float(self.certifier.sigma)

            def graph(
                images: tf.Tensor,
                labels: tf.Tensor,
                goals: tf.Tensor,
                seed: tf.Tensor,
            ) -> tuple[tf.Tensor, tf.Tensor]:
                eps = sigma * noise_lib.normal(shape, seed, 0, noises)
                values: list[tf.Tensor] = []

                def value_of(x: tf.Tensor) -> tf.Tensor:
                    # [noises, K, H, W, C], and their logits.
                    copies = tf.reshape(x + eps[:, None], [-1, *shape])
                    logits = tf.cast(self._logits(copies), tf.float32)
                    logits = tf.reshape(logits, [noises, -1, self.num_classes])
                    p = smoothed(_softened(logits))
                    values.append(rise(p, labels, goals))
                    return values[0]

                slopes = gradient_of(value_of, images)
                if slopes is None:
                    raise ValueError(
                        "`certifier` must have a model with gradients: this "
                        "attack needs them. `RandomSearch` does not"
                    )
                return values[0], slopes

            self._graphs[key] = tf.function(
                graph,
                [
                    tf.TensorSpec([None, *shape], tf.float32),
                    tf.TensorSpec([None], tf.int64),
                    tf.TensorSpec([None], tf.int64),
                    tf.TensorSpec([2], tf.int64),
                ],
                autograph=False,
            )
        return self._graphs[key]


def check_certifier(certifier: Any) -> None:
    """Refuses clients, and certifiers that choose sigma for each image.

    Raises:
        ValueError: If it is no `Certifier`.
    """
    if not isinstance(certifier, Certifier):
        raise ValueError(
            "`certifier` must be a `Certifier`: an attack is on one smoothed "
            f"classifier, in this process. Received: {type(certifier).__name__}"
        )


def _softened(logits: tf.Tensor) -> tf.Tensor:
    """Scales logits [m, K, C] down, each image's by one factor."""
    spread = tf.math.reduce_std(logits, axis=-1, keepdims=True)
    spread = tf.stop_gradient(tf.reduce_max(spread, axis=0, keepdims=True))
    return logits * (_STEEPEST / tf.maximum(spread, _STEEPEST))


def _log_of(p: tf.Tensor, classes: tf.Tensor) -> tf.Tensor:
    chosen = tf.gather(p, tf.maximum(classes, 0), axis=1, batch_dims=1)
    return tf.math.log(tf.maximum(chosen, _FLOOR))


def _cross_entropy(
    p: tf.Tensor, labels: tf.Tensor, goals: tf.Tensor
) -> tf.Tensor:
    return tf.where(goals < 0, -_log_of(p, labels), _log_of(p, goals))


def _margin(p: tf.Tensor, labels: tf.Tensor, goals: tf.Tensor) -> tf.Tensor:
    others = p - 2.0 * tf.one_hot(labels, p.shape[-1])
    goals = tf.where(goals < 0, tf.argmax(others, -1), goals)
    return _log_of(p, goals) - _log_of(p, labels)


_OBJECTIVES = {"cross_entropy": _cross_entropy, "margin": _margin}
