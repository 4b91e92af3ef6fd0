"""The cost of choosing sigma for each image, and of a large ball memory.

    python benchmarks/data_dependent.py [--images 16]

Prints the time of `optimize_sigma` (900 steps, one sample each) as a share of
certifying the same images with n = 100,000; and the time and memory of a query
to 100,000 stored balls of 32 x 32 x 3 pixels.
"""

import argparse
import os
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np  # noqa: E402
from timing import interleaved  # noqa: E402
from timing import own_peak  # noqa: E402

import rs_keras  # noqa: E402

BALLS = 100_000


def sigma_share(count):
    images, _ = rs_keras.datasets.arrays("fashion_mini")
    images = images[:count]
    model = rs_keras.models.lenet()
    certifier = rs_keras.Certifier(model, sigma=0.25)
    seconds = interleaved(
        {
            "optimize_sigma": lambda: rs_keras.optimize_sigma(
                model, images, 0.25, steps=900, num_noise=1, seed=1
            ),
            "certify": lambda: certifier.certify(images, n=100_000, seed=1),
        },
        rounds=2,
    )
    share = seconds["optimize_sigma"] / seconds["certify"]
    print(
        f"optimize_sigma, K = 900, n = 1, {count} images: "
        f"{seconds['optimize_sigma']:.1f} s, {share:.1%} of certify at "
        f"n = 100,000 ({seconds['certify']:.1f} s)"
    )


def smooth_images(count, rng):
    """Pictures with most of their energy in low frequencies, as photos."""
    coarse = rng.uniform(size=(count, 8, 8, 3)).astype(np.float32)
    fine = rng.uniform(size=(count, 32, 32, 3)).astype(np.float32)
    return 0.8 * coarse.repeat(4, 1).repeat(4, 2) + 0.2 * fine


def memory_query():
    rng = np.random.default_rng(0)
    memory = rs_keras.BallMemory(lambda image: (int(image.mean() > 0.5), 0.5))
    for _ in range(BALLS // 1_000):
        for image in smooth_images(1_000, rng):
            memory._append(image, int(image.mean() > 0.5), 0.5)
    seconds = []
    for image in smooth_images(20, rng):
        begun = time.perf_counter()
        memory.query(image)
        seconds.append(time.perf_counter() - begun)
    print(
        f"a query to {BALLS:,} balls of dimension 3,072: median "
        f"{np.median(seconds) * 1e3:.0f} ms, worst {max(seconds) * 1e3:.0f} "
        f"ms; peak memory of the process {own_peak():,.0f} MB"
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=16)
    args = parser.parse_args()
    sigma_share(args.images)
    memory_query()


if __name__ == "__main__":
    main()
