"""Bundled models: what the cards and the committed logs say of them holds."""

import re
from pathlib import Path

import numpy as np
import pytest

from rs_keras import Certifier
from rs_keras import datasets
from rs_keras import models
from rs_keras.classifiers import load_classifier
from rs_keras.classifiers import trained_sigma
from rs_keras.classifiers.fingerprint import fingerprint
from rs_keras.cli import main
from rs_keras.trainers.reproduction import mnist as reproduction
from rs_keras.trainers.reproduction import model_cards

RESULTS = Path(__file__).parents[2] / "results"

each = pytest.mark.parametrize("name", models.PRETRAINED)


@each
def test_the_card_is_about_these_weights(name):
    known = models.PRETRAINED[name]
    model = models.pretrained(name)
    text = known.card.read_text()
    assert text.startswith(f"# {name}\n")
    assert f"`{fingerprint(model)}`" in text
    for part in ("Data", "Recipe", "Certified", "Limits"):
        assert f"\n## {part}\n" in text


@each
def test_the_card_tells_what_the_committed_logs_hold(name):
    known = models.PRETRAINED[name]
    folder = reproduction.folder_of(RESULTS, known.sigma, known.method)
    weights = fingerprint(models.pretrained(name))
    assert known.card.read_text() == model_cards.card(known, folder, weights)


@each
def test_bundled_weights_are_small(name):
    assert models.PRETRAINED[name].weights.stat().st_size < 2_000_000


@each
def test_a_bundled_model_answers_under_noise_as_its_card_says(name):
    """Votes on 300 test images, far from chance and near the card's."""
    try:
        images, labels = datasets.arrays("mnist", "test")
    except OSError as error:
        pytest.skip(f"MNIST is not here: {error}")
    known = models.PRETRAINED[name]
    certifier = Certifier(models.pretrained(name), known.sigma)
    found = certifier.sample(images[:300], n=100, seed=0)
    right = 100 * np.mean(np.argmax(found, 1) == labels[:300])
    # The first column after the ACR: certified at radius 0.
    row = re.search(
        r"^\| runner_up +\| +[\d.]+ \| +([\d.]+)", known.card.read_text(), re.M
    )
    # 300 images have a standard error of about 1.3 points at 95 %.
    assert abs(right - float(row[1])) < 5


def test_a_bundled_model_is_a_checkpoint_of_the_command_line(capsys):
    checkpoint = "pretrained:mnist-gaussian-1.00"
    model = load_classifier(checkpoint)
    assert model.count_params() == 431_080
    assert trained_sigma(checkpoint) == 1.0
    assert (
        main(
            [
                "predict",
                "fashion_mini",
                "--model",
                checkpoint,
                "--max-examples",
                "1",
                "--n",
                "100",
                "--seed",
                "0",
            ]
        )
        == 0
    )
    assert capsys.readouterr().out


def test_unknown_pretrained_names_suggest_the_nearest():
    with pytest.raises(ValueError, match="Did you mean 'mnist-gaussian-1.00'"):
        models.pretrained("mnist-gausian-1.00")
    with pytest.raises(ValueError, match="Did you mean 'mnist-gaussian-1.00'"):
        load_classifier("pretrained:mnist-gausian-1.00")
    assert not Path("pretrained:mnist-gausian-1.00").exists()
