"""Certifies a classifier that knows no noise, by a denoiser in front of it.

    python examples/denoise.py

An ordinary classifier of the bundled data, then the same one behind a small
denoiser that is trained for 0.5 of noise: certified accuracy before and after.
Takes a few minutes on two cores.
"""

import argparse

import keras
import numpy as np

from rs_keras import Certifier
from rs_keras import datasets
from rs_keras import models
from rs_keras.classifiers import with_denoiser
from rs_keras.trainers import Denoising

SIGMA, RADII = 0.5, (0.0, 0.25, 0.5)


def certified_accuracy(model, images, labels, n):
    """The share of images with the right label certified within each radius."""
    certifier = Certifier(model, sigma=SIGMA)
    found = certifier.certify(images, n=n, runner_up=False, seed=1)
    right = found.label == labels
    return [float(np.mean(right & (found.radius >= r))) for r in RADII]


def main():
    flags = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    flags.add_argument("--epochs", type=int, default=6)
    flags.add_argument("--images", type=int, default=100)
    flags.add_argument("--n", type=int, default=500)
    args = flags.parse_args()

    keras.utils.set_random_seed(0)
    train, labels = datasets.arrays("fashion_mini", "train")
    images, truth = datasets.arrays("fashion_mini", "test")
    classifier = models.lenet()
    classifier.compile(
        optimizer=keras.optimizers.Adam(1e-3),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    classifier.fit(train, labels, epochs=args.epochs, verbose=2)
    clean = classifier.evaluate(images, truth, verbose=0)[1]
    print(f"accuracy on clean images: {clean:.3f}")
    part = images[: args.images], truth[: args.images]
    rows = {"classifier alone": certified_accuracy(classifier, *part, args.n)}

    model = with_denoiser(classifier, models.dncnn((28, 28, 1), 5, 16))
    # As in the paper: the error first, then the classifier's own predictions.
    for name, weights in (
        ("behind a denoiser (MSE)", (1.0, 0.0)),
        ("behind a denoiser (MSE, then stability)", (0.0, 1.0)),
    ):
        trainer = Denoising(model, SIGMA, *weights)
        trainer.compile(optimizer=keras.optimizers.Adam(1e-3))
        trainer.fit(train, labels, epochs=args.epochs, verbose=2)
        rows[name] = certified_accuracy(model, *part, args.n)

    print(f"certified accuracy at radius {RADII}, sigma {SIGMA}, n {args.n}:")
    for name, row in rows.items():
        print(f"{name}: {' '.join(f'{share:.3f}' for share in row)}")


if __name__ == "__main__":
    main()
