"""Exports a certifier, starts two servers, and certifies over gRPC.

    python examples/serve_and_request.py

The client splits the draws of one certificate into chunks and distributes
them. A chunk is a range of addressed draws, so the votes equal those of a
single process, whichever server counted which chunk; the last line of the
output confirms it. tensorflow_model_server can serve the same export.
"""

import tempfile

import keras
import numpy as np

from rs_keras import Certifier
from rs_keras import datasets
from rs_keras import models
from rs_keras.export import export_certifier
from rs_keras.serving import CertificationClient
from rs_keras.serving import EmbeddedServer
from rs_keras.trainers import SGD
from rs_keras.trainers import Gaussian

SIGMA = 0.25


def train():
    keras.utils.set_random_seed(0)
    trainer = Gaussian(models.lenet(), sigma=SIGMA)
    trainer.compile(optimizer=SGD(0.01, momentum=0.9))
    data = datasets.load("fashion_mini", "train", batch_size=64)
    trainer.fit(data, epochs=3, shuffle=False, verbose=0)
    return trainer.model


def request(client, images):
    """Requests predictions, certificates and decisions."""
    print("predict:", client.predict(images).label.tolist())
    # Without further arguments: the export's numbers of draws.
    print("certify:", client.certify(images).sentence(0))
    decision = client.decide(images, radius=0.25)
    print("decide: ", decision.sentence(0))
    # More draws, in chunks of a given size.
    return client.certify(images, n=5_000, chunk=500, seed=7)


def main():
    images = datasets.arrays("fashion_mini", "test")[0][2:4]
    certifier = Certifier(train(), SIGMA)
    names = datasets.info("fashion_mini").class_names
    with tempfile.TemporaryDirectory() as folder:
        path = export_certifier(certifier, folder, n=1_000, class_names=names)
        print("exported version", path.name)
        with (
            EmbeddedServer(folder, model_name="fashion", port=0) as one,
            EmbeddedServer(folder, model_name="fashion", port=0) as two,
            CertificationClient(
                [one.address, two.address], "fashion"
            ) as client,
        ):
            client.wait_ready()
            served = request(client, images)
    local = certifier.certify(images, n=5_000, seed=7)
    print("chunked:", served.sentence(0))
    same = np.array_equal(served.counts, local.counts)
    print("votes of two servers equal those of this process:", same)


if __name__ == "__main__":
    main()
