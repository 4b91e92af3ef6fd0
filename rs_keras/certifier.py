"""The certifier: Monte Carlo certificates for any image classifier."""

from typing import Any

import numpy as np

from rs_keras import bounds
from rs_keras import noise as noise_lib
from rs_keras.certificate import Certificate
from rs_keras.certificate import Prediction
from rs_keras.checks import check_choice
from rs_keras.checks import check_count
from rs_keras.checks import check_feasible
from rs_keras.checks import check_positive
from rs_keras.checks import check_probability
from rs_keras.smoothed import SmoothedClassifier
from rs_keras.verdicts import decide_label
from rs_keras.verdicts import soft_certificate
from rs_keras.verdicts import vote_certificate

BOUNDS = ("clopper_pearson", "hoeffding", "bernstein")


class Certifier(SmoothedClassifier):
    """Certifies the smoothed version of a classifier.

    The smoothed classifier g answers the class that the base classifier f
    gives most often under Gaussian noise,

        g(x) = argmax_c P[f(x + sigma * eps) = c],    eps ~ Normal(0, I),

    and its answer cannot change inside an L2 ball: if the top class has
    probability at least p_lower > 1/2 and every other at most p_upper, then
    g is constant within

        radius = sigma / 2 * (icdf(p_lower) - icdf(p_upper)).

    Both are estimated from votes, with a confidence bound that errs with
    probability at most alpha, for each image and over the noise.

    Args:
        model: A Keras model, a loaded SavedModel or a function of TensorFlow
            operations, from images in [0, 1] to logits. Normalisation belongs
            inside it. The certificate is about this classifier in inference
            mode.
        sigma: Standard deviation of the noise, in pixel units, > 0.
        num_classes: Number of logits; from the model's output where it tells.
        batch_size: Noisy copies a pass; chosen for the device when None. No
            count depends on it.
        strategy: A `tf.distribute.Strategy` whose replicas share the draws.
            The counts are those of one device.
        noise: "float" (plain float32 noise: the guarantee is that of real
            arithmetic, as in the papers), "grid" (image and noise are rounded
            to multiples of 1/255, so that floating point hides no information
            about the image: the guarantee is about images on that grid), or
            "grid-strict" (the same from float64 normals, at about twice the
            cost, with a distance from the ideal normal near 1e-15; images off
            the grid are refused).
        dtype: "bfloat16" (or "float16") computes a Keras model in that type.
            The certificate is then about the model so computed, which is
            another classifier than the float32 one.

    Example:

    >>> import numpy as np
    >>> import tensorflow as tf
    >>> from rs_keras import Certifier
    >>> def bright(images):
    ...     score = tf.reduce_mean(images, [1, 2, 3]) - 0.5
    ...     return tf.stack([-score, score], axis=-1)
    >>> certifier = Certifier(bright, sigma=0.25)
    >>> image = np.full([1, 8, 8, 1], 0.75, np.float32)
    >>> certificate = certifier.certify(image, n=1_000, seed=7)
    >>> int(certificate.label[0])
    1

    References:
    - [Cohen et al., 2019](https://arxiv.org/abs/1902.02918)
    """

    def predict(
        self,
        images: Any,
        n: int = 1_000,
        alpha: float = 1e-3,
        seed: noise_lib.Seed = None,
    ) -> Prediction:
        """Says what the smoothed classifier answers (PREDICT).

        With probability at least 1 - alpha over the noise, the label is the
        smoothed classifier's or -1: it abstains unless the two-sided binomial
        test tells the two most frequent classes apart at level alpha.

        Args:
            images: [B, H, W, C], in [0, 1].
            n: Draws an image.
            alpha: Probability of a wrong label, in (0, 1).
            seed: See `rs_keras.noise.as_seeds`; None is fresh entropy.

        Returns:
            A `Prediction`.
        """
        n = check_count("n", n)
        alpha = check_probability("alpha", alpha)
        check_feasible("n", n, alpha, bounds.minimum_n(alpha, "predict"))
        images, graphs = self._prepare(images)
        seeds = noise_lib.as_seeds(seed, len(images))
        counts = self._sum(graphs.count, images, seeds, 0, n)
        label, p_value = (
            value.numpy() for value in decide_label(counts, alpha)
        )
        return Prediction(label, p_value, counts, seeds)

    def certify(
        self,
        images: Any,
        n0: int = 100,
        n: int = 100_000,
        alpha: float = 1e-3,
        bound: str = "clopper_pearson",
        beta: float = 1.0,
        runner_up: bool = True,
        seed: noise_lib.Seed = None,
    ) -> Certificate:
        """Certifies each image: a label, and the radius in which it stays.

        Draws 0 .. n0-1 select the class, draws n0 .. n0+n-1 bound its
        probability: the two rounds never share noise.

        Args:
            images: [B, H, W, C], in [0, 1].
            n0: Draws that select the class.
            n: Draws that bound its probability.
            alpha: Probability of a certificate that is not true, for each
                image, in (0, 1).
            bound: "clopper_pearson" (exact, on votes) certifies the classifier
                that takes the majority vote; "hoeffding" and "bernstein" (on
                soft predictions) the one that averages softmax(beta * logits).
            beta: Inverse temperature of the soft predictions, > 0.
            runner_up: Whether to bound the second class, too (never smaller
                than about the plain radius, often larger). False gives
                Cohen et al.'s bound 1 - p_lower, the one in the papers'
                tables. Soft bounds need False.
            seed: See `rs_keras.noise.as_seeds`; None is fresh entropy. Whoever
                knows the noise beforehand can look for an image that fools it.

        Returns:
            A `Certificate`.

        Raises:
            ValueError: For arguments out of range, an n that can never certify
                at this alpha, or a model that does not give logits.

        References:
        - [Cohen et al., 2019](https://arxiv.org/abs/1902.02918)
        - [Zhai et al., 2020](https://arxiv.org/abs/2001.02378), appendix A
        """
        settings = self.settings(n0, n, alpha, bound, beta, runner_up)
        soft = bound != "clopper_pearson"
        images, graphs = self._prepare(images, soft)
        seeds = noise_lib.as_seeds(seed, len(images))
        if soft:

            def draw(first: int, count: int) -> np.ndarray:
                return self._sum(
                    graphs.soft_sums, images, seeds, first, count, beta
                )

            selection, estimate = draw(0, n0), draw(n0, n)
            label, radius, p_lower = soft_certificate(
                selection[:, 1], estimate, n, alpha, self.sigma, bound
            )
            selection = selection[:, 0].astype(np.int64)
            counts = estimate[:, 1]
        else:
            selection = self._sum(graphs.count, images, seeds, 0, n0)
            counts = self._sum(graphs.count, images, seeds, n0, n)
            label, radius, p_lower = vote_certificate(
                selection, counts, n, alpha, self.sigma, runner_up
            )
        return Certificate(
            label.numpy(),
            radius.numpy(),
            p_lower.numpy(),
            counts,
            selection,
            np.full(len(images), n),
            seeds,
            settings,
        )

    def settings(
        self,
        n0: int = 100,
        n: int = 100_000,
        alpha: float = 1e-3,
        bound: str = "clopper_pearson",
        beta: float = 1.0,
        runner_up: bool = True,
    ) -> dict[str, Any]:
        """Returns what `certify` would rest on under these arguments, checked.

        The arguments and errors are those of `certify`.
        """
        check_count("n0", n0)
        check_count("n", n)
        check_probability("alpha", alpha)
        check_choice("bound", bound, BOUNDS)
        check_positive("beta", beta)
        soft = bound != "clopper_pearson"
        if soft and runner_up:
            raise ValueError(
                "`runner_up` must be False for soft bounds, which bound one "
                f"class only. Received: runner_up={runner_up}, bound={bound!r}"
            )
        smallest = bounds.minimum_n(alpha, bound, runner_up)
        check_feasible("n", n, alpha, smallest)
        settings = {
            "sigma": self.sigma,
            "n0": int(n0),
            "n": int(n),
            "alpha": float(alpha),
            "bound": bound,
            "runner_up": bool(runner_up),
            "noise": self.noise,
            "dtype": self.dtype or "float32",
        }
        return {**settings, "beta": float(beta)} if soft else settings
