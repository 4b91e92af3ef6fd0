"""`certify` against the bare forward pass, a PyTorch loop and ART; memory.

    python benchmarks/certifier.py [--draws 40000] [--rounds 7]

The peers are optional: pip install "rs-keras[benchmarks]". Everything runs
interleaved in one process, each at the batch size that suits it best.
"""

import argparse
import os
import subprocess
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras  # noqa: E402
import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402
from timing import interleaved  # noqa: E402
from timing import own_peak  # noqa: E402
from timing import table  # noqa: E402

import rs_keras  # noqa: E402

SIGMA = 0.5
BATCHES = (200, 400, 800, 1600)


def bare_forward(model, batch, draws):
    """The same network on ready images: no noise, no votes."""
    images = tf.random.stateless_uniform([batch, 28, 28, 1], [0, 0])
    forward = tf.function(lambda x: model(x, training=False))

    def run():
        for _ in range(draws // batch):
            out = forward(images)
        return out.numpy()

    return run


def ours(model, image, draws, dtype=None):
    certifier = rs_keras.Certifier(model, sigma=SIGMA, dtype=dtype)
    return lambda: certifier.certify(image, n0=100, n=draws, seed=1)


def torch_loop(batch, draws):
    """The loop of the published scripts: tile, add noise, argmax, count."""
    import torch
    from peers import torch_lenet

    network = torch_lenet().eval()
    image = torch.rand(1, 28, 28)

    @torch.no_grad()
    def run():
        counts = np.zeros(10, int)
        for _ in range(draws // batch):
            tiled = image.repeat((batch, 1, 1, 1))
            noisy = tiled + torch.randn_like(tiled) * SIGMA
            votes = network(noisy).argmax(1).numpy()
            counts += np.bincount(votes, minlength=10)
        return counts

    return run


def art_certify(model, image, batch, draws):
    from art.estimators.certification.randomized_smoothing import (
        TensorFlowV2RandomizedSmoothing,
    )

    smoothed = TensorFlowV2RandomizedSmoothing(
        model=model,
        nb_classes=10,
        input_shape=(28, 28, 1),
        loss_object=keras.losses.SparseCategoricalCrossentropy(
            from_logits=True
        ),
        sample_size=100,
        scale=SIGMA,
        alpha=0.001,
    )
    return lambda: smoothed.certify(image, n=draws, batch_size=batch)


def peers(model, image, draws):
    work = {}
    try:
        import torch  # noqa: F401

        for batch in BATCHES:
            work[f"PyTorch loop, batch {batch}"] = torch_loop(batch, draws)
    except ImportError:
        print("torch is not installed: its rows are left out")
    try:
        import art  # noqa: F401

        for batch in BATCHES:
            work[f"ART certify, batch {batch}"] = art_certify(
                model, image, batch, draws
            )
    except ImportError:
        print("ART is not installed: its rows are left out")
    return work


def speed(draws, rounds):
    model = rs_keras.models.lenet()
    image = np.random.default_rng(0).random((1, 28, 28, 1), np.float32)
    work = {"certify": ours(model, image, draws)}
    work["certify, bfloat16"] = ours(model, image, draws, "bfloat16")
    for batch in BATCHES:
        work[f"bare forward, batch {batch}"] = bare_forward(model, batch, draws)
    work |= peers(model, image, draws)
    seconds = interleaved(work, rounds)
    own = seconds["certify"]
    rows = [
        [name, f"{draws / taken:,.0f}", f"{taken / own:.2f}"]
        for name, taken in seconds.items()
    ]
    print(table(["work", "draws/s", "time / certify's"], rows))
    for peer in ("bare forward", "PyTorch loop", "ART certify"):
        times = [taken for name, taken in seconds.items() if peer in name]
        if times:
            print(f"certify reaches {min(times) / own:.2f} x the best {peer}")


def peak_memory(n):
    """Peak resident megabytes of a process that certifies with n draws."""
    script = f"import sys; sys.argv = ['', '--peak-of', '{n}']; " + (
        f"import runpy; runpy.run_path({__file__!r}, run_name='__main__')"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": os.path.dirname(__file__)},
    )
    return float(done.stdout.split()[-1])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=40_000)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--peak-of", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.peak_of:
        image = np.full([1, 28, 28, 1], 0.5, np.float32)
        ours(rs_keras.models.lenet(), image, args.peak_of)()
        print(own_peak())
        return
    few, many = peak_memory(1_000), peak_memory(1_000_000)
    print(
        f"peak memory: {few:,.0f} MB at n = 1,000, {many:,.0f} MB at "
        f"n = 1,000,000, {many - few:+,.0f} MB"
    )
    speed(args.draws, args.rounds)


if __name__ == "__main__":
    main()
