"""Models of other frameworks get the counts of the same network in Keras.

The code is that of the page `docs/your-own-model.md`.
"""

import re
from pathlib import Path

import keras
import numpy as np
import pytest
from kits import onnx_files

from rs_keras import Certifier

PAGE = Path(__file__).parents[2] / "docs" / "your-own-model.md"
BLOCKS = re.findall(r"```py3\n(.*?)```", PAGE.read_text(), re.S)
SHAPE = (8, 7, 3)


@pytest.fixture
def network():
    keras.utils.set_random_seed(3)
    model = keras.Sequential(
        [
            keras.Input(SHAPE),
            keras.layers.Conv2D(8, 3, activation="relu"),
            keras.layers.GlobalAveragePooling2D(),
            keras.layers.Dense(10),
        ]
    )
    # Several classes get votes.
    random = np.random.default_rng(1)
    scales = (1.0, 0.1, 3.0, 0.1)
    model.set_weights(
        [
            scale * random.standard_normal(weight.shape)
            for scale, weight in zip(scales, model.get_weights(), strict=True)
        ]
    )
    return model


def certifier_of(library, **names):
    """Runs the block of the page that imports a library."""
    (block,) = [
        each for each in BLOCKS if f"{library}" in each.split("rs_keras")[0]
    ]
    exec(compile(block, f"{PAGE.name}, {library}", "exec"), names)
    return names["certifier"]


def check_counts(certifier, model):
    images = np.random.default_rng(2).uniform(size=[3, *SHAPE])
    counts, wanted = (
        each.sample(images, n=1_000, seed=5)
        for each in (certifier, Certifier(model, sigma=0.25))
    )
    assert ((wanted > 0).sum(-1) > 1).any()
    # Draw for draw: a draw moves only where two logits tie in float32.
    assert np.abs(counts - wanted).sum() <= 4


def test_pytorch(network):
    torch = pytest.importorskip(
        "torch", reason="PyTorch is not installed, nor ever in the CI"
    )
    kernel, bias, dense, offset = map(torch.tensor, network.get_weights())
    module = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3),
        torch.nn.ReLU(),
        torch.nn.AdaptiveAvgPool2d(1),
        torch.nn.Flatten(),
        torch.nn.Linear(8, 10),
    )
    with torch.no_grad():
        module[0].weight.copy_(kernel.permute(3, 2, 0, 1))
        module[0].bias.copy_(bias)
        module[4].weight.copy_(dense.T)
        module[4].bias.copy_(offset)
    check_counts(certifier_of("torch", module=module), network)


def test_onnx_runtime(network, tmp_path, monkeypatch):
    pytest.importorskip(
        "onnxruntime", reason="onnxruntime is not installed (frameworks)"
    )
    data = onnx_files.conv_network(
        *network.get_weights(), (SHAPE[2], *SHAPE[:2])
    )
    monkeypatch.chdir(tmp_path)
    Path("classifier.onnx").write_bytes(data)
    check_counts(certifier_of("onnxruntime"), network)


@pytest.mark.filterwarnings("ignore")
def test_litert(network, tmp_path, monkeypatch):
    pytest.importorskip(
        "ai_edge_litert", reason="ai-edge-litert is not installed (frameworks)"
    )
    import tensorflow as tf

    converter = tf.lite.TFLiteConverter.from_keras_model(network)
    monkeypatch.chdir(tmp_path)
    Path("classifier.tflite").write_bytes(converter.convert())
    check_counts(certifier_of("ai_edge_litert"), network)
