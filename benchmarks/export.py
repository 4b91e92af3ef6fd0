"""An export: how small, how soon ready, how fast in a server.

    python benchmarks/export.py [--network resnet20] [--dtype bfloat16]

A server's session and the in-process certifier make the same draws,
interleaved, in one process and with the same threads.
"""

import argparse
import os
import pathlib
import tempfile
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras  # noqa: E402
import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402
from timing import interleaved  # noqa: E402
from timing import table  # noqa: E402

from rs_keras import Certifier  # noqa: E402
from rs_keras import models  # noqa: E402
from rs_keras._compat import log_errors_only  # noqa: E402
from rs_keras.export import export_certifier  # noqa: E402

SIGMA = 0.5
SEED = np.array([[7, 7]])
NETWORKS = {"lenet": models.lenet, "resnet20": lambda: models.cifar_resnet(20)}


def size_of(folder):
    return sum(p.stat().st_size for p in folder.rglob("*") if p.is_file())


class Served:
    """The session that TF Serving runs, on one version."""

    def __init__(self, version):
        graph = tf.Graph()
        self._session = tf.compat.v1.Session(graph=graph)
        with log_errors_only():
            self._loaded = tf.compat.v1.saved_model.load(
                self._session, ["serve"], str(version)
            )

    def run(self, name, **inputs):
        signature = self._loaded.signature_def[name]
        return self._session.run(
            {key: info.name for key, info in signature.outputs.items()},
            {signature.inputs[key].name: v for key, v in inputs.items()},
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=40_000)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--network", choices=NETWORKS, default="lenet")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"])
    args = parser.parse_args()
    keras.utils.set_random_seed(0)
    model = NETWORKS[args.network]()
    certifier = Certifier(model, sigma=SIGMA, dtype=args.dtype)
    image = np.random.default_rng(0).random([1, *model.input_shape[1:]])
    image = image.astype(np.float32)
    with tempfile.TemporaryDirectory() as folder:
        begun = time.perf_counter()
        version = export_certifier(certifier, pathlib.Path(folder))
        written = time.perf_counter() - begun
        begun = time.perf_counter()
        served = Served(version)
        loaded = time.perf_counter() - begun
        weights = size_of(version / "variables")
        beside = size_of(version) - weights

    def in_session():
        return served.run(
            "sample",
            images=image,
            seed=SEED,
            first=np.array([0]),
            n=np.array([args.draws]),
        )["counts"]

    def in_process():
        return certifier.sample(image, n=args.draws, seed=SEED)

    if not (in_session() == in_process()).all():
        raise SystemExit("the counts differ: nothing to compare")
    seconds = interleaved(
        {"in process": in_process, "in a server's session": in_session},
        args.rounds,
    )
    base = seconds["in process"]
    rows = [
        [name, f"{args.draws / taken:,.0f}", f"{base / taken:.2f}"]
        for name, taken in seconds.items()
    ]
    print(table(["sampling", "draws/s", "ratio (wanted: 0.95)"], rows))
    print(
        f"\nbesides {weights / 1e6:.2f} MB of weights: {beside / 1e6:.2f} MB "
        f"(wanted: below 1)\nloaded in {loaded:.2f} s (wanted: below 1), "
        f"written in {written:.1f} s"
    )


if __name__ == "__main__":
    main()
