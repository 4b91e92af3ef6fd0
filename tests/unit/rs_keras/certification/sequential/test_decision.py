import numpy as np
import pytest
import scipy.stats
import tensorflow as tf
from kits.linear import Linear

from rs_keras import Certifier
from rs_keras import bounds
from rs_keras.certification.sampling import SamplingLoop
from rs_keras.certification.sequential import stopping_rules
from rs_keras.certification.sequential.decision import TRACED_RULES
from rs_keras.certification.sequential.decision import decide_in_graph
from rs_keras.certification.sequential.decision import decide_on_host
from rs_keras.certification.sequential.decision import decision_tables
from rs_keras.certification.spec import DecideSpec
from rs_keras.certification.spec import SmoothingSpec

FORMS = {"one count": False, "two counts": True}


@pytest.fixture(params=FORMS)
def runner_up(request):
    return FORMS[request.param]


@pytest.fixture(scope="module")
def linear():
    return Linear()


@pytest.fixture(scope="module")
def certifier(linear):
    return Certifier(linear, sigma=0.5, batch_size=400)


def some_images(count, seed=0):
    rng = np.random.default_rng(seed)
    return rng.uniform(size=(count, 4, 4, 1)).astype(np.float32)


def false_ones(decision, images, linear):
    """Certificates that the known radius and label of `linear` refute."""
    wrong = decision.label != linear.label(images)
    short = decision.radius > linear.radius(images)
    return decision.certified & (wrong | short)


def voters(shares, rows, seed=0):
    """Images whose votes fall as `shares`, without any images."""
    rng = np.random.default_rng(seed)
    return lambda some, first, n: rng.multinomial(n, shares, size=len(some))


def decided(shares, rows, radius, alpha, runner_up, n_max=3_000):
    spec = DecideSpec(radius, alpha, n_max, runner_up, n0=50)
    tables = decision_tables(spec, SmoothingSpec(1.0))
    return decide_on_host(voters(shares, rows), rows, tables, 1.0)


# The smoothed classifier's radius, at sigma 1, from the two largest shares.
def true_radius(shares):
    second, first = np.sort(shares)[-2:]
    gap = scipy.stats.norm.ppf(first) - scipy.stats.norm.ppf(second)
    return gap / 2


SHARES = {
    "two classes": [0.84, 0.16],
    "tie": [0.5, 0.5],
    "three tied": [1 / 3] * 3,
    "tie for second": [0.6, 0.2, 0.2],
    "many small": [0.5, *[0.5 / 50] * 50],
    "1,000 classes": [0.2, *[0.8 / 999] * 999],
    "nearly certain": [0.999, 0.0005, 0.0005],
}


@pytest.mark.parametrize("name", SHARES)
def test_false_certificates_are_rare_at_the_true_radius(name, runner_up):
    """The radius asked for is just not true: the worst case."""
    shares, rows, alpha = np.array(SHARES[name]), 3_000, 0.05
    one_count = scipy.stats.norm.ppf(max(shares.max(), 0.5))
    radius = true_radius(shares) if runner_up else one_count
    found = decided(shares, rows, radius + 1e-9, alpha, runner_up, 8_000)
    slack = 5 * np.sqrt(alpha * (1 - alpha) / rows)
    assert found["certified"].mean() <= alpha + slack


@pytest.mark.parametrize("shares", [[0.84, 0.16], [0.7, 0.2, 0.1]])
def test_the_boundary_is_used_up(shares):
    # An exact test of one count certifies alpha of the worst cases, or nearly.
    radius = float(scipy.stats.norm.ppf(shares[0]))
    found = decided(shares, 4_000, radius, 0.05, False)
    assert found["certified"].mean() > 0.035


def test_a_grid_of_radii_needs_no_correction(runner_up):
    shares, rows, alpha = [0.8, 0.15, 0.05], 3_000, 0.05
    one_count = float(scipy.stats.norm.ppf(0.8))
    true = float(true_radius(shares)) if runner_up else one_count
    radii = [0.5 * true, true + 1e-9, 1.1 * true, 1.2 * true]
    found = decided(shares, rows, radii, alpha, runner_up)
    false = found["radius"] > true
    slack = 5 * np.sqrt(alpha * (1 - alpha) / rows)
    assert false.mean() <= alpha + slack
    # And the true one among them is certified.
    assert found["certified"].mean() > 0.9


def test_decisions_agree_with_the_known_radii(certifier, linear, runner_up):
    images = some_images(600)
    for radius in (0.1, 0.5):
        found = certifier.decide(
            images, radius, n_max=20_000, runner_up=runner_up, seed=1
        )
        assert false_ones(found, images, linear).sum() <= 3
        # Whatever is not close to the radius is decided, and cheaply.
        clear = linear.radius(images) > radius + 0.06
        assert (~found.certified[clear]).sum() <= 3
        assert found.n.mean() < 20_000 / 5
        np.testing.assert_array_equal(
            found.radius, np.where(found.certified, radius, 0.0)
        )
        np.testing.assert_array_equal(found.label >= 0, found.certified)


def test_several_radii_tell_the_largest(certifier, linear, runner_up):
    images = some_images(100)
    radii = [0.1, 0.2, 0.3, 0.4]
    asked = {"n_max": 20_000, "runner_up": runner_up, "seed": 5}
    found = certifier.decide(images, radii[::-1], **asked)
    assert not false_ones(found, images, linear).any()
    assert set(found.radius) == {0.0, *radii}
    assert found.settings["radii"] == radii
    # The same draws, asked for one radius, certify it where the grid does, but
    # for the few that end later when larger radii are still open.
    alone = certifier.decide(images, 0.3, **asked)
    assert ((found.radius >= 0.3) ^ alone.certified).mean() <= 0.05


def test_every_draw_is_counted(certifier, runner_up):
    images = some_images(40)
    found = certifier.decide(
        images, 0.2, n_max=5_000, runner_up=runner_up, seed=3
    )
    n0 = found.settings["n0"]
    assert n0 == 0
    np.testing.assert_array_equal(found.counts.sum(1), found.n - n0)
    assert found.n.max() <= 5_000
    for row in range(5):
        expected = certifier.sample(
            images[row][None],
            n=int(found.n[row]) - n0,
            seed=found.seed[row][None],
            first=n0,
        )
        np.testing.assert_array_equal(found.counts[row], expected[0])


def test_decisions_replay_and_do_not_depend_on_neighbours(certifier, images):
    first = certifier.decide(images, 0.1, n_max=5_000)
    again = certifier.decide(images[:2], 0.1, n_max=5_000, seed=first.seed[:2])
    other = certifier.decide(images, 0.1, n_max=5_000)
    for name in ("certified", "label", "n", "radius", "counts", "seed"):
        np.testing.assert_array_equal(
            getattr(first, name)[:2], getattr(again, name)
        )
    assert (first.seed != other.seed).any()


@pytest.mark.parametrize("radius", [0.0, 0.3, (0.1, 0.3, 0.5)])
def test_the_graph_decides_as_the_host_does(certifier, runner_up, radius):
    images = some_images(30)
    found = certifier.decide(
        images, radius, n_max=2_000, runner_up=runner_up, seed=2
    )
    spec = DecideSpec(radius, n_max=2_000, runner_up=runner_up)
    tables = decision_tables(spec, SmoothingSpec(0.5))
    sampler = certifier.sampler((4, 4, 1))

    @tf.function(
        input_signature=[
            tf.TensorSpec([None, 4, 4, 1], tf.float32),
            tf.TensorSpec([None, 2], tf.int64),
        ]
    )
    def served(images, seeds):
        return decide_in_graph(sampler, images, seeds, tables)

    for name, value in served(images, found.seed).items():
        np.testing.assert_array_equal(value, getattr(found, name))


def test_the_graph_takes_a_radius_for_each_image(certifier):
    images = some_images(30)
    asked = np.random.default_rng(5).choice([0.0, 0.1, 0.3, 5.0], 30)
    spec = DecideSpec(0.0, n_max=2_000)
    tables = decision_tables(spec, SmoothingSpec(0.5))
    seeds = certifier.decide(images, 0.1, n_max=2_000, seed=3).seed
    found = tf.function(decide_in_graph)(
        certifier.sampler((4, 4, 1)), images, seeds, tables, asked
    )
    for radius in (0.0, 0.1, 0.3):
        rows = np.flatnonzero(asked == radius)
        alone = certifier.decide(
            images[rows], radius, n_max=2_000, seed=seeds[rows]
        )
        for name, value in found.items():
            np.testing.assert_array_equal(
                value.numpy()[rows], getattr(alone, name)
            )
    beyond = asked == 5.0
    assert not found["certified"].numpy()[beyond].any()
    assert (found["radius"].numpy()[beyond] == 0).all()


def test_a_radius_for_each_image_needs_two_counts(certifier):
    spec = DecideSpec(0.1, n_max=2_000, runner_up=False)
    tables = decision_tables(spec, SmoothingSpec(0.5))
    with pytest.raises(ValueError, match="`tables` must be of two counts"):
        decide_in_graph(
            certifier.sampler((4, 4, 1)),
            some_images(1),
            np.zeros([1, 2], np.int64),
            tables,
            tf.constant([0.1], tf.float64),
        )


def test_the_graph_can_be_exported(certifier, tmp_path):
    images = some_images(3)
    found = certifier.decide(images, 0.1, n_max=1_000, seed=2)
    spec = DecideSpec(0.1, n_max=1_000)
    tables = decision_tables(spec, SmoothingSpec(0.5))
    sampler = certifier.sampler((4, 4, 1))
    module = tf.Module()
    module.decide = tf.function(
        lambda images, seeds: decide_in_graph(sampler, images, seeds, tables),
        input_signature=[
            tf.TensorSpec([None, 4, 4, 1], tf.float32),
            tf.TensorSpec([None, 2], tf.int64),
        ],
    )
    tf.saved_model.save(module, str(tmp_path))
    loaded = tf.saved_model.load(str(tmp_path))
    for name, value in loaded.decide(images, found.seed).items():
        np.testing.assert_array_equal(value, getattr(found, name))


def test_no_retracing_between_radii(images):
    traces = []

    def function(x):
        traces.append(x.shape)
        return tf.reshape(x, [-1, 16])[:, :3]

    certifier = Certifier(function, sigma=0.5)
    certifier.decide(images, 0.1, n_max=1_000)
    certifier.decide(images, 0.1, n_max=1_000, runner_up=False)
    counts = [len(traces)]
    counts += [rule.experimental_get_tracing_count() for rule in TRACED_RULES]
    certifier.decide(images[:3], [0.2, 0.5], n_max=2_000, alpha=0.01)
    certifier.decide(images[:2], [0.3, 0.4], n_max=900, runner_up=False)
    assert counts == [
        len(traces),
        *[rule.experimental_get_tracing_count() for rule in TRACED_RULES],
    ]


def test_only_undecided_images_are_drawn():
    asked = []

    def draw(rows, first, n):
        asked.append((len(rows), first, n))
        votes = np.where(rows[:, None] < 9, [[n, 0]], [[n - n // 4, n // 4]])
        return votes.astype(np.int64)

    spec = DecideSpec(0.674, n_max=2_000, runner_up=False)
    tables = decision_tables(spec, SmoothingSpec(1.0))
    decide_on_host(draw, 10, tables, 1.0)
    assert asked[0] == (10, 0, 128)
    assert {rows for rows, *_ in asked[1:]} == {1}
    # The draws follow each other without a gap.
    ends = [first + n for _, first, n in asked]
    assert ends[:-1] == [first for _, first, _ in asked[1:]]


def test_exact_bounds_are_not_missed():
    """The rough bound that spares the exact one is never below it."""
    for alpha in (0.01, 5e-5, 1e-9, 1e-14):
        for n in (128, 1_000, 100_000):
            k = np.unique(np.rint(n * np.linspace(0.3, 1, 60))).astype(int)
            k2 = np.rint((n - k) * 0.7).astype(int)
            exact = bounds.two_count(k, k2, n, alpha, 1.0)
            width = -stopping_rules.OPTIMISM * scipy.stats.norm.ppf(
                [0.9 * alpha, 0.1 * alpha]
            )
            rough = stopping_rules.normal_radius(
                tf.constant(k),
                tf.constant(k2),
                n,
                1.0,
                tf.constant(-width[0], tf.float64),
                tf.constant(width[1], tf.float64),
            )
            certified = ~exact.abstain.numpy()
            assert (rough >= exact.radius).numpy()[certified].all()


def test_ctrl_c_is_heard(certifier, images, monkeypatch):
    calls = []
    real = SamplingLoop.draw

    def interrupted(*args):
        calls.append(args)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return real(*args)

    monkeypatch.setattr(SamplingLoop, "draw", interrupted)
    with pytest.raises(KeyboardInterrupt):
        certifier.decide(images, 0.01, seed=1)


def test_a_decision_states_its_guarantee(certifier, images):
    found = certifier.decide(images, 0.1, n_max=500)
    words = found.statement()
    for part in ("0.999", "deviation 0.5", "`certified`", "pixels in [0, 1]"):
        assert part in words


BAD = {
    "negative radius": ({"radius": -0.1}, "`radius` must be .*>= 0.*-0.1"),
    "no radius": ({"radius": []}, "`radius` must be a number"),
    "nan": ({"radius": float("nan")}, "`radius` must be .*nan"),
    "too large": ({"radius": 3.0}, r"`radius` must be <= 1\.\d+, .*3\.0"),
    "too large one count": (
        {"radius": 3.0, "runner_up": False},
        r"`radius` must be <= 1\.\d+, .*3\.0",
    ),
    "one of them": ({"radius": [0.1, 3.0]}, "`radius` must be <= 1"),
    "n_max": ({"n_max": 105}, r"`n_max` must be >= 1\d\d .*n_max=105"),
    "n_max 0": ({"n_max": 0}, "`n_max` must be a whole number"),
    "n0": ({"n0": 0}, "`n0` must be a whole number"),
    "alpha": ({"alpha": 1.0}, "`alpha` must be in"),
    "seed": ({"seed": "fixed"}, "`seed` must be None"),
    "runner_up": ({"runner_up": "no"}, "`runner_up` must be True or False"),
    "flag as radius": ({"radius": True}, "`radius` must be .*radius=True"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_arguments_of_decide_are_refused(certifier, images, name):
    given, message = BAD[name]
    with pytest.raises(ValueError, match=f"(?s){message}"):
        certifier.decide(images, **{"radius": 0.1, **given})


# -- certify with a plan ------------------------------------------------------


@pytest.mark.parametrize("form", ["runner-up", "plain", "hoeffding"])
def test_a_plan_saves_draws_and_little_radius(certifier, form):
    images = some_images(60)
    arguments = {
        "runner-up": {},
        "plain": {"runner_up": False},
        "hoeffding": {
            "runner_up": False,
            "bound": "hoeffding",
            "beta": 1_000.0,
        },
    }[form]
    asked = {"n": 20_000, "seed": 4, **arguments}
    full = certifier.certify(images, **asked)
    found = certifier.certify(images, tolerance=0.02, **asked)
    assert found.n.mean() < 0.7 * 20_000
    assert len(set(found.n)) >= 3
    loss = full.radius - found.radius
    # The tolerance on the mean, and the chance of fewer draws on each.
    assert loss.mean() < 0.02
    assert loss.max() < 0.02 + 5 * 0.5 * 1.5 / np.sqrt(found.n.min())
    assert found.settings["n0"] == 1_000
    assert found.settings["tolerance"] == 0.02
    assert "chosen from the 1000 selection" in found.statement()


def test_planned_certificates_are_false_as_rarely_as_others(certifier, linear):
    images = some_images(2_500)
    alpha = 0.05
    found = certifier.certify(
        images, n=1_300, alpha=alpha, tolerance=0.005, seed=1
    )
    wrong = (found.label >= 0) & (found.label != linear.label(images))
    false = wrong | (found.radius > linear.radius(images))
    slack = 5 * np.sqrt(alpha * (1 - alpha) / len(images))
    assert 0.2 * alpha < false.mean() <= alpha + slack


def test_the_plan_uses_fresh_draws(certifier, images):
    found = certifier.certify(images, n=5_000, tolerance=0.05, seed=4)
    pilot = certifier.sample(images, n=1_000, seed=4)
    np.testing.assert_array_equal(found.selection_counts, pilot)
    for row, n in enumerate(found.n):
        seed = found.seed[row][None]
        counts = certifier.sample(images[row][None], int(n), seed, 1_000)
        np.testing.assert_array_equal(found.counts[row], counts[0])


def test_max_radius_is_not_passed_and_saves_draws(certifier):
    images = some_images(60)
    asked = {"n": 20_000, "tolerance": 0.02, "seed": 4}
    free = certifier.certify(images, **asked)
    capped = certifier.certify(images, max_radius=0.1, **asked)
    assert capped.radius.max() == 0.1
    assert capped.n.mean() < 0.5 * free.n.mean()
    assert capped.settings["max_radius"] == 0.1
    # Without a tolerance all draws are made, and the radius is cut.
    cut = certifier.certify(images[:5], n=2_000, max_radius=0.1, seed=4)
    full = certifier.certify(images[:5], n=2_000, seed=4)
    np.testing.assert_array_equal(cut.radius, np.minimum(full.radius, 0.1))


@pytest.mark.parametrize("name", ["tolerance", "max_radius"])
@pytest.mark.parametrize("value", [-0.1, 5.0, float("nan")])
def test_bad_tolerances_and_limits_of_certify_are_refused(
    certifier, images, name, value
):
    with pytest.raises(ValueError, match=f"`{name}` must be .*{value}"):
        certifier.certify(images, **{name: value})


def test_runner_up_must_be_a_flag(certifier, images):
    with pytest.raises(ValueError, match="`runner_up` must be True or False"):
        certifier.certify(images, n=1_000, runner_up="no")


def test_max_possible_radius():
    certifier = Certifier(lambda x: x[:, 0, 0, :2], sigma=0.5)
    found = certifier.max_possible_radius(1_000, 0.01, runner_up=False)
    expected = 0.5 * scipy.stats.norm.ppf(0.01 ** (1 / 1_000))
    assert found == pytest.approx(expected, rel=1e-9) and found <= expected
    with pytest.raises(ValueError, match="`n` must be"):
        certifier.max_possible_radius(0)
