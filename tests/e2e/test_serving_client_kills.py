"""A fleet of real servers that are killed, stopped and rolled in mid-work.

The oracle is the certifier in this process: the same seed, the same counts.
"""

import json
import shutil
import signal
from functools import cache

import numpy as np
import pytest
import tensorflow as tf
from kits.linear import Linear
from kits.server_processes import ServerProcess

from rs_keras import CertificationLog
from rs_keras import Certifier
from rs_keras import certify_dataset
from rs_keras.cli import main
from rs_keras.export import export_certifier
from rs_keras.logs import decide_dataset
from rs_keras.serving import CertificationClient

N = 100_000
SEED = 11


class Weighted(tf.Module):
    """`Linear` with a weight to tell it by."""

    def __init__(self, seed):
        super().__init__()
        linear = Linear(seed=seed)
        self.kernel = tf.Variable(linear.weights, dtype=tf.float32)
        self.bias = linear.bias

    def __call__(self, images):
        score = tf.reduce_sum(images * self.kernel, [1, 2, 3]) + self.bias
        return tf.stack([-score, score], -1)


@pytest.fixture(scope="module")
def certifiers():
    return {number: Certifier(Weighted(number), 0.5) for number in (1, 2)}


@pytest.fixture(scope="module")
def export(certifiers, tmp_path_factory):
    """Exports a version, once."""
    folder = tmp_path_factory.mktemp("exports")

    @cache
    def exported(number):
        return export_certifier(
            certifiers[number],
            folder,
            n=1_000,
            max_n=20_000,
            image_shape=(4, 4, 1),
            version=number,
            warmup=False,
        )

    return exported


@pytest.fixture(scope="module")
def fleet(export, tmp_path_factory):
    """Three processes, each with a folder of its own, that serve version 1."""
    folders = [tmp_path_factory.mktemp(f"server{i}") for i in range(3)]
    for folder in folders:
        shutil.copytree(export(1), folder / "1")
    processes = [ServerProcess(folder) for folder in folders]
    try:
        export(2)  # while they start
        for process in processes:
            assert process.address
        yield list(zip(processes, folders, strict=True))
    finally:
        for process in processes:
            process.end()


@pytest.fixture(scope="module")
def images():
    rng = np.random.default_rng(1)
    return rng.uniform(size=(2, 4, 4, 1)).astype("float32")


@pytest.fixture
def client(fleet):
    addresses = [process.address for process, _ in fleet]
    with CertificationClient(addresses, "m", retries=3, timeout=5) as client:
        yield client


def once(share, action):
    """A progress callback that acts when so much is done."""
    acted = []

    def progress(done, total):
        if not acted and done >= share * total:
            acted.append(done)
            action()

    return progress


def roll(folder, export):
    shutil.copytree(export(2), folder / "tmp.2")
    (folder / "tmp.2").rename(folder / "2")


def assert_exact(found, certifiers, images, n0=100):
    """Exactly n samples, of the version that the certificate names."""
    certifier = certifiers[found.settings["version"]]
    again = certifier.certify(images, n0=n0, n=N, seed=found.seed)
    assert (found.counts.sum(1) == N).all()
    assert (found.counts == again.counts).all()
    assert (found.selection_counts == again.selection_counts).all()
    assert (found.radius == again.radius).all()
    assert (found.label == again.label).all()


# These run in this order: each leaves the fleet as the next takes it up.


def test_counts_are_the_certifiers_own(client, certifiers, images):
    counts = client.sample(images, 30_000, seed=SEED, first=5, chunk=1_234)
    own = certifiers[1].sample(images, 30_000, seed=SEED, first=5)
    assert (counts == own).all()
    found = client.certify(images, n=30_000, tolerance=0.05, seed=SEED)
    own = certifiers[1].certify(images, n=30_000, tolerance=0.05, seed=SEED)
    assert (found.counts == own.counts).all()
    assert (found.n == own.n).all()
    decided = client.decide(images, [0.1, 0.3], seed=SEED)
    own = certifiers[1].decide(images, [0.1, 0.3], seed=SEED)
    assert (decided.counts == own.counts).all()
    assert (decided.radius == own.radius).all()


def test_one_request_is_replayed_from_its_seed(client, certifiers, images):
    found = client.certify(images)
    again = certifiers[1].certify(images, n=1_000, seed=found.seed)
    assert (found.counts == again.counts).all()
    assert (found.radius == again.radius).all()


def test_a_data_set_is_logged_alike(client, certifiers, images, tmp_path):
    rows = np.concatenate([images] * 3)
    data = tf.data.Dataset.from_tensor_slices((rows, np.arange(6) % 2))
    arguments = {"n": 5_000, "seed": 3, "progress": False}
    paths = [tmp_path / "fleet.tsv", tmp_path / "own.tsv"]
    begun = certify_dataset(
        certifiers[1], data, paths[0], max_examples=2, **arguments
    )
    assert len(begun) == 2
    # The log that was begun in this process goes on over the fleet.
    fleet = certify_dataset(client, data, paths[0], **arguments)
    own = certify_dataset(certifiers[1], data, paths[1], **arguments)
    order = np.argsort(fleet.idx)
    assert fleet.idx[order].tolist() == own.idx.tolist()
    assert (fleet.radius[order] == own.radius).all()
    assert (fleet.predict[order] == own.predict).all()
    decided = decide_dataset(
        client, data, tmp_path / "decided.tsv", 0.1, seed=3, progress=False
    )
    own = certifiers[1].decide(rows, 0.1)
    assert len(decided) == 6
    assert own.certified.tolist() == (decided.radius > 0).tolist()


def test_the_certify_command_asks_several_servers(
    fleet, certifiers, images, tmp_path, capsys
):
    servers = ",".join(process.address for process, _ in fleet)
    archive = tmp_path / "images.npz"
    np.savez(archive, images=images)
    request = ["request", servers, "--model-name", "m"]
    assert main([*request, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["sigma"] == 0.5
    asked = [*request, "--npz", str(archive), "--json"]
    assert main([*asked, "--n", "3000", "--seed", "5"]) == 0
    lines = capsys.readouterr().out.splitlines()
    own = certifiers[1].certify(images, n=3_000, seed=5)
    assert [json.loads(line)["radius"] for line in lines] == own.radius.tolist()
    np.savez(archive, images=images, labels=np.zeros(2, np.int64))
    log = tmp_path / "log.tsv"
    certify = ["certify", f"npz:{archive}", "--out", str(log), "--n", "2000"]
    reach = ["--servers", servers, "--model-name", "m", "--seed", "7"]
    assert main([*certify, *reach]) == 0
    assert len(CertificationLog.read(log)) == 2
    capsys.readouterr()
    assert main([*certify, *reach, "--sigma", "0.5"]) == 2
    assert "the export fixes it" in capsys.readouterr().err


def test_certification_survives_servers_killed_and_stopped(
    fleet, client, certifiers, images
):
    (killed, _), (stopped, _), _ = fleet

    def action():
        killed.signal(signal.SIGKILL)
        stopped.signal(signal.SIGSTOP)

    found = client.certify(
        images, n=N, seed=SEED, chunk=5_000, progress=once(0.2, action)
    )
    stopped.signal(signal.SIGCONT)
    assert found.settings["version"] == 1
    assert_exact(found, certifiers, images)


def test_certification_survives_one_rolled_server(
    fleet, client, export, certifiers, images
):
    _, _, (rolled, folder) = fleet

    def action():
        roll(folder, export)
        with CertificationClient(rolled.address, "m", version=2) as new:
            new.wait_ready(60)

    found = client.certify(
        images, n=N, seed=SEED, chunk=5_000, progress=once(0.2, action)
    )
    assert found.settings["version"] == 1
    assert_exact(found, certifiers, images)


def test_certification_survives_all_servers_rolled(
    fleet, client, export, certifiers, images
):
    _, (rolled, folder), _ = fleet
    # Of the two that live, this one has the version that the other lost.
    with CertificationClient(rolled.address, "m", timeout=5) as client:

        def action():
            roll(folder, export)
            with CertificationClient(rolled.address, "m", version=2) as new:
                new.wait_ready(60)

        found = client.certify(
            images, n=N, seed=None, chunk=5_000, progress=once(0.2, action)
        )
    assert found.settings["version"] == 2
    assert_exact(found, certifiers, images)
