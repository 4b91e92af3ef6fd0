"""What the trainer base class costs over a hand-written Gaussian step.

    python benchmarks/trainer_base.py

Both train LeNet on 28x28 images with the same optimiser and report loss and
accuracy. The ratio of the medians is printed for each batch size.
"""

import argparse
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras  # noqa: E402
import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402
from timing import interleaved  # noqa: E402
from timing import table  # noqa: E402

from rs_keras import models  # noqa: E402
from rs_keras.trainers import SGD  # noqa: E402
from rs_keras.trainers import Gaussian  # noqa: E402

SIGMA = 0.5


def base_step(optimizer, data):
    """Returns the step as the base class makes it."""
    trainer = Gaussian(models.lenet(), sigma=SIGMA)
    trainer.compile(optimizer=optimizer, metrics=["accuracy"])
    trainer.check_batch(*(part.numpy() for part in data))
    return tf.function(lambda: trainer.train_step(data))


def hand_written_step(optimizer, data):
    """Returns the same step with nothing that it could do without."""
    images, labels = data
    model = models.lenet()
    weights = model.trainable_variables
    optimizer.build(weights)
    loss_mean = keras.metrics.Mean()
    accuracy = keras.metrics.SparseCategoricalAccuracy()

    @tf.function
    def step():
        noisy = images + SIGMA * tf.random.normal(tf.shape(images))
        with tf.GradientTape() as tape:
            logits = model(noisy, training=True)
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(
                labels, logits
            )
            loss = tf.reduce_mean(losses)
        optimizer.apply(tape.gradient(loss, weights), weights)
        loss_mean.update_state(losses)
        accuracy.update_state(labels, logits)
        return loss_mean.result(), accuracy.result()

    return step


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batches", type=int, nargs="+", default=[64, 256])
    parser.add_argument("--rounds", type=int, default=100)
    args = parser.parse_args()
    rows = []
    for size in args.batches:
        rng = np.random.default_rng(0)
        images = rng.random([size, 28, 28, 1], dtype=np.float32)
        data = (tf.constant(images), tf.constant(rng.integers(0, 10, size)))
        work = {
            "base": base_step(SGD(0.01, weight_decay=1e-4), data),
            "hand": hand_written_step(SGD(0.01, weight_decay=1e-4), data),
        }
        seconds = interleaved(work, args.rounds)
        times = [f"{1e3 * taken:.2f} ms" for taken in seconds.values()]
        ratio = seconds["base"] / seconds["hand"]
        rows.append([str(size), *times, f"{ratio:.3f}"])
    print(table(["batch", "base class", "hand-written", "ratio"], rows))


if __name__ == "__main__":
    main()
