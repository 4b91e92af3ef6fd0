"""An export of ours behind the server: the votes are the certifier's."""

import numpy as np
import pytest
from serving_kit import connect

from rs_keras import Certifier
from rs_keras.export import export_certifier
from rs_keras.serving import EmbeddedServer

SEEDS = np.int64([[3, 4], [5, 6]])


@pytest.fixture(scope="module")
def images():
    return np.random.default_rng(2).uniform(size=[2, 4, 4, 3]).astype("f")


@pytest.fixture(scope="module")
def certifier():
    return Certifier(lambda x: x[:, 0, 0, :], sigma=0.5)


@pytest.fixture(scope="module")
def wire(certifier, tmp_path_factory):
    folder = tmp_path_factory.mktemp("exports")
    export_certifier(
        certifier, folder, n0=20, n=300, predict_n=50, image_shape=(4, 4, 3)
    )
    with (
        EmbeddedServer(folder, model_name="m", port=0) as server,
        connect(server) as wire,
    ):
        yield wire


def integers(response, name, rows=2):
    return np.reshape(response.outputs[name].int64_val, [rows, -1])


def test_sample_is_the_certifiers(wire, certifier, images):
    response = wire.predict(
        signature="sample",
        images=images,
        seed=SEEDS,
        first=np.int64([0, 7]),
        n=np.int64([100, 40]),
    )
    expected = np.concatenate(
        [
            certifier.sample(images[:1], n=100, seed=SEEDS[:1]),
            certifier.sample(images[1:], n=40, seed=SEEDS[1:], first=7),
        ]
    )
    np.testing.assert_array_equal(integers(response, "counts"), expected)


def test_certify_is_replayed_in_process(wire, certifier, images):
    response = wire.predict(signature="certify", images=images)
    seeds = integers(response, "seed")
    certificate = certifier.certify(images, n0=20, n=300, seed=seeds)
    np.testing.assert_array_equal(
        integers(response, "counts"), certificate.counts
    )
    np.testing.assert_array_equal(
        response.outputs["label"].int64_val, certificate.label
    )
    np.testing.assert_allclose(
        response.outputs["radius"].double_val, certificate.radius, rtol=1e-9
    )


def test_each_request_draws_its_own_noise(wire, images):
    seeds = [
        tuple(wire.predict(images=images).outputs["seed"].int64_val)
        for _ in range(3)
    ]
    assert len(set(seeds)) == 3
