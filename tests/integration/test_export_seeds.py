"""The seeds of an export: nobody can predict them, and they replay anywhere."""

import os
import stat

import keras
import numpy as np
import pytest
import tensorflow as tf
from kits import mersenne
from kits import session_capi
from kits.siphash import keys_of
from kits.tf_serving import connect
from kits.tf_serving import metadata_request

from rs_keras import Certifier
from rs_keras.cli import main
from rs_keras.export import export_certifier
from rs_keras.export import exporter
from rs_keras.export import metadata
from rs_keras.export import versions as folders
from rs_keras.export.show import show
from rs_keras.noise import SeedKey
from rs_keras.serving import CertificationClient
from rs_keras.serving import EmbeddedServer

SHAPE = (4, 4, 1)
SECRET = b"sixteen bytes or more"
SMALL = {"n0": 5, "n": 40, "predict_n": 20, "max_n": 200, "decide_n": 100}
ROWS = 400


def linear(images):
    kernel = np.linspace(-1, 1, 32, dtype=np.float32).reshape(16, 2)
    return tf.reshape(images, [-1, 16]) @ tf.constant(kernel)


def export(folder, noise="float", key=None, **changed):
    return export_certifier(
        Certifier(linear, sigma=0.5, noise=noise, key=key),
        folder,
        image_shape=SHAPE,
        **{**SMALL, **changed},
    )


def images():
    """Four images; the second differs from the first within its 255th."""
    levels = np.random.default_rng(4).integers(0, 256, (4, *SHAPE))
    x = levels.astype(np.float32) / np.float32(255)
    x[1] = np.nextafter(x[0], np.float32(0.5))
    return x


@pytest.fixture(scope="module")
def versions(tmp_path_factory):
    """One export for each kind of seed and noise."""
    base = tmp_path_factory.mktemp("exports")
    made = {
        (seed, noise): export(
            base / f"{seed} {noise}",
            noise,
            seed=seed,
            key=SECRET if seed == "keyed" else None,
        )
        for seed in ("fresh", "keyed")
        for noise in ("float", "grid")
    }
    return {**made, "again": export(base / "fresh float")}


@pytest.fixture(scope="module")
def answers(versions, tmp_path_factory):
    """Answers of a server's runtime, in a process of its own."""
    calls = {
        "many": (
            versions["fresh", "float"],
            "predict",
            {"images": np.repeat(images()[:1], ROWS, 0)},
        )
    }
    for seed in ("fresh", "keyed"):
        for noise in ("float", "grid"):
            version = versions[seed, noise]
            for name in ("predict", "certify", "decide"):
                inputs = {"images": images()}
                if name == "decide":
                    inputs["radius"] = np.zeros(4)
                calls[seed, noise, name] = (version, name, inputs)
    found, _ = session_capi.run(
        tmp_path_factory.mktemp("job"), list(calls.values())
    )
    return dict(zip(calls, found, strict=True))


# -- fresh seeds ---------------------------------------------------------------


def predicted(words, rest):
    """How many of `rest` an attacker knows who has seen `words`."""
    known = set(mersenne.future(words, 4 * len(rest)))
    return sum(int(word) % 2**64 in known for word in rest)


def test_the_attack_predicts_tensorflows_generator():
    words = tf.raw_ops.NonDeterministicInts(
        shape=[mersenne.WORDS + 100], dtype=tf.int64
    ).numpy()
    start, rest = np.split(words, [mersenne.WORDS])
    assert predicted(start, rest) == 100


def test_nobody_predicts_the_seeds_of_a_server(answers):
    """A predicted seed is a certificate that can be made false."""
    words = answers["many"]["seed"].ravel()
    start, rest = np.split(words, [mersenne.WORDS])
    assert len(rest) > 400
    assert predicted(start, rest) == 0


@pytest.mark.parametrize("noise", ["float", "grid"])
def test_fresh_seeds_never_repeat(noise, answers):
    """Not for equal images of a request, nor for equal requests."""
    names = ("predict", "certify", "decide")
    found = [answers["fresh", noise, name]["seed"] for name in names]
    found = np.concatenate([answers["many"]["seed"], *found]).ravel()
    assert len(np.unique(found)) == len(found)


def test_each_export_has_a_secret_of_its_own(versions):
    first, second = (
        secrets_of(versions[name]) for name in (("fresh", "float"), "again")
    )
    assert len(first) == len(second) == 2
    assert not set(first) & set(second)


def test_draws_of_two_exports_add_up(versions):
    """The secret is no part of what is certified."""
    first, second = (
        metadata.read(versions[name]) for name in (("fresh", "float"), "again")
    )
    assert first == second
    assert metadata.identity(first) == metadata.identity(second)


# -- keyed seeds ---------------------------------------------------------------


@pytest.mark.parametrize("noise", ["float", "grid"])
def test_keyed_seeds_are_those_in_process(noise, answers):
    certifier = Certifier(linear, sigma=0.5, noise=noise, key=SECRET)
    x = images()
    served = answers["keyed", noise, "certify"]
    here = certifier.certify(x, n0=5, n=40, seed="keyed")
    np.testing.assert_array_equal(served["seed"], here.seed)
    np.testing.assert_array_equal(served["counts"], here.counts)
    np.testing.assert_array_equal(served["label"], here.label)
    served = answers["keyed", noise, "predict"]
    here = certifier.predict(x, n=20, seed="keyed")
    np.testing.assert_array_equal(served["seed"], here.seed)
    np.testing.assert_array_equal(served["counts"], here.counts)
    served = answers["keyed", noise, "decide"]["seed"]
    np.testing.assert_array_equal(served, here.seed)


@pytest.mark.parametrize(
    ("noise", "shared"), [("float", False), ("grid", True)]
)
def test_images_share_a_seed_where_they_are_one(noise, shared, answers):
    found = answers["keyed", noise, "predict"]["seed"]
    assert (found[0] == found[1]).tolist() == [shared, shared]
    assert len(np.unique(found, axis=0)) == (3 if shared else 4)


def test_a_keyed_certificate_replays_through_a_server(
    versions, tmp_path, monkeypatch
):
    """As the server's own, and as one that a client's key has made."""
    certifier = Certifier(linear, sigma=0.5, key=SECRET)
    folder = versions["keyed", "float"].parent
    monkeypatch.setenv("RS_KERAS_SEED_KEY", SECRET.decode())
    with (
        EmbeddedServer(folder, model_name="m", port=0) as server,
        CertificationClient(server.address, "m") as client,
    ):
        asked = client.certify(images())
        drawn = client.certify(images(), n=150, seed="keyed")
    for served, n in ((asked, 40), (drawn, 150)):
        here = certifier.certify(images(), n0=5, n=n, seed="keyed")
        np.testing.assert_array_equal(served.seed, here.seed)
        np.testing.assert_array_equal(served.counts, here.counts)
        np.testing.assert_array_equal(served.radius, here.radius)


def test_where_the_key_of_an_export_comes_from(tmp_path, monkeypatch):
    x = images()

    def seeds(certifier_key=None, key=None):
        certifier = Certifier(linear, key=certifier_key)
        return exporter.seed_key(certifier, "keyed", key).seeds(x).tolist()

    def wanted(secret):
        return SeedKey(secret).seeds(x).tolist()

    file = tmp_path / "key"
    file.write_bytes(b"of a file, 16 bytes\n")
    monkeypatch.delenv("RS_KERAS_SEED_KEY", raising=False)
    assert seeds() != seeds()
    monkeypatch.setenv("RS_KERAS_SEED_KEY", "of the environment")
    assert seeds() == wanted(b"of the environment")
    assert seeds(SECRET) == wanted(SECRET)
    for given in (file, str(file), file.read_bytes().strip()):
        assert seeds(SECRET, given) == wanted(b"of a file, 16 bytes")
    assert seeds(SECRET, SeedKey(b"made before, 16 bytes")) == wanted(
        b"made before, 16 bytes"
    )


# -- the secret ----------------------------------------------------------------


def secrets_of(version):
    """The words of all keys in an export's graph, in order of appearance."""
    from tensorflow.core.protobuf.saved_model_pb2 import SavedModel

    content = (version / "saved_model.pb").read_bytes()
    graph = SavedModel.FromString(content).meta_graphs[0].graph_def
    nodes = [*graph.node]
    for function in graph.library.function:
        nodes += function.node_def
    found = [
        tuple(node.attr["key"].list.i)
        for node in nodes
        if node.op == "StringToHashBucketStrong"
    ]
    return list(dict.fromkeys(found))


def shown(secret):
    """How a key might be written: as it is, as words, as bytes."""
    words = [word for pair in keys_of(secret) for word in pair]
    texts = [secret, *(str(word).encode() for word in words)]
    texts += [f"{word % 2**64:x}".encode() for word in words]
    return texts + [
        int(word).to_bytes(8, "little", signed=True) for word in words
    ]


def test_the_key_lies_in_the_graph_alone(versions):
    version = versions["keyed", "float"]
    assert secrets_of(version) == [tuple(key) for key in keys_of(SECRET)]
    for path in version.rglob("*"):
        content = path.read_bytes() if path.is_file() else b""
        assert not [text for text in shown(SECRET) if text in content], path


def test_no_answer_tells_the_key(versions, caplog):
    """Nor metadata, nor what a server says of its signatures, nor its log."""
    version = versions["keyed", "float"]
    texts = [show(version), repr(metadata.read(version))]
    with (
        EmbeddedServer(version.parent, model_name="m", port=0) as server,
        connect(server) as wire,
    ):
        for signature in ("certify", "describe"):
            inputs = {"images": images()}
            if signature == "describe":
                inputs = {"query": np.int64([0])}
            texts.append(str(wire.predict(signature=signature, **inputs)))
        request = metadata_request("signature_def")
        texts.append(str(wire.call("GetModelMetadata", request)))
    texts.append(caplog.text)
    for text in texts:
        assert not [
            secret for secret in shown(SECRET) if secret in text.encode()
        ]


def test_the_command_does_not_print_the_key(
    tmp_path, monkeypatch, capfd, caplog
):
    model = keras.Sequential(
        [keras.Input(SHAPE), keras.layers.Flatten(), keras.layers.Dense(2)]
    )
    model.save(tmp_path / "model.keras")
    monkeypatch.setenv("RS_KERAS_SEED_KEY", SECRET.decode())
    command = ["export", str(tmp_path / "model.keras"), "--sigma", "0.5"]
    command += ["--seeds", "keyed", "--n", "50", "--max-n", "1000"]
    command += ["--out", str(tmp_path / "exports")]
    assert main(command) == 0
    printed = capfd.readouterr()
    version = tmp_path / "exports" / "1"
    assert secrets_of(version) == [tuple(key) for key in keys_of(SECRET)]
    for text in (printed.out, printed.err, caplog.text):
        assert not [
            secret for secret in shown(SECRET) if secret in text.encode()
        ]


@pytest.mark.parametrize("seed", ["fresh", "keyed"])
@pytest.mark.parametrize("noise", ["float", "grid"])
def test_an_export_says_what_its_secret_is_worth(seed, noise, versions):
    said = metadata.read(versions[seed, noise])["guarantee"]
    assert "rest on a secret in the files of this export" in said
    assert "whoever knows it can predict the noise" in said
    assert "export again" in said
    assert ("last bit" in said) == ((seed, noise) == ("keyed", "float"))


def modes(folder):
    return {stat.S_IMODE(path.stat().st_mode) for path in folder}


def test_owner_and_group_alone_may_read_an_export(versions):
    for version in versions.values():
        paths = [version, *version.rglob("*")]
        assert modes(path for path in paths if path.is_dir()) == {0o750}
        files = [path for path in paths if path.is_file()]
        assert modes(files) == {0o640}
        assert "saved_model.pb" in {path.name for path in files}


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o077], ids=oct)
def test_the_umask_opens_and_closes_nothing(mask, tmp_path):
    """Before it has a number, too: what was open once may have been read."""
    before = os.umask(mask)
    try:
        with folders.scratch(tmp_path / "base") as folder:
            assert modes([folder]) == {0o700}
            (folder / "variables").mkdir()
            (folder / "variables" / "index").write_text("weights")
            version = folders.publish(folder, tmp_path / "base", None)
    finally:
        os.umask(before)
    assert modes([version, version / "variables"]) == {0o750}
    assert modes([version / "variables" / "index"]) == {0o640}


def test_the_group_is_that_of_the_folder(tmp_path):
    """With the set-group-ID bit, as docs/serving.md says."""
    if os.geteuid():
        pytest.skip("only the superuser gives files to any group")
    os.chown(tmp_path, -1, 10500)
    tmp_path.chmod(0o2750)
    with folders.scratch(tmp_path) as folder:
        (folder / "saved_model.pb").write_text("a graph")
        version = folders.publish(folder, tmp_path, None)
    for path in (version, version / "saved_model.pb"):
        assert path.stat().st_gid == 10500
