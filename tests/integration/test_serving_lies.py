"""Servers that lie, alone and beside honest ones.

What honest servers vote is a formula in `fake_servers`; bounds are SciPy's.
"""

import logging
import time

import grpc
import numpy as np
import pytest
import tensorflow as tf
from kits.fake_servers import METADATA
from kits.fake_servers import Fake
from kits.fake_servers import certificate
from kits.fake_servers import votes

from rs_keras.serving import CertificationClient
from rs_keras.serving import ServingError
from rs_keras.serving.client import answers
from rs_keras.serving.client import audit
from rs_keras.serving.client.served_model import ServedModel

SEEDS = np.int64([[3, 1], [-5, 2]])
N0, N = 100, 1_000


class Liar(Fake):
    """A fake that changes its answers.

    Attributes:
        lie: From (response, what was asked, context) to a response, or None
            where it changed the one that it got; None is honest.
        lies: How many it has told.
    """

    def __init__(self, lie=None, **options):
        self.lie = lie
        self.lies = 0
        super().__init__(**options)

    def Predict(self, request, context):
        response = super().Predict(request, context)
        if self.lie is None or request.model_spec.signature_name == "describe":
            return response
        self.lies += 1
        return self.lie(response, request, context) or response


@pytest.fixture
def images():
    return np.random.default_rng(0).uniform(size=(2, 4, 4, 1)).astype("f4")


def client_of(*fakes, **options):
    return CertificationClient([one.address for one in fakes], "m", **options)


def expected(first, n):
    return np.stack([votes(seed, first, n) for seed in SEEDS])


# -- answers that no export gives ----------------------------------------------


def read(response, name):
    return tf.make_ndarray(response.outputs[name])


def write(response, name, array):
    response.outputs[name].CopyFrom(tf.make_tensor_proto(array))


def changes(name, change):
    """A lie about one output, where it is there."""

    def lie(response, request, context):
        if name in response.outputs:
            write(response, name, change(read(response, name).copy()))

    return lie


def moved(counts):
    """Votes for the first class that it did not get: a negative count."""
    counts[:, 0] += counts[:, 1] + 1
    counts[:, 1] = -1
    return counts


def more_than_draws(counts):
    counts[:, 0] += counts.sum()
    return counts


def wrapping(counts):
    """2**63-1 twice and 2 are 0 in int64."""
    counts[:] = [2**63 - 1, 2**63 - 1, 2]
    return counts


def wrapping_by_halves(counts):
    """2**62 thrice are negative in int64; no count is."""
    return np.full_like(counts, 2**62)


def others_version(response, request, context):
    response.model_spec.version.value = 2


def others_name(response, request, context):
    response.model_spec.name = "other"


def others_signature(response, request, context):
    response.model_spec.signature_name = "bound"


def empty(response, request, context):
    response.Clear()


def raises(response, request, context):
    raise RuntimeError("x")


def stops(code, words):
    def lie(response, request, context):
        context.abort(code, words)

    return lie


def unasked(response, request, context):
    response.outputs["junk"].dtype = tf.string.as_datatype_enum
    response.outputs["junk"].string_val.append(b"x" * 60_000_000)


def claims(response, request, context):
    """8 * 10**8 * 2 bytes, if it were believed."""
    response.outputs["counts"].tensor_shape.dim[1].size = 10**8


Code = grpc.StatusCode
# A lie, and what is said of it, about any request.
OF_ALL = {
    "negative counts": (changes("counts", moved), "no such answer"),
    "more votes": (changes("counts", more_than_draws), "no such answer"),
    "wrapping": (changes("counts", wrapping), "no such answer"),
    "halves": (changes("counts", wrapping_by_halves), "no such answer"),
    "float counts": (changes("counts", np.float32), "is float32"),
    "classes": (
        changes("counts", lambda k: np.concatenate([k, k], 1)),
        r"'counts' is int64 \[2, 6\]",
    ),
    "version": (others_version, "version 2, not 1"),
    "model": (others_name, "model 'other', not 'm'"),
    "signature": (others_signature, "signature 'bound', not"),
    "fewer draws": (changes("n", lambda n: n - 1), "n="),
    "more draws": (changes("n", lambda n: n + 10**9), "n="),
    "no draws": (changes("n", np.zeros_like), "rejects image 0"),
    "empty": (empty, "model '', not 'm'"),
    "internal": (stops(Code.INTERNAL, "boom"), "INTERNAL: boom"),
    "unknown": (raises, "UNKNOWN"),
    "not allowed": (stops(Code.UNAUTHENTICATED, "no"), "UNAUTHENTICATED: no"),
    "unasked": (unasked, "'junk' was not asked for"),
    "claimed shape": (claims, r"'counts' is int64 \[2, 100000000\]"),
    "export": (changes("export", lambda one: one + 1), "another export"),
}


def half(counts):
    return counts // 2


def third_class(counts):
    """All votes for another class: a possible count, but not the verdict's."""
    return np.int64([0, 0, 1]) * counts.sum(-1, keepdims=True)


# About an answer that has a verdict and a seed.
OF_CERTIFY = {
    "radius": (changes("radius", lambda r: 0 * r + 99), "radius=99.0 where"),
    "NaN": (changes("radius", lambda r: r * np.nan), "radius=nan where"),
    "a little": (changes("radius", lambda r: r * (1 + 1e-8)), "radius=0"),
    "bound": (changes("p_lower", lambda p: 0 * p + 7), "p_lower=7.0 where"),
    "label": (changes("label", lambda k: 0 * k + 77), "label=77 where"),
    "abstains": (changes("label", lambda k: 0 * k - 1), "label=-1 where"),
    "selection": (
        changes("selection_counts", lambda k: k - 100),
        "selection_counts=.*no such answer",
    ),
    "n0": (changes("selection_counts", lambda k: k * 2), "no such answer"),
    "half the votes": (changes("counts", half), "where its own counts give"),
    "no votes": (changes("counts", np.zeros_like), "where its own counts give"),
    "another class": (
        changes("counts", third_class),
        "where its own counts give",
    ),
    "one seed": (changes("seed", lambda s: 0 * s + 1), "the same noise"),
}
OF_PREDICT = {
    "p-value": (changes("p_value", lambda p: 0 * p - 3), "p_value=-3.0 where"),
    "NaN": (changes("p_value", lambda p: p * np.nan), "p_value=nan where"),
    "label": OF_CERTIFY["label"],
    "half the votes": OF_CERTIFY["half the votes"],
    "no votes": OF_CERTIFY["no votes"],
    "another class": (changes("counts", third_class), "label=0 where"),
    "one seed": OF_CERTIFY["one seed"],
}

CALLS = {
    "sample": lambda client, images: client.sample(images, N, SEEDS, chunk=300),
    "certify n": lambda client, images: client.certify(
        images, n=N, seed=SEEDS, chunk=300
    ),
    "predict n": lambda client, images: client.predict(images, N, seed=SEEDS),
    "decide": lambda client, images: client.decide(images, 0.2, seed=SEEDS),
    "certify": lambda client, images: client.certify(images),
    "predict": lambda client, images: client.predict(images),
}


def check(call, found):
    """What was found is what honest servers count."""
    if call == "sample":
        assert (found == expected(0, N)).all()
        return
    first = N0 if call.startswith("certify") else 0
    seeds, n = found.seed, found.counts.sum(-1)
    for row, counts in enumerate(found.counts):
        assert (counts == votes(seeds[row], first, n[row])).all()
    if call.startswith("certify"):
        assert (n == N).all()
        for row, seed in enumerate(seeds):
            pair = votes(seed, 0, N0), votes(seed, N0, N)
            label, radius, p_lower = certificate(*pair)
            assert found.label[row] == label
            np.testing.assert_allclose(found.radius[row], radius, rtol=1e-9)
            np.testing.assert_allclose(found.p_lower[row], p_lower, rtol=1e-9)
    assert (found.label == 0).all()


def table(lies, calls):
    return [
        pytest.param(call, *lies[name], id=f"{call}-{name}")
        for call in calls
        for name in lies
    ]


# Shapes are told by the request of both images, which these make.
SHAPED = ("classes", "claimed shape")
FEWER = {name: lie for name, lie in OF_ALL.items() if name not in SHAPED}
EVERY = [
    *table(OF_ALL, ["certify", "predict"]),
    *table(FEWER, ["sample", "certify n"]),
    *table(
        {name: OF_ALL[name] for name in ("wrapping", "fewer draws")},
        ["predict n", "decide"],
    ),
    *table(OF_CERTIFY, ["certify"]),
    *table(OF_PREDICT, ["predict"]),
]


@pytest.mark.parametrize(("call", "lie", "words"), EVERY)
def test_a_liar_alone_is_an_error_that_names_it(images, call, lie, words):
    with Liar(lie) as liar, client_of(liar, retries=1) as client:
        with pytest.raises(ServingError, match=words) as caught:
            CALLS[call](client, images)
    assert liar.address in str(caught.value)


@pytest.mark.parametrize(("call", "lie", "words"), EVERY)
def test_beside_an_honest_server_the_answer_is_right(
    images, call, lie, words, caplog
):
    """Keyed seeds, so that images alone are one request, to the liar first."""
    caplog.set_level(logging.WARNING, "rs_keras.serving")
    with Liar(lie, seed="keyed") as liar, Fake(seed="keyed") as honest:
        with client_of(liar, honest) as client:
            deadline = time.monotonic() + 30
            while liar.address not in caplog.text:
                assert time.monotonic() < deadline
                check(call, CALLS[call](client, images))
    assert liar.lies
    assert f"server={honest.address}" not in caplog.text


@pytest.mark.parametrize("call", CALLS)
def test_liars_alone_are_an_error_that_names_each(images, call):
    lie = changes("counts", wrapping)
    with Liar(lie) as one, Liar(lie) as two, client_of(one, two) as client:
        with pytest.raises(ServingError, match="no server is left") as caught:
            CALLS[call](client, images)
    for liar in (one, two):
        assert liar.address in str(caught.value)


def test_a_broken_server_is_said_and_asked_again_by_the_next_call(
    images, caplog
):
    caplog.set_level(logging.ERROR, "rs_keras.serving")
    with Liar(changes("counts", wrapping)) as liar, Fake() as honest:
        with client_of(liar, honest) as client:
            check("sample", CALLS["sample"](client, images))
            liar.lie = None
            honest.always = (Code.UNAVAILABLE, "away")
            check("sample", CALLS["sample"](client, images))
    (record,) = caplog.records
    assert record.getMessage().startswith("server_broken")
    assert record.fields["server"] == liar.address


def test_a_description_that_cannot_be_read_leaves_its_server_out(images):
    class Mute(Fake):
        def describe(self, inputs, version, context):
            return {"metadata_json": np.array([b"{"])}

    with Mute() as mute, Fake() as honest, client_of(mute, honest) as client:
        check("sample", CALLS["sample"](client, images))
        assert mute.samples == 0
        with client_of(mute) as alone:
            with pytest.raises(ServingError, match="another format") as caught:
                _ = alone.model
        assert caught.value.server == mute.address


# -- descriptions that no export gives -----------------------------------------

# As many digits as Python reads.
HUGE = 10**4_000
# What is said of a field, and of what the error speaks.
OF_DESCRIBE = [
    ("sigma", 200.0, "in (0, 64]"),
    ("sigma", float("nan"), "in (0, 64]"),
    ("sigma", float("inf"), "in (0, 64]"),
    ("sigma", 0.0, "in (0, 64]"),
    ("sigma", -0.5, "in (0, 64]"),
    ("sigma", True, "a float"),
    ("sigma", "0.5", "a float"),
    ("sigma", HUGE, "a float"),
    ("noise", "grid-strict", "one of float, grid"),
    ("noise", "", "one of float, grid"),
    ("noise", ["grid"], "one of float, grid"),
    ("dtype", 7, "one of awq, "),
    ("dtype", "float33", "one of awq, "),
    ("bound", "hoeffding", "one of clopper_pearson, joint"),
    ("seed", 7, "one of fresh, keyed"),
    ("alpha", 2.0, "in (0, 1)"),
    ("alpha", 0.0, "in (0, 1)"),
    ("alpha", float("nan"), "in (0, 1)"),
    ("alpha", "0.001", "in (0, 1)"),
    ("n", "x", "a whole number"),
    ("n", 1000.0, "a whole number"),
    ("n", 5, "must be >= "),
    ("n", True, "a whole number"),
    ("n0", 0, "a whole number"),
    ("n0", None, "a whole number"),
    ("predict_n", -100, "a whole number"),
    ("predict_n", 3, "must be >= "),
    ("decide_n", 10**6, "<= `n0` + `max_n`"),
    ("max_n", -5, "a whole number"),
    ("max_n", 999, "must be >= `n`"),
    ("max_n", 2**48, "must be <= "),
    ("max_n", HUGE, "a whole number"),
    ("num_classes", 1, "a whole number in [2, "),
    ("num_classes", "3", "a whole number in [2, "),
    ("image", {"shape": [4, 4]}, "three whole numbers"),
    ("image", {"shape": [4, 4, 0]}, "three whole numbers"),
    ("image", {"shape": [4, 4, 1.0]}, "three whole numbers"),
    ("image", {"shape": [2**20, 2**20, 3]}, "three whole numbers"),
    ("image", {"shape": {"0": 4}}, "three whole numbers"),
    ("image", {}, "three whole numbers"),
    ("image", [4, 4, 1], "three whole numbers"),
    ("class_names", "abc", "a list of strings"),
    ("class_names", ["a", "b", 3], "a list of strings"),
    ("class_names", ["a", "b"], "must be 3 names"),
    ("runner_up", 1, "true or false"),
    ("runner_up", "no", "true or false"),
    ("image_bytes", None, "true or false"),
    ("fingerprint", [1], "a string or null"),
    ("classifier_sha256", 0, "a string or null"),
    ("total_variation", "0", "a finite float >= 0"),
    ("max_radius", float("nan"), "a finite float >= 0"),
    ("decide_max_radius", -1.0, "a finite float >= 0"),
]
DESCRIBED = [
    pytest.param(name, value, words, id=f"{name}-{value!r:.20}")
    for name, value, words in OF_DESCRIBE
]


@pytest.mark.parametrize(("name", "value", "words"), DESCRIBED)
def test_a_false_description_alone_is_an_error(images, name, value, words):
    with Fake(**{name: value}) as liar, client_of(liar) as client:
        with pytest.raises(ServingError, match=f"`{name}` must ") as caught:
            CALLS["sample"](client, images)
    assert liar.asked == ["describe"]
    assert caught.value.server == liar.address
    said = str(caught.value)
    assert said.startswith(f"{liar.address} does not describe an export")
    assert words in said
    assert len(said) < 400


@pytest.mark.parametrize("name", sorted({row[0] for row in OF_DESCRIBE}))
def test_a_description_lacks_nothing(images, name):
    with Fake() as liar, client_of(liar) as client:
        del liar.metadata[name]
        words = f"`{name}` must be .* Received: no {name}$"
        with pytest.raises(ServingError, match=words):
            CALLS["certify n"](client, images)


@pytest.mark.parametrize("text", [b"[" * 10**5, b"[3]", b'{"format": 2}', b"3"])
def test_what_is_no_description_at_all(images, text):
    with Fake() as liar, client_of(liar) as client:
        liar.describe = lambda *_: {"metadata_json": np.array([text])}
        with pytest.raises(ServingError, match="another format") as caught:
            CALLS["decide"](client, images)
    assert caught.value.server == liar.address


def test_half_a_surrogate_pair_is_no_text(images):
    with Fake(library="\ud800") as liar, client_of(liar) as client:
        with pytest.raises(ServingError, match="another format"):
            CALLS["predict"](client, images)


# Those that no rule finds, too: they are of other exports.
BELIEVABLE = [
    pytest.param(name, value, "describes another model", id=f"{name}-{value}")
    for name, value in (
        ("sigma", 0.25),
        ("alpha", 0.01),
        ("n", 2_000),
        ("noise", "grid"),
        ("dtype", "bfloat16"),
        ("fingerprint", None),
        ("unknown", None),
        # Equal to the others', and yet of another identity.
        ("image", {**METADATA["image"], "range": [0.0, True]}),
    )
]


@pytest.mark.parametrize("call", ["sample", "certify n", "certify"])
@pytest.mark.parametrize(("name", "value", "words"), BELIEVABLE + DESCRIBED[:3])
def test_a_false_description_is_outvoted(
    images, name, value, words, call, caplog
):
    caplog.set_level(logging.ERROR, "rs_keras.serving")
    with Fake(**{name: value}) as liar, Fake() as two, Fake() as three:
        with client_of(liar, two, three) as client:
            for _ in range(2):
                check(call, CALLS[call](client, images))
            assert client.model.metadata == METADATA
    assert not liar.samples
    assert {record.fields["server"] for record in caplog.records} == {
        liar.address
    }
    assert all(
        record.getMessage().startswith("server_broken")
        for record in caplog.records
    )
    assert words in caplog.records[0].getMessage()


def test_as_many_descriptions_of_each_kind_are_no_majority(images):
    changes = {}, {"sigma": 0.25}, {}, {"sigma": 0.25}
    fakes = [Fake(**one) for one in changes]
    with fakes[0], fakes[1], fakes[2], fakes[3], client_of(*fakes) as client:
        words = "different models.*differ in sigma: (0.5 and 0.25|0.25 and 0.5)"
        with pytest.raises(ServingError, match=words):
            CALLS["sample"](client, images)


def test_a_server_that_refuses_to_describe_is_left_out(images):
    class Refusing(Fake):
        def describe(self, inputs, version, context):
            context.abort(Code.UNAUTHENTICATED, "no")

    with Refusing() as liar, Fake() as honest:
        with client_of(liar, honest) as client:
            check("sample", CALLS["sample"](client, images))
        with client_of(liar) as alone:
            with pytest.raises(ServingError, match="`describe` failed on"):
                CALLS["sample"](alone, images)


# -- counts that could be ------------------------------------------------------


def shifted(response, request, context):
    """A tenth of the votes goes from the first class to the second."""
    counts = read(response, "counts").copy()
    change = counts[:, 0] // 10
    counts[:, 0] -= change
    counts[:, 1] += change
    write(response, "counts", counts)


COUNTED = ["sample", "certify n", "predict n", "decide", "certify", "predict"]


@pytest.mark.parametrize("call", COUNTED)
def test_audits_name_the_odd_one_and_count_again(images, call, caplog):
    caplog.set_level(logging.ERROR, "rs_keras.serving")
    with Liar(shifted) as liar, Fake() as two, Fake() as three:
        with client_of(two, liar, three, audit=1) as client:
            deadline = time.monotonic() + 30
            while not liar.lies and time.monotonic() < deadline:
                check(call, CALLS[call](client, images))
    assert liar.lies
    broken = {
        record.fields["server"]
        for record in caplog.records
        if record.getMessage().startswith("server_broken")
    }
    assert broken == {liar.address}


def test_without_audits_such_counts_are_believed(images):
    """This is what an audit is for, and what the checks cannot see."""
    with Liar(shifted) as liar, Fake() as two, Fake() as three:
        with client_of(liar, two, three) as client:
            counts = client.sample(images, 3_000, SEEDS, chunk=100)
    assert liar.lies
    assert (counts != expected(0, 3_000)).any()


def test_two_servers_that_disagree_are_both_named(images):
    with Liar(shifted) as liar, Fake() as honest:
        with client_of(liar, honest, audit=1.0) as client:
            with pytest.raises(ServingError, match="disagree") as caught:
                client.sample(images, 3_000, SEEDS, chunk=300)
    for one in (liar, honest):
        assert one.address in str(caught.value)


def test_keyed_requests_are_audited_too(images):
    """A wrong seed is an answer that another server contradicts."""
    lie = changes("seed", lambda seed: seed + np.int64([[1, 0]]))
    servers = [Liar(lie, seed="keyed")]
    servers += [Fake(seed="keyed") for _ in range(2)]
    with servers[0] as liar, servers[1] as two, servers[2] as three:
        with client_of(two, liar, three, audit=1.0) as client:
            for _ in range(4):
                found = client.certify(images)
                sums = [int(image.sum() * 255) for image in images]
                assert found.seed[:, 0].tolist() == sums
    assert liar.lies


def test_a_stream_ends_where_an_audit_fails(images):
    """What it has yielded cannot be taken back."""
    examples = ((row, images[0], SEEDS[0]) for row in range(200))
    with Liar(shifted) as liar, Fake() as two, Fake() as three:
        with client_of(liar, two, three, audit=1.0) as client:
            with pytest.raises(ServingError, match="start again") as caught:
                list(client.certify_each(examples, n=1_000, chunk=300))
    assert caught.value.server == liar.address


def test_a_share_of_the_chunks_is_repeated_elsewhere(images):
    with Fake() as one, Fake() as two:
        with client_of(one, two, audit=0.2) as client:
            counts = client.sample(images[:1], 40_000, SEEDS[:1], chunk=100)
    assert (counts[0] == votes(SEEDS[0], 0, 40_000)).all()
    # 400 chunks: 80 are repeated, 8 standard deviations (8) either way.
    repeated = set(one.drawn) & set(two.drawn)
    assert 16 < len(repeated) < 144
    for fake in (one, two):
        assert len(set(fake.drawn)) == len(fake.drawn)


@pytest.mark.parametrize("audited", [0.0, 1.0])
def test_nothing_is_repeated_that_need_not_be(images, audited):
    with Fake() as one, Fake() as two:
        servers = (one, two) if not audited else (one,)
        with client_of(*servers, audit=audited) as client:
            client.sample(images, 4_000, SEEDS, chunk=100)
    assert one.samples + two.samples == 80


def test_an_auditor_that_hangs_is_not_waited_for_long(images, caplog):
    caplog.set_level(logging.WARNING, "rs_keras.serving")
    with Fake() as one, Fake() as frozen:
        with client_of(one, frozen, audit=1.0, timeout=2) as client:
            client.sample(images, 200, SEEDS, chunk=100)
            frozen.always = 30.0
            begun = time.monotonic()
            counts = client.sample(images, 1_000, SEEDS, chunk=100)
    assert (counts == expected(0, 1_000)).all()
    assert time.monotonic() - begun < 20
    said = [record.getMessage() for record in caplog.records]
    assert any(words.startswith("audit_dropped") for words in said)


@pytest.mark.parametrize(("dtype", "ties"), [("float32", 7), ("bfloat16", 202)])
def test_ties_of_rounding_are_no_lie(images, dtype, ties):
    """Two votes a row, and a share of the draws, may differ."""

    def off(votes_moved):
        def lie(response, request, context):
            counts = read(response, "counts").copy()
            counts[:, 0] -= votes_moved
            counts[:, 1] += votes_moved
            write(response, "counts", counts)

        return lie

    assert audit.allowance(10_000, dtype) == ties
    one_row, seed = images[:1], SEEDS[:1]
    for moved_votes, fails in ((ties, False), (ties + 1, True)):
        servers = Liar(off(moved_votes), dtype=dtype), Fake(dtype=dtype)
        with servers[0] as liar, servers[1] as honest:
            with client_of(liar, honest, audit=1.0) as client:
                try:
                    counts = client.sample(one_row, 10_000, seed, chunk=10_000)
                except ServingError as error:
                    assert fails
                    assert "disagree" in str(error)
                else:
                    assert not fails
                    apart = np.abs(counts - expected(0, 10_000)[:1]).sum()
                    assert apart in (0, 2 * ties)


def test_rounding_of_many_votes_is_no_lie():
    """At 1e7 votes two ways to sum a tail differ by some 1e-9."""
    facts = {**METADATA, "predict_n": 10**7, "max_n": 10**7}
    model = ServedModel("mnist", 1, facts)
    counts = np.array([[5_003_000, 4_997_000, 0]])
    seed = np.zeros([1, 2], np.int64)
    exact = answers.prediction(
        model, 10**7, METADATA["alpha"], counts=counts, seed=seed
    )
    images = np.full([1, 4, 4, 1], 0.5)
    for factor, good in ((1 + 5e-9, True), (1 + 1e-5, False)):
        outputs = {
            "label": exact.label,
            "p_value": exact.p_value * factor,
            "counts": counts,
            "n": np.array([10**7]),
            "seed": seed,
        }
        if good:
            found = answers.predicted(model, images, "a:1", outputs)
            assert found.p_value == exact.p_value
        else:
            with pytest.raises(ServingError, match="a:1 answers with p_value"):
                answers.predicted(model, images, "a:1", outputs)
