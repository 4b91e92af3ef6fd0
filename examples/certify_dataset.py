"""Certifies a data set into a log that resumes after an interruption.

    python examples/certify_dataset.py

Interrupt it with Ctrl-C at any time and run it again: it continues with the
first example that is not in the log. After the last example, another run
certifies nothing. Log and plot are written to runs/certify_dataset.
"""

from pathlib import Path

import keras

from rs_keras import CertificationLog
from rs_keras import Certifier
from rs_keras import certify_dataset
from rs_keras import datasets
from rs_keras import models
from rs_keras.classifiers import load_classifier
from rs_keras.report.plots import plot_certified_accuracy
from rs_keras.report.tables import certified_table
from rs_keras.trainers import SGD
from rs_keras.trainers import Gaussian

SIGMA = 0.25
FOLDER = Path("runs/certify_dataset")


def classifier():
    """Loads the classifier of an earlier run, or trains it."""
    path = FOLDER / "model.keras"
    if not path.exists():
        keras.utils.set_random_seed(0)
        trainer = Gaussian(models.lenet(), sigma=SIGMA)
        trainer.compile(optimizer=SGD(0.01, momentum=0.9))
        train = datasets.load("fashion_mini", "train", batch_size=64)
        trainer.fit(train, epochs=3, shuffle=False, verbose=2)
        FOLDER.mkdir(parents=True, exist_ok=True)
        trainer.model.save(path)
    return load_classifier(path)


def main():
    path = FOLDER / "gaussian.tsv"
    model = classifier()
    before = len(CertificationLog.read(path)) if path.exists() else 0
    # Every 20th test image, 50 in total. A log belongs to one classifier and
    # one set of arguments: another n, sigma, seed or model is refused.
    log = certify_dataset(
        Certifier(model, SIGMA),
        datasets.load("fashion_mini", "test"),
        path,
        skip=20,
        seed=1,
        n=1_000,
        alpha=0.001,
    )
    print(f"{before} images were in the log, {len(log) - before} are new")
    print(certified_table([log]))
    plot_certified_accuracy([log], FOLDER / "curve.png")
    # In the table, each certificate errs with probability alpha; this bound
    # holds for all images jointly, with probability 99%.
    bound = log.certified_accuracy(0.25, rho=0.01)
    print(f"certified accuracy at 0.25 is at least {bound:.3f} of these images")
    print(f"wrote {path} and {FOLDER / 'curve.png'}")


if __name__ == "__main__":
    main()
