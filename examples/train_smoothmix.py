"""Trains SmoothMix and Gaussian and compares their certified radii.

    python examples/train_smoothmix.py

Both methods train on the same images, in the same order, from the same initial
weights. A callback certifies some held-out images after every epoch. Finally
both are certified on test images, with the same noise, and the difference of
their average certified radii (ACR) is printed with a paired interval. After so
short a training the interval may contain 0, which means that the comparison is
inconclusive: increase EPOCHS and STEPS for a longer training.
"""

import tempfile

import keras

from rs_keras import Certifier
from rs_keras import certify_dataset
from rs_keras import datasets
from rs_keras import models
from rs_keras.logs import compare_acr
from rs_keras.report.tables import certified_table
from rs_keras.trainers import SGD
from rs_keras.trainers import Gaussian
from rs_keras.trainers import SmoothMix
from rs_keras.trainers.callbacks import CertifyCallback

SIGMA, EPOCHS, STEPS, HELD_OUT = 0.25, 3, 40, 20


def fit(method, **arguments):
    """Returns the trained classifier; prints its ACR after each epoch."""
    keras.utils.set_random_seed(0)
    trainer = method(models.lenet(), sigma=SIGMA, **arguments)
    trainer.compile(optimizer=SGD(0.02, momentum=0.9), metrics=["accuracy"])
    kept = zip(*datasets.held_out("fashion_mini", HELD_OUT), strict=True)
    history = trainer.fit(
        datasets.stream("fashion_mini", 64, held_out=HELD_OUT),
        epochs=EPOCHS,
        steps_per_epoch=STEPS,
        shuffle=False,
        verbose=0,
        callbacks=[CertifyCallback(kept, n=100)],
    )
    acr = " ".join(f"{value:.3f}" for value in history.history["val_acr"])
    print(f"{method.__name__}: held-out ACR after each epoch: {acr}")
    return trainer.model


def certified(model, path):
    test = datasets.load("fashion_mini", "test")
    return certify_dataset(
        Certifier(model, SIGMA), test, path, 20, n=400, seed=1, progress=False
    )


def main():
    gaussian = fit(Gaussian)
    smoothmix = fit(SmoothMix, num_noise=2, steps=1, warmup_epochs=2)
    with tempfile.TemporaryDirectory() as folder:
        logs = [
            certified(gaussian, f"{folder}/gaussian.tsv"),
            certified(smoothmix, f"{folder}/smoothmix.tsv"),
        ]
    print(certified_table(logs))
    print(compare_acr(*logs).sentence())


if __name__ == "__main__":
    main()
