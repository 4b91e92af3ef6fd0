"""Denoisers: diffusion models in one step, and networks of one sigma."""

from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from rs_keras._checks import check_choice
from rs_keras._checks import check_flag
from rs_keras._checks import check_positive
from rs_keras.classifiers.outputs import for_training

Denoiser = Callable[[tf.Tensor, float], tf.Tensor]

# The layers of what `with_denoiser` makes.
DENOISER, CLASSIFIER = "denoiser", "classifier"


def noise_levels(alphas_cumprod: Sequence[float]) -> np.ndarray:
    """Standard deviations of the noise at each timestep, pixels in [0, 1].

    A diffusion model is about images y = 2 x - 1 in [-1, 1]. At timestep t its
    input is sqrt(a_t) y + sqrt(1 - a_t) eps, which is sqrt(a_t) times an image
    with noise of deviation sqrt((1 - a_t) / a_t), or half of that in units of
    pixels in [0, 1].

    Args:
        alphas_cumprod: a_t, falling, each in (0, 1).

    Returns:
        float64 [T], rising.

    Example:

    >>> from rs_keras.classifiers.denoisers import noise_levels
    >>> noise_levels([0.5, 0.2]).tolist()
    [0.5, 1.0]
    """
    levels = np.asarray(alphas_cumprod, np.float64)
    falling = levels.ndim == 1 and levels.size and (np.diff(levels) < 0).all()
    if not falling or not (levels[0] < 1 and levels[-1] > 0):
        raise ValueError(
            "`alphas_cumprod` must be falling numbers in (0, 1), one a "
            f"timestep. Received: shape={list(levels.shape)}"
        )
    return 0.5 * np.sqrt((1 - levels) / levels)


def diffusion_denoiser(
    network: Callable[[tf.Tensor, tf.Tensor], Any],
    alphas_cumprod: Sequence[float],
    predicts: str = "noise",
    clip: bool = True,
) -> Denoiser:
    """Makes a one-step denoiser of a diffusion model, for `denoised`.

    The timestep t is the first whose noise is at least sigma. With
    a = alphas_cumprod[t], for an image z with noise, in the units of [0, 1]:

        x_t = sqrt(a) * (2 z - 1)
        x_0 = (x_t - sqrt(1 - a) * network(x_t, t)) / sqrt(a)
        denoised image = (clip(x_0, -1, 1) + 1) / 2

    Args:
        network: From (x_t, float32 [m, H, W, C]; timesteps, int32 [m]) to a
            prediction [m, H, W, C], or [m, H, W, 2 C] where it learned
            variances, too, which are not used.
        alphas_cumprod: The cumulated products of 1 - beta_t of its training,
            one a timestep.
        predicts: What the network was trained to predict: "noise", "image"
            (x_0 itself) or "velocity" (sqrt(a) eps - sqrt(1 - a) x_0).
        clip: Whether x_0 is clipped to [-1, 1].

    Returns:
        A function of (noisy images, sigma) for `denoised`.

    Raises:
        ValueError: If an argument is none of these; when it is called, if no
            timestep has so much noise.

    Example:

    >>> import numpy as np
    >>> import tensorflow as tf
    >>> from rs_keras import Certifier
    >>> from rs_keras.classifiers import diffusion_denoiser
    >>> from rs_keras.classifiers.ensembles import denoised
    >>> schedule = np.cumprod(1 - np.linspace(1e-4, 0.02, 1000))
    >>> def network(x, t): return tf.zeros_like(x)  # predicts no noise
    >>> denoiser = diffusion_denoiser(network, schedule)
    >>> model = denoised(lambda x: x[:, 0, 0, :2], denoiser, sigma=0.5)
    >>> Certifier(model, 0.5).sample(tf.ones([1, 4, 4, 3]), n=100).shape
    (1, 2)

    References:
    - [Carlini et al., 2023](https://arxiv.org/abs/2206.10550)
    """
    levels = noise_levels(alphas_cumprod)
    alphas = np.asarray(alphas_cumprod, np.float64)
    check_choice("predicts", predicts, ("noise", "image", "velocity"))
    check_flag("clip", clip)

    def denoise(images: tf.Tensor, sigma: float) -> tf.Tensor:
        sigma = check_positive("sigma", sigma)
        if sigma > levels[-1]:
            raise ValueError(
                "`sigma` must be at most the noise of the last timestep, "
                f"{levels[-1]:.6g}. Received: sigma={sigma}"
            )
        step = int(np.searchsorted(levels, sigma))
        signal, noise = np.sqrt([alphas[step], 1 - alphas[step]]).tolist()
        x = signal * (2.0 * images - 1.0)
        steps = tf.fill([tf.shape(x)[0]], tf.constant(step, tf.int32))
        # The first channels, where variances follow.
        found = tf.cast(network(x, steps), x.dtype)[..., : x.shape[-1]]
        if predicts == "noise":
            clean = (x - noise * found) / signal
        elif predicts == "velocity":
            clean = signal * x - noise * found
        else:
            clean = found
        if clip:
            clean = tf.clip_by_value(clean, -1.0, 1.0)
        return (clean + 1.0) / 2.0

    return denoise


def with_denoiser(
    classifier: keras.Model, denoiser: keras.Model
) -> keras.Model:
    """Joins a denoiser and a classifier that stays as it is.

    For a denoiser of one sigma, which need not be told it (otherwise see
    `denoised`). The result is a Keras model: it is trained with
    `rs_keras.trainers.Denoising`, certified, saved and exported.

    Args:
        classifier: From clean images to logits; its weights are frozen.
        denoiser: From noisy images to images of the same shape.

    Returns:
        A Functional model with the layers "denoiser" and "classifier".

    Raises:
        ValueError: If one of them is no Sequential or Functional model with
            inputs, or the denoiser changes the shape of images.

    Example:

    >>> from rs_keras import models
    >>> from rs_keras.classifiers import with_denoiser
    >>> denoiser = models.dncnn((28, 28, 1), depth=4)
    >>> joined = with_denoiser(models.lenet(), denoiser)
    >>> [layer.name for layer in joined.layers]
    ['images', 'denoiser', 'classifier']

    References:
    - [Salman et al., 2020](https://arxiv.org/abs/2003.01908)
    """
    logits = for_training(classifier)
    for name, part in (("classifier", logits), ("denoiser", denoiser)):
        if len(getattr(part, "inputs", None) or ()) != 1:
            raise ValueError(
                f"`{name}` must be a Sequential or Functional model with one "
                f"input. Received: {type(part).__name__}"
            )
    shape = tuple(denoiser.input_shape[1:])
    if tuple(denoiser.output_shape[1:]) != shape:
        raise ValueError(
            "`denoiser` must return images of the shape it is given. "
            f"Received: {shape}, returned: {denoiser.output_shape[1:]}"
        )
    images = keras.Input(shape, name="images")
    front = keras.Model(denoiser.inputs, denoiser.outputs[0], name=DENOISER)
    back = keras.Model(logits.inputs, logits.outputs[0], name=CLASSIFIER)
    back.trainable = False
    return keras.Model(images, back(front(images)), name="denoised")
