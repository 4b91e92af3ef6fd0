"""Mixing: adversaries, confidences and ratios where they are known."""

import numpy as np
import pytest
from scipy import stats

from rs_keras import Certifier
from rs_keras.report import figures
from rs_keras.report.figures import plot_interpolation
from rs_keras.report.figures import plot_mixing_ratios

SIGMA = 0.25


@pytest.fixture
def certifier(linear):
    return Certifier(linear, SIGMA, num_classes=2)


@pytest.fixture
def pairs(linear, images):
    """Images, labels, and their mirror images behind the boundary."""
    normal = linear.weights / np.linalg.norm(linear.weights)
    signed = linear.score(images) / np.linalg.norm(linear.weights)
    other = images - 2 * signed[:, None, None, None] * normal
    # Kept away from black and white, so that none is cut off.
    middle = np.clip(np.stack([images, other]), 0, 1)
    return middle[0], linear.label(middle[0]), middle[1].astype("float32")


def test_confidence_along_the_way_is_the_normal_distributions(
    certifier, linear, pairs
):
    images, _, other = pairs
    ratios = [0.0, 0.3, 1.0]
    found = figures.confidences(certifier, images, other, ratios, n=4000)
    assert found.shape == (3, 5, 2)
    np.testing.assert_allclose(found.sum(-1), 1)
    for ratio, shares in zip(ratios, found, strict=True):
        mixed = (1 - ratio) * images + ratio * other
        scale = SIGMA * np.linalg.norm(linear.weights)
        expected = stats.norm.cdf(linear.score(mixed) / scale)
        # Five standard errors of 4,000 votes.
        np.testing.assert_allclose(shares[:, 1], expected, atol=0.04)


def test_ratio_is_where_the_boundary_is_crossed(certifier, linear, pairs):
    images, labels, other = pairs
    # The score is linear in the ratio.
    first, last = linear.score(images), linear.score(other)
    with np.errstate(divide="ignore"):
        crossing = first / (first - last)
    crosses = np.sign(first) != np.sign(last)
    assert crosses.sum() >= 3
    found = figures.equal_confidence_ratios(
        certifier, images, labels, other, n=4000
    )
    # Votes lean to a side until the score is 0.05 standard deviations off it.
    slope = np.abs(first - last) / np.linalg.norm(linear.weights)
    slack = 0.06 * SIGMA / slope + 1 / (32 * 32)
    assert (np.abs(found - crossing)[crosses] <= slack[crosses]).all()
    assert np.isinf(found[~crosses]).all()


def test_ratio_of_no_change_and_of_no_right_prediction(certifier, pairs):
    images, labels, _ = pairs
    found = figures.equal_confidence_ratios(
        certifier, images, labels, images, n=200, points=3
    )
    assert np.isinf(found).all()
    found = figures.equal_confidence_ratios(
        certifier, images, 1 - labels, images, n=200, points=3
    )
    assert np.isnan(found).all()


def test_halving_comes_from_above(certifier, pairs):
    images, labels, other = pairs
    arguments = (certifier, images, labels, other, 500, 4)
    coarse = figures.equal_confidence_ratios(*arguments, halvings=0)
    fine = figures.equal_confidence_ratios(*arguments, halvings=6)
    done = np.isfinite(coarse)
    np.testing.assert_array_equal(coarse[done] * 4 % 1, 0)
    assert (fine[done] <= coarse[done]).all()
    assert (fine[done] > coarse[done] - 1 / 4).all()


def test_adversary_climbs_along_the_gradient(certifier, linear, images):
    labels = linear.label(images)
    found = figures.adversarial_images(
        certifier, images, labels, steps=1, step_size=0.01
    )
    # One short step, along the weights and towards the other class; pixels
    # at the rim are cut off.
    normal = linear.weights / np.linalg.norm(linear.weights)
    sign = np.where(labels == 1, -1, 1)[:, None, None, None]
    expected = np.clip(images + 0.01 * sign * normal, 0, 1)
    np.testing.assert_allclose(found, expected, atol=1e-4)


def test_adversaries_reach_is_eight_sigma(certifier, linear, images):
    labels = linear.label(images)
    found = figures.adversarial_images(certifier, images, labels, steps=2)
    moved = np.linalg.norm((found - images).reshape(5, -1), axis=1)
    assert (moved <= 8 * SIGMA + 1e-4).all() and (moved > 0.5).all()
    assert found.min() >= 0 and found.max() <= 1
    assert (linear.label(found) != labels).all()


@pytest.mark.parametrize(
    "call, message",
    [
        (
            lambda c, x: figures.adversarial_images(c, x, [0]),
            r"`labels` must have shape \[5\]",
        ),
        (
            lambda c, x: figures.adversarial_images(c, x, [0] * 5, steps=-1),
            "`steps`",
        ),
        (
            lambda c, x: figures.adversarial_images(c, x, [0] * 5, num_noise=0),
            "`num_noise`",
        ),
        (
            lambda c, x: figures.confidences(c, x, x[:2], [0]),
            "`adversarial`",
        ),
        (lambda c, x: figures.confidences(c, x, x, [1.5]), "`ratios`"),
        (
            lambda c, x: figures.equal_confidence_ratios(
                c, x, [0] * 5, x, points=0
            ),
            "`points`",
        ),
        (
            lambda c, x: figures.confidences(c, 255 * x, x, [0]),
            r"in \[0, 1\]",
        ),
    ],
    ids=["labels", "steps", "noise", "shape", "ratios", "points", "range"],
)
def test_bad_arguments_of_interpolation_are_refused(
    certifier, images, call, message
):
    with pytest.raises(ValueError, match=message):
        call(certifier, images)


def test_figure_shows_the_way(certifier, pairs, tmp_path):
    images, labels, other = pairs
    path = tmp_path / "way.svg"
    figure = plot_interpolation(
        certifier,
        images[0],
        int(labels[0]),
        other[0],
        path,
        class_names=["cat", "dog"],
        n=200,
        points=5,
    )
    assert path.stat().st_size > 1000
    axes = figure.axes
    titles = [one.get_title() for one in axes]
    assert titles[:3] == ["noisy copy"] * 3
    assert titles[3:8] == [
        "image",
        "ratio 0.25",
        "ratio 0.5",
        "ratio 0.75",
        "adversarial",
    ]
    np.testing.assert_array_equal(
        axes[3].images[0].get_array(), images[0][..., 0]
    )
    # The label's curve is what `confidences` says.
    expected = figures.confidences(
        certifier, images[:1], other[:1], np.linspace(0, 1, 5), n=200
    )[:, 0, labels[0]]
    np.testing.assert_allclose(axes[8].lines[0].get_ydata(), expected)
    name = ["cat", "dog"][labels[0]]
    assert axes[8].lines[0].get_label() == f"{name} (label)"
    with pytest.raises(ValueError, match="`label` must be in"):
        plot_interpolation(certifier, images[0], 2, other[0], n=10)


def test_histogram_counts_shares_of_correct_examples(tmp_path):
    ratios = np.array([0.1, 0.15, 0.6, np.inf, np.nan])
    figure = plot_mixing_ratios({"a": ratios}, tmp_path / "a.png", bins=2)
    values, edges, _ = figure.axes[0].patches[0].get_data()
    np.testing.assert_allclose(values, [0.5, 0.25])
    np.testing.assert_allclose(edges, [0, 0.5, 1])
    (label,) = figure.axes[0].get_legend_handles_labels()[1]
    assert label == "a (median 0.15, 25% never)"


@pytest.mark.parametrize(
    "ratios, message",
    [({}, "at least one"), ({"a": np.array([np.nan])}, "prediction of a")],
    ids=["none", "all-wrong"],
)
def test_bad_histograms_of_mixing_ratios_are_refused(ratios, message):
    with pytest.raises(ValueError, match=message):
        plot_mixing_ratios(ratios)
