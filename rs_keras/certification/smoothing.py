"""A classifier under noise and its votes: the drawing half of a certifier."""

import time
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from rs_keras import distribution
from rs_keras._checks import check_choice
from rs_keras._checks import check_count
from rs_keras._checks import check_images
from rs_keras._checks import check_positive
from rs_keras.certification.sampling import NOISE_MODES
from rs_keras.certification.sampling import Sampler
from rs_keras.certification.sampling import noise_distance
from rs_keras.certification.sampling import shared_out
from rs_keras.certification.spec import SmoothingSpec
from rs_keras.classifiers.adapters import compute_dtype
from rs_keras.classifiers.adapters import computing_in
from rs_keras.classifiers.adapters import count_classes
from rs_keras.classifiers.adapters import image_shape
from rs_keras.classifiers.adapters import sigma_for
from rs_keras.classifiers.ensembles import soft_predict
from rs_keras.classifiers.model_state import WatchedModel
from rs_keras.classifiers.probe import FEW
from rs_keras.classifiers.probe import check_operations
from rs_keras.classifiers.probe import probe
from rs_keras.classifiers.probe import warn_of_range
from rs_keras.noise import draws as noise_lib
from rs_keras.noise.keyed_seeds import Key
from rs_keras.noise.keyed_seeds import Seed
from rs_keras.noise.keyed_seeds import load_key

# One call of the graph takes about this long, so that Ctrl-C is heard.
_SECONDS_A_CALL = 0.5
_FIRST_PASSES = 8
# Workers must cut the work alike, whatever their speed.
_PASSES_UNDER_STRATEGY = 64
_FIXED = (
    "model",
    "sigma",
    "num_classes",
    "batch_size",
    "strategy",
    "noise",
    "dtype",
    "computing",
)


@dataclass(frozen=True)
class _Graphs:
    """A sampler and its traced functions, for one image shape."""

    sampler: Sampler
    count: Callable[..., tf.Tensor]
    soft_sums: Callable[..., tf.Tensor]


class SmoothedClassifier:
    """Counts how often a base classifier gives each class under noise.

    `Certifier` is built on it, and says what the arguments are.

    Example:

    >>> from rs_keras.certification.smoothing import SmoothedClassifier
    >>> smoothed = SmoothedClassifier(lambda x: x[:, 0, 0, :2], sigma=0.25)
    >>> smoothed.sample([[[[1.0, 0.0]]]], n=1_000).argmax(-1)
    array([0])
    >>> smoothed.sampler((1, 1, 2)).num_classes
    2
    """

    def __init__(
        self,
        model: Any,
        sigma: float | None = None,
        num_classes: int | None = None,
        batch_size: int | None = None,
        strategy: tf.distribute.Strategy | None = None,
        noise: str = "float",
        dtype: str | None = None,
        key: Key = None,
    ) -> None:
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
        # What votes: a copy where it computes in another type than `model`.
        self.computing = model if dtype is None else computing_in(model, dtype)
        self._watched = WatchedModel(self.computing)
        self._logits = self._watched.logits
        self._graphs: dict[tuple[int, ...], _Graphs] = {}
        self._probed: set[tuple[tuple[int, ...], bool]] = set()
        self._passes = (
            _FIRST_PASSES if strategy is None else _PASSES_UNDER_STRATEGY
        )

    def __setattr__(self, name: str, value: Any) -> None:
        # Once it is built: traced graphs hold them, so that the votes would
        # stay and their meaning move.
        if name in _FIXED and "_passes" in self.__dict__:
            raise AttributeError(
                f"`{name}` of a certifier is fixed: make another one. "
                f"Received: {name}={value!r}"
            )
        super().__setattr__(name, value)

    def sampler(self, image_shape: tuple[int, ...]) -> Sampler:
        """Returns the graph that counts votes for images of this shape."""
        return self._graphs_for(tuple(image_shape)).sampler

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
            n: Draws an image, >= 1.
            seed: See `rs_keras.noise.as_seeds`.
            first: Number of the first draw, >= 0. Counts of adjoining ranges
                add up to those of the whole.

        Returns:
            int64 [B, num_classes].

        Raises:
            ValueError: For arguments out of range, or more draws than a seed
                has numbers for.

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
        images, graphs = self._prepare(images)
        most = noise_lib.addressed_draws(images.shape[1:])
        if first + n > most:
            raise ValueError(
                f"`first` + `n` must be <= {most} for images of shape "
                f"{list(images.shape[1:])}. Received: first={first}, n={n}"
            )
        seeds = self._seeds(seed, images)
        return self._sum(graphs.count, images, seeds, first, n)

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
            n: Draws an image, >= 1.
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
        checked, graphs = self._prepare(images, soft=True)
        # Nothing is shared out here, so no worker waits for another's seed.
        own = noise_lib.as_seeds(
            seed, len(checked), checked, self._key, self.noise
        )
        seeds = tf.constant(own)
        if not tf.is_tensor(images) or images.dtype != tf.float32:
            images = tf.constant(checked)
        return soft_predict(graphs.sampler, images, seeds, n, beta)

    def _deviation(self) -> float | tf.Variable:
        """The sigma that graphs are made with."""
        return self.sigma

    def _grid_table(self) -> Any:
        """The noise on the grid where sigma varies; else sigma tells it."""
        return None

    def _smoothing(
        self, shape: Sequence[int | None] | None = None
    ) -> SmoothingSpec:
        """The noise, its distance 0 where no one knows the images' shape."""
        shape = shape or image_shape(self.model) or ()
        known = [size for size in shape if size]
        distance = 0.0
        if len(known) == 3:
            distance = noise_distance(self.noise, self.sigma, known)
        return SmoothingSpec(self.sigma, self.noise, self.dtype, distance)

    def _graphs_for(self, shape: tuple[int, ...]) -> _Graphs:
        self._watched.check_unchanged()
        if shape not in self._graphs:
            traced = self._watched.trace(shape)
            check_operations(traced)
            sampler = Sampler(
                self._logits,
                self._deviation(),
                count_classes(traced, self.num_classes),
                shape,
                self.batch_size or _pass_size(shape),
                noise=self.noise,
                table=self._grid_table(),
            )
            row = [
                tf.TensorSpec([None, *shape], tf.float32),
                tf.TensorSpec([None, 2], tf.int64),
                tf.TensorSpec([None], tf.int64),
                tf.TensorSpec([None], tf.int64),
            ]
            beta = tf.TensorSpec([], tf.float64)
            self._graphs[shape] = _Graphs(
                sampler,
                tf.function(self._shared(sampler.count), row),
                tf.function(self._shared(sampler.soft_sums), [*row, beta]),
            )
        return self._graphs[shape]

    def _shared(self, graph: Callable[..., tf.Tensor]) -> Callable:
        """Lets each replica of the strategy draw its part of the range."""
        if self.strategy is None:
            return graph
        strategy = self.strategy

        def on_replica(images, seeds, first, n, *rest):  # type: ignore
            context = tf.distribute.get_replica_context()
            replica = tf.cast(context.replica_id_in_sync_group, tf.int64)
            replicas = context.num_replicas_in_sync
            first, n = shared_out(replicas, replica, first, n)
            return graph(images, seeds, first, n, *rest)

        def on_all(*args: tf.Tensor) -> tf.Tensor:
            parts = strategy.run(on_replica, args)
            return strategy.reduce("SUM", parts, axis=None)

        return on_all

    def _prepare(
        self, images: Any, soft: bool = False
    ) -> tuple[np.ndarray, _Graphs]:
        """Checks the images, and the model on the first that it sees."""
        images = check_images(images, image_shape(self.model))
        shape = images.shape[1:]
        graphs = self._graphs_for(shape)
        if (shape, soft) not in self._probed:
            seed = tf.zeros([2], tf.int64)
            size = graphs.sampler.batch_size
            noisy = graphs.sampler.noisy(
                tf.constant(images[0]),
                seed,
                tf.constant(0, tf.int64),
                max(size, FEW),
            )
            classes = graphs.sampler.num_classes
            traced = self._watched.traced[shape]
            probe(traced, noisy, size, classes, votes=not soft)
            if (shape, not soft) not in self._probed:
                warn_of_range(traced, images[0])
            self._probed.add((shape, soft))
        return images, graphs

    def _seeds(self, seed: Seed, images: np.ndarray) -> np.ndarray:
        seeds = noise_lib.as_seeds(
            seed, len(images), images, self._key, self.noise
        )
        if seed is not None:
            return seeds
        # Each worker has an entropy of its own, and all make one draw.
        data = distribution.from_chief(self.strategy, seeds.tobytes())
        return np.frombuffer(data or b"", np.int64).reshape(seeds.shape)

    def _sum(
        self,
        graph: Callable[..., tf.Tensor],
        images: np.ndarray,
        seeds: np.ndarray,
        first: int,
        n: int,
        beta: float | None = None,
    ) -> np.ndarray:
        """Runs the graph over all rows and draws, a slice at a time."""
        # Not by `sampler`, which looks at the whole model again.
        size = self._graphs[images.shape[1:]].sampler.batch_size
        rest = [] if beta is None else [tf.constant(beta, tf.float64)]
        total: np.ndarray | None = None
        for rows, done, take in self._slices(len(images), n, size):
            part = graph(
                tf.constant(images[rows]),
                tf.constant(seeds[rows]),
                tf.fill([len(images[rows])], tf.constant(first + done)),
                tf.fill([len(images[rows])], tf.constant(take)),
                *rest,
            ).numpy()
            if total is None:
                total = np.zeros([len(images), *part.shape[1:]], part.dtype)
            total[rows] += part
        if total is None:
            raise RuntimeError("no image, no draw: nothing was sampled")
        return total

    def _slices(
        self, rows: int, n: int, size: int
    ) -> Iterator[tuple[slice, np.int64, np.int64]]:
        """Cuts rows x draws into calls of about the same time.

        Several rows share a call when a row is short, several calls share a
        row when it is long.
        """
        row = 0
        while row < rows:
            together = max(1, self._passes // -(-n // size))
            span = slice(row, min(row + together, rows))
            done = 0
            while done < n:
                begun = time.perf_counter()
                take = n if together > 1 else min(n - done, self._passes * size)
                yield span, np.int64(done), np.int64(take)
                done += take
                # A call with little to do says nothing of how long a full
                # one takes.
                if 2 * (span.stop - row) * -(-take // size) > self._passes:
                    self._adapt(time.perf_counter() - begun)
            row = span.stop

    def _adapt(self, seconds: float) -> None:
        if self.strategy is not None:
            return
        if seconds < _SECONDS_A_CALL / 2:
            self._passes *= 2
        elif seconds > _SECONDS_A_CALL * 2 and self._passes > 1:
            self._passes //= 2


def _pass_size(shape: tuple[int, ...]) -> int:
    """Noisy copies a pass, by the size of an image and the device.

    On a CPU the activations should stay in its cache (measured on LeNet: 400
    copies of 28 x 28 x 1 are best), on an accelerator they should fill it.
    """
    accelerators = tf.config.list_logical_devices(
        "GPU"
    ) or tf.config.list_logical_devices("TPU")
    pixels = int(np.prod(shape))
    if accelerators:
        return int(np.clip(2_000_000 // pixels, 64, 1_000))
    return int(np.clip(320_000 // pixels, 16, 400))
