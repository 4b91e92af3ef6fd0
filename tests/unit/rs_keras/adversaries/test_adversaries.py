"""Adversaries against closed forms on linear classifiers."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from rs_keras import adversaries

SHAPE = (3, 4, 4, 1)
RNG = np.random.default_rng(0)
# All entries alike but for the sign: no pixel moves further than another.
KERNEL = RNG.choice([-1.0, 1.0], size=SHAPE[1:])
LABELS = tf.constant([0, 1, 0], tf.int64)
# Along the gradient of label 0's loss the score rises, of label 1's it falls.
SIGNS = np.array([1.0, -1.0, 1.0])[:, None, None, None]
DIRECTION = SIGNS * KERNEL / np.linalg.norm(KERNEL)


def classifier(offset=0.0, scale=1.0, copies=1):
    """Two classes with logits -s and s, s = scale * (w.x + offset)."""

    def classify(x):
        score = tf.reduce_sum(x * KERNEL, [-3, -2, -1]) + offset
        logits = scale * tf.stack([-score, score], -1)
        if logits.shape.rank == 3:
            return logits
        return tf.stack([logits] * copies)

    return classify


def images():
    # Multiples of 1/255, so that rounding starts from where it leads to.
    return tf.constant(np.full(SHAPE, 128 / 255))


@pytest.mark.parametrize("order", ["clip_project", "project_clip"])
@pytest.mark.parametrize("copies", [1, 3])
def test_pgd_goes_straight_to_the_sphere(order, copies):
    # The gradient always points along the kernel: T steps of 2 eps / T reach
    # 2 eps, which is projected to eps.
    adversary = adversaries.PGD(4, 0.5, order=order)
    adv = adversary(classifier(copies=copies), images(), LABELS)
    wanted = images() + 0.5 * DIRECTION
    np.testing.assert_allclose(adv, wanted, atol=1e-6)


def test_a_factor_scales_the_radius():
    adversary = adversaries.PGD(4, 0.5)
    adv = adversary(classifier(), images(), LABELS, factor=0.5)
    wanted = images() + 0.25 * DIRECTION
    np.testing.assert_allclose(adv, wanted, atol=1e-6)


def test_pixels_stay_in_range_when_clipped_last():
    adversary = adversaries.PGD(4, 20.0, order="project_clip")
    adv = adversary(classifier(), images(), LABELS).numpy()
    np.testing.assert_array_equal(adv, (DIRECTION > 0).astype(float))


@pytest.mark.parametrize(
    "adversary",
    [
        adversaries.PGD(2, 1.0),
        adversaries.PGD(2, 1.0, order="project_clip"),
        adversaries.DDN(2, 1.0),
        adversaries.Ascent(2, 1.0),
    ],
    ids=["pgd", "pgd_project_clip", "ddn", "ascent"],
)
@pytest.mark.parametrize("steps", [0, 2])
def test_a_flat_loss_makes_no_step(adversary, steps):
    still = type(adversary)(**{**adversary.get_config(), "steps": steps})
    adv = still(classifier(scale=0.0), images(), LABELS)
    np.testing.assert_allclose(adv, images(), atol=1e-12)


def test_ascent_is_restrained_by_pixels_alone():
    adv = adversaries.Ascent(3, 0.4)(classifier(), images(), LABELS)
    np.testing.assert_allclose(adv, images() + 1.2 * DIRECTION, atol=1e-6)
    adv = adversaries.Ascent(3, 0.4, max_norm=0.7)(
        classifier(), images(), LABELS
    )
    np.testing.assert_allclose(adv, images() + 0.7 * DIRECTION, atol=1e-6)
    far = adversaries.Ascent(9, 5.0)(classifier(), images(), LABELS).numpy()
    np.testing.assert_array_equal(far, (DIRECTION > 0).astype(float))


def test_ascent_goes_on_from_a_start():
    whole = adversaries.Ascent(3, 0.4)(classifier(), images(), LABELS)
    first = adversaries.Ascent(1, 0.4)(classifier(), images(), LABELS)
    rest = adversaries.Ascent(2, 0.4)(
        classifier(), images(), LABELS, start=first
    )
    np.testing.assert_allclose(rest, whole, atol=1e-12)


def test_ddn_finds_a_perturbation_near_the_boundary():
    # The boundary is 0.2 away from every image, on its label's far side.
    size = np.linalg.norm(KERNEL)
    score = float(tf.reduce_sum(images()[0] * KERNEL))

    def classify(x):
        product = tf.reduce_sum(x * KERNEL, [1, 2, 3]) - score
        score_of = product - 0.2 * size * SIGNS[:, 0, 0, 0]
        return tf.stack([-score_of, score_of], -1)[None]

    adv = adversaries.DDN(60, 2.0, init_norm=1.0)(classify, images(), LABELS)
    moved = np.linalg.norm((adv - images()).numpy().reshape(3, -1), axis=1)
    # Each of 16 pixels is rounded to a level: 4 * half a level at most.
    assert ((moved > 0.2) & (moved < 0.2 + 0.05 * 0.25 + 4 * 0.5 / 255)).all()
    levels = adv.numpy() * 255
    np.testing.assert_allclose(levels, np.round(levels), atol=1e-9)


def test_ddn_leaves_what_is_wrong_already():
    adv = adversaries.DDN(5, 1.0)(
        classifier(offset=100.0), images(), tf.zeros([3], tf.int64)
    )
    np.testing.assert_array_equal(adv, images())


def test_noise_ascent_keeps_the_mean_and_nearly_the_scale():
    noise = tf.constant(RNG.normal(size=(2, *SHAPE)))
    target = tf.constant([[0.9, 0.1]] * 3, tf.float64)

    def classify(moved):
        return classifier()(tf.reshape(images() + moved, [2, *SHAPE]))

    found = adversaries.NoiseAscent(4, 0.5)(classify, noise, target).numpy()
    axes = (-3, -2, -1)
    np.testing.assert_allclose(found.mean(axes), noise.numpy().mean(axes))
    scale = np.sqrt((noise.numpy() ** 2).mean(axes))
    spread = np.sqrt((found**2).mean(axes))
    np.testing.assert_allclose(spread, scale, rtol=0.1)
    moved = np.linalg.norm((found - noise.numpy()).reshape(2, 3, -1), axis=-1)
    assert (moved < 0.6).all() and (moved > 0.1).all()


def test_project_by_hand():
    # The norm is 5; at radius 1 each entry is divided by 5 + 1e-7.
    delta = tf.constant([3.0, 4.0], tf.float64)[None, :, None, None]
    found = adversaries.project(delta, 1.0)[0, :, 0, 0]
    np.testing.assert_allclose(found, [3 / (5 + 1e-7), 4 / (5 + 1e-7)])
    np.testing.assert_array_equal(adversaries.project(delta, 5.0), delta)


@pytest.mark.parametrize(
    "adversary",
    [
        adversaries.PGD(3, 0.5, order="project_clip"),
        adversaries.DDN(3, 0.5, gamma=0.1, init_norm=0.7),
        adversaries.Ascent(3, 0.5, max_norm=2.0),
        adversaries.NoiseAscent(3, 0.5),
    ],
    ids=lambda adversary: type(adversary).__name__,
)
def test_an_adversary_is_rebuilt_from_its_config(adversary):
    config = keras.saving.serialize_keras_object(adversary)
    again = keras.saving.deserialize_keras_object(config)
    assert type(again) is type(adversary)
    assert again.get_config() == adversary.get_config()


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: adversaries.PGD(-1, 1.0), "`steps` must be .* >= 0"),
        (lambda: adversaries.PGD(1, 0.0), "`epsilon` must be .* > 0"),
        (lambda: adversaries.PGD(1, 1.0, "clip"), "`order` must be one of"),
        (lambda: adversaries.DDN(1, 1.0, gamma=1.0), "`gamma` must be"),
        (lambda: adversaries.DDN(1, 1.0, init_norm=0), "`init_norm` must"),
        (lambda: adversaries.Ascent(1, -1.0), "`step_size` must be"),
        (lambda: adversaries.Ascent(1, 1.0, 0.0), "`max_norm` must be"),
        (lambda: adversaries.NoiseAscent(1, np.nan), "`epsilon` must be"),
    ],
)
def test_bad_arguments_of_adversaries_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
