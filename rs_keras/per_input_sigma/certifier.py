"""A certifier that chooses sigma for each image (data-dependent smoothing)."""

import threading
from dataclasses import fields
from typing import Any

import numpy as np
import tensorflow as tf

from rs_keras._checks import check_images
from rs_keras._checks import check_positive
from rs_keras.certification.certificate import Certificate
from rs_keras.certification.certifier import Certifier
from rs_keras.classifiers.checkpoints import opened
from rs_keras.classifiers.outputs import with_logits
from rs_keras.noise.grid import GridNoise
from rs_keras.noise.grid import grid_noise
from rs_keras.noise.keyed_seeds import Seed
from rs_keras.per_input_sigma.optimization import SigmaOptimizer
from rs_keras.per_input_sigma.optimization import check_sigmas

SCOPE = "per_input_sigma"

# Arguments of `certify`: those that the largest radius follows from, and those
# that it limits.
_OF_LIMIT = ("n", "alpha", "bound", "runner_up")
_RADII = ("tolerance", "max_radius")


class _AdjustableCertifier(Certifier):
    """A certifier whose sigma moves from image to image without retracing."""

    # Other certifiers fix sigma, because their graphs hold its value.
    _fixed = Certifier._fixed - {"sigma"}

    def __init__(self, model: Any, sigma: float, **arguments: Any) -> None:
        # Where the choice of sigma starts need not be a trainer's sigma.
        super().__init__(model, **arguments)
        self.sigma = sigma
        # One for the graphs of all image shapes: `at` must reach every one.
        self._variable = tf.Variable(
            self.sigma, dtype=tf.float64, trainable=False
        )
        self._table: Any = None
        if self.noise == "grid":
            entries = np.zeros(1, np.int64)
            self._table = GridNoise(
                tf.Variable(entries, trainable=False, shape=[None]),
                tf.Variable(1, trainable=False, dtype=tf.int64),
            )

    def _graph_noise(self) -> dict[str, Any]:
        return {"sigma": self._variable, "table": self._table}

    def at(self, sigma: float) -> Certifier:
        """Returns this certifier, now with another sigma."""
        self.sigma = float(sigma)
        self._variable.assign(sigma)
        if self._table is not None:
            exact = grid_noise(self.sigma)
            self._table.entries.assign(exact.entries)
            self._table.bits.assign(exact.bits)
        return self


class DataDependentCertifier:
    """Certifies each image at the sigma that promises it the largest radius.

    What such a certificate says: the classifier smoothed with the one sigma
    chosen for this image answers `label` on every image closer than `radius`.
    What it does not say: that a deployed classifier, which would choose
    another sigma for the attacked image, does so too. Hence its certificates
    carry `settings["scope"] == "per_input_sigma"`, and tables leave them out
    unless asked. `rs_keras.compose` uses several sigmas soundly.

    Args:
        model: As in `Certifier`.
        sigma0: Where the choice starts, > 0.
        steps: Of `optimize_sigma`, >= 0.
        num_noise: Of `optimize_sigma`, >= 1.
        learning_rate: Of `optimize_sigma`, > 0.
        **certifier_arguments: See `Certifier`; without `sigma` and `strategy`.

    Example:

    >>> import tensorflow as tf
    >>> from rs_keras import DataDependentCertifier
    >>> def bright(x):
    ...     score = tf.reduce_mean(x, [1, 2, 3]) - 0.5
    ...     return 50.0 * tf.stack([-score, score], -1)
    >>> certifier = DataDependentCertifier(bright, 0.25, steps=20)
    >>> image = tf.fill([1, 8, 8, 1], 0.7)
    >>> found = certifier.certify(image, n=1_000, sigma=[0.5], seed=1)
    >>> float(found.sigma[0]), found.settings["scope"]
    (0.5, 'per_input_sigma')

    References:
    - [Alfarra et al., 2022](https://arxiv.org/abs/2012.04351)
    """

    def __init__(
        self,
        model: Any,
        sigma0: float = 0.25,
        steps: int = 900,
        num_noise: int = 1,
        learning_rate: float = 1e-4,
        **certifier_arguments: Any,
    ) -> None:
        self.sigma0 = check_positive("sigma0", sigma0)
        model, _ = opened(model)
        self._certifier = _AdjustableCertifier(
            model, sigma=sigma0, **certifier_arguments
        )
        # The sigma that is chosen is that of the network that is certified.
        self.optimizer = SigmaOptimizer(
            with_logits(self._certifier.computing, self._certifier.num_classes),
            steps,
            num_noise,
            learning_rate,
        )
        self.model = model
        self.computing = self._certifier.computing
        self._lock = threading.Lock()

    def certify(
        self,
        images: Any,
        sigma: Any = None,
        seed: Seed = None,
        **certify_arguments: Any,
    ) -> Certificate:
        """Certifies each image at a sigma of its own.

        Args:
            images: [B, H, W, C] in [0, 1].
            sigma: [B], or a number; None chooses with `optimize_sigma`, on
                noise that the certificate does not use.
            seed: See `rs_keras.noise.as_seeds`.
            **certify_arguments: See `Certifier.certify`; a tolerance or
                maximum beyond what an image's sigma can reach does nothing
                there.

        Returns:
            A `Certificate` with `sigma`, float64 [B].

        Raises:
            ValueError: If an argument is out of range.
        """
        images = check_images(images)
        settings = self.settings(**certify_arguments)
        seeds = self._certifier.seeds(seed, images)
        if sigma is None:
            chosen = self.optimizer(images, self.sigma0, seeds)
        else:
            chosen = check_sigmas("sigma", sigma, len(images))
        rows = [
            self._at(own_sigma, image[None], row[None], certify_arguments)
            for image, own_sigma, row in zip(images, chosen, seeds, strict=True)
        ]
        joined: dict[str, Any] = {
            field.name: np.concatenate(
                [getattr(row, field.name) for row in rows]
            )
            for field in fields(Certificate)
            if field.type is np.ndarray
        }
        distances = [row.settings.get("total_variation", 0.0) for row in rows]
        if largest := max(distances):
            settings["total_variation"] = largest
        return Certificate(**joined, settings=settings, sigma=np.array(chosen))

    def _at(
        self,
        sigma: float,
        image: np.ndarray,
        seed: np.ndarray,
        arguments: dict[str, Any],
    ) -> Certificate:
        # Another thread must not move sigma while this image is drawn.
        with self._lock:
            certifier = self._certifier.at(sigma)
            limit = certifier.max_possible_radius(
                **{k: v for k, v in arguments.items() if k in _OF_LIMIT}
            )
            reachable = {
                name: min(value, limit)
                for name, value in arguments.items()
                if name in _RADII and value is not None
            }
            return certifier.certify(
                image, seed=seed, **{**arguments, **reachable}
            )

    def settings(self, **certify_arguments: Any) -> dict[str, Any]:
        """Validates the arguments of `certify` and returns them as settings.

        The arguments and errors are those of `Certifier.settings`.
        """
        with self._lock:
            fixed = self._certifier.at(self.sigma0)
            settings = fixed.settings(**certify_arguments)
        # Each image's sigma has its own.
        settings.pop("total_variation", None)
        return {
            **settings,
            "sigma": None,
            "scope": SCOPE,
            "sigma0": self.sigma0,
            "sigma_steps": self.optimizer.steps,
            "sigma_num_noise": self.optimizer.num_noise,
            "sigma_learning_rate": self.optimizer.learning_rate,
        }
