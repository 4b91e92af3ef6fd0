"""Counting a classifier's votes under noise, as one graph.

The graph is a function of (images, seeds, first, n) alone; the certifier runs
it in process and the exporter writes the same one into a SavedModel.
"""

from collections.abc import Callable
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from rs_keras._checks import check_choice
from rs_keras.noise import draws as noise_lib
from rs_keras.noise.grid import LEVELS
from rs_keras.noise.grid import grid_distance
from rs_keras.noise.grid import grid_noise
from rs_keras.noise.grid import grid_steps

NOISE_MODES = ("float", "grid")

Logits = Callable[[tf.Tensor], tf.Tensor]


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
        return self._accumulate(images, seeds, first, n, self._votes, tf.int64)[
            :, 0
        ]

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
            votes = tf.cast(self._votes(logits), tf.float64)
            soft = tf.nn.softmax(beta * tf.cast(logits, tf.float64))
            soft = tf.where(self._finite(logits), soft, 0.0)
            total = tf.reduce_sum(soft, 0, keepdims=True)
            squares = tf.reduce_sum(soft * soft, 0, keepdims=True)
            return tf.concat([votes, total, squares], 0)

        return self._accumulate(images, seeds, first, n, sums, tf.float64, 3)

    @staticmethod
    def _finite(logits: tf.Tensor) -> tf.Tensor:
        return tf.reduce_all(tf.math.is_finite(logits), -1, keepdims=True)

    def _votes(self, logits: tf.Tensor) -> tf.Tensor:
        winner = tf.argmax(logits, -1)
        winner = tf.where(self._finite(logits)[:, 0], winner, -1)
        hot = tf.one_hot(winner, self.num_classes, dtype=tf.int64)
        return tf.reduce_sum(hot, 0, keepdims=True)

    def _accumulate(
        self,
        images: tf.Tensor,
        seeds: tf.Tensor,
        first: tf.Tensor,
        n: tf.Tensor,
        statistic: Callable[[tf.Tensor], tf.Tensor],
        dtype: tf.DType,
        rows: int = 1,
    ) -> tf.Tensor:
        """Sums `statistic(logits)` over the draws, one while loop for all rows.

        Each iteration runs the network on noisy copies that the one before
        made, and makes the next: the two share no input, so they run at the
        same time, in a server's session too. (Iterations of this loop do not
        overlap there: inlined, its constants wait for all loop variables, the
        sums among them.) Pass number t finds its row and its first draw from t
        alone; beyond the last pass lies a row that draws nothing.
        """
        size = tf.constant(self.batch_size, tf.int64)
        images, seeds, first, n = map(
            _with_empty_row, (images, seeds, first, n)
        )
        passes = (tf.maximum(n, 0) + size - 1) // size
        ends = tf.cumsum(passes)
        last = tf.size(n) - 1

        def copies(t: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            found = tf.searchsorted(ends, [t], side="right")[0]
            row = tf.minimum(found, last)
            done = (t - ends[row] + passes[row]) * size
            m = tf.clip_by_value(n[row] - done, 0, size)
            at = first[row] + done
            return row, self.noisy(images[row], seeds[row], at, m)

        def one_pass(
            t: tf.Tensor, row: tf.Tensor, z: tf.Tensor, sums: tf.Tensor
        ) -> tuple:
            logits = tf.ensure_shape(self.logits(z), [None, self.num_classes])
            part = statistic(logits)
            sums = tf.tensor_scatter_nd_add(sums, [[row]], [part])
            return t + 1, *copies(t + 1), sums

        zero = tf.constant(0, tf.int64)
        shape = [last, rows, self.num_classes]
        start = (zero, *copies(zero), tf.zeros(shape, dtype))
        fixed = tf.TensorShape([])
        copied = tf.TensorShape([None, *self.image_shape])
        *_, sums = tf.while_loop(
            lambda t, *_: t < ends[-1],
            one_pass,
            start,
            shape_invariants=(fixed, fixed, copied, start[-1].shape),
            parallel_iterations=1,
        )
        return sums


def _with_empty_row(rows: tf.Tensor) -> tf.Tensor:
    return tf.pad(rows, [[0, 1], *[[0, 0]] * (rows.shape.rank - 1)])


def shared_out(
    replicas: int, replica: tf.Tensor, first: tf.Tensor, n: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """The part of draws first .. first+n-1 that falls to one replica."""
    low = n * replica // replicas
    high = n * (replica + 1) // replicas
    return first + low, high - low
