"""Trains and certifies on two replicas, with the results of one replica.

    python examples/two_replicas.py

Two logical CPUs replace two GPUs here, and are faster than one replica on both
cores; on a machine with GPUs, omit `replicas`. Every random number is addressed
by (seed, example, draw), not by replica. Therefore the weights are the same, up
to the rounding of sums in another order, and the votes are identical. The
network computes in float64 to show how small that rounding is; float32 works
as well.
"""

import keras
import numpy as np
import tensorflow as tf

from rs_keras import Certifier
from rs_keras import datasets
from rs_keras import distribution
from rs_keras import models
from rs_keras.trainers import SGD
from rs_keras.trainers import Gaussian

SIGMA = 0.25


def train(strategy):
    """Returns a classifier created and trained under the strategy."""
    with strategy.scope():
        keras.utils.set_random_seed(0)
        trainer = Gaussian(models.lenet(), sigma=SIGMA)
        trainer.compile(optimizer=SGD(0.01, momentum=0.9))
    data = datasets.load("fashion_mini", "train", batch_size=64)
    trainer.fit(data.take(30), epochs=1, shuffle=False, verbose=0)
    print(f"trained on {strategy.num_replicas_in_sync} replica(s)")
    return trainer.model


def main():
    # Must precede all other uses of TensorFlow.
    strategy = distribution.strategy_of("mirrored", replicas=2)
    keras.config.set_dtype_policy("float64")
    one = train(tf.distribute.get_strategy())
    two = train(strategy)
    difference = max(
        np.abs(a - b).max()
        for a, b in zip(one.get_weights(), two.get_weights(), strict=True)
    )
    print(f"largest difference between their weights: {difference:.1e}")

    images = datasets.arrays("fashion_mini", "test")[0][:8]
    alone = Certifier(one, SIGMA).certify(images, n=2_000, seed=1)
    shared = Certifier(one, SIGMA, strategy=strategy).certify(
        images, n=2_000, seed=1
    )
    print("radii:", np.round(shared.radius, 3).tolist())
    same = np.array_equal(alone.counts, shared.counts)
    print("votes of two replicas equal those of one:", same)


if __name__ == "__main__":
    main()
