"""What certificates cost: the table of docs/sizing.md.

    python benchmarks/sizing.py [--images 40]

Core seconds are the processor time of this process on all its cores, for
certificates of an export in a session, as servers run it. Of `decide`, the mean
number of draws is counted for the pretrained SmoothMix network on test images
of MNIST, at three radii. ResNet-50 is computed from the rate of one pass.
"""

import argparse
import os
import tempfile
import time
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np  # noqa: E402
from timing import table  # noqa: E402

import rs_keras  # noqa: E402
from rs_keras import datasets  # noqa: E402
from rs_keras.export import export_certifier  # noqa: E402
from rs_keras.serving.server.runtime import SessionModel  # noqa: E402

N0 = 100
NUMBERS = (1_000, 10_000, 100_000)
RADII = (0.25, 0.5, 1.0)


def core_seconds(model, draws):
    """Processor seconds of one draw in a session; the median of five."""
    certifier = rs_keras.Certifier(model, sigma=0.5)
    height, width, channels = model.input_shape[1:]
    image = np.full([1, height, width, channels], 0.5, np.float32)
    with tempfile.TemporaryDirectory() as folder:
        version = export_certifier(certifier, folder, warmup=False)
        session = SessionModel(str(Path(version)))
        taken = []
        for number in range(6):
            inputs = {
                "images": image,
                "seed": np.array([[1, number]]),
                "first": np.array([0]),
                "n": np.array([draws]),
            }
            begun = time.process_time()
            session.call("sample", inputs, ["counts"])
            taken.append(time.process_time() - begun)
        session.close()
    # The first run optimises the graph.
    return float(np.median(taken[1:])) / draws


def mean_draws(images):
    """Mean draws of `decide` by radius, and of those how many certify."""
    model = rs_keras.models.pretrained("mnist-smoothmix-1.00")
    certifier = rs_keras.Certifier(model, sigma=1.0)
    chosen = datasets.arrays("mnist")[0][:images]
    for radius in RADII:
        found = certifier.decide(chosen, radius, seed=1)
        yield radius, found.n.mean(), found.certified.mean()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=40)
    arguments = parser.parse_args()
    networks = {
        "LeNet, 28 x 28": (rs_keras.models.lenet(), 20_000),
        "ResNet-20, 32 x 32": (rs_keras.models.cifar_resnet(20), 1_000),
        "ResNet-50, 224 x 224": (rs_keras.models.resnet50(), 16),
    }
    rows, costs = [], {}
    for name, (model, draws) in networks.items():
        costs[name] = core_seconds(model, draws)
        seconds = [costs[name] * (N0 + n) for n in NUMBERS]
        hours = seconds[1] * 1e6 / 3600
        rows.append(
            [
                name,
                f"{1 / costs[name]:.0f}",
                *(f"{one:.3g}" for one in seconds),
                f"{hours:.3g}",
            ]
        )
    header = ["network", "draws per core second"]
    header += [f"core s at n = {n}" for n in NUMBERS]
    header += ["core hours of 10^6 certificates at n = 10^4"]
    print(table(header, rows))
    rows = []
    for radius, draws, certified in mean_draws(arguments.images):
        costs_of = [f"{cost * draws:.3g}" for cost in costs.values()]
        rows.append(
            [f"{radius}", f"{certified:.2f}", f"{draws:.0f}", *costs_of]
        )
    header = ["decide at radius", "certified", "mean draws"]
    header += [f"core s, {name}" for name in networks]
    print(table(header, rows))


if __name__ == "__main__":
    main()
