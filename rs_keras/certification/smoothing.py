"""The smoothed classifier: a base classifier, checked, and its votes."""

from collections.abc import Sequence
from typing import Any
from typing import Literal

import numpy as np
import tensorflow as tf

from rs_keras import distribution
from rs_keras._checks import check_choice
from rs_keras._checks import check_count
from rs_keras._checks import check_images
from rs_keras._checks import check_positive
from rs_keras._compat import check_backend
from rs_keras.certification.sampling import NOISE_MODES
from rs_keras.certification.sampling import Sampler
from rs_keras.certification.sampling import SamplingLoop
from rs_keras.certification.sampling import noise_distance
from rs_keras.certification.sampling import pass_size
from rs_keras.certification.spec import SmoothingSpec
from rs_keras.classifiers import probe
from rs_keras.classifiers.adapters import count_classes
from rs_keras.classifiers.adapters import image_shape
from rs_keras.classifiers.adapters import sigma_for
from rs_keras.classifiers.checkpoints import opened
from rs_keras.classifiers.model_state import WatchedModel
from rs_keras.classifiers.precision import compute_dtype
from rs_keras.classifiers.precision import computing_in
from rs_keras.noise import draws as noise_lib
from rs_keras.noise.keyed_seeds import Key
from rs_keras.noise.keyed_seeds import Seed
from rs_keras.noise.keyed_seeds import load_key


class SmoothedClassifier:
    """Counts how often a base classifier gives each class under noise.

    The base class of `Certifier`, which documents the arguments.

    Example:

    >>> from rs_keras.certification.smoothing import SmoothedClassifier
    >>> smoothed = SmoothedClassifier(lambda x: x[:, 0, 0, :2], sigma=0.25)
    >>> smoothed.sample([[[[1.0, 0.0]]]], n=1_000).argmax(-1)
    array([0])
    >>> smoothed.sampler((1, 1, 2)).num_classes
    2
    """

    # Attributes that traced graphs hold.
    _fixed = frozenset(
        """
        model sigma num_classes batch_size strategy noise dtype computing
        """.split()
    )

    def __init__(
        self,
        model: Any,
        sigma: float | None = None,
        num_classes: int | None = None,
        batch_size: int | None = None,
        strategy: tf.distribute.Strategy | None = None,
        noise: Literal["float", "grid"] = "float",
        dtype: str | None = None,
        key: Key = None,
    ) -> None:
        check_backend()
        model, sigma = opened(model, sigma)
        self.model = model
        self.sigma = sigma_for(model, sigma)
        if num_classes is not None:
            num_classes = check_count("num_classes", num_classes, 2)
        if batch_size is not None:
            batch_size = check_count("batch_size", batch_size)
        self.num_classes = num_classes
        self.batch_size = batch_size
        self.strategy = strategy
        self.noise = check_choice("noise", noise, NOISE_MODES)
        self.dtype = compute_dtype(model) if dtype is None else dtype
        self._key = None if key is None else load_key(key)
        # The model that votes: a copy if it computes in another type.
        self.computing = model if dtype is None else computing_in(model, dtype)
        self._watched = WatchedModel(self.computing, num_classes)
        self._loops: dict[tuple[int, ...], SamplingLoop] = {}
        self._probed: set[tuple[tuple[int, ...], bool]] = set()

    def __setattr__(self, name: str, value: Any) -> None:
        # Traced graphs would keep the old value.
        if name in self._fixed and "_probed" in self.__dict__:
            raise AttributeError(
                f"`{name}` of a certifier is fixed: make another one. "
                f"Received: {name}={value!r}"
            )
        super().__setattr__(name, value)

    def sampler(self, image_shape: tuple[int, ...]) -> Sampler:
        """Returns the graph that counts votes for images of this shape."""
        return self._loop_for(tuple(image_shape)).sampler

    def sample(
        self,
        images: Any,
        n: int = 1_000,
        seed: Seed = 7,
        first: int = 0,
    ) -> np.ndarray:
        """Counts the votes of draws `first` .. `first + n - 1`.

        Args:
            images: [B, H, W, C], in [0, 1].
            n: Draws per image, >= 1.
            seed: See `rs_keras.noise.as_seeds`.
            first: Number of the first draw, >= 0. Counts of adjoining ranges
                add up to those of the whole.

        Returns:
            int64 [B, num_classes].

        Raises:
            ValueError: For arguments out of range, or draw numbers beyond those
                that a seed addresses.

        Example:

        >>> import tensorflow as tf
        >>> from rs_keras import Certifier
        >>> certifier = Certifier(lambda x: x[:, 0, 0, :2] - 0.5, sigma=1.0)
        >>> image = tf.ones([1, 4, 4, 3])
        >>> whole = certifier.sample(image, n=100, seed=7)
        >>> head = certifier.sample(image, n=30, seed=7)
        >>> tail = certifier.sample(image, n=70, seed=7, first=30)
        >>> bool((whole == head + tail).all())
        True
        """
        n = check_count("n", n)
        first = check_count("first", first, 0)
        images, loop = self._prepare(images)
        most = noise_lib.addressed_draws(images.shape[1:])
        if first + n > most:
            raise ValueError(
                f"`first` + `n` must be <= {most} for images of shape "
                f"{list(images.shape[1:])}. Received: first={first}, n={n}"
            )
        return loop.draw(images, self.seeds(seed, images), first, n)

    def soft_predict(
        self,
        images: Any,
        n: int = 100,
        beta: float = 1.0,
        seed: Seed = None,
    ) -> tf.Tensor:
        """The mean soft prediction under noise, differentiable.

        softmax(beta * logits), averaged over n draws: for gradients of the
        smoothed classifier, to attack or to explain it. Not a certificate.

        Args:
            images: [B, H, W, C], in [0, 1]; a tensor that a gradient is taken
                of, or anything that the other methods take.
            n: Draws per image, >= 1.
            beta: Inverse temperature, > 0.
            seed: See `rs_keras.noise.as_seeds`; None is fresh entropy.

        Returns:
            float32 [B, num_classes].

        Example:

        >>> import tensorflow as tf
        >>> from rs_keras import Certifier
        >>> certifier = Certifier(lambda x: x[:, 0, 0, :2], sigma=0.5)
        >>> image = tf.fill([1, 4, 4, 3], 0.5)
        >>> with tf.GradientTape() as tape:
        ...     tape.watch(image)
        ...     p = certifier.soft_predict(image, n=50, seed=7)[0, 0]
        >>> bool(tape.gradient(p, image)[0, 0, 0, 0] > 0)
        True
        """
        n = check_count("n", n)
        beta = check_positive("beta", beta)
        checked, loop = self._prepare(images, soft=True)
        # Each worker draws alone here, so the seed need not be the chief's.
        own = noise_lib.as_seeds(
            seed, len(checked), checked, self._key, self.noise
        )
        seeds = tf.constant(own)
        if not tf.is_tensor(images) or images.dtype != tf.float32:
            images = tf.constant(checked)
        return loop.sampler.soft_predict(images, seeds, n, beta)

    def _graph_noise(self) -> dict[str, Any]:
        """Returns the fields of a `Sampler` that hold sigma."""
        return {"sigma": self.sigma}

    def _smoothing(
        self, shape: Sequence[int | None] | None = None
    ) -> SmoothingSpec:
        """Returns the noise; distance 0 as long as the shape is unknown."""
        shape = shape or image_shape(self.model) or ()
        known = [size for size in shape if size]
        distance = 0.0
        if len(known) == 3:
            distance = noise_distance(self.noise, self.sigma, known)
        return SmoothingSpec(self.sigma, self.noise, self.dtype, distance)

    def _loop_for(self, shape: tuple[int, ...]) -> SamplingLoop:
        self._watched.check_unchanged()
        if shape not in self._loops:
            traced = self._watched.trace(shape)
            probe.check_operations(traced)
            sampler = Sampler(
                logits=self._watched,
                num_classes=count_classes(traced, self.num_classes),
                image_shape=shape,
                batch_size=self.batch_size or pass_size(shape),
                noise=self.noise,
                **self._graph_noise(),
            )
            self._loops[shape] = SamplingLoop(sampler, self.strategy)
        return self._loops[shape]

    def _prepare(
        self, images: Any, soft: bool = False
    ) -> tuple[np.ndarray, SamplingLoop]:
        """Checks the images; probes the model once for each shape."""
        images = check_images(images, image_shape(self.model))
        shape = images.shape[1:]
        loop = self._loop_for(shape)
        if (shape, soft) not in self._probed:
            sampler, traced = loop.sampler, self._watched.traced[shape]
            noisy = sampler.noisy(
                tf.constant(images[0]),
                tf.zeros([2], tf.int64),
                tf.constant(0, tf.int64),
                max(sampler.batch_size, probe.FEW),
            )
            probe.probe(
                traced,
                noisy,
                sampler.batch_size,
                sampler.num_classes,
                votes=not soft,
            )
            if (shape, not soft) not in self._probed:
                probe.warn_of_range(traced, images[0])
            self._probed.add((shape, soft))
        return images, loop

    def seeds(self, seed: Seed, images: np.ndarray) -> np.ndarray:
        """Returns the seed of each image, the same on all workers.

        Args:
            seed: See `rs_keras.noise.as_seeds`; None is fresh entropy.
            images: float32 [B, H, W, C].

        Returns:
            int64 [B, 2].
        """
        seeds = noise_lib.as_seeds(
            seed, len(images), images, self._key, self.noise
        )
        if seed is not None:
            return seeds
        # Each worker has its own entropy; all must draw the same noise.
        data = distribution.from_chief(self.strategy, seeds.tobytes())
        return np.frombuffer(data or b"", np.int64).reshape(seeds.shape)
