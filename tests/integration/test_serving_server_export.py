"""An export of ours behind the server: the votes are the certifier's."""

import time

import numpy as np
import pytest
import tensorflow as tf
from kits.tf_serving import connect

from rs_keras import Certifier
from rs_keras.export import export_certifier
from rs_keras.serving import CertificationClient
from rs_keras.serving import EmbeddedServer
from rs_keras.serving import ServingError

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
        certifier,
        folder,
        n0=20,
        n=300,
        predict_n=50,
        decide_n=2_000,
        image_shape=(4, 4, 3),
        warmup=False,
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


def test_decide_certifies_what_is_true_alone(wire):
    """The largest of three channels, with noise on each: what the smoothed
    classifier answers changes where two are equal, at (1 - 0.25) / sqrt(2).
    """
    image = np.zeros([16, 4, 4, 3], np.float32)
    image[:, 0, 0] = [1.0, 0.25, 0.0]
    distance = 0.75 / np.sqrt(2)
    within = np.resize([0.3, 1.001], 16) * distance
    response = wire.predict(signature="decide", images=image, radius=within)
    certified = np.array(response.outputs["certified"].bool_val)
    label = np.array(response.outputs["label"].int64_val)
    np.testing.assert_array_equal(label, np.where(certified, 0, -1))
    assert certified[::2].all()
    # Each of eight may err with probability 0.001.
    assert certified[1::2].sum() <= 2
    assert max(response.outputs["n"].int64_val) <= 2_000


def test_each_request_draws_its_own_noise(wire, images):
    seeds = [
        tuple(wire.predict(images=images).outputs["seed"].int64_val)
        for _ in range(3)
    ]
    assert len(set(seeds)) == 3


def test_a_number_given_to_another_export_is_noticed(tmp_path):
    """Else the votes under one sigma would get the other's radius.

    f is the sign of the first pixel minus 1/2: the true radius is 0.3.
    """

    def first_pixel(x):
        score = x[:, 0, 0, :1] - 0.5
        return tf.concat([score, -score], -1)

    def export(sigma):
        small = {"n": 1_000, "image_shape": (1, 1, 2), "warmup": False}
        return export_certifier(
            Certifier(first_pixel, sigma), tmp_path / "m", **small
        )

    image = np.array([[[[0.8, 0.0]]]], np.float32)
    first = export(1.0)
    with (
        EmbeddedServer(
            tmp_path / "m", model_name="m", port=0, poll_seconds=0.1
        ) as server,
        CertificationClient(server.address, "m") as client,
    ):
        assert client.certify(image, n=5_000).settings["sigma"] == 1.0
        first.rename(tmp_path / "old")
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            try:
                with CertificationClient(server.address, "m") as other:
                    other.wait_ready(0.1)
            except ServingError:
                break
        assert export(0.1).name == "1"
        with CertificationClient(server.address, "m") as other:
            other.wait_ready(30)
        for found in (client.certify(image, n=5_000), client.certify(image)):
            assert found.settings["sigma"] == 0.1
            assert 0 < found.radius[0] < 0.3
        assert not client.decide(image, radius=0.35).certified[0]


def test_a_secret_that_all_users_can_read_is_reported(
    certifier, tmp_path, caplog
):
    version = export_certifier(
        certifier, tmp_path, image_shape=(4, 4, 3), warmup=False
    )
    for mode, reports in ((0o640, 0), (0o644, 1)):
        (version / "saved_model.pb").chmod(mode)
        caplog.clear()
        with EmbeddedServer(tmp_path, model_name="m", port=0):
            found = [r for r in caplog.messages if "secret_readable" in r]
        assert len(found) == reports
