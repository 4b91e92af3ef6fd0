"""`decide` and a planned `certify` against the fixed number of samples.

    python benchmarks/sequential.py [--images 100] [--epochs 6] [--model PATH]
    python benchmarks/sequential.py --latency [--model PATH]

Trains a LeNet on noisy MNIST (sigma 1.0), unless --model names one, and prints
for images spread over the test set, each against CERTIFY at n = 100,000 on the
same images in the same run: samples, seconds, certified accuracy at radius 1.0
and the ACR; then what the tables cost, and what the active set costs over the
bare passes. About 45,000 samples a second on two quiet cores: 4 minutes for 100
images, most of them for the fixed certificates.

With --latency instead: the first `decide` of a new certifier (CPU and wall
time, for each number of counts, the second in a process that has traced the
first), then the median and the 99th percentile of `decide` for one image, asked
by 1 to 16 threads at once.
"""

import argparse
import os
import time
from concurrent.futures import ThreadPoolExecutor

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras  # noqa: E402
import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402
from timing import interleaved  # noqa: E402
from timing import table  # noqa: E402

import rs_keras  # noqa: E402
from rs_keras.certification.sequential import boundaries  # noqa: E402
from rs_keras.certification.spec import CertifySpec  # noqa: E402
from rs_keras.certification.spec import SmoothingSpec  # noqa: E402
from rs_keras.certification.votes_to_results import vote_certificate  # noqa: E402
from rs_keras.trainers import Gaussian  # noqa: E402

SIGMA = 1.0
RADIUS = 1.0
ALPHA = 1e-3
N = 100_000
TOLERANCE = 0.02
# Images certified together; the methods take turns, chunk after chunk.
CHUNK = 25
# Calls of each number of threads whose latency is measured.
CALLS = 400


def trained(epochs):
    keras.utils.set_random_seed(1)
    images, labels = rs_keras.datasets.arrays("mnist", "train")
    trainer = Gaussian(rs_keras.models.lenet(), sigma=SIGMA)
    trainer.compile(optimizer=keras.optimizers.Adam(1e-3))
    trainer.fit(images, labels, batch_size=128, epochs=epochs, verbose=2)
    return trainer.model


class Method:
    """Sums up what one method took and found."""

    def __init__(self, run):
        self.run = run
        self.seconds = 0.0
        self.found = []

    def take(self, images, seed):
        begun = time.perf_counter()
        self.found.append(self.run(images, seed))
        self.seconds += time.perf_counter() - begun

    def joined(self, name):
        return np.concatenate([getattr(found, name) for found in self.found])


def compare(certifier, images, labels):
    def fixed(images, seed):
        return certifier.certify(images, n=N, runner_up=False, seed=seed)

    def planned(images, seed):
        return certifier.certify(images, n=N, tolerance=TOLERANCE, seed=seed)

    def decide(runner_up):
        return lambda images, seed: certifier.decide(
            images, RADIUS, n_max=N, runner_up=runner_up, seed=seed
        )

    methods = {
        f"certify, n = {N:,}": Method(fixed),
        f"certify, tolerance {TOLERANCE}": Method(planned),
        "decide, one count": Method(decide(False)),
        "decide, two counts": Method(decide(True)),
    }
    for method in methods.values():
        method.take(images[:2], 0)
        method.seconds, method.found = 0.0, []
    for start in range(0, len(images), CHUNK):
        for method in methods.values():
            method.take(images[start : start + CHUNK], start)
    report(methods, labels, certifier.sigma)
    return methods


def report(methods, labels, sigma):
    base, *_ = methods.values()
    base_n = samples(base)
    rows = []
    for name, method in methods.items():
        n, correct = samples(method), method.joined("label") == labels
        radius = method.joined("radius")
        at = (correct & (radius >= RADIUS)).mean()
        acr = "-" if "decide" in name else f"{(correct * radius).mean():.4f}"
        saved = f"1/{base_n / n:.1f}", f"1/{base.seconds / method.seconds:.1f}"
        row = [name, f"{n:.0f}", *saved, f"{at:.2%}", acr]
        rows.append([str(cell) for cell in row])
        if method is base:
            # The same votes, with the runner-up's bound.
            counts = [method.joined(c) for c in ("selection_counts", "counts")]
            spec = CertifySpec(n=N, alpha=ALPHA)
            label, radius, _ = vote_certificate(
                *counts, spec, SmoothingSpec(sigma)
            )
            correct = label.numpy() == labels
            at = (correct & (radius.numpy() >= RADIUS)).mean()
            acr = f"{(correct * radius.numpy()).mean():.4f}"
            rows.append(["  with the runner-up", *row[1:4], f"{at:.2%}", acr])
    header = ["", "samples", "of them", "time", f"accuracy at {RADIUS}", "ACR"]
    print(f"{len(labels)} images, sigma {sigma}, alpha {ALPHA}")
    print(table(header, rows))


def samples(method):
    """All draws per image, those of the selection too."""
    n = method.joined("n").mean()
    found = method.found[0]
    if hasattr(found, "selection_counts"):
        n += found.settings["n0"]
    return n


def tables_cost():
    def fresh(build):
        def run():
            boundaries.one_count.cache_clear()
            boundaries.two_counts.cache_clear()
            build()

        return run

    def kept():
        boundaries.one_count((RADIUS,), SIGMA, ALPHA, N, 100)

    grid = tuple(0.25 * step for step in range(1, 13))
    seconds = interleaved(
        {
            "one count": fresh(kept),
            "two counts": fresh(
                lambda: boundaries.two_counts((RADIUS,), ALPHA, N, 100)
            ),
            "12 radii": fresh(
                lambda: boundaries.one_count(grid, SIGMA, ALPHA, N, 100)
            ),
        }
    )
    kept()
    seconds |= interleaved({"kept": kept})
    took = ", ".join(f"{name} {1e3 * s:.1f} ms" for name, s in seconds.items())
    print(f"boundary tables: {took}")


def active_set_cost(certifier, images):
    """`decide` against the bare passes: as many draws of each, at once."""
    for name, runner_up in (("one count", False), ("two counts", True)):
        asked = {"n_max": N, "runner_up": runner_up, "seed": 1}
        found = certifier.decide(images, RADIUS, **asked)
        count = tf.function(certifier.sampler(images.shape[1:]).count)
        arguments = [
            tf.constant(images),
            tf.constant(found.seed),
            tf.zeros([len(images)], tf.int64),
            tf.constant(found.n),
        ]
        seconds = interleaved(
            {
                "decide": lambda asked=asked: certifier.decide(
                    images, RADIUS, **asked
                ),
                "passes": lambda run=count, given=arguments: run(
                    *given
                ).numpy(),
            },
            rounds=5,
        )
        over = seconds["decide"] / seconds["passes"] - 1
        print(
            f"active set, {name}: {over:+.1%} over the bare passes "
            f"({found.n.sum():,} draws in {seconds['decide']:.2f} s)"
        )


def latency(model, images):
    """The first `decide`, and `decide` for one image by several threads."""
    for name, runner_up in (("two counts", True), ("one count", False)):
        certifier = rs_keras.Certifier(model, sigma=SIGMA)
        begun = time.perf_counter(), time.process_time()
        certifier.decide(images[:1], RADIUS, runner_up=runner_up, seed=1)
        wall, cpu = time.perf_counter() - begun[0], time.process_time()
        print(
            f"first decide, {name}: {wall:.2f} s, {cpu - begun[1]:.2f} s of CPU"
        )

    def ask(call):
        begun = time.perf_counter()
        row = call % len(images)
        found = certifier.decide(images[row : row + 1], RADIUS, seed=call)
        return time.perf_counter() - begun, found.n[0]

    certifier = rs_keras.Certifier(model, sigma=SIGMA)
    ask(0)
    rows = []
    for threads in (1, 2, 4, 8, 16):
        begun = time.perf_counter()
        with ThreadPoolExecutor(threads) as pool:
            seconds, draws = zip(*pool.map(ask, range(CALLS)), strict=True)
        rate = CALLS / (time.perf_counter() - begun)
        half, most = 1e3 * np.percentile(seconds, [50, 99])
        row = [threads, f"{half:.1f}", f"{most:.1f}", f"{rate:.1f}"]
        rows.append([str(cell) for cell in row] + [f"{np.mean(draws):,.0f}"])
    header = ["threads", "p50, ms", "p99, ms", "images/s", "draws an image"]
    print(f"decide for one image, radius {RADIUS}, two counts")
    print(table(header, rows))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=100)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--model")
    parser.add_argument("--latency", action="store_true")
    args = parser.parse_args()
    model = (
        trained(args.epochs)
        if args.model is None
        else keras.models.load_model(args.model)
    )
    images, labels = rs_keras.datasets.arrays("mnist", "test")
    chosen = np.arange(args.images) * len(images) // args.images
    if args.latency:
        latency(model, images[chosen])
        return
    certifier = rs_keras.Certifier(model, sigma=SIGMA)
    tables_cost()
    active_set_cost(certifier, images[chosen])
    compare(certifier, images[chosen], labels[chosen])


if __name__ == "__main__":
    main()
