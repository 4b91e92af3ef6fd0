"""The certifier: Monte Carlo certificates for any image classifier."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from rs_keras import bounds
from rs_keras._checks import check_alpha
from rs_keras._checks import check_choice
from rs_keras._checks import check_count
from rs_keras._checks import check_feasible
from rs_keras._checks import check_probability
from rs_keras.certification.certificate import Certificate
from rs_keras.certification.certificate import Prediction
from rs_keras.certification.sample_size import sample_sizes
from rs_keras.certification.sequential.decision import Decision
from rs_keras.certification.sequential.decision import decide_on_host
from rs_keras.certification.sequential.decision import decision_settings
from rs_keras.certification.sequential.decision import decision_tables
from rs_keras.certification.smoothing import SmoothedClassifier
from rs_keras.certification.spec import BOUNDS
from rs_keras.certification.spec import Bound
from rs_keras.certification.spec import CertifySpec
from rs_keras.certification.spec import DecideSpec
from rs_keras.certification.votes_to_results import decide_label
from rs_keras.certification.votes_to_results import soft_certificate
from rs_keras.certification.votes_to_results import vote_certificate
from rs_keras.noise.keyed_seeds import Seed


class Certifier(SmoothedClassifier):
    """Certifies the smoothed version of a classifier.

    The smoothed classifier g answers the class that the base classifier f
    gives most often under Gaussian noise,

        g(x) = argmax_c P[f(x + sigma * eps) = c],    eps ~ Normal(0, I),

    and its answer cannot change inside an L2 ball: if the top class has
    probability at least p_lower and every other at most p_upper < p_lower,
    then g is constant within

        radius = sigma / 2 * (icdf(p_lower) - icdf(p_upper)).

    Both are estimated from votes, with a confidence bound that errs with
    probability at most alpha, for each image and over the noise.

    Args:
        model: A Keras model, a trainer, a loaded SavedModel or a function of
            TensorFlow operations, from images in [0, 1] to logits; or the path
            of one (see `rs_keras.load_model`).
            Normalisation belongs inside it. It must be deterministic and
            answer row by row: the logits of an image may depend on neither
            the other images of a batch nor the pass. The first call
            searches for random operations and compares full passes, and raises
            if they differ beyond rounding; `docs/certification.md` lists what
            it cannot detect. The certificate is about this classifier in
            inference mode. Training the weights further is allowed; after a
            change of layers or attributes, calls raise.
        sigma: Standard deviation of the noise, in pixel units, > 0. None is
            0.5, or the sigma of the trainer if `model` is a trainer or the
            path of one; any other value than the trainer's is an error.
        num_classes: Number of logits; by default that of the model's output.
        batch_size: Noisy copies per pass; None chooses it for the device. No
            count depends on it.
        strategy: A `tf.distribute.Strategy` whose replicas share the draws.
            The counts are those of one device.
        noise: "float" (plain float32 noise: the guarantee is that of real
            arithmetic, as in the papers) or "grid" (image and noise are
            multiples of 1/255, and the noise is drawn from the exact
            distribution of the rounded Gaussian, so that the guarantee holds
            for every base classifier: it is about 8-bit images, and another
            image is rounded first; see `rs_keras.noise.grid`).
        dtype: "float32", "bfloat16" or "float16" computes a Keras model in
            that type; None in the one that it was made for. The certificate is
            about the model so computed, which in bfloat16 is another
            classifier than in float32; `settings` and `statement()` say which.
        key: The secret of `seed="keyed"` (bytes), or the name of its file;
            None reads the environment variable RS_KERAS_SEED_KEY.

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
        seed: Seed = None,
    ) -> Prediction:
        """Predicts the smoothed classifier's label, or abstains (PREDICT).

        With probability at least 1 - alpha over the noise, the label is the
        smoothed classifier's or -1: it abstains unless the two-sided binomial
        test tells the two most frequent classes apart at level alpha.

        Args:
            images: [B, H, W, C], in [0, 1].
            n: Draws per image.
            alpha: Maximum probability of a wrong label, in (0, 1).
            seed: See `rs_keras.noise.as_seeds`; None is fresh entropy.

        Returns:
            A `Prediction`.

        Example:

        >>> import numpy as np
        >>> from rs_keras import Certifier
        >>> certifier = Certifier(lambda x: x[:, 0, 0, :2] - 0.5, sigma=0.5)
        >>> image = np.array([1.0, 0.0]).reshape(1, 1, 1, 2)
        >>> prediction = certifier.predict(image, n=1_000, seed=7)
        >>> prediction.label, bool(prediction.p_value[0] < 0.001)
        (array([0]), True)
        """
        n = check_count("n", n)
        alpha = check_alpha(alpha)
        check_feasible("n", n, alpha, bounds.minimum_n(alpha, "predict"))
        images, loop = self._prepare(images)
        seeds = self.seeds(seed, images)
        counts = loop.draw(images, seeds, 0, n)
        distance = self._smoothing(images.shape[1:]).distance
        label, p_value = (
            value.numpy() for value in decide_label(counts, alpha, n, distance)
        )
        return Prediction(label, p_value, counts, seeds)

    def certify(
        self,
        images: Any,
        n0: int = 100,
        n: int = 100_000,
        alpha: float = 1e-3,
        bound: Bound = "clopper_pearson",
        beta: float = 1.0,
        runner_up: bool = True,
        tolerance: float | None = None,
        max_radius: float | None = None,
        seed: Seed = None,
    ) -> Certificate:
        """Certifies each image: a label, and a radius within which it holds.

        Draws 0 .. n0-1 select the class, draws n0 .. n0+n-1 bound its
        probability: the two never share noise. With a `tolerance`, the
        selection draws also determine how many estimation draws are needed.

        Args:
            images: [B, H, W, C], in [0, 1].
            n0: Draws that select the class (1,000 if there is a tolerance).
            n: Draws that bound its probability; with a tolerance, the maximum.
            alpha: Probability of a certificate that is not true, for each
                image, in (0, 1).
            bound: "clopper_pearson" (exact, on votes) certifies the classifier
                that takes the majority vote; so does "joint", with one test of
                both counts instead of two bounds (`bounds.joint_count`:
                larger radii, no `p_lower`). "hoeffding" and "bernstein" (on
                soft predictions) the one that averages softmax(beta * logits).
            beta: Inverse temperature of the soft predictions, > 0.
            runner_up: Whether to bound the second class, too (never smaller
                than about the plain radius, often larger). False gives
                Cohen et al.'s bound 1 - p_lower, the one in the papers'
                tables. Soft bounds need False, "joint" True.
            tolerance: Radius, in pixel units, that you are willing to give up
                to use fewer draws. The confidence level is not affected. None
                draws n for every image.
            max_radius: Larger radii are reported as this one. Together with a
                tolerance it saves most of the draws.
            seed: See `rs_keras.noise.as_seeds`; None is fresh entropy. Anyone
                who knows the noise in advance can search for an image that
                fools it.

        Returns:
            A `Certificate`.

        Raises:
            ValueError: For arguments out of range, an n that can never certify
                at this alpha, a tolerance or maximum that no certificate from
                n draws can reach, or a model that does not give logits.

        References:
        - [Cohen et al., 2019](https://arxiv.org/abs/1902.02918)
        - [Chen et al., 2022](https://arxiv.org/abs/2112.12084), on planning
        - [Zhai et al., 2020](https://arxiv.org/abs/2001.02378), appendix A
        """
        spec = CertifySpec(
            n0=n0,
            n=n,
            alpha=alpha,
            bound=bound,
            beta=beta,
            runner_up=runner_up,
            tolerance=tolerance,
            max_radius=max_radius,
        )
        # Before the model is probed, which may take long.
        spec.check(self._smoothing())
        images, loop = self._prepare(images, spec.soft)
        smoothing = self._smoothing(images.shape[1:])
        seeds = self.seeds(seed, images)
        soft_beta = spec.beta if spec.soft else None
        # Votes are [B, C]; soft sums [B, 3, C]: votes, sums, squares' sums.
        selection = loop.draw(images, seeds, 0, spec.n0, soft_beta)
        drawn = sample_sizes(selection, spec, self.sigma)
        estimate = np.zeros_like(selection)
        for size in np.unique(drawn).tolist():
            rows = drawn == size
            estimate[rows] = loop.draw(
                images[rows], seeds[rows], spec.n0, size, soft_beta
            )
        if spec.soft:
            bounded = soft_certificate(
                selection[:, 1], estimate, spec, smoothing, drawn
            )
            selection, estimate = selection[:, 0].astype(int), estimate[:, 1]
        else:
            bounded = vote_certificate(
                selection, estimate, spec, smoothing, drawn
            )
        label, radius, p_lower = (value.numpy() for value in bounded)
        return Certificate(
            label=label,
            radius=radius,
            p_lower=p_lower,
            counts=estimate,
            selection_counts=selection,
            n=drawn,
            seed=seeds,
            settings=spec.settings(smoothing),
        )

    def decide(
        self,
        images: Any,
        radius: float | Sequence[float],
        alpha: float = 1e-3,
        n_max: int = 100_000,
        runner_up: bool = True,
        seed: Seed = None,
        n0: int = 100,
    ) -> Decision:
        """Decides whether each image keeps its label within a radius.

        A group-sequential test: votes are counted in stages, and an image is
        not drawn again once it is decided; most take a few hundred draws. With
        probability at least 1 - alpha, over all stages and all radii together,
        the certificate of an image is true. "Not certified" guarantees nothing.

        Args:
            images: [B, H, W, C], in [0, 1].
            radius: L2, in pixel units, >= 0; or several: each image gets the
                largest that is certified. Their number does not affect alpha.
            alpha: Probability of a certificate that is not true, for each
                image, in (0, 1).
            n_max: Maximum number of draws per image, including selection draws.
            runner_up: Whether to test the second class, too: certifies more
                images. False certifies with fewer draws.
            seed: See `rs_keras.noise.as_seeds`; None is fresh entropy.
            n0: Draws that select the class, where it has to be selected: with
                `runner_up=False` for radii below about 0.05 sigma, otherwise
                for noise that is not near enough to the Gaussian. In all other
                cases the class with the most votes is tested at each stage.

        Returns:
            A `Decision`.

        Raises:
            ValueError: For arguments out of range, or a radius that no n_max
                draws can certify.

        Example:

        >>> import numpy as np
        >>> from rs_keras import Certifier
        >>> certifier = Certifier(lambda x: x[:, 0, 0, :2] - 0.5, sigma=0.25)
        >>> image = np.array([1.0, 0.0]).reshape(1, 1, 1, 2)
        >>> decision = certifier.decide(image, radius=0.25, seed=7)
        >>> bool(decision.certified[0]), int(decision.label[0])
        (True, 0)
        >>> int(decision.n[0]) < 1_000
        True
        """
        spec = DecideSpec(radius, alpha, n_max, runner_up, n0)
        # Before the model is probed, which may take long.
        spec.check(self._smoothing())
        images, loop = self._prepare(images)
        smoothing = self._smoothing(images.shape[1:])
        tables = decision_tables(spec, smoothing)
        seeds = self.seeds(seed, images)

        def draw(rows: np.ndarray, first: int, n: int) -> np.ndarray:
            return loop.draw(images[rows], seeds[rows], first, n)

        return Decision(
            **decide_on_host(draw, len(images), tables, self.sigma),
            seed=seeds,
            settings=decision_settings(spec, smoothing, tables),
        )

    def decision_settings(
        self,
        radius: float | Sequence[float],
        image_shape: Sequence[int] | None = None,
        **decide_arguments: Any,
    ) -> dict[str, Any]:
        """Validates the arguments of `decide` and returns them as settings.

        Args:
            radius: As in `decide`.
            image_shape: As in `settings`.
            **decide_arguments: The other arguments of `decide`, but for
                images and seed.

        Example:

        >>> from rs_keras import Certifier
        >>> certifier = Certifier(lambda x: x[:, 0, 0, :2], sigma=0.5)
        >>> settings = certifier.decision_settings(radius=[0.25, 0.5])
        >>> settings["radii"], settings["n_max"], settings["alpha"]
        ([0.25, 0.5], 100000, 0.001)
        """
        spec = DecideSpec(radius, **decide_arguments)
        smoothing = self._smoothing(image_shape)
        tables = decision_tables(spec, smoothing)
        return decision_settings(spec, smoothing, tables)

    def max_possible_radius(
        self,
        n: int = 100_000,
        alpha: float = 1e-3,
        bound: Bound = "clopper_pearson",
        runner_up: bool = True,
    ) -> float:
        """The largest radius that n draws can certify: if all of them agree.

        Example:

        >>> from rs_keras import Certifier
        >>> certifier = Certifier(lambda x: x[:, 0, 0, :2], sigma=0.5)
        >>> round(certifier.max_possible_radius(runner_up=False), 4)
        1.9057
        """
        n = check_count("n", n)
        alpha = check_probability("alpha", alpha)
        check_choice("bound", bound, BOUNDS)
        return bounds.max_radius(n, alpha, self.sigma, bound, runner_up)

    def settings(
        self,
        image_shape: Sequence[int] | None = None,
        **certify_arguments: Any,
    ) -> dict[str, Any]:
        """Validates the arguments of `certify` and returns them as settings.

        Args:
            image_shape: (H, W, C), where the model does not tell it. With
                noise="grid" the total variation of a draw follows from it.
            **certify_arguments: Those of `certify`, but for images and seed.

        Example:

        >>> from rs_keras import Certifier
        >>> certifier = Certifier(lambda x: x[:, 0, 0, :2], sigma=0.5)
        >>> settings = certifier.settings(n=1_000)
        >>> settings["n"], settings["bound"], settings["noise"]
        (1000, 'clopper_pearson', 'float')
        """
        spec = CertifySpec(**certify_arguments)
        smoothing = self._smoothing(image_shape)
        spec.check(smoothing)
        return spec.settings(smoothing)
