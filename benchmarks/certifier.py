"""`certify` against its limit, bare passes, and other libraries; memory.

    python benchmarks/certifier.py [--networks lenet resnet20]

For each network and type, interleaved in one process: `certify`; the bare
forward pass, without noise and votes, of TensorFlow (the model as Keras calls
it, and folded) and of OpenVINO, each at several batch sizes; the bare noise.
The limit of `certify` is 1 / (1 / pass + 1 / noise), with the quickest pass.

On LeNet a PyTorch loop and ART are measured, too. The peers are optional:
pip install "rs-keras[benchmarks]".
"""

import argparse
import os
import subprocess
import sys
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras  # noqa: E402
import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402
from timing import interleaved  # noqa: E402
from timing import own_peak  # noqa: E402
from timing import table  # noqa: E402

import rs_keras  # noqa: E402
from rs_keras import models  # noqa: E402
from rs_keras.classifiers.adapters import as_logits  # noqa: E402
from rs_keras.classifiers.adapters import prepared  # noqa: E402
from rs_keras.classifiers.precision import computing_in  # noqa: E402

SIGMA = 0.5
# Of the PyTorch loop and of ART.
BATCHES = (200, 400, 800, 1600)
# Network, images, batch sizes of bare passes, draws relative to LeNet's.
NETWORKS = {
    "lenet": (models.lenet, (28, 28, 1), (100, 200, 400), 1.0),
    "resnet20": (
        lambda: models.cifar_resnet(20),
        (32, 32, 3),
        (32, 64, 128),
        0.1,
    ),
    "resnet18": (models.resnet18, (32, 32, 3), (32, 64, 128), 0.02),
    "resnet50": (models.resnet50, (224, 224, 3), (4, 8, 16), 0.002),
}
DTYPES = ("float32", "bfloat16")


def ours(model, image, draws, dtype=None):
    certifier = rs_keras.Certifier(model, sigma=SIGMA, dtype=dtype)
    return lambda: certifier.certify(image, n0=100, n=draws, seed=1)


def repeated(step):
    """A graph that runs `step(number)`, a number, over and over."""

    @tf.function
    def run(rounds):
        return tf.while_loop(
            lambda done, _: done < rounds,
            lambda done, total: (done + 1, total + step(done)),
            (tf.constant(0, tf.int64), tf.constant(0.0)),
            parallel_iterations=1,
        )[1]

    return lambda rounds: run(tf.constant(rounds, tf.int64)).numpy()


def bare_pass(model, shape, batch, draws, fold):
    """Passes on ready images in one graph."""
    images = tf.random.stateless_uniform([batch, *shape], [0, 0])
    network = lambda x: model(x, training=False)  # noqa: E731
    if fold:
        network = prepared(as_logits(model))

    def step(done):
        # Of the step's number: else all passes would be one.
        logits = network(images + 1e-6 * tf.cast(done, tf.float32))
        return tf.cast(logits[0, 0], tf.float32)

    run = repeated(step)
    return lambda: run(-(-draws // batch))


def bare_openvino(model, shape, batch, draws, dtype):
    """OpenVINO's pass at its best: a stream a core, requests in a queue."""
    import openvino as ov

    function = tf.function(lambda x: model(x, training=False))
    spec = tf.TensorSpec([batch, *shape], tf.float32)
    network = ov.convert_model(function.get_concrete_function(spec))
    network.reshape([batch, *shape])
    cores = len(os.sched_getaffinity(0))
    options = {
        "NUM_STREAMS": cores,
        "INFERENCE_NUM_THREADS": cores,
        "INFERENCE_PRECISION_HINT": {"float32": "f32", "bfloat16": "bf16"}[
            dtype
        ],
    }
    compiled = ov.Core().compile_model(network, "CPU", options)
    queue = ov.AsyncInferQueue(compiled, cores)
    images = np.random.default_rng(0).random((batch, *shape), np.float32)

    def run():
        for _ in range(-(-draws // batch)):
            queue.start_async({0: images})
        queue.wait_all()

    return run


def bare_noise(shape, draws, kind):
    """The noise of all draws, float or exact on the grid."""
    certifier = rs_keras.Certifier(
        lambda x: x[:, 0, 0, :1] * [1.0, -1.0], SIGMA, noise=kind
    )
    sampler, batch = certifier.sampler(shape), tf.constant(64, tf.int64)
    image, seed = tf.zeros(shape), tf.constant([1, 2], tf.int64)
    run = repeated(
        lambda done: tf.reduce_max(
            sampler.noisy(image, seed, batch * done, batch)
        )
    )
    return lambda: run(-(-draws // 64))


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


def passes(model, shape, batches, draws, dtype):
    """The bare passes of a network in a type, by library and batch size."""
    own = computing_in(model, dtype)
    work = {}
    for batch in batches:
        for name, fold in (("Keras", False), ("folded", True)):
            work[f"pass, {name}, batch {batch}"] = bare_pass(
                own, shape, batch, draws, fold
            )
        try:
            work[f"pass, OpenVINO, batch {batch}"] = bare_openvino(
                model, shape, batch, draws, dtype
            )
        except ImportError:
            print("openvino is not installed: its rows are left out")
    return work


def speed(name, dtype, draws, rounds):
    """Prints what a network reaches, and its share of the limit."""
    build, shape, batches, share = NETWORKS[name]
    model, draws = build(), max(64, int(draws * share))
    image = np.random.default_rng(0).random((1, *shape), np.float32)
    work = {"certify": ours(model, image, draws, dtype)}
    work |= passes(model, shape, batches, draws, dtype)
    for kind in ("float", "grid"):
        work[f"noise, {kind}"] = bare_noise(shape, draws, kind)
    if name == "lenet" and dtype == "float32":
        work |= peers(model, image, draws)
    cpu = {}
    for label, run in work.items():
        run()
        begun = time.process_time()
        run()
        cpu[label] = time.process_time() - begun
    seconds = interleaved(work, rounds)
    own = seconds["certify"]
    cores = len(os.sched_getaffinity(0))
    rows = [
        [
            label,
            f"{draws / taken:,.0f}",
            f"{cores * draws / cpu[label]:,.0f}",
            f"{taken / own:.2f}",
        ]
        for label, taken in seconds.items()
    ]
    print(f"\n{name}, {dtype}, {draws:,} draws")
    header = ["work", "draws/s", "draws per CPU time", "time / certify's"]
    print(table(header, rows))

    def best(*words):
        return min(
            taken
            for label, taken in seconds.items()
            if all(word in label for word in words)
        )

    made = best("noise")
    for words in (("pass",), ("pass", "folded"), ("pass", "OpenVINO")):
        if any(all(w in label for w in words) for label in seconds):
            limit = best(*words) + made
            print(f"certify reaches {limit / own:.2f} x the limit by {words}")
    for peer in ("PyTorch loop", "ART certify"):
        if any(peer in label for label in seconds):
            print(f"certify is {best(peer) / own:.2f} x as quick as {peer}")


def peak_memory(name, n):
    """Peak resident megabytes of a process that certifies with n draws."""
    done = subprocess.run(
        [sys.executable, __file__, "--networks", name, "--peak-of", str(n)],
        capture_output=True,
        text=True,
        check=True,
    )
    return float(done.stdout.split()[-1])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=40_000, help="LeNet's")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument(
        "--networks", nargs="+", choices=NETWORKS, default=["lenet"]
    )
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=DTYPES)
    parser.add_argument("--memory", type=int, default=1_000_000, help="draws")
    parser.add_argument("--peak-of", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.peak_of:
        build, shape, *_ = NETWORKS[args.networks[0]]
        image = np.full([1, *shape], 0.5, np.float32)
        ours(build(), image, args.peak_of)()
        print(own_peak())
        return
    for name in args.networks:
        for dtype in args.dtypes:
            speed(name, dtype, args.draws, args.rounds)
        few = 1_000 if args.memory >= 10_000 else args.memory // 10
        if few:
            low, high = peak_memory(name, few), peak_memory(name, args.memory)
            print(
                f"peak memory: {low:,.0f} MB at n = {few:,}, {high:,.0f} MB at "
                f"n = {args.memory:,}, {high - low:+,.0f} MB"
            )


if __name__ == "__main__":
    main()
