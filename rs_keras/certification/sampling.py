"""Sampling: the graph that counts votes under noise, and the loop that runs it.

The graph is a function of (images, seeds, first, n) alone; the certifier runs
it in process and the exporter writes the same one into a SavedModel.
"""

import time
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import replace
from typing import Any

import numpy as np
import tensorflow as tf

from rs_keras._checks import check_choice
from rs_keras.classifiers.adapters import Logits
from rs_keras.classifiers.adapters import prepared
from rs_keras.noise import draws as noise_lib
from rs_keras.noise.grid import LEVELS
from rs_keras.noise.grid import grid_distance
from rs_keras.noise.grid import grid_noise
from rs_keras.noise.grid import grid_steps

NOISE_MODES = ("float", "grid")

# One call of the graph takes about this long, so that Ctrl-C takes effect.
_SECONDS_A_CALL = 0.5
_FIRST_PASSES = 8
# All workers must split the work identically, whatever their speed.
_PASSES_UNDER_STRATEGY = 64


def noise_distance(noise: str, sigma: float, shape: Sequence[int]) -> float:
    """Bounds the total variation between one draw and the ideal one.

    Of all pixels of an image together. 0 for "float", whose guarantee is that
    of real arithmetic.

    Args:
        noise: One of `NOISE_MODES`.
        sigma: Standard deviation of the noise.
        shape: (H, W, C).

    Raises:
        ValueError: For another mode: 0 is no bound for what is not known.
    """
    check_choice("noise", noise, NOISE_MODES)
    return grid_distance(sigma, shape) if noise == "grid" else 0.0


@dataclass(frozen=True)
class Sampler:
    """The smoothed classifier: a base classifier, a noise and a pass size.

    Attributes:
        logits: From images [m, H, W, C] to logits [m, num_classes].
        sigma: Standard deviation of the noise; a variable where it changes.
        num_classes: Columns of the logits.
        image_shape: (H, W, C).
        batch_size: Noisy copies a pass; of no influence on any count.
        noise: "float" or "grid"; see `Certifier`.
        table: The noise on the grid where sigma is a variable: a `GridNoise`
            whose fields are variables, too.
    """

    logits: Logits
    sigma: float | tf.Variable
    num_classes: int
    image_shape: Sequence[int]
    batch_size: int
    noise: str = "float"
    table: Any = None

    # AutoGraph takes a second for what is made of graph operations already. It
    # is there for the classifier, which may have Python's `if` and `for`.
    @tf.autograph.experimental.do_not_convert
    def noisy(
        self, image: tf.Tensor, seed: tf.Tensor, first: tf.Tensor, m: tf.Tensor
    ) -> tf.Tensor:
        """Draws first .. first+m-1 of one image: [m, H, W, C], float32."""
        if self.noise == "float":
            eps = noise_lib.normal(self.image_shape, seed, first, m)
            return image + self._sigma_above() * eps
        words = noise_lib.words(self.image_shape, seed, first, m)
        table = self.table or grid_noise(self.sigma)
        steps = grid_steps(words, table.entries, table.bits)
        # Whole numbers below 2**24 are exact in float32: what the network gets
        # is a function of the point on the grid.
        return (tf.round(image * LEVELS) + steps) / LEVELS

    def _sigma_above(self) -> tf.Tensor:
        """Sigma in float32, rounded up: more noise than the radius assumes."""
        exact = tf.convert_to_tensor(self.sigma, tf.float64)
        near = tf.cast(exact, tf.float32)
        above = tf.math.nextafter(near, tf.constant(np.inf, tf.float32))
        return tf.where(tf.cast(near, tf.float64) < exact, above, near)

    def count(
        self,
        images: tf.Tensor,
        seeds: tf.Tensor,
        first: tf.Tensor,
        n: tf.Tensor,
    ) -> tf.Tensor:
        """Votes of draws first .. first+n-1 of every row.

        A draw whose logits are not finite votes for no class.

        Args:
            images: float32 [B, H, W, C].
            seeds: int64 [B, 2].
            first: int64 [B].
            n: int64 [B]; a row with n <= 0 draws nothing.

        Returns:
            int64 [B, num_classes].
        """
        rows = images, seeds, first, n
        return self._accumulate(self._votes, tf.int64, 1, rows)[:, 0]

    def soft_sums(
        self,
        images: tf.Tensor,
        seeds: tf.Tensor,
        first: tf.Tensor,
        n: tf.Tensor,
        beta: tf.Tensor,
    ) -> tf.Tensor:
        """Votes, sums and sums of squares of softmax(beta * logits).

        Args:
            images: float32 [B, H, W, C].
            seeds: int64 [B, 2].
            first: int64 [B].
            n: int64 [B].
            beta: Inverse temperature, float64 scalar.

        Returns:
            float64 [B, 3, num_classes].
        """

        def sums(logits: tf.Tensor) -> tf.Tensor:
            # Three rows, [1, num_classes] each, of the m copies of a pass.
            votes = tf.cast(self._votes(logits), tf.float64)
            soft = tf.nn.softmax(beta * tf.cast(logits, tf.float64))
            soft = tf.where(self._finite(logits), soft, 0.0)
            total = tf.reduce_sum(soft, 0, keepdims=True)
            squares = tf.reduce_sum(soft * soft, 0, keepdims=True)
            return tf.concat([votes, total, squares], 0)

        return self._accumulate(sums, tf.float64, 3, (images, seeds, first, n))

    def soft_predict(
        self, images: tf.Tensor, seeds: tf.Tensor, n: int, beta: float = 1.0
    ) -> tf.Tensor:
        """Mean of softmax(beta * logits) over draws 0 .. n-1, with gradients.

        Of the images and of the classifier's weights. Each pass is computed
        again for its gradient, so memory does not grow with `n`. The noise is
        not rounded to a grid here, as rounding has no gradient.

        Args:
            images: float32 [B, H, W, C].
            seeds: int64 [B, 2].
            n: Draws an image, >= 1.
            beta: Inverse temperature, > 0.

        Returns:
            float32 [B, num_classes].
        """
        smooth = replace(self, noise="float")

        @tf.recompute_grad
        def total(
            image: tf.Tensor, seed: tf.Tensor, first: tf.Tensor, m: tf.Tensor
        ) -> tf.Tensor:
            logits = smooth.logits(smooth.noisy(image, seed, first, m))
            soft = tf.nn.softmax(beta * tf.cast(logits, tf.float32))
            return tf.reduce_sum(soft, 0)

        def mean(image: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
            sums = [
                total(
                    image,
                    seed,
                    tf.constant(first, tf.int64),
                    tf.constant(min(self.batch_size, n - first), tf.int64),
                )
                for first in range(0, n, self.batch_size)
            ]
            return tf.add_n(sums) / n

        rows = zip(tf.unstack(images), tf.unstack(seeds), strict=True)
        return tf.stack([mean(image, seed) for image, seed in rows])

    @staticmethod
    def _finite(logits: tf.Tensor) -> tf.Tensor:
        return tf.reduce_all(tf.math.is_finite(logits), -1, keepdims=True)

    @tf.autograph.experimental.do_not_convert
    def _votes(self, logits: tf.Tensor) -> tf.Tensor:
        # Class -1 has no column, so that it gets no vote.
        winner = tf.argmax(logits, -1)
        winner = tf.where(self._finite(logits)[:, 0], winner, -1)
        hot = tf.one_hot(winner, self.num_classes, dtype=tf.int64)
        return tf.reduce_sum(hot, 0, keepdims=True)

    def _accumulate(
        self,
        statistic: Callable[[tf.Tensor], tf.Tensor],
        dtype: tf.DType,
        size: int,
        rows: tuple[tf.Tensor, ...],
    ) -> tf.Tensor:
        """Sums `statistic(logits)` over the draws, one while loop for all rows.

        Each iteration runs the network on noisy copies that the one before
        made, and makes the next: the two share no input, so they run at the
        same time, in a server's session too. (Iterations of this loop do not
        overlap there: inlined, its constants wait for all loop variables, the
        sums among them.) Pass number t finds its row and its first draw from t
        alone; beyond the last pass lies a row that draws nothing.

        Args:
            statistic: From logits [m, num_classes] to [size, num_classes].
            dtype: Of the statistic.
            size: Of the statistic.
            rows: Images, seeds, first and n, as of `count`.
        """
        images, seeds, first, n = map(_with_empty_row, rows)
        batch = tf.constant(self.batch_size, tf.int64)
        # Row i takes passes[i] passes, the last of them number ends[i] - 1.
        passes = (tf.maximum(n, 0) + batch - 1) // batch
        ends = tf.cumsum(passes)
        last = tf.size(n) - 1
        network = prepared(self.logits)

        def copies(t: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            row = tf.searchsorted(ends, [t], side="right")[0]
            row = tf.minimum(row, last)
            done = (t - ends[row] + passes[row]) * batch
            m = tf.clip_by_value(n[row] - done, 0, batch)
            start = first[row] + done
            return row, self.noisy(images[row], seeds[row], start, m)

        def one_pass(z: tf.Tensor) -> tf.Tensor:
            logits = tf.ensure_shape(network(z), [None, self.num_classes])
            return statistic(logits)

        def next_pass(
            t: tf.Tensor, row: tf.Tensor, z: tf.Tensor, sums: tf.Tensor
        ) -> tuple[tf.Tensor, ...]:
            sums = tf.tensor_scatter_nd_add(sums, [[row]], [one_pass(z)])
            return t + 1, *copies(t + 1), sums

        zero = tf.constant(0, tf.int64)
        # With the row past the end.
        sums = tf.zeros([last + 1, size, self.num_classes], dtype)
        fixed = tf.TensorShape([])
        copied = tf.TensorShape([None, *self.image_shape])
        *_, sums = tf.while_loop(
            lambda t, *_: t < ends[-1],
            next_pass,
            (zero, *copies(zero), sums),
            shape_invariants=(fixed, fixed, copied, sums.shape),
            parallel_iterations=1,
        )
        return sums[:-1]


def _with_empty_row(rows: tf.Tensor) -> tf.Tensor:
    return tf.pad(rows, [[0, 1], *[[0, 0]] * (rows.shape.rank - 1)])


class SamplingLoop:
    """Runs a sampler's graphs, in calls short enough to be interrupted.

    Args:
        sampler: The graphs.
        strategy: Whose replicas share the draws of each call; None for one
            device.
    """

    def __init__(
        self, sampler: Sampler, strategy: tf.distribute.Strategy | None = None
    ) -> None:
        self.sampler = sampler
        self._strategy = strategy
        rows = [
            tf.TensorSpec([None, *sampler.image_shape], tf.float32),
            tf.TensorSpec([None, 2], tf.int64),
            tf.TensorSpec([None], tf.int64),
            tf.TensorSpec([None], tf.int64),
        ]
        beta = tf.TensorSpec([], tf.float64)
        self._count = tf.function(self._shared(sampler.count), rows)
        self._soft_sums = tf.function(
            self._shared(sampler.soft_sums), [*rows, beta]
        )
        self._passes = (
            _FIRST_PASSES if strategy is None else _PASSES_UNDER_STRATEGY
        )

    def draw(
        self,
        images: np.ndarray,
        seeds: np.ndarray,
        first: int,
        n: int,
        beta: float | None = None,
    ) -> np.ndarray:
        """Returns the sums over draws first .. first+n-1 of each image.

        Args:
            images: float32 [B, H, W, C].
            seeds: int64 [B, 2].
            first: Number of the first draw.
            n: Draws an image.
            beta: None counts votes, int64 [B, num_classes]; a number gives
                `Sampler.soft_sums` at this inverse temperature.
        """
        graph, betas = self._count, []
        if beta is not None:
            graph, betas = self._soft_sums, [tf.constant(beta, tf.float64)]
        sums: list[np.ndarray] = []
        for rows, done, take in self._slices(len(images), n):
            part = graph(
                tf.constant(images[rows]),
                tf.constant(seeds[rows]),
                tf.fill([len(images[rows])], tf.constant(first + done)),
                tf.fill([len(images[rows])], tf.constant(take)),
                *betas,
            ).numpy()
            if done:
                sums[-1] += part
            else:
                sums.append(part)
        return np.concatenate(sums)

    def _shared(self, graph: Callable[..., tf.Tensor]) -> Callable:
        """Lets each replica of the strategy draw its part of the range."""
        if self._strategy is None:
            return graph
        strategy = self._strategy

        def on_replica(images, seeds, first, n, *betas):  # type: ignore
            context = tf.distribute.get_replica_context()
            replica = tf.cast(context.replica_id_in_sync_group, tf.int64)
            replicas = context.num_replicas_in_sync
            low, high = n * replica // replicas, n * (replica + 1) // replicas
            return graph(images, seeds, first + low, high - low, *betas)

        def on_all(*args: tf.Tensor) -> tf.Tensor:
            parts = strategy.run(on_replica, args)
            return strategy.reduce("SUM", parts, axis=None)

        return on_all

    def _slices(
        self, rows: int, n: int
    ) -> Iterator[tuple[slice, np.int64, np.int64]]:
        """Cuts rows x draws into calls of about the same time.

        Several rows share a call when a row is short, several calls share a
        row when it is long.

        Yields:
            The rows, and how many of their draws are done and to be done.
        """
        size = self.sampler.batch_size
        row = 0
        while row < rows:
            rows_per_call = max(1, self._passes // -(-n // size))
            span = slice(row, min(row + rows_per_call, rows))
            done = 0
            while done < n:
                started = time.perf_counter()
                take = (
                    n
                    if rows_per_call > 1
                    else min(n - done, self._passes * size)
                )
                yield span, np.int64(done), np.int64(take)
                done += take
                # Calls with few passes do not predict the duration of a full
                # call.
                if 2 * (span.stop - row) * -(-take // size) > self._passes:
                    self._adapt(time.perf_counter() - started)
            row = span.stop

    def _adapt(self, seconds: float) -> None:
        if self._strategy is not None:
            return
        if seconds < _SECONDS_A_CALL / 2:
            self._passes *= 2
        elif seconds > _SECONDS_A_CALL * 2 and self._passes > 1:
            self._passes //= 2


def pass_size(shape: tuple[int, ...]) -> int:
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
