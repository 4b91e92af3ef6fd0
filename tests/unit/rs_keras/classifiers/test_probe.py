"""Models whose votes depend on each other are refused, and no others."""

import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

from rs_keras import Certifier
from rs_keras import DataDependentCertifier
from rs_keras import models
from rs_keras.classifiers.ensembles import denoised
from rs_keras.classifiers.ensembles import ensemble
from rs_keras.classifiers.probe import probe
from rs_keras.export import export_certifier

SHAPE = (4, 4, 1)
OPS = "deterministic in inference mode.*"
PASSES = "answer each image by itself.*"


def logits_of(x):
    return tf.reshape(x, [-1, 16])[:, :3]


def sequential(*layers):
    keras.utils.set_random_seed(1)
    flat = keras.layers.Flatten(), keras.layers.Dense(3)
    return keras.Sequential([keras.Input(SHAPE), *layers, *flat])


class Training(keras.layers.Layer):
    """Calls a layer as in training, always."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def call(self, x):
        return self.inner(x, training=True)


class Seeded(keras.layers.Layer):
    """One number for all rows, of keras.random."""

    def __init__(self):
        super().__init__()
        self.generator = keras.random.SeedGenerator(1)

    def call(self, x):
        return x + keras.random.uniform([], seed=self.generator)


class Counting(tf.Module):
    """Changes its answer with the number of its calls."""

    def __init__(self):
        self.calls = tf.Variable(0.0)

    def __call__(self, x):
        return logits_of(x) + self.calls.assign_add(1.0)


def generator():
    made = tf.random.Generator.from_seed(1)
    return lambda x: logits_of(x) + made.normal([])


def in_a_branch(x):
    """The random operation stands in the body of a conditional."""
    bright = tf.reduce_mean(x) > 100.0
    return logits_of(x) + tf.cond(
        bright, lambda: tf.random.normal([]), lambda: 0.0
    )


def in_a_loop(x):
    step = tf.function(lambda i, y: (i + 1, y + tf.random.uniform([])))
    return tf.while_loop(lambda i, y: i < 2, step, (0, logits_of(x)))[1]


RANDOM = {
    "coin": (
        lambda: lambda x: logits_of(x) * tf.round(tf.random.uniform([])),
        "RandomUniform",
    ),
    "a number a row": (
        lambda: lambda x: logits_of(x) + tf.random.normal([tf.shape(x)[0], 1]),
        "RandomStandardNormal",
    ),
    "shuffled": (
        lambda: lambda x: logits_of(tf.random.shuffle(x)),
        "RandomShuffle",
    ),
    "entropy": (
        lambda: (
            lambda x: (
                logits_of(x)
                + tf.cast(
                    tf.raw_ops.NonDeterministicInts(shape=[1], dtype=tf.int32)
                    % 2,
                    tf.float32,
                )
            )
        ),
        "NonDeterministicInts",
    ),
    "generator": (generator, "RngReadAndSkip"),
    "conditional": (lambda: in_a_branch, "RandomStandardNormal"),
    "loop": (lambda: in_a_loop, "RandomUniform"),
    "keras.random": (
        lambda: sequential(Seeded()),
        "Assign.*which writes a variable",
    ),
    "dropout": (
        lambda: sequential(Training(keras.layers.Dropout(0.5))),
        "Assign",
    ),
    "stochastic depth": (
        lambda: sequential(
            Training(keras.layers.Dropout(0.5, noise_shape=[1, 1, 1, 1]))
        ),
        "Assign",
    ),
    "batch statistics": (
        lambda: sequential(Training(keras.layers.BatchNormalization())),
        "Assign",
    ),
    "counter": (Counting, "AssignAddVariableOp"),
    "clock": (
        lambda: lambda x: logits_of(x) + tf.cast(tf.timestamp(), tf.float32),
        "Timestamp",
    ),
}


@pytest.mark.parametrize(("make", "operation"), RANDOM.values(), ids=RANDOM)
def test_operations_with_a_state_are_refused_by_name(make, operation, images):
    certifier = Certifier(make(), sigma=0.5)
    with pytest.raises(ValueError, match=f"`model` must be {OPS}{operation}"):
        certifier.certify(images, n=100)
    # Nor does asking again help.
    with pytest.raises(ValueError, match=operation):
        certifier.sample(images, n=100)


def test_the_layer_is_named(images):
    model = sequential(Training(keras.layers.Dropout(0.5, name="rest")))
    with pytest.raises(ValueError, match="at '.*/rest_?[0-9]*/.*'"):
        Certifier(model, sigma=0.5).predict(images, n=100)


def test_what_a_saved_model_does_is_searched(images, tmp_path):
    module = tf.Module()
    module.__call__ = tf.function(
        lambda x: logits_of(x) + tf.random.normal([]),
        input_signature=[tf.TensorSpec([None, *SHAPE])],
    )
    tf.saved_model.save(module, str(tmp_path), module.__call__)
    loaded = tf.saved_model.load(str(tmp_path))
    with pytest.raises(ValueError, match=f"{OPS}RandomStandardNormal"):
        Certifier(loaded, sigma=0.5).predict(images, n=100)


def on_position(period):
    """Adds to class 0 of every row whose place is a multiple."""

    def model(x):
        place = tf.range(tf.shape(x)[0]) % period
        extra = tf.cast(place == 0, x.dtype)[:, None]
        return logits_of(x) + extra * [1.0, 0.0, 0.0]

    return model


def above(rows):
    """Answers otherwise in batches of more rows."""

    def model(x):
        return logits_of(x) * tf.where(tf.shape(x)[0] > rows, -1.0, 1.0)

    return model


def nan_where(condition):
    def model(x):
        bad = condition(x)[:, None]
        return tf.where(bad, np.nan, tf.zeros_like(logits_of(x)))

    return model


def hidden(x):
    """The vote is in the last bits of large logits: 2e6 and 2e6 +- 1."""
    mean = tf.sign(tf.reduce_mean(x[0]) - tf.reduce_mean(x[-1]))
    row = tf.stack([2e6 + mean, tf.constant(2e6)])
    return tf.repeat(row[None], tf.shape(x)[0], 0) + 0.0 * x[:, :2, 0, 0]


def votes_of(leaky):
    """The same as a hard decision."""
    return lambda x: tf.one_hot(tf.argmax(leaky(x), -1), 3)


SHARED = {
    "mean of the batch": lambda x: logits_of(x) - tf.reduce_mean(x, [0, 1, 2]),
    "largest of the batch": lambda x: logits_of(x) / tf.reduce_max(x),
    "first row": lambda x: logits_of(x) + logits_of(x[:1]),
    "last row": lambda x: logits_of(x) + logits_of(x[-1:]),
    "row before": lambda x: logits_of(x) + logits_of(tf.roll(x, 1, 0)),
    "sum so far": lambda x: tf.cumsum(logits_of(x), 0),
    "rank": lambda x: tf.cast(tf.argsort(logits_of(x), 0), tf.float32),
    "first place": on_position(10**6),
    "even places": on_position(2),
    "third places": on_position(3),
    "fixed noise": lambda x: (
        logits_of(x) + tf.random.stateless_normal([tf.shape(x)[0], 3], [1, 2])
    ),
    "seed of the batch": lambda x: (
        logits_of(x)
        + tf.random.stateless_normal(
            [], tf.bitcast(tf.stack([x[0, 0, 0, 0], x[-1, 0, 0, 0]]), tf.int32)
        )
    ),
    "above 1 row": above(1),
    "above 8 rows": above(8),
    "above 399 rows": above(399),
    "nan at the first place": nan_where(
        lambda x: tf.range(tf.shape(x)[0]) == 0
    ),
    "nan above 8 rows": nan_where(
        lambda x: tf.fill([tf.shape(x)[0]], tf.shape(x)[0] > 8)
    ),
    "in the last bits": hidden,
    "hard, even places": votes_of(on_position(2)),
    "hard, first place": votes_of(
        lambda x: (
            tf.where(tf.range(tf.shape(x)[0])[:, None] == 0, -1.0, 1.0)
            * logits_of(x)
        )
    ),
}


@pytest.mark.parametrize("name", SHARED)
def test_rows_that_depend_on_the_pass_are_refused(name, images):
    with pytest.raises(ValueError, match=f"`model` must {PASSES}"):
        Certifier(SHARED[name], sigma=0.5).certify(images, n=100)


@pytest.mark.parametrize("size", [2, 3, 5, 8, 9, 64])
@pytest.mark.parametrize("name", ["mean of the batch", "row before"])
def test_passes_of_any_size_are_compared(name, size, images):
    certifier = Certifier(SHARED[name], sigma=0.5, batch_size=size)
    with pytest.raises(ValueError, match=PASSES):
        certifier.certify(images, n=100)


def test_it_says_by_how_much(images):
    """Twice the logits in one pass: a change of more than their spread."""
    model = SHARED["above 8 rows"]
    with pytest.raises(ValueError, match=r"logits that change by \d{3}.\d\d%"):
        Certifier(model, sigma=0.5).certify(images, n=100)


class Coin:
    """Python code with a coin for all rows of a pass; counts its passes."""

    def __init__(self, flips):
        self.flips = list(flips)
        self.rows = []

    def __call__(self, x):
        def flipped(rows):
            self.rows.append(len(rows))
            return logits_of(rows) * (-1.0 if self.flips.pop(0) else 1.0)

        return tf.ensure_shape(
            tf.py_function(flipped, [x], tf.float32), [None, 3]
        )


def test_python_code_runs_fourteen_whole_passes(images):
    coin = Coin([False] * 100)
    Certifier(coin, sigma=0.5, batch_size=64).sample(images[:1], n=64)
    # A pass of 8 rows, one of 1 and three of any size, then plain images, then
    # the votes.
    assert 14 + 1 <= coin.rows.count(64) <= 14 + 1 + 3
    assert len(coin.rows) == 14 + 1 + 2 + 3 + 1
    assert coin.rows.count(1) >= 1 and coin.rows.count(8) >= 2


@pytest.mark.parametrize("number", range(16))
def test_a_coin_is_seen_wherever_it_falls(number, images):
    """All of 14 passes alike by chance: 2 * 2^-14 = 2^-13 for a fair coin."""
    flips = [turn == number for turn in range(17)]
    with pytest.raises(ValueError, match=PASSES):
        Certifier(Coin(flips), sigma=0.5).sample(images, n=64)


def test_a_fair_coin_in_python_is_refused(images):
    refused = 0
    for seed in range(20):
        flips = np.random.default_rng(seed).random(100) < 0.5
        try:
            Certifier(Coin(flips), sigma=0.5).sample(images[:1], n=64)
        except ValueError:
            refused += 1
    assert refused == 20


def zero_or_nan(x):
    """Of its own row alone: 0 where the row is bright, NaN elsewhere."""
    bright = tf.reduce_mean(x, [1, 2, 3]) > 0.5
    return tf.where(bright[:, None], tf.zeros_like(logits_of(x)), np.nan)


def row_by_row(x):
    """Randomness whose seed is the row's own content is a function of it."""

    def one(row):
        seed = tf.bitcast(tf.reshape(row, [-1])[:2], tf.int32)
        return tf.reshape(row, [-1])[:3] + tf.random.stateless_normal([3], seed)

    return tf.map_fn(one, x)


@pytest.mark.parametrize("size", [None, 1, 2, 7])
@pytest.mark.parametrize(
    "make",
    [
        lambda: zero_or_nan,
        lambda: row_by_row,
        lambda: votes_of(logits_of),
        lambda: lambda x: logits_of(x) * 0.0,
        lambda: (
            lambda x: tf.cast(tf.cast(logits_of(x), tf.bfloat16), "float32")
        ),
        lambda: sequential(
            keras.layers.BatchNormalization(), keras.layers.Dropout(0.5)
        ),
        lambda: ensemble([sequential(), logits_of]),
        lambda: denoised(sequential(), lambda z, s: z / (1 + s), 0.5),
    ],
    ids=[
        "nan",
        "own seed",
        "hard",
        "constant",
        "bfloat16",
        "keras",
        "ensemble",
        "denoised",
    ],
)
def test_rows_by_themselves_are_accepted(make, size, images):
    counts = Certifier(make(), sigma=0.5, batch_size=size).sample(images, n=100)
    assert counts.sum() <= 100 * len(images)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_networks_are_accepted_in_every_type(dtype):
    image = np.random.default_rng(0).uniform(size=[1, 28, 28, 1])
    model = models.pretrained("mnist-gaussian-1.00")
    counts = Certifier(model, sigma=1.0, dtype=dtype).sample(image, n=100)
    assert counts.sum() == 100


@pytest.mark.parametrize("mode", ["int8", "float8"])
def test_quantised_networks_are_accepted(mode, images):
    model = sequential(keras.layers.Conv2D(4, 3, activation="relu"))
    model.layers[-1].quantize(mode)
    assert Certifier(model, sigma=0.5).sample(images, n=100).sum() == 500


def test_the_type_in_which_a_function_rounds_is_found_in_its_graph():
    """1 % between passes is rounding in bfloat16 and none in float32."""
    rows = tf.random.stateless_normal([16, *SHAPE], [1, 2])

    def leaky(dtype):
        def model(x):
            leak = 1.0 + 0.01 * tf.cast(tf.shape(x)[0] > 8, tf.float32)
            logits = tf.cast(logits_of(x) * leak, dtype)
            return tf.cast(logits, tf.float32)

        spec = tf.TensorSpec([None, *SHAPE])
        return tf.function(model).get_concrete_function(spec)

    probe(leaky(tf.bfloat16), rows, 16, 3)
    with pytest.raises(ValueError, match=r"change by \d\.\d\d%"):
        probe(leaky(tf.float32), rows, 16, 3)


def test_other_paths_refuse_as_well(images, tmp_path):
    coin = RANDOM["coin"][0]()
    batch = SHARED["mean of the batch"]
    for model, message in ((coin, OPS), (batch, PASSES)):
        with pytest.raises(ValueError, match=message):
            export_certifier(
                Certifier(model, sigma=0.5), tmp_path, image_shape=SHAPE
            )
        with pytest.raises(ValueError, match=message):
            DataDependentCertifier(model, 0.5).certify(images, 0.5, n=100)
        with pytest.raises(ValueError, match=message):
            Certifier(ensemble([model, logits_of]), 0.5).predict(images, n=100)
        with pytest.raises(ValueError, match=message):
            Certifier(model, 0.5).soft_predict(images)
        with pytest.raises(ValueError, match=message):
            Certifier(model, 0.5).decide(images, radius=0.1)
    assert not list(tmp_path.iterdir())


def of_bytes():
    """A network whose weights were made for 0 .. 255."""
    model = sequential(keras.layers.Rescaling(1 / 255))
    model.layers[-1].bias.assign([1.0, 0.0, -1.0])
    return model


BYTES = {
    "rescaling": of_bytes,
    "function": lambda: lambda x: logits_of(x) - 127.5,
    "integers": lambda: (
        lambda x: tf.cast(tf.cast(logits_of(x), tf.int32), tf.float32) - 128.0
    ),
    "decision": lambda: (
        lambda x: tf.one_hot(tf.cast(x[:, 0, 0, 0] > 127.5, tf.int32), 3)
    ),
}


@pytest.mark.parametrize("name", BYTES)
def test_a_model_of_0_to_255_is_warned_about_once(name, images):
    certifier = Certifier(BYTES[name](), sigma=0.5)
    with pytest.warns(UserWarning, match=r"barely change.*Rescaling\(255.0\)"):
        certifier.sample(images, n=100)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        certifier.sample(images, n=100)
        certifier.predict(images, n=100)


def standardised(x):
    return logits_of(tf.image.per_image_standardization(x)) + 5.0


@pytest.mark.parametrize(
    "make",
    [
        lambda: keras.Sequential([keras.layers.Rescaling(255.0), of_bytes()]),
        lambda: standardised,
        lambda: sequential(keras.layers.Rescaling(2.0, -1.0)),
        lambda: lambda x: logits_of(x) * 0.0 + [3.0, 2.0, 1.0],
    ],
    ids=["cured", "standardised", "of [0, 1]", "constant"],
)
def test_a_model_of_the_range_is_not_warned_about(make, images):
    Certifier(make(), sigma=0.5).sample(images, n=100)


def test_an_offset_hides_no_coin_from_soft_bounds():
    """Softmax sees 8 against -8; beside 1e6 it is a part in 1e5."""

    def model(x):
        side = tf.where(tf.shape(x)[0] > 8, 8.0, -8.0) + 0.0 * x[:, 0, 0, 0]
        return tf.stack([side, -side], -1) + 1e6

    certifier = Certifier(model)
    image = np.full([1, 4, 4, 1], 0.5)
    with pytest.raises(ValueError, match="answer each image by itself"):
        certifier.certify(image, n=400, bound="hoeffding", runner_up=False)


def test_passes_that_are_not_full_are_compared():
    """One coin for all rows, but not in full passes, nor in those of 8 or 1."""

    def model(x):
        rows = tf.shape(x)[0]
        coin = tf.cast(
            tf.cast(tf.reduce_sum(x) * 1e3, tf.int64) % 2, tf.float32
        )
        own = x[:, 0, 0, 0] - 0.5
        side = tf.where((rows > 8) & (rows < 400), 2.0 * coin - 1.0, own)
        return tf.stack([side, -side], -1)

    refused = 0
    for _ in range(6):
        try:
            Certifier(model, batch_size=400).sample(
                np.full([1, 4, 4, 1], 0.5), n=10
            )
        except ValueError:
            refused += 1
    # Each certifier looks at three sizes of its own, of which two in three
    # lie between 8 and 400: it passes with probability 1/24, and four of six
    # with one of 4e-5.
    assert refused >= 3
