"""Attacks on classifiers whose smoothed decision has a closed form.

A linear classifier's smoothed version is the classifier itself: its boundary is
|w.x + b| / |w| away, and no perturbation that is shorter changes the label.
"""

import numpy as np
import pytest
import scipy.stats
import tensorflow as tf
from kits.linear import Linear

from rs_keras import Certifier
from rs_keras import DataDependentCertifier
from rs_keras import attacks
from rs_keras.attacks.images import Harness
from rs_keras.attacks.rays import leads

SIGMA = 0.1
N = 20_000
METHODS = {
    "pgd": attacks.PGD(steps=8),
    "pgd_fixed": attacks.PGD(
        steps=8, fresh_noise=False, objective="cross_entropy"
    ),
    "pgd_starts": attacks.PGD(steps=8, random_starts=1, goals=1),
    "smallest": attacks.SmallestPerturbation(steps=4, noises=32),
}


@pytest.fixture(scope="module")
def linear():
    return Linear()


@pytest.fixture(scope="module")
def certifier(linear):
    return Certifier(linear, SIGMA)


@pytest.fixture(scope="module")
def some(linear):
    """Images whose boundary is .1 to .2 away, within the box, and labels."""
    rng = np.random.default_rng(4)
    images = rng.uniform(0.2, 0.8, size=(200, 4, 4, 1)).astype(np.float32)
    radius = linear.radius(images)
    images = images[(radius > 0.1) & (radius < 0.2)][:3]
    return images, linear.label(images)


def margin_of(n, alpha):
    """How far beyond the boundary n votes tell the classes apart, in sigma."""
    z = scipy.stats.norm.isf(alpha / 2)
    return scipy.stats.norm.ppf(0.5 + z / (2 * np.sqrt(n)))


@pytest.mark.parametrize("name", METHODS)
def test_gradients_reach_the_true_boundary(name, linear, certifier, some):
    images, labels = some
    found = attacks.attack(
        certifier, images, labels, [0.15, 0.25], METHODS[name], n=N, seed=1
    )
    true = linear.radius(images)
    assert (found.norm > true).all()
    # Few percent above, of which n votes need a part to tell it.
    least = true + SIGMA * margin_of(N, 0.001 / 4)
    assert (found.norm < 1.03 * least).all()
    np.testing.assert_array_equal(found.adversarial_label, 1 - labels)
    np.testing.assert_array_equal(linear.label(found.adversarial), 1 - labels)
    np.testing.assert_array_equal(found.predicted, labels)
    distance = np.linalg.norm(
        (found.adversarial.astype(float) - images).reshape(3, -1), axis=1
    )
    np.testing.assert_allclose(found.norm, distance, rtol=1e-12)
    assert found.adversarial.min() >= 0 and found.adversarial.max() <= 1
    # It abstains on both sides of the boundary, and so before it.
    assert (found.abstain_norm <= found.norm).all()
    assert (found.abstain_norm > 0.9 * true - 0.01).all()
    np.testing.assert_array_equal(found.robust(0.1), True)
    np.testing.assert_array_equal(found.robust(0.25), False)


def test_votes_alone_reach_the_boundary_from_further_away(
    linear, certifier, some
):
    images, labels = some
    method = attacks.RandomSearch(steps=15)
    found = attacks.attack(
        certifier, images[:1], labels[:1], 0.4, method, n=5_000, seed=1
    )
    true = linear.radius(images[:1])
    assert true[0] < found.norm[0] < 0.4


def test_certificates_lie_below_and_attacks_above_the_boundary(
    linear, certifier, some
):
    images, labels = some
    certificate = certifier.certify(images, n=N, alpha=1e-6, seed=5)
    true = linear.radius(images)
    assert (certificate.radius < true).all()
    inside = attacks.attack(
        certifier,
        images,
        certificate.label,
        certificate.radius[:, None],
        METHODS["pgd"],
        n=N,
        seed=2,
    )
    assert np.isinf(inside.norm).all()
    assert (inside.adversarial_label == -1).all()
    np.testing.assert_array_equal(inside.adversarial, images)


def test_the_box_is_a_part_of_the_problem():
    # The nearest point of the boundary x0 + x1 = 1.7 from (0.95, 0.05) is
    # (1.3, 0.4); in the box it is (1, 0.7), by (0.05, 0.65) away.
    def classify(images):
        score = 5.0 * (images[:, 0, 0, 0] + images[:, 0, 0, 1] - 1.7)
        return tf.stack([-score, score], -1)

    image = np.array([0.95, 0.05], np.float32).reshape(1, 1, 1, 2)
    least = np.hypot(0.05, 0.65)
    certifier = Certifier(classify, 0.1)
    for method in (METHODS["pgd"], METHODS["smallest"]):
        found = attacks.attack(certifier, image, [0], 0.8, method, n=N, seed=3)
        assert least < found.norm[0] < 1.04 * least


def three_classes(images):
    """Class 1 is nearer than class 2."""
    x = 8.0 * (images[:, 0, 0, 0] - 0.5)
    y = 8.0 * (images[:, 0, 0, 1] - 0.5)
    return tf.stack([tf.zeros_like(x), x, y], -1)


def test_a_goal_is_reached_past_a_nearer_class():
    certifier = Certifier(three_classes, 0.1)
    image = np.array([0.4, 0.2], np.float32).reshape(1, 1, 1, 2)
    any_class = attacks.attack(certifier, image, [0], 0.6, seed=1)
    assert any_class.adversarial_label[0] == 1
    for method in (METHODS["pgd"], METHODS["smallest"]):
        found = attacks.attack(
            certifier, image, [0], 0.6, method, goals=[2], seed=1
        )
        assert found.adversarial_label[0] == 2
        # The noise of both pixels: classes 0 and 2 tie about at y = 0.5.
        assert 0.28 < found.norm[0] < 0.4
        assert found.norm[0] > any_class.norm[0]


def test_a_sigma_for_each_image_is_not_one_classifier(linear, some):
    certifier = DataDependentCertifier(linear, sigma0=0.1)
    with pytest.raises(ValueError, match="must be a `Certifier`: an attack"):
        attacks.attack(certifier, some[0], some[1], 0.1)


def test_what_is_wrong_already_needs_no_perturbation(certifier, some):
    images, labels = some
    found = attacks.attack(certifier, images, 1 - labels, 0.2, n=500, seed=1)
    np.testing.assert_array_equal(found.norm, 0.0)
    np.testing.assert_array_equal(found.abstain_norm, 0.0)
    np.testing.assert_array_equal(found.adversarial, images)
    assert not found.robust(0.0).any()


def test_an_abstention_is_no_success():
    # On the boundary, and 0.2 sigma beyond it at most: 40 votes cannot tell.
    def classify(images):
        score = 4.0 * (images[:, 0, 0, 0] - 0.5)
        return tf.stack([-score, score], -1)

    image = np.full((1, 1, 1, 1), 0.5, np.float32)
    certifier = Certifier(classify, 0.25)
    found = attacks.attack(
        certifier, image, [0], 0.05, attacks.PGD(steps=2), n=40, seed=2
    )
    assert found.predicted[0] == -1 and found.abstain_norm[0] == 0
    assert np.isinf(found.norm[0]) and found.robust(0.05)[0]


def test_nothing_is_claimed_with_more_than_alpha():
    """A tie: whatever an attack finds there is an error of the prediction."""
    rng = np.random.default_rng(0)

    class Tie:
        noise = "float"
        calls = 0

        def predict(self, images, n, alpha, seed):
            counts = rng.multinomial(n, [0.5, 0.5])
            p = scipy.stats.binomtest(int(counts[0]), n).pvalue
            label = counts.argmax() if p <= alpha else -1

            class Found:
                pass

            Found.label = [label]
            return Found

    class Attacked:
        certifier = Tie()

        def votes(self, images, n, seed, first=0):
            return rng.multinomial(n, [0.5, 0.5], len(images))

    image = np.full((1, 1, 1), 0.5, np.float32)
    alpha, trials = 0.2, 150
    harness = Harness(lambda task: task.image[None] + 0.1, 200, alpha)
    broken = 0
    for trial in range(trials):
        task = attacks.Task(
            Attacked(), image, 0, np.array([0.2]), np.array([trial, 0])
        )
        result = harness(task)
        # The image itself is predicted once, at alpha by itself.
        broken += result["adversarial_label"] == 1 and result["norm"] > 0
    slack = 4 * np.sqrt(alpha * (1 - alpha) / trials)
    assert broken / trials <= alpha + slack


def test_the_same_seed_gives_the_same_result(certifier, some):
    images, labels = some
    runs = [
        attacks.attack(
            certifier, images[rows], labels[rows], 0.2, n=1_000, seed=seeds
        )
        for rows, seeds in (
            (slice(None), [[7, 0], [7, 1], [7, 2]]),
            (slice(1, 2), [[7, 1]]),
        )
    ]
    np.testing.assert_array_equal(runs[0][1].adversarial, runs[1].adversarial)
    assert runs[0].norm[1] == runs[1].norm[0]
    assert len(runs[0][:2]) == 2 and [len(one) for one in runs[1]] == [1]


def test_the_grid_is_kept(linear):
    certifier = Certifier(linear, SIGMA, noise="grid")
    rng = np.random.default_rng(4)
    images = rng.uniform(0.2, 0.8, size=(50, 4, 4, 1)).astype(np.float32)
    images = images[np.abs(linear.radius(images) - 0.15) < 0.02][:1]
    labels = linear.label(images)
    found = attacks.attack(
        certifier, images, labels, 0.25, METHODS["pgd"], n=5_000, seed=1
    )
    assert found.adversarial_label[0] == 1 - labels[0]
    levels = found.adversarial.astype(np.float64) * 255
    np.testing.assert_allclose(levels, np.round(levels), atol=1e-4)
    # From the image that the certificate is about.
    centre = np.round(images.astype(np.float64) * 255) / 255
    moved = np.linalg.norm(found.adversarial - centre)
    assert found.norm[0] == pytest.approx(moved, abs=1e-6)
    assert moved <= 0.25


def test_leads_by_hand():
    votes = np.array([[60, 30, 10], [30, 60, 10], [30, 10, 60], [50, 50, 0]])
    # (60 - 30) / sqrt(90 * 100); a tie leads by nothing.
    one = 30 / np.sqrt(9_000)
    np.testing.assert_allclose(leads(votes, 0), [-one, one, one, 0])
    # With a goal, the goal has to win; else it is behind the first.
    behind = 50 / np.sqrt(70 * 100)
    np.testing.assert_allclose(
        leads(votes, 0, goal=2), [-behind, -behind, one, -50 / np.sqrt(5_000)]
    )


def test_a_model_without_gradients_is_named():
    def classify(images):
        score = tf.stop_gradient(tf.reduce_sum(images, [1, 2, 3]) - 8.0)
        return tf.stack([-score, score], -1)

    certifier = Certifier(classify, 0.1)
    image = np.full((1, 4, 4, 1), 0.45, np.float32)
    with pytest.raises(ValueError, match="must have a model with gradients"):
        attacks.attack(certifier, image, [0], 0.5, n=500)
    found = attacks.attack(
        certifier, image, [0], 0.5, attacks.RandomSearch(5), n=500, seed=1
    )
    assert found.norm[0] > 0.2


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"radii": 0.0}, "`radii` must be a finite number > 0"),
        ({"radii": [[0.1]]}, "`radii` must be a number, some numbers"),
        ({"labels": [0, 0]}, "`labels` must be one class number per image"),
        ({"labels": [0.0] * 3}, "`labels` must be one class number per image"),
        ({"labels": [0, 1, 2]}, r"`labels` must be in \[0, 2\)"),
        ({"goals": [0, 0, 0]}, "`goals` must differ from `labels`"),
        ({"n": 5}, "`n` must be >= "),
        ({"alpha": 2.0}, r"`alpha` must be in \(0, 1\)"),
    ],
)
def test_bad_arguments_are_refused(certifier, some, arguments, message):
    images, _ = some
    given = {"labels": [0, 1, 0], "radii": 0.1} | arguments
    with pytest.raises(ValueError, match=message):
        attacks.attack(certifier, images, **given)


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: attacks.PGD(steps=0), "`steps` must be"),
        (lambda: attacks.PGD(objective="l2"), "`objective` must be one of"),
        (lambda: attacks.PGD(fresh_noise="no"), "`fresh_noise` must be True"),
        (lambda: attacks.SmallestPerturbation(averaging=1), "`averaging` must"),
        (lambda: attacks.RandomSearch(window=0), "`window` must be"),
    ],
)
def test_bad_settings_of_attacks_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_settings_name_the_attack(certifier, some):
    images, labels = some
    found = attacks.attack(certifier, images, labels, 0.1, n=500, seed=1)
    assert found.settings["scope"] == "attack"
    assert found.settings["attack"] == "SmallestPerturbation"
    assert found.settings["attack_settings"]["goals"] == 3
    assert found.settings["sigma"] == SIGMA and found.settings["n"] == 500
