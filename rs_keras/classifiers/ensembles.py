"""Base classifiers made of others: ensembles and denoised classifiers.

Smoothing asks nothing of its base classifier, so several of them, or a
denoiser and a classifier, are certified like one: with the guarantee of the
whole, not of its parts.
"""

from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from rs_keras._checks import check_positive
from rs_keras.classifiers.adapters import Logits
from rs_keras.classifiers.adapters import as_logits
from rs_keras.classifiers.adapters import prepared


class Joined:
    """A classifier made of parts; what `ensemble` and `denoised` return.

    Args:
        parts: The models.
        members: The classifiers among them, as functions.
        join: From such functions to the one of the whole.

    Attributes:
        parts: The models, which hold the weights.

    Example:

    >>> import keras
    >>> import tensorflow as tf
    >>> from rs_keras.classifiers.ensembles import ensemble
    >>> def linear():
    ...     return keras.Sequential([
    ...         keras.Input([4, 4, 1]), keras.layers.Flatten(),
    ...         keras.layers.Dense(2)])
    >>> both = ensemble([linear(), linear()])
    >>> both(tf.zeros([3, 4, 4, 1])).shape.as_list(), len(both.variables)
    ([3, 2], 4)
    """

    def __init__(
        self,
        parts: Sequence[Any],
        members: Sequence[Logits],
        join: Callable[[Sequence[Logits]], Logits],
    ) -> None:
        self.parts = tuple(parts)
        self._members = tuple(members)
        self._join = join

    def __call__(self, images: tf.Tensor) -> tf.Tensor:
        return self._join(self._members)(images)

    def prepared(self) -> Logits:
        """Returns the classifier with its weights made ready; for a loop."""
        return self._join([prepared(member) for member in self._members])

    @property
    def variables(self) -> list[Any]:
        """The variables of all parts."""
        return [
            variable
            for part in self.parts
            for variable in getattr(part, "variables", [])
        ]


def ensemble(models: Sequence[Any]) -> Joined:
    """Joins classifiers by the mean of their logits.

    f(x) = argmax_c mean_i logits_i(x)[c]. Under noise the mean varies less
    than its parts, which makes the top class more probable.

    Args:
        models: Two or more, each as `Certifier` takes it, with the same
            classes.

    Returns:
        A function from images to logits, for `Certifier`.

    Raises:
        ValueError: If there are fewer than two.

    Example:

    >>> import tensorflow as tf
    >>> from rs_keras import Certifier
    >>> from rs_keras.classifiers.ensembles import ensemble
    >>> def left(x): return x[:, 0, :2, 0]
    >>> def right(x): return x[:, 0, 2:, 0]
    >>> image = tf.constant([[0.9, 0.1, 0.4, 0.6]])[:, None, :, None]
    >>> both = Certifier(ensemble([left, right]), sigma=0.1)
    >>> int(both.predict(image, seed=7).label[0])
    0

    References:
    - [Horvath et al., 2022](https://arxiv.org/abs/2106.06946)
    """
    members = [as_logits(model) for model in models]
    if len(members) < 2:
        raise ValueError(
            "`models` must be at least two classifiers. "
            f"Received: {len(members)}"
        )

    return Joined(models, members, _mean)


def denoised(
    model: Any, denoiser: Callable[[tf.Tensor, float], tf.Tensor], sigma: float
) -> Joined:
    """Puts a denoiser in front of a classifier that knows no noise.

    f(z) = argmax_c logits(denoiser(z, sigma))[c].

    Args:
        model: A classifier, as `Certifier` takes it, of clean images.
        denoiser: From (noisy images [m, H, W, C], sigma) to images of the same
            shape. The noise is added to pixels in [0, 1] and never clipped.
            `diffusion_denoiser` makes one of a diffusion model.
        sigma: Standard deviation of the noise: that of the `Certifier`.

    Returns:
        A function from images to logits, for `Certifier`.

    Raises:
        ValueError: If `sigma` is not > 0, or the denoiser changes the images'
            shape.

    Example:

    >>> import tensorflow as tf
    >>> from rs_keras import Certifier
    >>> from rs_keras.classifiers.ensembles import denoised
    >>> def shrink(z, sigma): return 0.5 + (z - 0.5) / (1 + sigma**2)
    >>> def first_two(x): return x[:, 0, 0, :2]
    >>> certifier = Certifier(denoised(first_two, shrink, 0.5), sigma=0.5)
    >>> certifier.sample(tf.ones([1, 4, 4, 3]), n=100).shape
    (1, 2)

    References:
    - [Salman et al., 2020](https://arxiv.org/abs/2003.01908)
    - [Carlini et al., 2023](https://arxiv.org/abs/2206.10550)
    """
    check_positive("sigma", sigma)

    def after_denoising(members: Sequence[Logits]) -> Logits:
        def logits(images: tf.Tensor) -> tf.Tensor:
            clean = denoiser(images, sigma)
            if not images.shape.is_compatible_with(clean.shape):
                raise ValueError(
                    "`denoiser` must return images of the shape it is given. "
                    f"Received: {images.shape}, returned: {clean.shape}"
                )
            return members[0](clean)

        return logits

    return Joined([model, denoiser], [as_logits(model)], after_denoising)


def _mean(members: Sequence[Logits]) -> Logits:
    def mean(images: tf.Tensor) -> tf.Tensor:
        # Not in the models' own precision: a sum of bfloat16 would round.
        logits = [tf.cast(member(images), tf.float32) for member in members]
        return tf.add_n(logits) / len(logits)

    return mean
