"""What several tests need."""

import shutil
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
CHROMIUM_FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run "
    "--disable-background-networking --disable-component-update --disable-sync"
)
SHARED = Path(__file__).resolve().parents[2] / "shared"


@pytest.fixture
def shared():
    """The folder of published logs, which lies beside a full checkout."""
    if not SHARED.is_dir():
        pytest.skip(f"the published reference files are not at {SHARED}")
    return SHARED


class Linear:
    """f(x) = 1[w.x + b > 0] as two logits; its true radius is known.

    Under noise the score w.x + b is Normal with mean w.x + b and standard
    deviation sigma * |w|, so P[class 1] = cdf((w.x + b) / (sigma |w|)) and the
    smoothed classifier changes its mind at distance |w.x + b| / |w| exactly.
    """

    def __init__(self, shape=(4, 4, 1), seed=0):
        rng = np.random.default_rng(seed)
        self.weights = rng.normal(size=shape)
        self.bias = -0.5 * self.weights.sum()

    def __call__(self, images):
        kernel = tf.constant(self.weights, images.dtype)
        score = tf.reduce_sum(images * kernel, [1, 2, 3])
        score += tf.constant(self.bias, images.dtype)
        return tf.stack([-score, score], -1)

    def score(self, images):
        images = np.asarray(images, np.float64)
        return (images * self.weights).sum((1, 2, 3)) + self.bias

    def radius(self, images):
        return np.abs(self.score(images)) / np.linalg.norm(self.weights)

    def label(self, images):
        return (self.score(images) > 0).astype(int)


@pytest.fixture
def linear():
    return Linear()


@pytest.fixture
def policy():
    """Sets Keras' policy for the test alone."""
    before = keras.config.dtype_policy()
    yield keras.config.set_dtype_policy
    keras.config.set_dtype_policy(before)


@pytest.fixture
def images():
    return np.random.default_rng(1).uniform(size=(5, 4, 4, 1)).astype("float32")


@pytest.fixture
def golden():
    """Opens a file of the authors' numbers; see golden/README.md."""
    folder = Path(__file__).parent / "golden"

    def load(name):
        return np.load(folder / f"{name}.npz")

    return load


@pytest.fixture(scope="module")
def browser():
    """Chromium, where it is on the PATH; it asks nobody for anything."""
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="playwright is not installed"
    )
    if CHROMIUM is None:
        pytest.skip("no chromium is on the PATH")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(
            executable_path=CHROMIUM, args=CHROMIUM_FLAGS.split()
        )
        yield browser
        browser.close()
