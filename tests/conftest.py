"""What several tests need."""

import shutil
from pathlib import Path

import keras
import numpy as np
import pytest
from kits.linear import Linear

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
