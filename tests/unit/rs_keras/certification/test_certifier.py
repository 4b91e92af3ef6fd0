import itertools
import json
import time

import keras
import numpy as np
import pytest
import scipy.stats
import tensorflow as tf

from rs_keras import Certifier
from rs_keras import DataDependentCertifier
from rs_keras import bounds
from rs_keras import noise
from rs_keras import smoothed_labels
from rs_keras import trainers
from rs_keras.certification.spec import CertifySpec
from rs_keras.certification.spec import SmoothingSpec
from rs_keras.certification.votes_to_results import decide_label
from rs_keras.certification.votes_to_results import vote_certificate
from rs_keras.classifiers.precision import compute_dtype

LABELS = 3


@pytest.fixture(scope="module")
def model():
    keras.utils.set_random_seed(3)
    return keras.Sequential(
        [
            keras.Input((4, 4, 1)),
            keras.layers.Flatten(),
            keras.layers.BatchNormalization(),
            keras.layers.Dense(LABELS),
        ]
    )


def by_hand(function, image, sigma, seed, first, n):
    """Votes from one draw after the other, in NumPy."""
    votes = np.zeros(LABELS, int)
    for draw in range(first, first + n):
        eps = noise.normal(image.shape, seed, draw, 1).numpy()[0]
        logits = np.asarray(function(image[None] + np.float32(sigma) * eps))
        votes[logits[0].argmax()] += 1
    return votes


def test_votes_are_those_of_a_plain_loop(model, images):
    certifier = Certifier(model, sigma=0.5, batch_size=7)
    seeds = noise.as_seeds(5, len(images))
    counts = certifier.sample(images, n=20, seed=5, first=11)
    for row, image in enumerate(images):
        expected = by_hand(model, image, 0.5, seeds[row], 11, 20)
        np.testing.assert_array_equal(counts[row], expected)


@pytest.mark.parametrize("batch_size", [1, 7, 64, 1000])
def test_batch_size_changes_no_count(model, images, batch_size):
    expected = Certifier(model, sigma=0.5, batch_size=13).sample(images, n=200)
    other = Certifier(model, sigma=0.5, batch_size=batch_size)
    np.testing.assert_array_equal(other.sample(images, n=200), expected)


def test_counts_of_adjoining_ranges_add_up(model, images):
    certifier = Certifier(model, sigma=0.5, batch_size=16)
    cuts = [0, 37, 250, 999, 1000]
    parts = [
        certifier.sample(images, n=high - low, seed=3, first=low)
        for low, high in zip(cuts, cuts[1:], strict=False)
    ]
    whole = certifier.sample(images, n=1000, seed=3)
    np.testing.assert_array_equal(sum(parts), whole)
    assert whole.sum(1).tolist() == [1000] * len(images)


def test_no_draw_comes_twice(model, images):
    """16 numbers of 2**48: draw 2**62 would be draw 0 again."""
    certifier = Certifier(model)
    for first in (2**62, 2**44):
        with pytest.raises(ValueError, match=r"must be <= 17592186044416 "):
            certifier.sample(images, n=10, first=first)
    last = certifier.sample(images, n=10, first=2**44 - 10)
    assert (last.sum(1) == 10).all()


def test_rows_do_not_depend_on_their_neighbours(model, images):
    certifier = Certifier(model, sigma=0.5, batch_size=16)
    seeds = noise.as_seeds(4, len(images))
    together = certifier.sample(images, n=300, seed=seeds)
    alone = [
        certifier.sample(images[row][None], n=300, seed=seeds[row][None])[0]
        for row in range(len(images))
    ]
    np.testing.assert_array_equal(together, alone)


def test_slices_of_the_host_loop_change_no_count(model, images, monkeypatch):
    # Slow calls are cut finer, quick ones coarser; the counts must not notice.
    expected = Certifier(model, sigma=0.5, batch_size=8).sample(images, n=500)
    reads = {}
    for seconds in (0.0, 0.5, 60.0):
        ticks = itertools.count(step=seconds)
        monkeypatch.setattr(
            time, "perf_counter", lambda ticks=ticks: next(ticks)
        )
        certifier = Certifier(model, sigma=0.5, batch_size=8)
        np.testing.assert_array_equal(certifier.sample(images, n=500), expected)
        reads[seconds] = next(ticks) / seconds if seconds else 0
    assert reads[60.0] > 2 * reads[0.5]


def test_replicas_share_the_draws(model, images):
    expected = Certifier(model, sigma=0.5).sample(images, n=101, first=9)
    strategy = tf.distribute.MirroredStrategy(["CPU:0"])
    shared = Certifier(model, sigma=0.5, strategy=strategy)
    np.testing.assert_array_equal(
        shared.sample(images, n=101, first=9), expected
    )


def test_certify_does_not_retrace_the_model(images):
    traces = []

    def function(x):
        traces.append(x.shape)
        return tf.reshape(x, [-1, 16])[:, :LABELS]

    certifier = Certifier(function, sigma=0.5)
    certifier.certify(images, n0=10, n=50, seed=1)
    before = len(traces)
    certifier.certify(images[:2], n0=20, n=70, alpha=0.01, seed=2)
    certifier.certify(images, n0=7, n=1000, runner_up=False)
    # The probe of each form runs once, eagerly; graphs are never traced again.
    assert len(traces) == before


def test_selection_and_estimation_share_no_noise(model, images):
    certifier = Certifier(model, sigma=0.5)
    found = certifier.certify(images, n0=50, n=300, seed=6)
    np.testing.assert_array_equal(
        found.selection_counts, certifier.sample(images, n=50, seed=6)
    )
    np.testing.assert_array_equal(
        found.counts, certifier.sample(images, n=300, seed=6, first=50)
    )


def test_a_certificate_replays_from_its_seed(model, images):
    certifier = Certifier(model, sigma=0.5)
    first = certifier.certify(images, n=500)
    again = certifier.certify(images, n=500, seed=first.seed)
    other = certifier.certify(images, n=500)
    for name in ("label", "radius", "p_lower", "counts", "selection_counts"):
        np.testing.assert_array_equal(
            getattr(first, name), getattr(again, name)
        )
    assert (first.counts != other.counts).any()
    assert len(np.unique(first.seed, axis=0)) == len(images)


def test_plain_certificate_is_cohens(model, images):
    certifier = Certifier(model, sigma=0.5)
    found = certifier.certify(images, n=1000, seed=6, runner_up=False)
    for row in range(len(images)):
        top = found.selection_counts[row].argmax()
        k = found.counts[row, top]
        lower = scipy.stats.beta.ppf(1e-3, k, 1000 - k + 1) if k else 0.0
        assert found.p_lower[row] == pytest.approx(lower, rel=1e-9)
        if lower < 0.5:
            assert found.label[row] == -1 and found.radius[row] == 0
        else:
            radius = 0.5 * scipy.stats.norm.ppf(lower)
            assert found.label[row] == top
            assert found.radius[row] == pytest.approx(radius, rel=1e-9)
            assert found.radius[row] <= radius * (1 + 1e-12)


def test_runner_up_radius_by_scipy():
    # Class 0 is selected; the runner-up of the estimation round is class 2.
    selection, counts = [[60, 40, 0]], [[700, 100, 200]]
    label, radius, p_lower = vote_certificate(
        selection, counts, CertifySpec(n=1000), SmoothingSpec(0.5)
    )
    lower = scipy.stats.beta.ppf(9e-4, 700, 301)
    upper = scipy.stats.beta.ppf(1 - 1e-4, 201, 800)
    gap = scipy.stats.norm.ppf(lower) - scipy.stats.norm.ppf(upper)
    assert int(label[0]) == 0
    assert float(p_lower[0]) == pytest.approx(lower, rel=1e-9)
    assert float(radius[0]) == pytest.approx(0.25 * gap, rel=1e-9)


def test_the_joint_radius_is_that_of_its_counts(model, images):
    certifier = Certifier(model, sigma=0.5)
    found = certifier.certify(images, n=1000, seed=6, bound="joint")
    again = certifier.certify(images, n=1000, seed=6)
    np.testing.assert_array_equal(found.counts, again.counts)
    for row in range(len(images)):
        top = found.selection_counts[row].argmax()
        k, k2 = found.counts[row, top], np.delete(found.counts[row], top).max()
        if k <= k2:
            assert found.label[row] == -1
            continue
        joint = bounds.joint_count(k, k2, 1000, 1e-3, 0.5)
        assert found.radius[row] == float(joint.radius)
        assert found.label[row] == (-1 if joint.abstain else top)
    assert (found.label >= 0).any()
    assert found.radius.mean() > again.radius.mean()
    # No bound on a probability belongs to it, and it says so.
    assert np.isnan(found.p_lower).all()
    assert "no bound on the probability" in found.statement()
    assert "majority vote" in found.statement()
    assert found.settings["bound"] == "joint"
    largest = certifier.max_possible_radius(1000, bound="joint")
    assert found.radius.max() <= largest
    certifier.certify(images, n=1000, max_radius=largest, bound="joint")
    with pytest.raises(ValueError, match="`max_radius` must be <= "):
        certifier.certify(images, n=1000, max_radius=2.0, bound="joint")


def test_the_reference_decisions(golden):
    file = golden("certification__counts")
    settings = json.loads(str(file["hparams"]))
    n, alpha = settings["n"], settings["alpha"]
    spec = CertifySpec(n=n, alpha=alpha, runner_up=False)
    label, radius, p_lower = vote_certificate(
        file["counts0"], file["counts"], spec, SmoothingSpec(file["sigma"])
    )
    np.testing.assert_array_equal(label, file["certify_class"])
    np.testing.assert_allclose(
        radius, file["certify_radius"], rtol=1e-9, atol=1e-12
    )
    np.testing.assert_allclose(p_lower, file["certify_pABar"], rtol=1e-9)
    label, _ = decide_label(file["counts"], alpha, n)
    np.testing.assert_array_equal(label, file["predict_class"])


@pytest.mark.parametrize("bound", ["hoeffding", "bernstein"])
def test_soft_bounds_by_hand(model, images, bound):
    n, beta = 400, 3.0
    certifier = Certifier(model, sigma=0.5)
    found = certifier.certify(
        images, n0=20, n=n, bound=bound, beta=beta, runner_up=False, seed=2
    )
    for row, image in enumerate(images):
        eps = noise.normal(image.shape, found.seed[row], 0, 20 + n).numpy()
        logits = model(image + np.float32(0.5) * eps).numpy().astype(float)
        soft = scipy.special.softmax(beta * logits, axis=-1)
        top = soft[:20].sum(0).argmax()
        z = soft[20:, top]
        np.testing.assert_allclose(found.counts[row], soft[20:].sum(0), 1e-6)
        if bound == "hoeffding":
            lower = z.mean() - np.sqrt(np.log(1e3) / (2 * n))
        else:
            log = np.log(2e3)
            lower = z.mean() - np.sqrt(2 * z.var(ddof=1) * log / n)
            lower -= 7 * log / (3 * (n - 1))
        assert found.p_lower[row] == pytest.approx(max(lower, 0), rel=1e-5)
        assert found.label[row] == (top if lower >= 0.5 else -1)


def test_false_certificates_are_as_rare_as_promised(linear):
    """On a linear classifier the true radius is known: 12,000 certificates."""
    rng = np.random.default_rng(0)
    images = rng.uniform(size=(12_000, 4, 4, 1)).astype(np.float32)
    certifier = Certifier(linear, sigma=0.5, batch_size=400)
    alpha = 0.05
    for runner_up in (False, True):
        found = certifier.certify(
            images, n0=20, n=100, alpha=alpha, seed=1, runner_up=runner_up
        )
        false = (found.radius > linear.radius(images)) | (
            (found.label >= 0) & (found.label != linear.label(images))
        )
        # At most alpha; five standard errors leave chance no room.
        slack = 5 * np.sqrt(alpha * (1 - alpha) / len(images))
        assert false.mean() <= alpha + slack
        # And not by answering nothing: the bound is used up to a good part.
        assert false.mean() > 0.2 * alpha


def test_radius_is_near_the_true_one(linear, images):
    certifier = Certifier(linear, sigma=0.5)
    n, alpha = 100_000, 1e-3
    found = certifier.certify(images, n=n, alpha=alpha, seed=3, runner_up=False)
    true = linear.radius(images)
    # The bound lies icdf(1 - alpha) + some 4 standard errors below p.
    p = scipy.stats.norm.cdf(true / 0.5)
    low = p - (3.1 + 4) * np.sqrt(p * (1 - p) / n)
    assert (found.label == linear.label(images)).all()
    assert (found.radius <= true).all()
    assert (found.radius >= 0.5 * scipy.stats.norm.ppf(low)).all()


def test_prediction_is_right_as_often_as_promised(linear):
    rng = np.random.default_rng(0)
    images = rng.uniform(size=(4_000, 4, 4, 1)).astype(np.float32)
    certifier = Certifier(linear, sigma=0.5, batch_size=400)
    found = certifier.predict(images, n=50, alpha=0.05, seed=2)
    wrong = (found.label >= 0) & (found.label != linear.label(images))
    assert wrong.mean() <= 0.05
    for row in range(20):
        k = int(found.counts[row].max())
        p_value = scipy.stats.binomtest(k, 50).pvalue
        assert found.p_value[row] == pytest.approx(p_value, rel=1e-9)


def test_a_draw_that_is_not_finite_votes_for_nobody(images):
    def broken(x):
        score = x[:, 0, 0, 0]
        score = tf.where(score > 0.5, score, np.nan)
        return tf.stack([score, -score, -score], -1)

    counts = Certifier(broken, sigma=0.5).sample(images, n=200, seed=1)
    finite = [
        (images[row, 0, 0, 0] + 0.5 * eps[:, 0, 0, 0] > 0.5).sum()
        for row, eps in enumerate(
            noise.normal((4, 4, 1), seed, 0, 200).numpy()
            for seed in noise.as_seeds(1, len(images))
        )
    ]
    np.testing.assert_array_equal(counts[:, 0], finite)
    assert (counts[:, 1:] == 0).all()


def test_saved_model_counts_like_the_model(model, images, tmp_path):
    model.export(str(tmp_path / "saved"), verbose=False)
    loaded = tf.saved_model.load(str(tmp_path / "saved"))
    np.testing.assert_array_equal(
        Certifier(loaded, sigma=0.5).sample(images, n=200),
        Certifier(model, sigma=0.5).sample(images, n=200),
    )


def test_bfloat16_is_another_classifier(model, images):
    exact = Certifier(model, sigma=0.5).sample(images, n=2_000)
    short = Certifier(model, sigma=0.5, dtype="bfloat16")
    counts = short.sample(images, n=2_000)
    assert counts.sum() == exact.sum()
    # bfloat16 keeps three digits: few of the votes may change sides.
    assert 0 < np.abs(counts - exact).sum() < 0.05 * exact.sum()
    found = short.certify(images, n=100, seed=1)
    assert found.settings["dtype"] == "bfloat16"


@pytest.fixture(scope="module")
def halves():
    """One network's weights in both types, as training leaves them."""
    made = {}
    for policy in ("float32", "mixed_bfloat16"):
        layers = [
            keras.layers.Conv2D(8, 3, activation="relu", dtype=policy),
            keras.layers.Flatten(),
            keras.layers.Dense(3, dtype="float32"),
        ]
        made[policy] = keras.Sequential([keras.Input((4, 4, 1)), *layers])
    made["mixed_bfloat16"].set_weights(made["float32"].get_weights())
    return made


def test_a_half_precision_model_is_certified_as_what_it_is(halves, images):
    """The statement must name the network that voted: not the float32 one."""
    whole, half = (Certifier(model, sigma=0.5) for model in halves.values())
    assert (whole.dtype, half.dtype) == ("float32", "bfloat16")
    counts = half.sample(images, n=5_000)
    assert (counts != whole.sample(images, n=5_000)).any()
    found = half.certify(images, n=100, seed=1)
    assert found.settings["dtype"] == "bfloat16"
    assert "as computed in bfloat16" in found.statement()
    decision = half.decide(images, radius=0.1, n_max=500, seed=1)
    assert decision.settings["dtype"] == "bfloat16"


def test_a_half_precision_model_can_be_certified_in_float32(halves, images):
    half = halves["mixed_bfloat16"]
    exact = Certifier(half, sigma=0.5, dtype="float32")
    np.testing.assert_array_equal(
        exact.sample(images, n=2_000),
        Certifier(halves["float32"], sigma=0.5).sample(images, n=2_000),
    )
    found = exact.certify(images, n=100, seed=1)
    assert found.settings["dtype"] == "float32"
    assert "as computed in" not in found.statement()
    # It is a copy: the model computes as before.
    assert compute_dtype(half) == "bfloat16"


def test_uint8_images_are_divided(model):
    eight = np.arange(32, dtype=np.uint8).reshape(2, 4, 4, 1) * 8
    np.testing.assert_array_equal(
        Certifier(model).sample(eight, n=100),
        Certifier(model).sample(eight.astype(np.float32) / 255, n=100),
    )


BAD_IMAGES = {
    "one image": (np.zeros([4, 4, 1]), r"images\[None\]"),
    "empty batch": (np.zeros([0, 4, 4, 1]), "at least one image"),
    "integers": (np.zeros([1, 4, 4, 1], int), "dtype=int64"),
    "nan": (np.full([1, 4, 4, 1], np.nan), "finite"),
    "infinite": (np.full([1, 4, 4, 1], np.inf), "finite"),
    "0 to 255": (np.full([1, 4, 4, 1], 255.0), "divide by 255"),
    "negative": (np.full([1, 4, 4, 1], -0.1), r"min=-0.1"),
}


@pytest.mark.parametrize("name", BAD_IMAGES)
def test_a_certifier_refuses_bad_images(model, name):
    images, message = BAD_IMAGES[name]
    with pytest.raises(ValueError, match=f"(?s)`images` must .*{message}"):
        Certifier(model).certify(images)


@pytest.mark.parametrize(
    ("takes", "told"),
    [([8, 8, 3], "8, 8, 3"), ([None, None, 3], "any, any, 3")],
)
@pytest.mark.parametrize("form", ["keras", "trainer", "saved"])
def test_images_that_the_model_does_not_take(takes, told, form, tmp_path):
    model = keras.Sequential(
        [
            keras.Input(takes),
            keras.layers.GlobalAveragePooling2D(),
            keras.layers.Dense(2),
        ]
    )
    if form == "trainer":
        model = trainers.Gaussian(model, sigma=0.5)
    if form == "saved":
        model.export(tmp_path, verbose=False)
        model = tf.saved_model.load(tmp_path)
    certifier = Certifier(model, 0.5)
    certifier.predict(np.zeros([1, 8, 8, 3], np.float32), n=20)
    with pytest.raises(ValueError) as error:
        certifier.predict(np.zeros([1, 8, 8, 1], np.float32), n=20)
    assert str(error.value) == (
        f"`images` must have shape [batch, {told}] for this model. Received: "
        "shape=[1, 8, 8, 1]"
    )


def test_models_that_take_more_than_their_input_shape_tells():
    # Keras drops a last axis of 1 where the model has none.
    flat = keras.Sequential(
        [keras.Input((8, 8)), keras.layers.Flatten(), keras.layers.Dense(2)]
    )
    assert Certifier(flat, 0.5).predict(np.zeros([1, 8, 8, 1]), n=20)
    # Built by its first call, on 4 images of 8 x 8; takes others.
    late = keras.Sequential(
        [keras.layers.GlobalAveragePooling2D(), keras.layers.Dense(2)]
    )
    late(np.zeros([4, 8, 8, 3]))
    certifier = Certifier(late, 0.5)
    assert certifier.predict(np.zeros([1, 10, 10, 3]), n=20)
    with pytest.raises(ValueError, match=r"\[batch, any, any, 3\]"):
        certifier.predict(np.zeros([1, 10, 10, 1]), n=20)


@pytest.mark.parametrize("shape", [(5, 4, 1), (4, 4, 3)], ids=str)
def test_images_of_another_shape(model, shape):
    with pytest.raises(ValueError, match=r"`(images|model)` must"):
        Certifier(model).certify(np.zeros([1, *shape], np.float32))


@pytest.mark.parametrize(
    "arguments",
    [
        {"sigma": 0},
        {"sigma": -1.0},
        {"sigma": float("nan")},
        {"sigma": float("inf")},
        {"sigma": "big"},
        {"num_classes": 1},
        {"batch_size": 0},
        {"noise": "gird"},
        {"dtype": "int8"},
    ],
    ids=str,
)
def test_bad_arguments_of_a_certifier_are_refused(model, arguments):
    (name,) = arguments
    with pytest.raises(ValueError, match=f"(?s)`{name}` must .*{name}="):
        Certifier(model, **arguments)


@pytest.mark.parametrize(
    "arguments",
    [
        {"alpha": 0},
        {"alpha": 1},
        {"alpha": float("nan")},
        {"n0": 0},
        {"n": 0},
        {"n": 2.5},
        {"n": 10},
        {"n": 9, "runner_up": False},
        {"bound": "hoefding", "runner_up": False},
        {"bound": "hoeffding"},
        {"runner_up": False, "bound": "joint"},
        {"beta": 0},
        {"seed": "oftn"},
    ],
    ids=str,
)
def test_bad_arguments_of_certify_are_refused(model, images, arguments):
    name = "runner_up" if arguments == {"bound": "hoeffding"} else None
    name = name or next(iter(arguments))
    with pytest.raises(ValueError, match=f"(?s)`{name}` must .*{name}="):
        Certifier(model).certify(images, **arguments)


def test_the_smallest_n_that_can_certify():
    # .001^(1/10) = .501: 10 votes of 10 are just enough for the plain bound.
    def sure(x):
        return tf.stack([x[:, 0, 0, 0] * 0 + 9, x[:, 0, 0, 0] * 0], -1)

    certifier, image = Certifier(sure), np.zeros([1, 4, 4, 1], np.float32)
    assert certifier.certify(image, n=10, runner_up=False).label[0] == 0
    assert certifier.certify(image, n=11).label[0] == 0
    assert certifier.predict(image, n=11).label[0] == 0
    assert certifier.certify(image, n=11, bound="joint").label[0] == 0
    with pytest.raises(ValueError, match="`n` must be >= 11 .* n=10"):
        certifier.certify(image, n=10, bound="joint")
    with pytest.raises(ValueError, match="`n` must be >= 11 .* n=10"):
        certifier.predict(image, n=10)
    for bound in ("hoeffding", "bernstein"):
        with pytest.raises(ValueError, match=r"`n` must be >= (\d+)") as error:
            certifier.certify(image, n=5, bound=bound, runner_up=False)
        n = int(str(error.value).split(">= ")[1].split()[0])
        soft = {"bound": bound, "runner_up": False, "beta": 100.0}
        assert certifier.certify(image, n=n, **soft).label[0] == 0


BAD_MODELS = {
    "one class": (lambda x: x[:, 0, :1, 0], "two classes"),
    "no matrix": (lambda x: x[:, 0, 0, 0], "matrix"),
    "integers": (lambda x: tf.cast(x[:, 0, :3, 0], tf.int32), "floating"),
    "batch": (lambda x: (x - tf.reduce_mean(x, 0))[:, 0, :3, 0], "by itself"),
    "numpy": (lambda x: np.sort(x.numpy()), "TensorFlow operations"),
    "no model": (3, "Received: int"),
}


@pytest.mark.parametrize("name", BAD_MODELS)
def test_a_certifier_refuses_bad_models(images, name):
    function, message = BAD_MODELS[name]
    with pytest.raises(ValueError, match=f"`model` must .*{message}"):
        Certifier(function).certify(images)


def test_num_classes_must_be_the_models(model, images):
    with pytest.raises(ValueError, match="num_classes=10, outputs=3"):
        Certifier(model, num_classes=10).certify(images)


def of_unknown_shape(function):
    """Hides the shape of the output, as a model with tf.py_function would."""

    def model(x):
        logits = tf.py_function(function, [x], tf.float32)
        return tf.ensure_shape(logits, [None, None])

    return model


def test_no_vote_is_lost_to_a_class_beyond_num_classes(images):
    """Class 2 wins, and is not among the two: 0 would be certified."""
    model = of_unknown_shape(lambda x: tf.one_hot([2] * len(x), 3))
    with pytest.raises(ValueError, match=r"shape=\[8, 3\].*num_classes=2"):
        Certifier(model, num_classes=2).certify(images, n=100)


def test_no_image_votes_twice(images):
    """Two rows an image would make 0.9 n votes of a probability of 0.45."""

    def model(x):
        return tf.tile(x[:, 0, :3, 0], [2, 1])

    with pytest.raises(ValueError, match=r"shape=\[16, 3\] for 8 images"):
        Certifier(model).certify(images, n=100)


@pytest.mark.parametrize("sigma", [0.5, 0.7, 0.12, 1 / 3])
def test_noise_is_never_below_the_sigma_of_the_radius(model, sigma):
    """float32(0.7) is below 0.7, and a radius counts on all of it."""
    sampler = Certifier(model, sigma=sigma).sampler((4, 4, 1))
    used = np.float32(sigma)
    if float(used) < sigma:
        used = np.nextafter(used, np.float32(np.inf))
    eps = noise.normal([4, 4, 1], [7, 8], 0, 50).numpy()
    found = sampler.noisy(tf.zeros([4, 4, 1]), [7, 8], 0, 50).numpy()
    np.testing.assert_array_equal(found, used * eps)


def test_hard_decisions_are_votes_but_not_soft_predictions(images):
    def hard(x):
        return tf.one_hot(tf.argmax(x[:, 0, :3, 0], -1), 3)

    certifier = Certifier(hard)
    assert certifier.certify(images, n=100).counts.sum() == 500
    with pytest.raises(ValueError, match="without softmax"):
        certifier.certify(images, bound="bernstein", runner_up=False)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("sigma", 1.0),
        ("noise", "grid"),
        ("model", None),
        ("dtype", "bfloat16"),
        ("num_classes", 2),
        ("batch_size", 7),
        ("strategy", None),
    ],
)
def test_what_the_graphs_hold_is_fixed(linear, images, name, value):
    """With another sigma the votes would stay and the radius grow."""
    certifier = Certifier(linear, sigma=0.1)
    before = certifier.certify(images, n=100, seed=1)
    with pytest.raises(AttributeError, match=f"`{name}` of a certifier is fix"):
        setattr(certifier, name, value)
    after = certifier.certify(images, n=100, seed=1)
    np.testing.assert_array_equal(after.radius, before.radius)
    assert after.settings == before.settings


def test_a_certifier_of_ones_own_may_set_what_it_hands_on(linear, images):
    class Own(Certifier):
        def __init__(self, model, sigma):
            self.model = model
            super().__init__(model, sigma)

    found = Own(linear, 0.1).certify(images, n=100, seed=1)
    wanted = Certifier(linear, 0.1).certify(images, n=100, seed=1)
    np.testing.assert_array_equal(found.counts, wanted.counts)


def test_the_sigma_of_a_trainer_is_its_certifiers(model, images):
    trainer = trainers.Gaussian(model, sigma=0.25)
    assert Certifier(trainer).sigma == 0.25
    assert Certifier(trainer, sigma=0.25).sigma == 0.25
    assert Certifier(trainer, 0.25).settings()["sigma"] == 0.25
    wanted = Certifier(model, sigma=0.25).sample(images, n=100)
    np.testing.assert_array_equal(
        Certifier(trainer).sample(images, n=100), wanted
    )
    assert Certifier(model).sigma == 0.5


def test_another_sigma_than_the_trainers_is_refused(model):
    trainer = trainers.Gaussian(model, sigma=0.25)
    with pytest.raises(
        ValueError, match="`sigma` must be the .*sigma=0.5, trainer's sigma=0.2"
    ):
        Certifier(trainer, sigma=0.5)
    # The network alone may be smoothed with any, and a choice of sigma may
    # start anywhere.
    assert Certifier(trainer.model, sigma=0.5).sigma == 0.5
    assert DataDependentCertifier(trainer, 0.5).settings()["sigma0"] == 0.5


def test_a_trainer_with_many_sigmas_has_no_single_one(model):
    sigmas = trainers.PerExampleSigma(0.25, num_examples=9)
    trainer = trainers.Gaussian(model, sigma=sigmas)
    assert Certifier(trainer).sigma == 0.25
    assert Certifier(trainer, sigma=0.5).sigma == 0.5


def test_a_teacher_that_is_a_trainer_has_its_own_sigma(model, images):
    data = [(image, 0) for image in images]
    made = {"n": 100, "progress": False}
    trainer = trainers.Gaussian(model, sigma=0.5)
    np.testing.assert_array_equal(
        smoothed_labels(trainer, data, **made),
        smoothed_labels(model, data, 0.5, **made),
    )
    # Without one, it is the paper's.
    np.testing.assert_array_equal(
        smoothed_labels(model, data, **made),
        smoothed_labels(model, data, 0.25, **made),
    )
