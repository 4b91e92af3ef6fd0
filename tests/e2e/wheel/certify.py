"""Certifies bundled images with the installed package; run by `check`."""

import sys
from pathlib import Path

import rs_keras

home = Path(rs_keras.__file__).resolve()
checkout = Path(sys.argv[1]).resolve()
if checkout in home.parents:
    raise SystemExit(f"the checkout was imported, not the wheel: {home}")

images, labels = next(
    iter(rs_keras.datasets.load("fashion_mini", "test", batch_size=2))
)
model = rs_keras.models.lenet()
certifier = rs_keras.Certifier(model, sigma=0.25)
certificate = certifier.certify(images, n0=20, n=200, seed=1)
if certificate.counts.sum() != 400:
    raise SystemExit(f"400 draws, but {certificate.counts.sum()} votes")

from rs_keras.trainers import Gaussian  # noqa: E402

trainer = Gaussian(model, sigma=0.25)
trainer.compile(optimizer="sgd")
trainer.fit(images, labels, verbose=0)
print(f"the wheel works: {home}")
