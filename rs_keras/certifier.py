"""The certifier: Monte Carlo certificates for any image classifier."""

import time
from collections.abc import Callable
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from rs_keras import bounds
from rs_keras import noise as noise_lib
from rs_keras.certificate import ABSTAIN
from rs_keras.certificate import Certificate
from rs_keras.certificate import Prediction
from rs_keras.checks import check_choice
from rs_keras.checks import check_count
from rs_keras.checks import check_feasible
from rs_keras.checks import check_images
from rs_keras.checks import check_positive
from rs_keras.checks import check_probability
from rs_keras.classifiers import as_logits
from rs_keras.classifiers import count_classes
from rs_keras.classifiers import probe
from rs_keras.sampling import NOISE_MODES
from rs_keras.sampling import OFF_GRID
from rs_keras.sampling import Sampler
from rs_keras.sampling import shared_out

BOUNDS = ("clopper_pearson", "hoeffding", "bernstein")

# One call of the graph takes about this long, so that Ctrl-C is heard.
_SECONDS_A_CALL = 0.5
_FIRST_PASSES = 8
# Workers must cut the work alike, whatever their speed.
_PASSES_UNDER_STRATEGY = 64


@dataclass(frozen=True)
class _Graphs:
    """A sampler and its traced functions, for one image shape."""

    sampler: Sampler
    count: Callable[..., tf.Tensor]
    soft_sums: Callable[..., tf.Tensor]


class Certifier:
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

    def __init__(
        self,
        model: Any,
        sigma: float = 0.5,
        num_classes: int | None = None,
        batch_size: int | None = None,
        strategy: tf.distribute.Strategy | None = None,
        noise: str = "float",
        dtype: str | None = None,
    ) -> None:
        self.model = model
        self.sigma = check_positive("sigma", sigma)
        if num_classes is not None:
            num_classes = check_count("num_classes", num_classes, 2)
        if batch_size is not None:
            batch_size = check_count("batch_size", batch_size)
        self.num_classes = num_classes
        self.batch_size = batch_size
        self.strategy = strategy
        self.noise = check_choice("noise", noise, NOISE_MODES)
        self.dtype = dtype
        self._logits = as_logits(model, dtype)
        self._graphs: dict[tuple[int, ...], _Graphs] = {}
        self._probed: set[tuple[tuple[int, ...], bool]] = set()
        self._passes = (
            _FIRST_PASSES if strategy is None else _PASSES_UNDER_STRATEGY
        )

    def sampler(self, image_shape: tuple[int, ...]) -> Sampler:
        """Returns the graph that counts votes for images of this shape."""
        return self._graphs_for(tuple(image_shape)).sampler

    def sample(
        self,
        images: Any,
        n: int = 1_000,
        seed: noise_lib.Seed = 7,
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
        seeds = noise_lib.as_seeds(seed, len(images))
        return self._sum(graphs.count, images, seeds, first, n)

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

    def _graphs_for(self, shape: tuple[int, ...]) -> _Graphs:
        if shape not in self._graphs:
            sampler = Sampler(
                self._logits,
                self.sigma,
                count_classes(self._logits, shape, self.num_classes),
                shape,
                self.batch_size or _pass_size(shape),
                self.noise,
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
        images = check_images(images)
        if self.noise == "grid-strict":
            _check_on_grid(images)
        shape = images.shape[1:]
        graphs = self._graphs_for(shape)
        if (shape, soft) not in self._probed:
            seed = tf.zeros([2], tf.int64)
            noisy = graphs.sampler.noisy(
                tf.constant(images[0]), seed, tf.constant(0, tf.int64), 8
            )
            probe(self._logits, noisy, votes=not soft)
            self._probed.add((shape, soft))
        return images, graphs

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
        size = self.sampler(images.shape[1:]).batch_size
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
                self._adapt(time.perf_counter() - begun)
            row = span.stop

    def _adapt(self, seconds: float) -> None:
        if self.strategy is not None:
            return
        if seconds < _SECONDS_A_CALL / 2:
            self._passes *= 2
        elif seconds > _SECONDS_A_CALL * 2 and self._passes > 1:
            self._passes //= 2


def decide_label(
    counts: tf.Tensor, alpha: tf.Tensor | float
) -> tuple[tf.Tensor, tf.Tensor]:
    """PREDICT on counts: (label int64 [B], p-value float64 [B])."""
    counts = tf.convert_to_tensor(counts, tf.int64)
    top = tf.math.top_k(counts, 2)
    p_value = bounds.binomial_pvalue(top.values[:, 0], top.values[:, 1])
    alpha = tf.convert_to_tensor(alpha, tf.float64)
    winner = tf.argmax(counts, -1)
    abstain = tf.constant(ABSTAIN, tf.int64)
    return tf.where(p_value <= alpha, winner, abstain), p_value


def vote_certificate(
    selection: tf.Tensor,
    counts: tf.Tensor,
    n: tf.Tensor | int,
    alpha: tf.Tensor | float,
    sigma: float,
    runner_up: bool,
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """CERTIFY on the votes of the two rounds.

    Args:
        selection: int64 [B, C], the votes that select the class.
        counts: int64 [B, C], the votes of fresh noise.
        n: Draws behind `counts`, scalar or [B].
        alpha: In (0, 1), scalar or [B].
        sigma: Of the noise.
        runner_up: Whether to bound the second class, too.

    Returns:
        label int64 [B] (-1 where it abstains), radius float64 [B], p_lower
        float64 [B].
    """
    counts = tf.convert_to_tensor(counts, tf.int64)
    chosen = tf.argmax(tf.convert_to_tensor(selection, tf.int64), -1)
    k = tf.gather(counts, chosen, batch_dims=1)
    if runner_up:
        # The largest OTHER count of this very round: taking the runner-up's
        # index from the selection round would not be sound.
        hot = tf.one_hot(chosen, tf.shape(counts)[1], True, False)
        others = tf.where(hot, tf.constant(-1, tf.int64), counts)
        k2 = tf.reduce_max(others, -1)
        found = bounds.two_count(k, k2, n, alpha, sigma)
        return _or_abstain(chosen, found.radius, found.lower, ~found.abstain)
    p_lower = bounds.clopper_pearson_lower(k, n, alpha)
    radius = bounds.radius(p_lower, sigma)
    return _or_abstain(chosen, radius, p_lower, p_lower >= 0.5)


def soft_certificate(
    selection: tf.Tensor,
    estimate: tf.Tensor,
    n: int,
    alpha: float,
    sigma: float,
    bound: str,
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """CERTIFY on sums of soft predictions (Soft-RS).

    Args:
        selection: float64 [B, C], sums that select the class.
        estimate: float64 [B, 3, C], votes, sums and sums of squares.
        n: Draws behind `estimate`.
        alpha: In (0, 1).
        sigma: Of the noise.
        bound: "hoeffding" or "bernstein".

    Returns:
        As `vote_certificate`.
    """
    chosen = tf.argmax(selection, -1)
    total, squares = (
        tf.gather(estimate[:, part], chosen, batch_dims=1) for part in (1, 2)
    )
    if bound == "hoeffding":
        p_lower = bounds.hoeffding_lower(total, n, alpha)
    else:
        p_lower = bounds.bernstein_lower(total, squares, n, alpha)
    radius = bounds.radius(p_lower, sigma)
    return _or_abstain(chosen, radius, p_lower, p_lower >= 0.5)


def _or_abstain(
    label: tf.Tensor,
    radius: tf.Tensor,
    p_lower: tf.Tensor,
    certified: tf.Tensor,
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    return (
        tf.where(certified, label, tf.constant(ABSTAIN, tf.int64)),
        tf.where(certified, radius, tf.zeros_like(radius)),
        p_lower,
    )


def _check_on_grid(images: np.ndarray) -> None:
    off = np.abs(images * 255.0 - np.round(images * 255.0)).max()
    if off > OFF_GRID:
        raise ValueError(
            "`images` must be multiples of 1/255 for noise='grid-strict'. "
            f"Received: a pixel {off:.3f}/255 off the grid"
        )


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
