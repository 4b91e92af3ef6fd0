"""Receipts: asked for through the wire, checked by `rs-keras verify`.

The oracle of the votes is the receipt's own server, that of the arithmetic is
SciPy; what is false is written into receipts by hand.
"""

import hashlib
import json

import keras
import numpy as np
import pytest
import scipy.stats
from kits.fake_servers import METADATA
from kits.fake_servers import Fake
from kits.fake_servers import certificate
from kits.fake_servers import votes
from PIL import Image

from rs_keras import Certifier
from rs_keras.cli import main
from rs_keras.export import export_certifier
from rs_keras.serving import CertificationClient
from rs_keras.serving import EmbeddedServer
from rs_keras.serving import receipts
from rs_keras.serving import verification

SHAPE = (4, 4, 1)
N0, N = 100, 20_000
ROW = ("certificates", 0)


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A checkpoint, its export, a server of it, an image and a receipt."""
    folder = tmp_path_factory.mktemp("receipts")
    keras.utils.set_random_seed(1)
    model = keras.Sequential(
        [keras.Input(SHAPE), keras.layers.Flatten(), keras.layers.Dense(3)]
    )
    model.save(folder / "model.keras")
    keras.utils.set_random_seed(2)
    other = keras.models.clone_model(model)
    other.save(folder / "other.keras")
    certifier = Certifier(model, sigma=0.5)
    options = {"n0": N0, "n": 500, "max_n": N, "warmup": False}
    export_certifier(certifier, folder / "exports", **options)
    pixels = np.random.default_rng(4).integers(0, 256, [4, 4], np.uint8)
    Image.fromarray(pixels).save(folder / "image.png")
    Image.fromarray(255 - pixels).save(folder / "another.png")
    with EmbeddedServer(
        folder / "exports", model_name="m", port=0, warmup=False
    ) as server:
        ask = ["request", server.address, "--model-name", "m"]
        # With a seed of its own, a false one might find the same votes.
        image = ["--image", str(folder / "image.png"), "--n", str(N)]
        image += ["--seed", "7"]
        path = folder / "receipt.json"
        assert main([*ask, *image, "--receipt", str(path)]) in (0, 1)
        yield folder, server.address, json.loads(path.read_text())


def verify(world, table, *arguments, model="model.keras", image="image.png"):
    folder, _, _ = world
    path = folder / "changed.json"
    path.write_text(table if isinstance(table, str) else json.dumps(table))
    reach = [] if "--servers" in arguments else ["--model", str(folder / model)]
    image = ["--image", str(folder / image)]
    return main(["verify", str(path), *reach, *image, *arguments])


def changed(table, *places, value):
    """A copy of a receipt, with another value at one place."""
    copy = json.loads(json.dumps(table))
    *path, last = places
    inner = copy
    for place in path:
        inner = inner[place]
    inner[last] = value
    return copy


def test_a_receipt_has_what_a_replay_needs(world):
    folder, _, table = world
    [row] = table["certificates"]
    pixels = np.asarray(Image.open(folder / "image.png"), np.float32) / 255
    text = b"4,4,1\n" + pixels.astype("<f4").tobytes()
    assert row["image_sha256"] == hashlib.sha256(text).hexdigest()
    assert table["settings"]["n"] == row["n"] == N == sum(row["counts"])
    assert sum(row["selection_counts"]) == N0
    assert table["export"]["sigma"] == 0.5
    k, alpha = max(row["counts"]), table["settings"]["alpha"]
    # The bound splits alpha between the two classes, so this one is larger.
    assert row["p_lower"] <= scipy.stats.beta.ppf(alpha, k, N - k + 1)


@pytest.mark.parametrize("model", ["model.keras", "exports", "exports/1"])
def test_the_draws_are_repeated(world, model, capsys):
    _, _, table = world
    assert verify(world, table, model=model) == 0
    assert f"10000 of {N} draws repeated" in capsys.readouterr().out
    assert verify(world, table, "--all", model=model) == 0
    assert f"all {N} draws repeated" in capsys.readouterr().out


def test_servers_repeat_draws_too(world, capsys):
    _, address, table = world
    reach = ["--servers", address, "--model-name", "m"]
    assert verify(world, table, *reach, "--draws", "500") == 0
    assert f"500 of {N} draws repeated" in capsys.readouterr().out


def moved(table, number, folder):
    """Votes moved from the winner to another class, and what follows."""
    counts = list(table["certificates"][0]["counts"])
    top = int(np.argmax(counts))
    counts[top] -= number
    counts[(top + 1) % 3] += number
    copy = changed(table, *ROW, "counts", value=counts)
    (folder / "moved.json").write_text(json.dumps(copy))
    receipt = receipts.read(folder / "moved.json")
    follows = receipts.computed(receipt, receipt.rows[0])
    for name in ("label", "radius", "p_lower"):
        value = getattr(follows, name)[0].item()
        copy = changed(copy, *ROW, name, value=value)
    return copy


def test_false_counts_are_found_out(world, capsys, tmp_path):
    _, _, table = world
    # Beyond rounding, though only 0.2 % of the draws: all are needed.
    false = moved(table, 40, tmp_path)
    assert verify(world, false, "--all") == 1
    assert f": no: all {N} draws vote" in capsys.readouterr().out
    # A tenth of the draws: a sample of 5,000 suffices.
    false = moved(table, N // 10, tmp_path)
    assert verify(world, false, "--draws", "5000") == 1
    assert f": no: 5000 of {N} draws vote" in capsys.readouterr().out


FALSE = {
    "radius": ("radius", 9.0, "it claims radius=9.0 where its votes give"),
    "bound": ("p_lower", 1.0, "it claims p_lower=1.0 where"),
    "label": ("label", -1, "it claims label=-1 where"),
    "seed": ("seed", [5, 6], "draws vote"),
}


@pytest.mark.parametrize(
    ("name", "value", "words"), FALSE.values(), ids=FALSE.keys()
)
def test_false_claims_are_found_out(world, capsys, name, value, words):
    _, _, table = world
    false = changed(table, "certificates", 0, name, value=value)
    assert verify(world, false) == 1
    out = capsys.readouterr().out
    assert ": no: " in out and words in out
    assert out.count("\n") == 1


def test_another_image_or_model_is_no(world, capsys):
    _, _, table = world
    assert verify(world, table, image="another.png") == 1
    assert "no: the receipt is about another image" in capsys.readouterr().out
    assert verify(world, table, model="other.keras") == 1
    assert "about another model, fingerprint:" in capsys.readouterr().out


def test_another_export_is_no(world, capsys):
    _, _, table = world
    with Fake(image={"shape": [4, 4, 1]}) as fake:
        reach = ["--servers", fake.address, "--model-name", "m"]
        assert verify(world, table, *reach) == 1
    assert "no: another export is served, " in capsys.readouterr().out


HOSTILE = {
    "no format": (("receipt",), 2, "of format 1"),
    "huge n": (("settings", "n"), 10**40, "settings"),
    "n of a row": ((*ROW, "n"), N - 1, "`n` as a whole number"),
    "n is true": ((*ROW, "n"), True, "`n` as a whole number"),
    "more votes": ((*ROW, "counts"), [N, N, N], "`counts` as 3 numbers"),
    "negative": ((*ROW, "counts"), [N + 1, -1, 0], "`counts` as 3 numbers"),
    "classes": ((*ROW, "counts"), [N], "`counts` as 3 numbers"),
    "nested": ((*ROW, "counts"), [[1]] * 3, "`counts` as 3 numbers"),
    "seed": ((*ROW, "seed"), [2**63, 0], "`seed` as two numbers"),
    "hash": ((*ROW, "image_sha256"), "x\n\x1b[2J", "`image_sha256` as 64"),
    "radius": ((*ROW, "radius"), -1.0, "`radius` as a number >= 0"),
    "label": ((*ROW, "label"), 3, "`label` as a whole"),
    "rows": (("certificates",), [], "`certificates` as a list"),
    "no row": (("certificates",), [1], "`certificates` with"),
    "settings": (("settings",), {"n": 5}, "`settings` with n0"),
    "bound": (("settings", "bound"), "none", "settings"),
    "alpha": (("settings", "alpha"), 0.0, "settings"),
    "sigma": (("export", "sigma"), 0.25, "`identity` of the export"),
    "export": (("export",), [], "`export` as an object"),
    "negative sigma": (("export", "sigma"), -1.0, "`sigma` must be"),
    "model": (("model",), 7, "`model` as a string"),
}


@pytest.mark.parametrize(
    ("places", "value", "words"), HOSTILE.values(), ids=HOSTILE.keys()
)
def test_hostile_receipts_are_one_line(world, capsys, places, value, words):
    _, _, table = world
    assert verify(world, changed(table, *places, value=value)) == 2
    captured = capsys.readouterr()
    assert words in captured.err and captured.err.count("\n") == 1
    assert "\x1b" not in captured.err
    assert captured.out == ""


DAMAGED = {
    "empty": "",
    "cut": '{"receipt": 1, "mod',
    "no object": "[1]",
    "NaN": '{"receipt": NaN}',
    "deep": "[" * 100_000,
    "digits": '{"receipt": ' + "9" * 5_000 + "}",
    "twice": '{"receipt": 1, "receipt": 1}',
}


@pytest.mark.parametrize("text", DAMAGED.values(), ids=DAMAGED.keys())
def test_damaged_receipts_are_one_line(world, capsys, text):
    assert verify(world, text) == 2
    err = capsys.readouterr().err
    assert err.startswith("rs-keras verify: `RECEIPT` must be")
    assert err.count("\n") == 1


def test_bad_calls_are_one_line(world, capsys, tmp_path):
    _, address, table = world
    assert verify(world, table, "--draws", "0") == 2
    assert "`--draws` must be a whole number" in capsys.readouterr().err
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    image = ["--image", str(tmp_path / "binary"), "--model", "x.keras"]
    assert main(["verify", str(tmp_path / "binary"), *image]) == 2
    assert "must be a JSON file" in capsys.readouterr().err
    assert main(["verify", str(tmp_path / "absent"), *image]) == 2
    assert "absent" in capsys.readouterr().err
    ask = ["request", address, "--model-name", "m", "--image", "x.png"]
    receipt = ["--receipt", str(tmp_path / "r.json")]
    assert main([*ask, *receipt, "--radius", "0.1"]) == 2
    assert "--receipt must not be given with" in capsys.readouterr().err


# -- receipts of servers whose votes anyone can count --------------------------


def test_each_way_to_certify_gives_a_receipt(tmp_path):
    """One request, keyed or not, and draws that several servers share."""
    images = np.random.default_rng(0).uniform(size=(2, *SHAPE)).astype("f4")
    for seeds, number in (("fresh", 1), ("keyed", 2), ("fresh", 2)):
        fakes = [Fake(seed=seeds) for _ in range(number)]
        addresses = [fake.address for fake in fakes]
        with CertificationClient(addresses, "m") as client:
            assert client.certify(images).receipt is None
            found = client.certify(images, receipt=True)
            path = tmp_path / "receipt.json"
            path.write_text(found.receipt)
            receipt = receipts.read(path)
            assert receipt.model.metadata == {**METADATA, "seed": seeds}
            for row, image in zip(receipt.rows, images, strict=True):
                counts = votes(row.seed, 0, 100), votes(row.seed, 100, 1_000)
                label, radius, _ = certificate(*counts)
                assert (row.counts == counts[1]).all()
                assert row.label == label
                np.testing.assert_allclose(row.radius, radius, rtol=1e-9)
                assert verification.verify(receipt, image, client, None).holds
        assert found[1:].receipt == found.receipt
        for fake in fakes:
            fake.stop()


def test_a_receipt_with_a_tolerance(tmp_path):
    images = np.full([1, *SHAPE], 0.5, np.float32)
    with Fake() as fake:
        with CertificationClient(fake.address, "m") as client:
            found = client.certify(
                images, n=9_000, tolerance=0.05, seed=3, receipt=True
            )
            path = tmp_path / "receipt.json"
            path.write_text(found.receipt)
            assert found.n[0] < 9_000
            receipt = receipts.read(path)
            assert verification.verify(receipt, images[0], client, None).holds
            table = json.loads(found.receipt)
            path.write_text(
                json.dumps(changed(table, *ROW, "n", value=int(found.n[0]) + 1))
            )
            receipt = receipts.read(path)
            verdict = verification.verify(receipt, images[0], client, None)
    assert "where its settings give n=" in verdict.text


@pytest.mark.parametrize("claimed", ["true", "false"])
def test_samples_say_no_as_rarely_as_promised(tmp_path, claimed):
    """Of 50 samples, none refuses what is true, or accepts what is not."""

    class Votes:
        """Draws of probability 0.8, 0.1 and 0.1."""

        def sample(self, images, n, seed, first):
            return votes(seed[0], first, n)[None]

    images = np.full([1, *SHAPE], 0.5, np.float32)
    with Fake() as fake, CertificationClient(fake.address, "m") as client:
        found = client.certify(images, n=5_000, seed=3, receipt=True)
    (tmp_path / "receipt.json").write_text(found.receipt)
    receipt = receipts.read(tmp_path / "receipt.json")
    if claimed == "false":
        table = moved(json.loads(found.receipt), 500, tmp_path)
        (tmp_path / "receipt.json").write_text(json.dumps(table))
        receipt = receipts.read(tmp_path / "receipt.json")
    for _ in range(50):
        verdict = verification.verify(receipt, images[0], Votes(), 2_000)
        assert verdict.holds == (claimed == "true")
