"""Composition: a smoothed router that chooses among smoothed experts."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from rs_keras._checks import check_images
from rs_keras._checks import check_probability
from rs_keras.certification.certificate import ABSTAIN
from rs_keras.certification.certificate import Certificate
from rs_keras.certification.certifier import Certifier
from rs_keras.classifiers.fingerprint import fingerprint
from rs_keras.noise import draws as noise_lib
from rs_keras.noise.keyed_seeds import Seed


class Composition:
    """What `compose` returns.

    Example:

    >>> from rs_keras import Certifier
    >>> from rs_keras import compose
    >>> def first_two(x):
    ...     return x[:, 0, 0, :2]
    >>> both = compose(Certifier(first_two, 0.5),
    ...                [Certifier(first_two, 0.25), Certifier(first_two, 1.0)])
    >>> both.settings()["expert_sigmas"]
    [0.25, 1.0]
    >>> found = both.certify([[[[0.9, 0.1]]]], n=1_000, seed=1)
    >>> found.label, found.radius.round(2)
    (array([0]), array([0.47]))
    >>> both.model is both, both.fingerprint
    (True, None)
    """

    def __init__(self, router: Certifier, experts: Sequence[Certifier]) -> None:
        self.router = router
        self.experts = list(experts)
        if not self.experts:
            raise ValueError(
                "`experts` must hold at least one certifier. Received: none"
            )
        # The statement says what both certificates rest on.
        for name in ("noise", "dtype"):
            given = [getattr(part, name) for part in (router, *self.experts)]
            if len(set(given)) > 1:
                raise ValueError(
                    f"`experts` must have the router's {name}. Received: "
                    f"{name}={given[0]!r} of the router, {given[1:]} of the "
                    "experts"
                )

    @property
    def model(self) -> "Composition":
        """What is certified: this, which tells its `fingerprint`."""
        return self

    @property
    def fingerprint(self) -> str | None:
        """A hash of all weights; None if there is a part without."""
        certifiers = (self.router, *self.experts)
        parts = [fingerprint(part.computing) for part in certifiers]
        return None if None in parts else "-".join(map(str, parts))

    def certify(
        self,
        images: Any,
        alpha: float = 1e-3,
        seed: Seed = None,
        **certify_arguments: Any,
    ) -> Certificate:
        """Certifies the composed classifier.

        Args:
            images: [B, H, W, C] in [0, 1].
            alpha: Probability of a certificate that is not true, an image;
                half of it goes to the router, half to the expert.
            seed: See `rs_keras.noise.as_seeds`; "keyed" takes the router's key.
            **certify_arguments: n0, n, ..., for each of the two; see
                `Certifier.certify`.

        Returns:
            A `Certificate` whose counts are those of the expert that was
            chosen (zeros where the router abstains).

        Raises:
            ValueError: As `Certifier.certify`; or if the router's classes are
                not the experts' numbers, or the experts' classes differ.
        """
        images = check_images(images)
        settings = self.settings(
            alpha, **certify_arguments, image_shape=images.shape[1:]
        )
        classes = self._checked_classes(images.shape[1:])
        seeds = self.router.seeds(seed, images)
        arguments = {**certify_arguments, "alpha": alpha / 2}

        def derived(rows: np.ndarray, use: int) -> np.ndarray:
            return np.stack([noise_lib.fold_in(row, use) for row in rows])

        route = self.router.certify(images, seed=derived(seeds, 0), **arguments)
        # Sums of soft predictions are not whole numbers.
        kind = route.counts.dtype
        joined = Certificate(
            label=np.full(len(images), ABSTAIN),
            radius=np.zeros(len(images)),
            p_lower=np.zeros(len(images)),
            counts=np.zeros((len(images), classes), kind),
            selection_counts=np.zeros((len(images), classes), np.int64),
            n=route.n.copy(),
            seed=seeds,
            settings=settings,
        )
        for number in np.unique(route.label[route.label != ABSTAIN]):
            rows = route.label == number
            part = self.experts[number].certify(
                images[rows], seed=derived(seeds[rows], 1), **arguments
            )
            for name in ("label", "p_lower", "counts", "selection_counts"):
                getattr(joined, name)[rows] = getattr(part, name)
            joined.radius[rows] = np.minimum(route.radius[rows], part.radius)
            joined.n[rows] += part.n
        return joined

    def settings(
        self, alpha: float = 1e-3, **certify_arguments: Any
    ) -> dict[str, Any]:
        """Validates the arguments of `certify` and returns them as settings.

        The arguments and errors are those of `certify`.
        """
        alpha = check_probability("alpha", alpha)
        arguments = {**certify_arguments, "alpha": alpha / 2}
        parts = [
            part.settings(**arguments) for part in (self.router, *self.experts)
        ]
        largest = max(part.get("total_variation", 0.0) for part in parts)
        exact = {"total_variation": largest} if largest else {}
        return {
            **parts[0],
            **exact,
            "alpha": alpha,
            "sigma": None,
            "scope": "composition",
            "router_sigma": self.router.sigma,
            "expert_sigmas": [expert.sigma for expert in self.experts],
        }

    def _checked_classes(self, shape: tuple[int, ...]) -> int:
        """Returns how many classes the experts have."""
        routes = self.router.sampler(shape).num_classes
        if routes != len(self.experts):
            raise ValueError(
                "`router` must have one class an expert. Received: "
                f"{routes} classes, {len(self.experts)} experts"
            )
        classes = [part.sampler(shape).num_classes for part in self.experts]
        if len(set(classes)) > 1:
            raise ValueError(
                "`experts` must have the same classes. "
                f"Received: {classes} classes"
            )
        return classes[0]


def compose(router: Certifier, experts: Sequence[Certifier]) -> Composition:
    """Lets a smoothed router choose the smoothed expert that answers.

    The composed classifier is h(x) = g_{r(x)}(x), with r the smoothed router
    and g_k the smoothed experts, each with a sigma of its own. Where the
    router's answer is constant (radius R_r) and the chosen expert's is (radius
    R_g), h is constant: its radius is min(R_r, R_g), with alpha split over the
    two certificates. So it may use several sigmas, which a sigma chosen freely
    for each image may not.

    Args:
        router: Its classes are the numbers of the experts.
        experts: Certifiers over the same classes, each at its own sigma.

    Returns:
        An object with `certify`, as a `Certifier` has.

    Raises:
        ValueError: If there is no expert, or one draws another kind of noise
            or computes in another type than the router.

    Example:

    >>> import tensorflow as tf
    >>> from rs_keras import Certifier
    >>> from rs_keras import compose
    >>> def bright(x):
    ...     score = tf.reduce_mean(x, [1, 2, 3]) - 0.5
    ...     return tf.stack([-score, score], -1)
    >>> sharp, soft = Certifier(bright, 0.25), Certifier(bright, 1.0)
    >>> both = compose(Certifier(bright, 0.5), [sharp, soft])
    >>> found = both.certify(tf.fill([1, 8, 8, 1], 0.9), n=1_000, seed=1)
    >>> int(found.label[0])
    1

    References:
    - [Horvath et al., 2022](https://arxiv.org/abs/2204.00487)
    """
    return Composition(router, experts)
