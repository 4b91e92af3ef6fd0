"""Logs of attacks: rows against attacks on single images, and resumption."""

import numpy as np
import pytest

from rs_keras import CertificationLog
from rs_keras import Certifier
from rs_keras import attacks
from rs_keras.logs import is_attack
from rs_keras.noise import fold_in

RADII = [0.1, 0.2]
ASKED = {
    "radii": RADII,
    "method": attacks.SmallestPerturbation(steps=2, noises=16, goals=1),
    "n": 1_000,
    "seed": 4,
    "progress": False,
}


@pytest.fixture(scope="module")
def data(linear_kit):
    rng = np.random.default_rng(5)
    images = rng.uniform(0.2, 0.8, size=(8, 4, 4, 1)).astype(np.float32)
    labels = linear_kit.label(images)
    # Example 3 is wrong, example 5 lies on the boundary.
    labels[3] = 1 - labels[3]
    weights = linear_kit.weights
    images[5] -= weights * (
        linear_kit.score(images[5:6])[0] / (weights**2).sum()
    )
    return list(zip(images, labels.tolist(), strict=True))


@pytest.fixture(scope="module")
def linear_kit():
    from kits.linear import Linear

    return Linear()


@pytest.fixture(scope="module")
def certifier(linear_kit):
    return Certifier(linear_kit, 0.1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("attacks")


@pytest.fixture(scope="module")
def log(certifier, data, folder):
    return attacks.attack_dataset(
        certifier, data, folder / "log.tsv", save_images=folder / "i", **ASKED
    )


def test_rows_are_those_of_single_images(log, certifier, data, folder):
    assert is_attack(log) and log.settings["attack_radii"] == RADII
    header = (folder / "log.tsv").read_text().split("\n")[0].split("\t")
    assert header[6:] == [
        "adversarial_norm",
        "abstain_norm",
        "adversarial_label",
        "example",
        "checksum",
    ]
    for idx, (image, label) in enumerate(data):
        alone = attacks.attack(
            certifier,
            image[None],
            [label],
            RADII,
            ASKED["method"],
            n=1_000,
            seed=fold_in(4, idx)[None],
        )
        norm = log.extra["adversarial_norm"][idx]
        assert log.predict[idx] == alone.predicted[0]
        if np.isfinite(alone.norm[0]):
            # Rounded up: nothing smaller was found.
            assert 0 <= norm - alone.norm[0] < 1.001e-6
        else:
            assert norm == np.inf
        if log.predict[idx] == label:
            assert log.radius[idx] == min(norm, 0.2)
        saved = folder / "i" / f"{idx}.npy"
        assert saved.exists() == (alone.adversarial_label[0] >= 0)
        if saved.exists():
            np.testing.assert_array_equal(np.load(saved), alone.adversarial[0])


def test_every_outcome_is_in_the_log(log):
    # So that the tests here are about all of them.
    assert log.predict[3] != log.label[3] and log.radius[3] == 0
    assert log.extra["adversarial_norm"][3] == 0
    assert log.predict[5] == -1 and log.extra["abstain_norm"][5] == 0
    norms = log.extra["adversarial_norm"]
    assert np.isinf(norms[log.correct]).any()
    assert np.isfinite(norms[log.correct]).any()


def test_a_log_of_an_attack_resumes(log, certifier, data, folder):
    path = folder / "resumed.tsv"
    attacks.attack_dataset(certifier, data, path, max_examples=3, **ASKED)
    again = attacks.attack_dataset(certifier, data, path, **ASKED)
    for name in ("predict", "radius", "correct"):
        np.testing.assert_array_equal(getattr(again, name), getattr(log, name))
    others = ASKED | {"radii": [0.1]}
    with pytest.raises(ValueError, match="attack_radii: stored"):
        attacks.attack_dataset(certifier, data, path, **others)
    others = ASKED | {"method": attacks.PGD()}
    with pytest.raises(ValueError, match="attack: stored"):
        attacks.attack_dataset(certifier, data, path, **others)


def test_an_altered_radius_is_refused(log, folder):
    text = (folder / "log.tsv").read_text()
    for old, new, why in (
        ("\t0.2\t", "\t0.3\t", "does not agree with its checksum"),
    ):
        assert old in text or "\t0.200000\t" in text
        old = old if old in text else "\t0.200000\t"
        path = folder / "altered.tsv"
        path.write_text(text.replace(old, new, 1))
        settings = (folder / "log.tsv.json").read_text()
        (folder / "altered.tsv.json").write_text(settings)
        with pytest.raises(ValueError, match=why):
            CertificationLog.read(path)
    with pytest.raises(ValueError, match="<= 0.2, the largest radius of the"):
        CertificationLog(
            [0], [1], [1], [0.3], [1], [1.0], settings=log.settings
        )


def test_a_log_says_that_it_certifies_nothing(log):
    assert log.bound_form == "none: attack, SmallestPerturbation"
    assert "mean norm" in repr(log) and "(attack)" in repr(log)


def test_examples_without_a_label_are_refused(certifier, data, tmp_path):
    unknown = [(data[0][0], -1)]
    with pytest.raises(ValueError, match="must have labels in"):
        attacks.attack_dataset(
            certifier, unknown, tmp_path / "log.tsv", **ASKED
        )
