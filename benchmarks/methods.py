"""Every method's training step against the passes that it cannot do without.

    python benchmarks/methods.py [--rounds 15] [--methods smoothmix ...]

LeNet on 28 x 28 images, each method with the settings of the papers' MNIST
table at sigma 1.0 and its own batch size. A method's passes are counted and
timed bare: `train` is forward and backward for the weights, `attack` forward
and backward for the images, both on all m noisy copies. `usual / step` is what
`rs_keras.trainers._step.input_gradients` saves a step with an attack, `step /
bfloat16` what the policy mixed_bfloat16 saves any step. SmoothMix is measured
against the same step in plain PyTorch, too, where torch is installed:
pip install "rs-keras[benchmarks]".
"""

import argparse
import contextlib
import os
from typing import NamedTuple
from unittest import mock

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras  # noqa: E402
import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402
from timing import interleaved  # noqa: E402
from timing import table  # noqa: E402

from rs_keras import models  # noqa: E402
from rs_keras import trainers  # noqa: E402
from rs_keras.trainers._step import input_gradients  # noqa: E402

SIGMA = 1.0


class Case(NamedTuple):
    """A method, its batch, and the passes that its formula needs."""

    method: str
    arguments: dict
    batch: int
    train: int
    attack: int


CASES = {
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


def data_of(case):
    rng = np.random.default_rng(0)
    images = rng.random([case.batch, 28, 28, 1], dtype=np.float32)
    labels = tf.constant(rng.integers(0, 10, case.batch))
    if case.method == "CATRS":
        # A teacher that is sure of all images: then all are attacked.
        labels = {"label": labels, "soft_label": tf.one_hot(labels, 10)}
    return tf.constant(images), labels


def step_of(case, data):
    trainer = getattr(trainers, case.method)(
        models.lenet(), sigma=SIGMA, **case.arguments
    )
    trainer.compile(trainers.SGD(0.01, weight_decay=1e-4))
    trainer.check_batch(*data)
    trainer.optimizer.build(trainer.trainable_variables)
    return tf.function(lambda: trainer.train_step(data)), trainer.num_noise


def usual_step_of(case, data):
    """The step with the layers' own gradients."""
    step, _ = step_of(case, data)
    with mock.patch.object(
        input_gradients, "quick_gradients", contextlib.nullcontext
    ):
        step()
    return step


def bfloat16_step_of(case, data):
    """The step of a model that computes in bfloat16, weights in float32."""
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        step, _ = step_of(case, data)
    finally:
        keras.config.set_dtype_policy(before)
    return step


def passes_of(case, copies):
    """The bare passes of one step, one after the other."""
    model = models.lenet()
    input_gradients.prepare(model)
    weights = [variable.value for variable in model.trainable_variables]
    rng = np.random.default_rng(0)
    noisy = rng.random([copies * case.batch, 28, 28, 1], dtype=np.float32)
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


def torch_smoothmix(case):
    """SmoothMix (plain PyTorch), in the order of the published loop."""
    import torch
    from peers import torch_lenet
    from torch.nn import functional

    network = torch_lenet()
    optimizer = torch.optim.SGD(
        network.parameters(), 0.01, momentum=0.9, weight_decay=1e-4
    )
    steps, size = case.arguments["steps"], case.arguments.get("step_size", 1.0)
    images = torch.rand(case.batch, 1, 28, 28)
    labels = torch.randint(0, 10, (case.batch,))

    def logits(x, noises):
        return [network(x + noise) for noise in noises]

    def smoothed(outputs):
        return sum(functional.softmax(out, 1) for out in outputs) / len(outputs)

    def ascent(noises):
        x = images.clone()
        for step in range(steps):
            if step == 1:
                first = x.detach().clone()
            x = x.detach().requires_grad_(True)
            mean = smoothed(logits(x, noises))
            loss = functional.nll_loss(
                mean.clamp(min=1e-20).log(), labels, reduction="sum"
            )
            (gradient,) = torch.autograd.grad(loss, x)
            norm = gradient.flatten(1).norm(dim=1).view(-1, 1, 1, 1)
            x = (x + size * gradient / (norm + 1e-8)).clamp(0, 1)
        return x.detach(), first if steps > 1 else images

    def run():
        noises = [torch.randn_like(images) * SIGMA for _ in range(4)]
        adversarial, start = ascent(noises)
        outputs = logits(start, noises)
        mean = smoothed(outputs)
        share = torch.rand(case.batch, 1) / 2
        wide = share.view(-1, 1, 1, 1)
        mixed = (1 - wide) * start + wide * adversarial
        target = (1 - share) * mean + share / 10
        right = (mean.argmax(1) == labels).float()
        mixture = sum(
            functional.kl_div(
                functional.log_softmax(out, 1), target, reduction="none"
            ).sum(1)
            for out in logits(mixed, noises)
        )
        plain = sum(functional.cross_entropy(out, labels) for out in outputs)
        loss = plain / 4 + 5.0 * (right * mixture / 4).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return run


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--methods", nargs="+", choices=CASES, default=CASES)
    args = parser.parse_args()
    rows = []
    for name in args.methods:
        case = CASES[name]
        data = data_of(case)
        step, copies = step_of(case, data)
        work = {
            "step": step,
            "passes": passes_of(case, copies),
            "bfloat16": bfloat16_step_of(case, data),
        }
        if case.attack:
            work["usual"] = usual_step_of(case, data)
        if case.method == "SmoothMix":
            try:
                work["torch"] = torch_smoothmix(case)
            except ImportError:
                print("torch is not installed: its column is left out")
        seconds = interleaved(work, args.rounds)
        step_time = seconds["step"]
        usual, peer = seconds.get("usual"), seconds.get("torch")
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
                "" if peer is None else f"{peer / step_time:.2f}",
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
    ]
    print(table(header, rows))


if __name__ == "__main__":
    main()
