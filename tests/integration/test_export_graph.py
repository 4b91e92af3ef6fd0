"""Every signature of an export, in TensorFlow's C++ runtime alone."""

import io
import json
import struct
import zlib

import keras
import numpy as np
import pytest
import tensorflow as tf
from kits import session_capi
from PIL import Image
from scipy import stats

from rs_keras import Certifier
from rs_keras import bounds
from rs_keras.certification.sequential import checkpoints
from rs_keras.export import export_certifier
from rs_keras.export import metadata
from rs_keras.export import signature
from rs_keras.noise import draws

SHAPE = (8, 8, 3)
CLASSES = 4
SIGMA = 0.5
N0, N, ALPHA, PREDICT_N, MAX_N = 20, 300, 1e-3, 100, 500
DECIDE_N = 400
ROWS = 200
SEEDS = np.array([[11, -5], [3, 2**62], [-(2**63), 0]])
PIECES = [(0, 37), (37, 213), (250, 1), (251, 49)]
BOUNDS = [
    (90, 5, 100, 1e-3),
    (300, 0, 300, 1e-3),
    (0, 60, 300, 1e-3),
    (480, 20, 500, 1e-9),
    (70, 20, 100, 0.05),
]
NONSENSE = [
    (90, 5, 0, 1e-3),
    (90, 5, -3, 1e-3),
    (101, 0, 100, 1e-3),
    (-1, 0, 100, 1e-3),
    (90, 5, 100, 0.0),
    (90, 5, 100, 1.0),
    (90, 5, 100, 1.05),
    (90, 5, 100, np.nan),
]
# One row each: what a certifier must not speak about.
REFUSED = {
    "nan": np.nan,
    "infinite": np.inf,
    "above one": 1.001,
    "below zero": -0.001,
}


def network():
    """Small, and with what behaves otherwise in training."""
    keras.utils.set_random_seed(5)
    return keras.Sequential(
        [
            keras.Input(SHAPE),
            keras.layers.Conv2D(6, 3, activation="relu"),
            keras.layers.BatchNormalization(),
            keras.layers.Dropout(0.5),
            keras.layers.Flatten(),
            keras.layers.Dense(CLASSES),
        ]
    )


@pytest.fixture(scope="module")
def certifier():
    # Passes of 32: every count below takes whole passes and a part of one.
    return Certifier(network(), sigma=SIGMA, batch_size=32)


@pytest.fixture(scope="module")
def version(certifier, tmp_path_factory):
    base = tmp_path_factory.mktemp("exports")
    # A global seed must not reach the noise of a server.
    keras.utils.set_random_seed(0)
    return export_certifier(
        certifier,
        base,
        n0=N0,
        n=N,
        alpha=ALPHA,
        predict_n=PREDICT_N,
        max_n=MAX_N,
        decide_n=DECIDE_N,
        image_bytes=True,
        class_names=["ant", "bee", "cat", "dög"],
    )


def images(count=3):
    levels = np.random.default_rng(2).integers(0, 256, (count, *SHAPE))
    return levels.astype(np.float32) / np.float32(255)


def png(image):
    file = io.BytesIO()
    Image.fromarray(np.rint(image * 255).astype(np.uint8)).save(file, "PNG")
    return file.getvalue()


def claiming(size):
    """A PNG file of a few bytes that claims to be of this size."""
    content = struct.pack(">IIBBBBB", size, size, 8, 2, 0, 0, 0)
    chunk = b"IHDR" + content
    return (
        b"\x89PNG\r\n\x1a\n"
        + struct.pack(">I", len(content))
        + chunk
        + struct.pack(">I", zlib.crc32(chunk))
    )


def jpeg(image):
    file = io.BytesIO()
    Image.fromarray(np.rint(image * 255).astype(np.uint8)).save(file, "JPEG")
    return file.getvalue()


BAD_FILES = {
    "garbage": lambda x: b"not an image",
    "nothing": lambda x: b"",
    "a small PNG": lambda x: png(x[:4]),
    "a large PNG": lambda x: png(np.tile(x, (2, 2, 1))),
    "a small JPEG": lambda x: jpeg(x[:, :4]),
    "half a PNG": lambda x: png(x)[:-40],
    "half a JPEG": lambda x: jpeg(x)[:100],
    "a claim": lambda x: claiming(8),
    "a large claim": lambda x: claiming(30_000),
    "a GIF": lambda x: b"GIF89a" + bytes(20),
}


def mixed_files():
    x = images()
    bad = [file(x[1]) for file in BAD_FILES.values()]
    return np.array([png(x[0]), *bad, png(x[2])], "S")


def ints(*values):
    return np.array(values, np.int64)


def sample_request(x, seed, first, n):
    rows = np.ones(len(x), np.int64)
    return {"images": x, "seed": seed, "first": first * rows, "n": n * rows}


def certify_with_request(n0=50, n=150, alpha=0.01):
    rows = np.ones(3, np.int64)
    return {
        "images": images(),
        "seed": SEEDS,
        "n0": n0 * rows,
        "n": n * rows,
        "alpha": alpha * np.ones(3),
    }


# One row each: radii that are decided, and radii that cannot be.
RADII = [0.0, 0.05, 0.4, 0.9, 0.0, 0.05, 0.4, 0.9]
NO_RADII = [-1e-9, np.nan, np.inf, 10.0]


def decide_request():
    radius = np.array([*RADII, *NO_RADII])
    x = images(len(radius) + 1)
    x[-1, 0, 0, 0] = np.nan
    return {"images": x, "radius": np.append(radius, 0.0)}


def noisy_copies():
    """The draws of "whole" for its first image, made here."""
    eps = draws.normal(SHAPE, SEEDS[0], 0, 300).numpy()
    return images()[0] + np.float32(SIGMA) * eps


def bound_request(rows):
    k, k2, n, alpha = zip(*rows, strict=True)
    return {
        "k": ints(*k),
        "k2": ints(*k2),
        "n": ints(*n),
        "alpha": np.array(alpha, float),
    }


def refused_images():
    x = images(len(REFUSED) + 1)
    for row, value in enumerate(REFUSED.values()):
        x[row, 3, 4, 1] = value
    return x


def requests():
    x = images()
    plain = [(k, -1, n, alpha) for k, _, n, alpha in BOUNDS]
    with_limits = sample_request(x, SEEDS, 0, 1)
    with_limits["n"] = ints(-7, 0, MAX_N + 123)
    off_the_end = sample_request(x, SEEDS, 0, 10)
    off_the_end["first"] = ints(-1, 2**60, 2**40)
    mixed = certify_with_request()
    mixed["n0"], mixed["n"] = ints(0, 50, 50), ints(150, 150, MAX_N + 1)
    mixed["alpha"] = np.array([0.01, 1.5, 0.01])
    short = sample_request(x, SEEDS, 0, 10)
    short["n"] = ints(10)
    one = sample_request(x[1:2], SEEDS[1:2], 0, 300)
    files = np.array([png(x[0]), b"", png(x[2])], "S")
    return {
        "predict": ("predict", {"images": x}),
        "predict again": ("predict", {"images": x}),
        "predict twins": ("predict", {"images": x[[0, 0]]}),
        "many": ("predict", {"images": x[[0] * ROWS]}),
        "default": ("serving_default", {"images": x}),
        "certify": ("certify", {"images": x}),
        "certify_with": ("certify_with", certify_with_request()),
        "certify_with mixed": ("certify_with", mixed),
        "decide": ("decide", decide_request()),
        "decide no rows": (
            "decide",
            {"images": x[:0], "radius": np.zeros(0)},
        ),
        "whole": ("sample", sample_request(x, SEEDS, 0, 300)),
        "one row": ("sample", one),
        **{
            f"from {first}": ("sample", sample_request(x, SEEDS, first, n))
            for first, n in PIECES
        },
        "limits": ("sample", with_limits),
        "off the end": ("sample", off_the_end),
        "bound": ("bound", bound_request(BOUNDS)),
        "bound plain": ("bound", bound_request(plain)),
        "bound nonsense": ("bound", bound_request(NONSENSE)),
        "describe": ("describe", {"query": ints(0, 0)}),
        "predict_bytes": ("predict_bytes", {"image_bytes": files}),
        "certify_bytes": ("certify_bytes", {"image_bytes": files}),
        "refused predict": ("predict", {"images": refused_images()}),
        "refused certify": ("certify", {"images": refused_images()}),
        "no rows": ("certify", {"images": x[:0]}),
        "wrong shape": ("predict", {"images": x[:, :4]}),
        "wrong rank": ("predict", {"images": x[0]}),
        "wrong dtype": ("predict", {"images": x.astype(np.float64)}),
        "unequal rows": ("sample", short),
        **{
            f"mixed {name}": (name, {"image_bytes": mixed_files()})
            for name in ("predict_bytes", "certify_bytes", "prepare_bytes")
        },
        "logits": ("logits", {"images": noisy_copies()}),
        "prepare": ("prepare", {"images": refused_images()}),
    }


@pytest.fixture(scope="module")
def served(version, tmp_path_factory):
    """Answers by name, from one process of its own."""
    wanted = requests()
    calls = [(version, name, inputs) for name, inputs in wanted.values()]
    answers, _ = session_capi.run(tmp_path_factory.mktemp("job"), calls)
    return dict(zip(wanted, answers, strict=True))


@pytest.fixture(scope="module")
def elsewhere(version, tmp_path_factory):
    """The first request, in another process."""
    calls = [(version, "predict", {"images": images()})]
    answers, _ = session_capi.run(tmp_path_factory.mktemp("again"), calls)
    return answers[0]


def in_process(certifier, x, seeds, n, first=0):
    return certifier.sample(x, n=n, seed=seeds, first=first)


@pytest.mark.parametrize(
    "name",
    [
        *signature.SIGNATURES,
        *signature.BYTES_SIGNATURES,
        *signature.INTERNAL_SIGNATURES,
    ],
)
def test_a_signature_is_what_its_definition_says(name, version):
    known = {
        **signature.SIGNATURES,
        **signature.BYTES_SIGNATURES,
        **signature.INTERNAL_SIGNATURES,
    }[name]
    stored = session_capi.signature_defs(version)[name]
    for fields, found in (
        (known.inputs, stored.inputs),
        (known.outputs, stored.outputs),
    ):
        assert sorted(fields) == sorted(found)
        for alias, field in fields.items():
            dtype = tf.as_dtype(field.dtype).as_datatype_enum
            assert found[alias].dtype == dtype
            sizes = [d.size for d in found[alias].tensor_shape.dim]
            assert sizes == [-1, *field.row_shape(SHAPE, CLASSES)]


@pytest.mark.parametrize("name", ["whole", "one row"])
def test_counts_are_those_in_process(name, served, certifier):
    x, seeds = images(), SEEDS
    if name == "one row":
        # Whatever rows are beside it.
        x, seeds = x[1:2], SEEDS[1:2]
        np.testing.assert_array_equal(
            served[name]["counts"], served["whole"]["counts"][1:2]
        )
    np.testing.assert_array_equal(
        served[name]["counts"], in_process(certifier, x, seeds, 300)
    )
    assert served[name]["n"].tolist() == [300] * len(x)


def test_the_logits_give_the_votes_of_sample(served, certifier):
    """Through another signature, and a plain count."""
    logits = served["logits"]["logits"]
    votes = np.bincount(logits.argmax(-1), minlength=CLASSES)
    np.testing.assert_array_equal(votes, served["whole"]["counts"][0])
    network = certifier.model(noisy_copies(), training=False)
    np.testing.assert_allclose(logits, network, rtol=1e-4, atol=1e-5)


def test_odd_pieces_add_up(served):
    parts = [served[f"from {first}"]["counts"] for first, _ in PIECES]
    np.testing.assert_array_equal(sum(parts), served["whole"]["counts"])


def test_draws_are_limited_and_the_answer_says_so(served, certifier):
    assert served["limits"]["n"].tolist() == [0, 0, MAX_N]
    counts = served["limits"]["counts"]
    assert counts[:2].sum() == 0
    np.testing.assert_array_equal(
        counts[2:], in_process(certifier, images()[2:], SEEDS[2:], MAX_N)
    )


def test_draws_beyond_the_addresses_are_refused(served, certifier):
    # 2**48 positions, 8 * 8 * 3 numbers a draw: the last draw is near 2**40.4.
    assert served["off the end"]["n"].tolist() == [0, 0, 10]
    np.testing.assert_array_equal(
        served["off the end"]["counts"][2:],
        in_process(certifier, images()[2:], SEEDS[2:], 10, first=2**40),
    )


def test_a_prediction_replays_from_its_seed(served, certifier):
    found = served["predict"]
    counts = in_process(certifier, images(), found["seed"], PREDICT_N)
    np.testing.assert_array_equal(found["counts"], counts)
    assert found["n"].tolist() == [PREDICT_N] * 3
    for row in range(3):
        second, first = np.sort(counts[row])[-2:]
        p = stats.binomtest(first, first + second, 0.5).pvalue
        assert found["p_value"][row] == pytest.approx(p, rel=1e-9)
        label = counts[row].argmax() if p <= ALPHA else -1
        assert found["label"][row] == label


def test_a_certificate_replays_from_its_seed(served, certifier):
    found = served["certify"]
    again = certifier.certify(
        images(), n0=N0, n=N, alpha=ALPHA, seed=found["seed"]
    )
    _same_certificate(found, again)


def test_a_decision_replays_from_its_seed(served, certifier):
    asked, found = decide_request(), served["decide"]
    for radius in set(RADII):
        rows = np.flatnonzero(np.equal(RADII, radius))
        again = certifier.decide(
            asked["images"][rows],
            radius,
            alpha=ALPHA,
            n_max=DECIDE_N,
            n0=N0,
            seed=found["seed"][rows],
        )
        for name in ("certified", "label", "counts", "n"):
            np.testing.assert_array_equal(
                found[name][rows], getattr(again, name)
            )


def test_a_decision_is_that_of_scipy(served):
    """Its own shares of alpha, a look, and the bounds at the last one."""
    asked, found = decide_request(), served["decide"]
    looks = checkpoints(DECIDE_N)
    # 0.8 of it rises as the square, the rest is for the last look; one percent
    # of all for other classes than the most probable one.
    spent = 0.8 * (np.arange(len(looks) + 1) / len(looks)) ** 2
    spent[-1] = 1
    level = np.diff(0.99 * ALPHA * spent)
    for row in range(len(RADII)):
        n = found["n"][row]
        share = level[looks.index(n)]
        counts = found["counts"][row]
        assert counts.sum() == n
        if not found["certified"][row]:
            assert found["label"][row] == -1
            continue
        k = counts[found["label"][row]]
        k2 = np.delete(counts, found["label"][row]).max()
        low = stats.beta.ppf(0.9 * share, k, n - k + 1)
        high = stats.beta.ppf(1 - 0.1 * share, k2 + 1, n - k2)
        gap = stats.norm.ppf(low) - stats.norm.ppf(min(high, 1 - low))
        assert SIGMA / 2 * gap >= asked["radius"][row]
    assert found["certified"][: len(RADII)].any()
    assert not found["certified"][: len(RADII)].all()


def test_what_cannot_be_decided_draws_nothing(served):
    found = {k: v[len(RADII) :] for k, v in served["decide"].items()}
    assert not found["certified"].any()
    assert (found["label"] == -1).all()
    assert (found["n"] == 0).all()
    assert (found["counts"] == 0).all()


def test_certify_with_is_certify_in_process(served, certifier):
    again = certifier.certify(images(), n0=50, n=150, alpha=0.01, seed=SEEDS)
    _same_certificate(served["certify_with"], again)
    np.testing.assert_array_equal(served["certify_with"]["seed"], SEEDS)


def _same_certificate(found, certificate):
    for name in ("label", "counts", "selection_counts", "n"):
        np.testing.assert_array_equal(found[name], getattr(certificate, name))
    for name in ("radius", "p_lower"):
        np.testing.assert_allclose(
            found[name], getattr(certificate, name), rtol=1e-12
        )


def test_a_certificate_is_that_of_scipy(served):
    """Cohen et al.'s lower bound, at the runner-up bound's share of alpha."""
    found = served["certify_with"]
    chosen = found["selection_counts"].argmax(-1)
    k = np.take_along_axis(found["counts"], chosen[:, None], 1)[:, 0]
    want = stats.beta.ppf(0.9 * 0.01, k, 150 - k + 1)
    np.testing.assert_allclose(found["p_lower"], want, rtol=1e-9)
    assert (found["p_lower"] <= want).all()


def test_rows_with_nonsense_abstain_beside_others(served, certifier):
    found = served["certify_with mixed"]
    assert found["n"].tolist() == [0, 0, MAX_N]
    assert found["label"][:2].tolist() == [-1, -1]
    assert found["radius"][:2].tolist() == [0, 0]
    assert found["p_lower"][:2].tolist() == [0, 0]
    again = certifier.certify(
        images()[2:], n0=50, n=MAX_N, alpha=0.01, seed=SEEDS[2:]
    )
    _same_certificate({k: v[2:] for k, v in found.items()}, again)


def test_the_lower_bound_is_scipys(served):
    plain, two = served["bound plain"], served["bound"]
    for row, (k, k2, n, alpha) in enumerate(BOUNDS):
        want = stats.beta.ppf(alpha, k, n - k + 1) if k else 0.0
        assert plain["p_lower"][row] == pytest.approx(want, rel=1e-9)
        assert plain["p_lower"][row] <= want
        radius = SIGMA * stats.norm.ppf(want) if want > 0.5 else 0.0
        assert plain["radius"][row] == pytest.approx(radius, rel=1e-8)
        # Nine tenths of alpha for the class, one for the runner-up.
        low = stats.beta.ppf(0.9 * alpha, k, n - k + 1) if k else 0.0
        high = min(stats.beta.ppf(1 - 0.1 * alpha, k2 + 1, n - k2), 1 - low)
        gap = stats.norm.ppf(low) - stats.norm.ppf(high) if low > high else 0
        assert two["p_lower"][row] == pytest.approx(low, rel=1e-9)
        assert two["radius"][row] == pytest.approx(SIGMA / 2 * gap, rel=1e-7)


def test_nonsense_has_no_bound(served):
    found = served["bound nonsense"]
    assert found["radius"].tolist() == [0.0] * len(NONSENSE)
    assert found["p_lower"].tolist() == [0.0] * len(NONSENSE)


def test_an_export_may_test_both_counts(certifier, tmp_path):
    version = export_certifier(
        certifier, tmp_path, n0=N0, n=N, bound="joint", warmup=False
    )
    signatures = tf.saved_model.load(str(version)).signatures
    request = certify_with_request()
    found = {
        name: value.numpy()
        for name, value in signatures["certify_with"](
            **{name: tf.constant(value) for name, value in request.items()}
        ).items()
    }
    own = certifier.certify(
        images(), n0=50, n=150, alpha=0.01, bound="joint", seed=SEEDS
    )
    np.testing.assert_array_equal(found["label"], own.label)
    np.testing.assert_allclose(found["radius"], own.radius, rtol=1e-9)
    assert np.isnan(found["p_lower"]).all()
    rows = {"k": [90, 90, 9], "k2": [5, -1, 2], "n": [100, 100, 10]}
    bound = signatures["bound"](
        alpha=tf.constant([0.01, 0.01, 0.01], tf.float64),
        **{name: tf.constant(value, tf.int64) for name, value in rows.items()},
    )
    joint = bounds.joint_count(90, 5, 100, 0.01, SIGMA)
    plain = bounds.certificate(90, None, 100, 0.01, SIGMA)
    wanted = [joint.radius, plain[1], 0.0]
    np.testing.assert_allclose(bound["radius"], wanted, rtol=1e-9)
    assert np.isnan(bound["p_lower"]).tolist() == [True, False, True]
    facts = json.loads((version / metadata.FILE).read_text())
    assert facts["bound"] == "joint"
    assert "one exact test" in facts["guarantee"]


def test_describe_answers_every_row(served, certifier):
    first, second = served["describe"]["metadata_json"].tolist()
    assert first == second
    facts = json.loads(first.decode())
    wanted = {
        "format": 3,
        "total_variation": 0.0,
        "sigma": SIGMA,
        "n0": N0,
        "n": N,
        "alpha": ALPHA,
        "predict_n": PREDICT_N,
        "max_n": MAX_N,
        "decide_n": DECIDE_N,
        "runner_up": True,
        "num_classes": CLASSES,
        "class_names": ["ant", "bee", "cat", "dög"],
        "seed": "fresh",
        "noise": "float",
        "image": {"shape": [8, 8, 3], "dtype": "float32", "range": [0, 1]},
    }
    assert {name: facts[name] for name in wanted} == wanted


@pytest.mark.parametrize("name", ["predict_bytes", "certify_bytes"])
def test_image_files_are_their_pixels(name, served, certifier):
    found = served[name]
    first = 0 if name == "predict_bytes" else N0
    n = PREDICT_N if name == "predict_bytes" else N
    assert found["n"].tolist() == [n, 0, n]
    assert found["label"][1] == -1
    for row in (0, 2):
        np.testing.assert_array_equal(
            found["counts"][row],
            in_process(
                certifier,
                images()[[row]],
                found["seed"][[row]],
                n,
                first,
            )[0],
        )


@pytest.mark.parametrize("name", ["predict_bytes", "certify_bytes"])
def test_files_that_are_no_images_fail_nobody_else(name, served, certifier):
    """As where a server has put the requests of several clients together."""
    found = served[f"mixed {name}"]
    bad = list(range(1, len(BAD_FILES) + 1))
    assert (found["label"][bad] == -1).all()
    assert (found["n"][bad] == 0).all()
    assert found["counts"][bad].sum() == 0
    first, n = (N0, N) if name == "certify_bytes" else (0, PREDICT_N)
    for row, image in ((0, 0), (-1, 2)):
        counts = in_process(
            certifier, images()[[image]], found["seed"][[row]], n, first
        )
        np.testing.assert_array_equal(found["counts"][row], counts[0])


def test_what_a_server_prepares(served):
    prepared = served["mixed prepare_bytes"]
    rows = [0, -1]
    assert prepared["accepted"].tolist() == [
        True,
        *[False] * len(BAD_FILES),
        True,
    ]
    np.testing.assert_array_equal(prepared["images"][rows], images()[[0, 2]])
    assert np.isnan(prepared["images"][1:-1]).all()
    assert served["prepare"]["accepted"].tolist() == [
        *[False] * len(REFUSED),
        True,
    ]
    seeds = served["prepare"]["seed"]
    assert len({tuple(seed) for seed in seeds}) == len(seeds)


@pytest.mark.parametrize("name", ["refused predict", "refused certify"])
def test_what_is_no_image_abstains_and_its_neighbour_does_not(name, served):
    found = served[name]
    assert found["n"].tolist()[:-1] == [0] * len(REFUSED)
    assert found["n"][-1] > 0
    assert found["counts"][-1].sum() == found["n"][-1]
    assert found["counts"][:-1].sum() == 0
    assert (found["label"][:-1] == -1).all()
    if name == "refused certify":
        assert (found["radius"][:-1] == 0).all()
        assert (found["p_lower"][:-1] == 0).all()


def test_no_rows_give_no_rows(served):
    assert served["no rows"]["counts"].shape == (0, CLASSES)
    assert served["no rows"]["seed"].shape == (0, 2)
    assert served["decide no rows"]["counts"].shape == (0, CLASSES)
    assert served["decide no rows"]["certified"].shape == (0,)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("wrong shape", r"\[3,4,8,3\] is not compatible.*\[\?,8,8,3\]"),
        ("wrong rank", r"\[8,8,3\] is not compatible"),
        ("wrong dtype", "to be float but double"),
        ("unequal rows", "the same number of rows"),
    ],
)
def test_wrong_requests_are_invalid_arguments(name, message, served):
    with pytest.raises(session_capi.CodeError, match=message):
        raise served[name]
    assert served[name].args[0] == 3


def test_without_a_seed_nothing_repeats(served, elsewhere):
    """Not between rows, requests, signatures or servers."""
    names = ["predict", "predict again", "predict twins", "default", "certify"]
    names.append("decide")
    seeds = [served[name]["seed"] for name in names] + [elsewhere["seed"]]
    seeds = np.concatenate(seeds)
    assert len({tuple(seed) for seed in seeds}) == len(seeds)
    assert len(set(seeds[:, 0])) == len(set(seeds[:, 1])) == len(seeds)
    twins = served["predict twins"]["counts"]
    assert (twins[0] != twins[1]).any()
    again = [served[name]["counts"] for name in names[:2]]
    assert (again[0] != again[1]).any()
    assert (again[0] != elsewhere["counts"]).any()


def test_counts_scatter_as_independent_draws_do(served):
    """The variance of Binomial(n, p): less or more is noise that is shared."""
    counts = served["many"]["counts"]
    p = counts.mean(0) / PREDICT_N
    top = counts.mean(0).argmax()
    variance = PREDICT_N * p[top] * (1 - p[top])
    chi2 = (ROWS - 1) * counts[:, top].var(ddof=1) / variance
    # The noise is new each time; one run in a hundred million is outside.
    low, high = stats.chi2.ppf([5e-9, 1 - 5e-9], ROWS - 1)
    assert low < chi2 < high
