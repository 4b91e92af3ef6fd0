"""What an export says of itself, read without TensorFlow."""

import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
from scipy import stats

from rs_keras import Certifier
from rs_keras.cli import main
from rs_keras.export import export_certifier
from rs_keras.export import metadata
from rs_keras.export.show import show


def linear(images):
    kernel = np.linspace(-1, 1, 32, dtype=np.float32).reshape(16, 2)
    return tf.reshape(images, [-1, 16]) @ tf.constant(kernel)


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    folder = tmp_path_factory.mktemp("exports") / "toy"
    (folder / "1").mkdir(parents=True)
    export_certifier(
        Certifier(linear, sigma=0.25),
        folder,
        n=200,
        runner_up=False,
        image_shape=(4, 4, 1),
        class_names=["left", "right"],
    )
    return folder


def test_the_largest_radius_is_that_of_scipy(base):
    """With all n votes equal, the bound is alpha**(1 / n)."""
    found = metadata.read(base / "2")["max_radius"]
    want = 0.25 * stats.norm.ppf(0.001 ** (1 / 200))
    assert found == pytest.approx(want, rel=1e-9)


def test_show_tells_of_the_newest_version(base, capsys):
    assert main(["export", "--show", str(base)]) == 0
    text = capsys.readouterr().out
    assert text == show(base) + "\n"
    assert f"{base}: versions 1, 2" in text
    for line in (
        "  sigma: 0.25\n",
        "  class_names: left, right\n",
        "  certify_with\n",
        "    in  images           float32[B, 4, 4, 1] ",
        "    out counts           int64[B, 2] ",
        "    out seed             int64[B, 2] ",
    ):
        assert line in text
    assert "predict_bytes" not in text
    assert show(base / "2") in text


def test_clients_read_names_without_tensorflow():
    code = (
        "import sys\n"
        "from rs_keras.export import metadata, show, signature, versions\n"
        "print(sorted({'tensorflow', 'keras', 'numpy'} & set(sys.modules)))\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert run.stdout == "[]\n"
