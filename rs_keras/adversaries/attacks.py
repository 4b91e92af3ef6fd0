"""Adversaries against a smoothed classifier, in the L2 norm.

Each is a small object with its hyper-parameters. Called with a function that
classifies, it climbs the loss and returns where it got to. The classifier
should run in inference mode, on noise that stays the same throughout: its
logits are [m, B, C] for m noisy copies of B images.
"""

import math
from typing import Any

import keras
import tensorflow as tf

from rs_keras._checks import check_choice
from rs_keras._checks import check_count
from rs_keras._checks import check_not_negative
from rs_keras._checks import check_positive
from rs_keras.adversaries.gradients import GRADIENT_FLOOR
from rs_keras.adversaries.gradients import Adversary
from rs_keras.adversaries.gradients import Classify
from rs_keras.adversaries.gradients import gradient_of
from rs_keras.adversaries.gradients import norms
from rs_keras.adversaries.gradients import project
from rs_keras.adversaries.gradients import repeat
from rs_keras.adversaries.gradients import smoothed_loss
from rs_keras.adversaries.gradients import unit
from rs_keras.losses import cross_entropy
from rs_keras.losses import divergence

# Grey levels of the images that DDN rounds to.
_LEVELS = 255.0


@keras.saving.register_keras_serializable("rs_keras")
class PGD(Adversary):
    """Projected gradient ascent on the smoothed prediction's loss.

    Formula, `steps` times from x = images, with e = epsilon * factor:

        x = project_and_clip(x + 2 * e / steps * g / |g|)

    The two published codes differ, and `order` chooses between them:

    - "clip_project" (SmoothAdv): g is the gradient of the cross-entropy for
      one noisy copy, of -log(max(mean_j softmax_y, 1e-20)) for more. Pixels
      are clipped to [0, 1] first and projected second.
    - "project_clip" (Consistency): always the latter loss, its mean over the
      batch, with 1e-8 added to |g|; projected first, clipped second.

    Args:
        steps: T in the papers, >= 0.
        epsilon: Radius of the ball, > 0.
        order: "clip_project" or "project_clip".

    Raises:
        ValueError: If an argument is out of range.

    Example:

    >>> import tensorflow as tf
    >>> from rs_keras import adversaries
    >>> def classify(x):  # one copy, whose logits are its two pixels
    ...     return x[None, :, 0, 0, :]
    >>> image = tf.constant([0.75, 0.25], shape=[1, 1, 1, 2])
    >>> pgd = adversaries.PGD(steps=4, epsilon=0.5)
    >>> found = pgd(classify, image, labels=tf.constant([0]))
    >>> found.numpy().ravel().round(2)
    array([0.4, 0.6], dtype=float32)
    >>> round(float(tf.norm(found - image)), 3)
    0.5

    References:
    - [Salman et al., 2019](https://arxiv.org/abs/1906.04584)
    - [Jeong and Shin, 2020](https://arxiv.org/abs/2006.04062)
    """

    def __init__(
        self, steps: int, epsilon: float, order: str = "clip_project"
    ) -> None:
        self.steps = check_count("steps", steps, 0)
        self.epsilon = check_positive("epsilon", epsilon)
        self.order = check_choice(
            "order", order, ("clip_project", "project_clip")
        )

    def __call__(
        self,
        classify: Classify,
        images: tf.Tensor,
        labels: tf.Tensor,
        factor: Any = 1.0,
    ) -> tf.Tensor:
        """Returns adversarial images.

        Args:
            classify: From images [B, H, W, C] to noisy logits [m, B, C].
            images: [B, H, W, C] in [0, 1].
            labels: int64 [B].
            factor: Scales epsilon; a warm-up.

        Returns:
            A tensor like `images`.
        """
        radius = self.epsilon * tf.cast(factor, images.dtype)
        size = 2.0 * radius / max(1, self.steps)
        clip_first = self.order == "clip_project"
        move = _clip_project if clip_first else _project_clip

        def loss_of(x: tf.Tensor) -> tf.Tensor:
            logits = classify(x)
            if clip_first and logits.shape[0] == 1:
                return cross_entropy(labels, logits)
            return smoothed_loss(logits, labels)

        def step(_: tf.Tensor, x: tf.Tensor) -> tuple:
            return (move(images, x, gradient_of(loss_of, x), size, radius),)

        return tf.stop_gradient(repeat(step, (images,), self.steps)[0])


def _clip_project(
    images: tf.Tensor,
    x: tf.Tensor,
    gradient: tf.Tensor,
    size: tf.Tensor,
    radius: tf.Tensor,
) -> tf.Tensor:
    """Returns where a step of SmoothAdv's PGD leads."""
    x = tf.clip_by_value(x + size * unit(gradient), 0.0, 1.0)
    return images + project(x - images, radius)


def _project_clip(
    images: tf.Tensor,
    x: tf.Tensor,
    gradient: tf.Tensor,
    size: tf.Tensor,
    radius: tf.Tensor,
) -> tf.Tensor:
    """Returns where a step of Consistency's PGD leads."""
    rows = tf.cast(tf.shape(images)[0], images.dtype)
    x += size * unit(gradient / rows, GRADIENT_FLOOR)
    return tf.clip_by_value(images + project(x - images, radius), 0.0, 1.0)


@keras.saving.register_keras_serializable("rs_keras")
class DDN(Adversary):
    """Decoupled direction and norm: the smallest perturbation that fools.

    Each step goes along the normalised gradient by a length that falls from
    1 to 0.01 like a cosine, then is given the norm

        norm = min(norm * (1 - gamma if fooled else 1 + gamma), farthest corner)

    and rounded to 256 grey levels. The smallest perturbation that fooled the
    classifier (by the majority of the noisy copies, ties to the lower class)
    is returned, projected onto the ball of radius epsilon and rounded again,
    which can leave the ball by half a grey level a pixel. As in the authors'
    code, images that are misclassified from the start and images for which
    nothing was found stay as they are, and the last step is never looked at.

    Args:
        steps: >= 0.
        epsilon: Radius of the ball, > 0.
        gamma: By which the norm changes, in [0, 1).
        init_norm: The first norm; None for epsilon * factor.

    Raises:
        ValueError: If an argument is out of range.

    Example:

    >>> import tensorflow as tf
    >>> from rs_keras import adversaries
    >>> def classify(x):  # one copy, whose logits are its two pixels
    ...     return x[None, :, 0, 0, :]
    >>> image = tf.constant([0.75, 0.25], shape=[1, 1, 1, 2])
    >>> ddn = adversaries.DDN(steps=20, epsilon=1.0)
    >>> found = ddn(classify, image, labels=tf.constant([0], tf.int64))
    >>> found.numpy().ravel().round(2)
    array([0.46, 0.54], dtype=float32)
    >>> round(float(tf.norm(found - image)), 2)  # the shortest is 0.35
    0.42

    References:
    - [Rony et al., 2019](https://arxiv.org/abs/1811.09600)
    - [Salman et al., 2019](https://arxiv.org/abs/1906.04584)
    """

    def __init__(
        self,
        steps: int,
        epsilon: float,
        gamma: float = 0.05,
        init_norm: float | None = None,
    ) -> None:
        self.steps = check_count("steps", steps, 0)
        self.epsilon = check_positive("epsilon", epsilon)
        self.gamma = check_not_negative("gamma", gamma)
        if self.gamma >= 1:
            raise ValueError(
                f"`gamma` must be in [0, 1). Received: gamma={gamma}"
            )
        self.init_norm = init_norm
        if init_norm is not None:
            self.init_norm = check_positive("init_norm", init_norm)

    def __call__(
        self,
        classify: Classify,
        images: tf.Tensor,
        labels: tf.Tensor,
        factor: Any = 1.0,
    ) -> tf.Tensor:
        """Returns adversarial images; arguments and result as in `PGD`."""
        radius = self.epsilon * tf.cast(factor, images.dtype)
        corner = norms(tf.maximum(images, 1.0 - images))
        first = radius if self.init_norm is None else self.init_norm
        start = tf.ones_like(corner) * tf.cast(first, images.dtype)
        # Cosine annealing from 1 to 0.01, stepped before it is used.
        cosines = [
            math.cos(math.pi * (i + 1) / self.steps) for i in range(self.steps)
        ]
        sizes = tf.constant([0.505 + 0.495 * c for c in cosines], images.dtype)

        def step(i, delta, norm, best, best_norm):  # type: ignore[no-untyped-def]
            gradient, fooled = self._look(classify, images + delta, labels)
            length = norms(delta)
            better = fooled & (length < best_norm)
            best = tf.where(better, delta, best)
            best_norm = tf.where(better, length, best_norm)
            sign = 1.0 - 2.0 * tf.cast(fooled, norm.dtype)
            norm = tf.minimum(norm * (1.0 + sign * self.gamma), corner)
            delta += sizes[i] * unit(gradient)
            x = _rounded(images + norm * unit(delta))
            delta = tf.clip_by_value(x, 0.0, 1.0) - images
            return delta, norm, best, best_norm

        zeros = tf.zeros_like(images)
        state = (zeros, start, zeros, corner)
        _, _, best, _ = repeat(step, state, self.steps)
        return tf.stop_gradient(images + _rounded(project(best, radius)))

    @staticmethod
    def _look(
        classify: Classify, x: tf.Tensor, labels: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the gradient and whether the majority is wrong."""
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(x)
            logits = classify(x)
            if logits.shape[0] == 1:
                loss = tf.reduce_sum(cross_entropy(labels, logits))
            else:
                loss = tf.reduce_sum(smoothed_loss(logits, labels))
        votes = tf.one_hot(tf.argmax(logits, -1), logits.shape[-1])
        winner = tf.argmax(tf.reduce_sum(votes, axis=0), axis=-1)
        fooled = tf.not_equal(winner, labels)
        return tape.gradient(loss, x), fooled[:, None, None, None]


def _rounded(x: tf.Tensor) -> tf.Tensor:
    return tf.round(x * _LEVELS) / _LEVELS


@keras.saving.register_keras_serializable("rs_keras")
class Ascent(Adversary):
    """Gradient ascent that nothing but the pixels' range restrains.

    Formula, `steps` times, with g the gradient of
    -log(max(mean_j softmax_y, 1e-20)):

        x = clip(x + step_size * g / (|g| + 1e-8), 0, 1)

    Args:
        steps: T in the paper, >= 0.
        step_size: alpha in the paper, > 0.
        max_norm: Projects every step onto the ball of this radius around the
            images, before it is clipped; None for no ball.

    Raises:
        ValueError: If an argument is out of range.

    Example:

    >>> import tensorflow as tf
    >>> from rs_keras import adversaries
    >>> def classify(x):  # one copy, whose logits are its two pixels
    ...     return x[None, :, 0, 0, :]
    >>> image = tf.constant([0.75, 0.25], shape=[1, 1, 1, 2])
    >>> ascent = adversaries.Ascent(steps=8, step_size=0.5)
    >>> ascent(classify, image, labels=tf.constant([0])).numpy().ravel()
    array([0., 1.], dtype=float32)

    References:
    - [Jeong et al., 2021](https://arxiv.org/abs/2111.09277)
    """

    def __init__(
        self, steps: int, step_size: float, max_norm: float | None = None
    ) -> None:
        self.steps = check_count("steps", steps, 0)
        self.step_size = check_positive("step_size", step_size)
        self.max_norm = max_norm
        if max_norm is not None:
            self.max_norm = check_positive("max_norm", max_norm)

    def __call__(
        self,
        classify: Classify,
        images: tf.Tensor,
        labels: tf.Tensor,
        start: tf.Tensor | None = None,
    ) -> tf.Tensor:
        """Returns adversarial images.

        Args:
            classify: From images [B, H, W, C] to noisy logits [m, B, C].
            images: [B, H, W, C] in [0, 1], the centre of the ball.
            labels: int64 [B].
            start: Where to begin; None for `images`.

        Returns:
            A tensor like `images`.
        """

        def loss_of(x: tf.Tensor) -> tf.Tensor:
            return smoothed_loss(classify(x), labels)

        def step(_: tf.Tensor, x: tf.Tensor) -> tuple:
            gradient = gradient_of(loss_of, x)
            x += self.step_size * unit(gradient, GRADIENT_FLOOR)
            if self.max_norm is not None:
                x = images + project(x - images, self.max_norm)
            return (tf.clip_by_value(x, 0.0, 1.0),)

        x = images if start is None else start
        return tf.stop_gradient(repeat(step, (x,), self.steps)[0])


@keras.saving.register_keras_serializable("rs_keras")
class NoiseAscent(Adversary):
    """Ascent on each noise by itself, that keeps its first two moments.

    Formula, `steps` times from n = noise, with g the gradient of
    mean_j KL(target || softmax(classify(n_j))) and, for each noise, mu and s
    its mean and root mean square over the pixels, e = epsilon * factor:

        n = n + 2 * e / steps * g / (|g| + 1e-8)
        n = noise + project(n - noise, e)
        n = mu(noise) + (n - mu(n)) / s(n) * s(noise)

    As in the authors' code the last line comes at every step, s is not the
    standard deviation, and nothing is clipped. So the result leaves the ball
    a little, and has the root mean square s only nearly.

    Args:
        steps: T in the paper, >= 0.
        epsilon: Radius of the ball around each noise, > 0.

    Raises:
        ValueError: If an argument is out of range.

    Example:

    >>> import tensorflow as tf
    >>> from rs_keras import adversaries
    >>> from rs_keras import noise
    >>> def classify(n):  # the logits of a copy are two of its pixels
    ...     return 10 * n[:, :, 0, :2, 0]
    >>> eps = 0.5 * noise.normal([1, 4, 4, 1], [7, 0], first=0, count=2)
    >>> climb = adversaries.NoiseAscent(steps=4, epsilon=0.25)
    >>> found = climb(classify, eps, target=tf.constant([[1.0, 0.0]]))
    >>> def first_class(n):
    ...     return tf.nn.softmax(classify(n))[:, 0, 0]
    >>> bool(tf.reduce_all(first_class(found) < first_class(eps)))
    True

    References:
    - [Jeong et al., 2023](https://arxiv.org/abs/2212.09000)
    """

    def __init__(self, steps: int, epsilon: float) -> None:
        self.steps = check_count("steps", steps, 0)
        self.epsilon = check_positive("epsilon", epsilon)

    def __call__(
        self,
        classify: Classify,
        noise: tf.Tensor,
        target: tf.Tensor,
        factor: Any = 1.0,
    ) -> tf.Tensor:
        """Returns adversarial noise.

        Args:
            classify: From noise [m, B, H, W, C] to logits [m, B, C].
            noise: [m, B, H, W, C].
            target: Distributions [B, C] to move away from.
            factor: Scales epsilon.

        Returns:
            A tensor like `noise`.
        """
        radius = self.epsilon * tf.cast(factor, noise.dtype)
        size = 2.0 * radius / max(1, self.steps)
        mean, scale = _moments(noise)
        # The loss is a mean over copies: it sets how small a gradient has to
        # be for the floor under its norm to matter.
        copies = tf.cast(tf.shape(noise)[0], noise.dtype)

        def loss_of(n: tf.Tensor) -> tf.Tensor:
            return divergence(target, classify(n))

        def step(_: tf.Tensor, n: tf.Tensor) -> tuple:
            gradient = gradient_of(loss_of, n) / copies
            n += size * unit(gradient, GRADIENT_FLOOR)
            n = noise + project(n - noise, radius)
            now, spread = _moments(n)
            return (mean + (n - now) / spread * scale,)

        return tf.stop_gradient(repeat(step, (noise,), self.steps)[0])


def _moments(noise: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns mean and root mean square over the pixels of each noise."""
    axes = [-3, -2, -1]
    mean = tf.reduce_mean(noise, axis=axes, keepdims=True)
    square = tf.reduce_mean(tf.square(noise), axis=axes, keepdims=True)
    return mean, tf.sqrt(square)
