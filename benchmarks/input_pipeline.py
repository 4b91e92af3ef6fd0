"""The input pipeline against the networks that it feeds.

    python benchmarks/input_pipeline.py [--rounds 5] [mnist ...]

For each data set, in one run and interleaved: the pipeline of a training pass
alone (shuffled, augmented, in batches of 256), the papers' small network on
one fixed batch (forward, and a plain SGD step), and that step fed by the
pipeline. The pipeline is not a bottleneck where the last ratio is near 1. The
ImageNet row decodes, crops and resizes JPEG files of 500x375 pixels that are
made on the spot. Sets that are not at hand are left out.
"""

import argparse
import os
import tempfile
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras  # noqa: E402
import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402
from timing import interleaved  # noqa: E402
from timing import table  # noqa: E402

from rs_keras import datasets  # noqa: E402
from rs_keras import models  # noqa: E402

JPEG_SHAPE = (375, 500, 3)
JPEG_FILES = 64

# Batch; steps to time of the pipeline, more than its buffers hold, and of the
# network; arguments of the network.
SIZES = {
    "fashion_mini": (256, 160, 40, {}),
    "mnist": (256, 160, 40, {}),
    "cifar10": (128, 300, 3, {"depth": 20}),
    "imagenet2012": (8, 60, 1, {}),
}


def write_photographs(folder):
    """Writes JPEG files of about 100 kB, ImageNet's size and shape."""
    rng = np.random.default_rng(0)
    for number in range(JPEG_FILES):
        # Blurred noise compresses about as badly as a photograph.
        noise = rng.normal(128, 90, JPEG_SHAPE)
        noise = (noise + np.roll(noise, 1, 0) + np.roll(noise, 1, 1)) / 3
        image = np.uint8(np.clip(noise, 0, 255))
        for split in ("train", "val"):
            path = Path(folder, split, f"n{number % 2}", f"{number}.JPEG")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(tf.io.encode_jpeg(image, quality=75).numpy())


def endless(name, batch, data_dir):
    """Batches of training passes, and nothing that waits between runs."""
    return iter(datasets.stream(name, batch, data_dir, drop_remainder=True))


def sgd_step(model):
    """A plain training step, traced."""
    optimizer = keras.optimizers.SGD(0.01, momentum=0.9)
    optimizer.build(model.trainable_variables)

    @tf.function
    def step(images, labels):
        with tf.GradientTape() as tape:
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(
                labels, model(images, training=True)
            )
            loss = tf.reduce_mean(losses)
        weights = model.trainable_variables
        optimizer.apply(tape.gradient(loss, weights), weights)
        return loss

    return step


def measure(name, batch, ahead, steps, rounds, data_dir=None, **network):
    """Returns images/s of each part, by name."""
    model = models.for_dataset(name, **network)
    forward = tf.function(lambda x: model(x, training=False))
    step = sgd_step(model)
    alone = endless(name, batch, data_dir)
    feeding = endless(name, batch, data_dir)
    images, labels = next(alone)
    work = {
        "pipeline": (ahead, lambda: next(alone)[1]),
        "forward": (steps, lambda: forward(images)),
        "training": (steps, lambda: step(images, labels)),
        "fed": (steps, lambda: step(*next(feeding))),
    }

    def repeated(times, run):
        def runs():
            for _ in range(times):
                out = run()
            return out.numpy()

        return runs

    seconds = interleaved(
        {key: repeated(*value) for key, value in work.items()}, rounds
    )
    return {
        key: times * batch / seconds[key] for key, (times, _) in work.items()
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("names", nargs="*", help=f"among {', '.join(SIZES)}")
    args = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        write_photographs(folder)
        for name in args.names or SIZES:
            batch, ahead, steps, more = SIZES[name]
            if name == "imagenet2012":
                more = {"data_dir": folder}
            try:
                found = measure(name, batch, ahead, steps, args.rounds, **more)
            except OSError as error:
                print(f"{name}: left out ({error})")
                continue
            rates = [f"{rate:,.0f}" for rate in found.values()]
            ratios = [
                found["pipeline"] / found["forward"],
                found["pipeline"] / found["training"],
                found["fed"] / found["training"],
            ]
            rows.append([name, *rates, *(f"{ratio:.2f}" for ratio in ratios)])
    header = [
        "images/s",
        "pipeline",
        "forward",
        "training",
        "fed",
        "pipeline/forward",
        "pipeline/training",
        "fed/training",
    ]
    print(table(header, rows))


if __name__ == "__main__":
    main()
