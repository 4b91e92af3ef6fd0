"""A classifier whose true radius is known."""

import numpy as np
import tensorflow as tf


class Linear:
    """f(x) = 1[w.x + b > 0] as two logits; its true radius is known.

    Under noise the score w.x + b is Normal with mean w.x + b and standard
    deviation sigma * |w|, so P[class 1] = cdf((w.x + b) / (sigma |w|)) and the
    smoothed classifier changes its mind at distance |w.x + b| / |w| exactly.
    """

    def __init__(self, shape=(4, 4, 1), seed=0):
        rng = np.random.default_rng(seed)
        self.weights = rng.normal(size=shape)
        self.bias = -0.5 * self.weights.sum()

    def __call__(self, images):
        kernel = tf.constant(self.weights, images.dtype)
        score = tf.reduce_sum(images * kernel, [1, 2, 3])
        score += tf.constant(self.bias, images.dtype)
        return tf.stack([-score, score], -1)

    def score(self, images):
        images = np.asarray(images, np.float64)
        return (images * self.weights).sum((1, 2, 3)) + self.bias

    def radius(self, images):
        return np.abs(self.score(images)) / np.linalg.norm(self.weights)

    def label(self, images):
        return (self.score(images) > 0).astype(int)
