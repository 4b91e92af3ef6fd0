"""Every method's training step against the passes that it cannot do without.

    python benchmarks/methods.py [--rounds 15] [--methods smoothmix ...]
    python benchmarks/methods.py --network resnet20

LeNet on 28 x 28 images, each method with the settings of the papers' MNIST
table at sigma 1.0 and its own batch size; or ResNet-20 on 32 x 32 images with
three methods. A method's passes are counted and
timed bare: `train` is forward and backward for the weights, `attack` forward
and backward for the images, both on all m noisy copies. `usual / step` is what
`rs_keras.trainers._step.input_gradients` saves a step with an attack, `step /
bfloat16` what the policy mixed_bfloat16 saves any step. Gaussian, SmoothMix and
CAT-RS are measured against the same step in plain PyTorch, too, in both types
and the quickest of its ways, where torch is installed:
pip install "rs-keras[benchmarks]".
"""

import argparse
import contextlib
import os
from collections.abc import Callable
from typing import NamedTuple
from unittest import mock

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras  # noqa: E402
import numpy as np  # noqa: E402
import peers  # noqa: E402
import tensorflow as tf  # noqa: E402
from timing import interleaved  # noqa: E402
from timing import table  # noqa: E402

from rs_keras import models  # noqa: E402
from rs_keras import trainers  # noqa: E402
from rs_keras.trainers._step import input_gradients  # noqa: E402

SIGMA = peers.SIGMA


class Case(NamedTuple):
    """A method, its batch, and the passes that its formula needs."""

    method: str
    arguments: dict
    batch: int
    train: int
    attack: int


LENET = {
    "gaussian": Case("Gaussian", {}, 256, 1, 0),
    # The clean pass and the noisy one.
    "stability": Case("Stability", {}, 256, 2, 0),
    "consistency": Case("Consistency", {"weight": 5.0}, 128, 1, 0),
    "macer": Case("MACER", {"weight": 6.0}, 256, 1, 0),
    "smoothadv": Case("SmoothAdv", {"steps": 10}, 64, 1, 10),
    # The clean side and the mixture, after T steps of ascent.
    "smoothmix_T1": Case(
        "SmoothMix",
        {"steps": 1, "step_size": 8.0, "one_step_adversary": False},
        64,
        2,
        1,
    ),
    "smoothmix": Case("SmoothMix", {"steps": 8}, 64, 2, 8),
    # The noisy copies and the attacked ones, after T steps on the noise.
    "catrs": Case("CATRS", {"steps": 4, "confidence_mask": True}, 64, 2, 4),
}
RESNET20 = {
    "gaussian": Case("Gaussian", {}, 128, 1, 0),
    "smoothmix": Case("SmoothMix", {"num_noise": 2, "steps": 4}, 64, 2, 4),
    "catrs": Case(
        "CATRS",
        {"num_noise": 2, "steps": 4, "confidence_mask": True},
        32,
        2,
        4,
    ),
}


class Network(NamedTuple):
    """A network here and in PyTorch, its images, the cases of its methods."""

    here: Callable
    there: Callable
    shape: tuple
    cases: dict


NETWORKS = {
    "lenet": Network(models.lenet, peers.torch_lenet, (28, 28, 1), LENET),
    "resnet20": Network(
        lambda: models.cifar_resnet(20),
        peers.torch_resnet20,
        (32, 32, 3),
        RESNET20,
    ),
}


def data_of(case, shape):
    rng = np.random.default_rng(0)
    images = rng.random([case.batch, *shape], dtype=np.float32)
    labels = tf.constant(rng.integers(0, 10, case.batch))
    if case.method == "CATRS":
        # A teacher that is sure of all images: then all are attacked.
        labels = {"label": labels, "soft_label": tf.one_hot(labels, 10)}
    return tf.constant(images), labels


def step_of(case, data, network):
    trainer = getattr(trainers, case.method)(
        network.here(), sigma=SIGMA, **case.arguments
    )
    trainer.compile(trainers.SGD(0.01, weight_decay=1e-4))
    trainer.check_batch(*data)
    trainer.optimizer.build(trainer.trainable_variables)
    return tf.function(lambda: trainer.train_step(data)), trainer.num_noise


def usual_step_of(case, data, network):
    """The step with the layers' own gradients."""
    step, _ = step_of(case, data, network)
    with mock.patch.object(
        input_gradients, "quick_gradients", contextlib.nullcontext
    ):
        step()
    return step


def bfloat16_step_of(case, data, network):
    """The step of a model that computes in bfloat16, weights in float32."""
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        step, _ = step_of(case, data, network)
    finally:
        keras.config.set_dtype_policy(before)
    return step


def passes_of(case, copies, network):
    """The bare passes of one step, one after the other."""
    model = network.here()
    input_gradients.prepare(model)
    weights = [variable.value for variable in model.trainable_variables]
    rng = np.random.default_rng(0)
    noisy = rng.random([copies * case.batch, *network.shape], dtype=np.float32)
    images = tf.constant(noisy)

    @tf.function
    def train():
        with tf.GradientTape() as tape, input_gradients.quick_gradients():
            out = tf.reduce_sum(model(images, training=True))
        return tape.gradient(out, weights)

    @tf.function
    def attack():
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(images)
            with input_gradients.quick_gradients():
                out = tf.reduce_sum(model(images, training=False))
        return tape.gradient(out, images)

    def run():
        for _ in range(case.train):
            train()
        for _ in range(case.attack):
            attack()

    return run


def torch_steps(case, network, compiled):
    """PyTorch's ways to make the step, by type and way."""
    if not hasattr(peers.TorchStep, case.method.lower()):
        return {}
    try:
        import torch  # noqa: F401
    except ImportError:
        print("torch is not installed: its columns are left out")
        return {}
    ways = [
        {"bfloat16": bfloat16, "channels_last": channels_last}
        for bfloat16 in (False, True)
        for channels_last in (False, True)
    ]
    if compiled:
        ways += [{**way, "compiled": True} for way in ways]
    steps = {}
    for way in ways:
        dtype = "bfloat16" if way["bfloat16"] else "float32"
        step = peers.TorchStep(network.there(), case, network.shape, **way)
        steps[f"torch {dtype} {way}"] = step
    return steps


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--network", choices=NETWORKS, default="lenet")
    parser.add_argument("--methods", nargs="+", choices=LENET)
    parser.add_argument("--torch-compile", action="store_true")
    args = parser.parse_args()
    network, rows = NETWORKS[args.network], []
    for name in args.methods or network.cases:
        case = network.cases[name]
        data = data_of(case, network.shape)
        step, copies = step_of(case, data, network)
        work = {
            "step": step,
            "passes": passes_of(case, copies, network),
            "bfloat16": bfloat16_step_of(case, data, network),
        }
        if case.attack:
            work["usual"] = usual_step_of(case, data, network)
        work |= torch_steps(case, network, args.torch_compile)
        seconds = interleaved(work, args.rounds)
        step_time = seconds["step"]
        usual = seconds.get("usual")

        def peer(dtype, own, seconds=seconds):
            words = f"torch {dtype}"
            taken = [t for way, t in seconds.items() if way.startswith(words)]
            return f"{min(taken) / own:.2f}" if taken else ""

        rows.append(
            [
                name,
                f"{copies} x {case.batch}",
                f"{case.train} + {case.attack}",
                f"{1e3 * step_time:.1f} ms",
                f"{case.batch / step_time:,.0f}",
                f"{step_time / seconds['passes']:.2f}",
                f"{step_time / seconds['bfloat16']:.2f}",
                "" if usual is None else f"{usual / step_time:.2f}",
                peer("float32", step_time),
                peer("bfloat16", seconds["bfloat16"]),
            ]
        )
    header = [
        "method",
        "m x batch",
        "train + attack passes",
        "step",
        "images/s",
        "step / passes",
        "step / bfloat16",
        "usual / step",
        "PyTorch / step",
        "PyTorch / bfloat16",
    ]
    print(table(header, rows))


if __name__ == "__main__":
    main()
