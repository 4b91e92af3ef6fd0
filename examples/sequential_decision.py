"""Decides one radius with as few draws as possible.

    python examples/sequential_decision.py

The papers use the same number of draws for every image. Three calls answer
"is the label constant within 0.25?" for the same images at the same alpha:

    certify(n=...)                  n draws for every image
    certify(n=..., tolerance=...)   chooses n for each image, on pilot draws
    decide(radius=...)              sequential test, stops as soon as possible
"""

import time

import keras
import numpy as np

from rs_keras import Certifier
from rs_keras import datasets
from rs_keras import models
from rs_keras.trainers import SGD
from rs_keras.trainers import Gaussian

SIGMA, RADIUS, N, ALPHA = 0.25, 0.25, 10_000, 0.001


def train():
    keras.utils.set_random_seed(0)
    trainer = Gaussian(models.lenet(), sigma=SIGMA)
    trainer.compile(optimizer=SGD(0.01, momentum=0.9))
    data = datasets.load("fashion_mini", "train", batch_size=64)
    trainer.fit(data, epochs=3, shuffle=False, verbose=0)
    return trainer.model


def show(name, certified, draws, begun):
    seconds = time.perf_counter() - begun
    print(
        f"{name:<10} {certified.sum():>4} of {len(certified)} certified, "
        f"{draws.sum():>7} draws ({np.median(draws):.0f} for the median "
        f"image), {seconds:.1f} s"
    )


def main():
    images, _ = datasets.arrays("fashion_mini", "test")
    images = images[2:14]
    certifier = Certifier(train(), SIGMA)
    limits = {"n": N, "alpha": ALPHA, "seed": 1}

    begun = time.perf_counter()
    fixed = certifier.certify(images, **limits)
    show("fixed n", fixed.radius >= RADIUS, fixed.n + 100, begun)

    # Radii above RADIUS are not needed, and 0.02 of a radius may be lost.
    begun = time.perf_counter()
    planned = certifier.certify(
        images, **limits, tolerance=0.02, max_radius=RADIUS
    )
    drawn = planned.n + planned.selection_counts.sum(1)
    show("tolerance", planned.radius >= RADIUS, drawn, begun)

    begun = time.perf_counter()
    decision = certifier.decide(images, RADIUS, ALPHA, n_max=N, seed=1)
    show("decide", decision.certified, decision.n, begun)

    print("decide, the first image:", decision.sentence(0))
    print("certify, the first image:", fixed.sentence(0))


if __name__ == "__main__":
    main()
