"""Several sigmas: per-input sigma, and the sound composition.

    python examples/several_sigmas.py

More noise gives larger radii for some images and wrong labels for others, so
the best sigma depends on the image. Two ways to use several sigmas:

- `DataDependentCertifier` chooses a sigma for each image. Each certificate is
  about the classifier smoothed with that one sigma. Nothing is proved about a
  deployed classifier that chooses sigma anew for an attacked image. Tables
  leave out these rows unless requested.
- `compose` lets a smoothed router choose the expert, and certifies the choice
  together with the label. The result is one classifier, safe to deploy.

Soundness has a price: the radius is at most that of the router, and router
and expert each get half of alpha.
"""

import keras
import numpy as np

from rs_keras import Certifier
from rs_keras import DataDependentCertifier
from rs_keras import compose
from rs_keras import datasets
from rs_keras import models
from rs_keras.trainers import SGD
from rs_keras.trainers import Gaussian

# Trouser, sneaker, bag and ankle boot stay recognisable under much noise.
PLAIN = [1, 7, 8, 9]
FINE = [0, 2, 3, 4, 5, 6]


def train(sigma):
    keras.utils.set_random_seed(0)
    trainer = Gaussian(models.lenet(), sigma=sigma)
    trainer.compile(optimizer=SGD(0.01, momentum=0.9))
    data = datasets.load("fashion_mini", "train", batch_size=64)
    trainer.fit(data, epochs=3, shuffle=False, verbose=0)
    return trainer.model


def router_of(model):
    """Returns a classifier of images into FINE (0) and PLAIN (1)."""

    def route(images):
        logits = model(images)
        groups = [
            keras.ops.max(keras.ops.take(logits, group, axis=-1), axis=-1)
            for group in (FINE, PLAIN)
        ]
        return keras.ops.stack(groups, axis=-1)

    return route


def show(name, certificate, labels):
    correct = certificate.label == labels
    radius = np.where(correct, certificate.radius, 0.0)
    shares = " ".join(f"{np.mean(radius >= r):6.2f}" for r in (0.25, 0.5, 1.0))
    print(f"{name:<24} {radius.mean():6.3f} {correct.mean():8.2f} {shares}")


def main():
    images, labels = datasets.arrays("fashion_mini", "test")
    images, labels = images[:24], labels[:24]
    low, high = train(0.25), train(0.75)
    router = Certifier(router_of(high), 0.75)
    certifiers = {
        "sigma 0.25": Certifier(low, 0.25),
        "sigma 0.75": Certifier(high, 0.75),
        "composed (sound)": compose(
            router, [Certifier(low, 0.25), Certifier(high, 0.75)]
        ),
        "per-input (not deployed)": DataDependentCertifier(
            high, 0.75, steps=20, num_noise=4, learning_rate=0.01
        ),
    }
    print(f"{'':<24}    ACR accuracy   0.25   0.50   1.00")
    for name, certifier in certifiers.items():
        certificate = certifier.certify(images, n=1_000, seed=1)
        show(name, certificate, labels)
    print(f"\n{name}:\n{certificate.statement()}")


if __name__ == "__main__":
    main()
