"""Attacks within certified radii: no certificate may be broken.

    python tests/kits/attacked_certificates.py dense|lenet [IMAGES [FIRST]]

trains a small network on the bundled clothes, certifies images of them, attacks
each within its certified radius and exits with 1 if one is broken. The dense
network takes a tenth of LeNet's time.
"""

import sys
from dataclasses import dataclass

import keras
import numpy as np

from rs_keras import Certifier
from rs_keras import attacks
from rs_keras import datasets
from rs_keras import models
from rs_keras.trainers import SGD
from rs_keras.trainers import Gaussian

SIGMA = 0.5
# Images a call, for the progress.
PART = 100
METHODS = (
    attacks.SmallestPerturbation(steps=5, noises=32, goals=2),
    attacks.PGD(steps=10, noises=32),
)


@dataclass
class Outcome:
    """Counts of images.

    Attributes:
        images: All.
        certified: With a radius above 0: these were attacked.
        suspected: Another label was predicted inside the radius.
        broken: It was predicted again, with many more votes: the certificate
            is false.
    """

    images: int = 0
    certified: int = 0
    suspected: int = 0
    broken: int = 0


def attack_inside(
    certifier,
    images,
    method,
    outcome,
    *,
    seed,
    scale=1.0,
    votes=1_000_000,
    **of,
):
    """Certifies images and attacks each within its radius, times `scale`.

    `of` are arguments of `certify`; `votes` confirm that it is broken.
    """
    of = {"n": 1_000, **of}
    certificate = certifier.certify(images, seed=seed, **of)
    outcome.images += len(images)
    rows = np.flatnonzero(certificate.radius > 0)
    if not len(rows):
        return
    outcome.certified += len(rows)
    labels = certificate.label[rows]
    # A certificate is about images closer than its radius.
    radii = scale * certificate.radius[rows, None] * (1 - 1e-9)
    found = attacks.attack(
        certifier, images[rows], labels, radii, method, n=of["n"], seed=seed + 1
    )
    assert (found.norm[np.isfinite(found.norm)] < radii.max()).all()
    for row in np.flatnonzero(found.adversarial_label >= 0):
        outcome.suspected += 1
        image = found.adversarial[row : row + 1]
        again = certifier.predict(image, n=votes, alpha=1e-9)
        outcome.broken += int(again.label[0] not in (labels[row], -1))


def dense():
    """Two layers."""
    return keras.Sequential(
        [
            keras.Input((28, 28, 1)),
            keras.layers.Flatten(),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dense(10),
        ]
    )


NETWORKS = {"dense": dense, "lenet": models.lenet}


def clothes_classifier(network):
    """A network that three epochs have trained under noise."""
    keras.utils.set_random_seed(0)
    trainer = Gaussian(NETWORKS[network](), sigma=SIGMA)
    trainer.compile(optimizer=SGD(0.01, momentum=0.9))
    train = datasets.load("fashion_mini", "train", batch_size=64)
    trainer.fit(train, epochs=3, shuffle=False, verbose=0)
    return trainer.model


def main(network, count=5_000, begin=0):
    """Attacks `count` images; returns the exit code."""
    certifier = Certifier(clothes_classifier(network), SIGMA)
    parts = [datasets.arrays("fashion_mini", s)[0] for s in ("test", "train")]
    images = np.concatenate(parts)[: begin + count]
    outcome = Outcome()
    for first in range(begin, len(images), PART):
        # Each attack has half of the images, in turns.
        method = METHODS[first // PART % len(METHODS)]
        part = images[first : first + PART]
        attack_inside(certifier, part, method, outcome, seed=2 * first)
        print(outcome, flush=True)
    return int(outcome.broken > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], *map(int, sys.argv[2:])))
