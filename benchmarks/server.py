"""The embedded server against the same work in process; memory over time.

    python benchmarks/server.py [--draws 100000] [--pairs 20]
    python benchmarks/server.py --fair [--large 2 8]
    python benchmarks/server.py --soak

The first prints what a certificate costs over loopback, and what many clients
with short questions get. The second prints how long a short request takes
beside long ones, and what these lose by being cut into slices. The third (some
minutes) sends 10,000 requests, reloads a model 1,000 times and drops 2,000
connections, then prints what that left behind. Ratios are of medians, both
sides interleaved in one run.
"""

import argparse
import gc
import os
import socket
import tempfile
import threading
import time
from functools import partial

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import grpc  # noqa: E402
import numpy as np  # noqa: E402
import psutil  # noqa: E402
import tensorflow as tf  # noqa: E402
from tensorflow_serving.apis import model_management_pb2  # noqa: E402
from tensorflow_serving.apis import model_service_pb2_grpc  # noqa: E402
from tensorflow_serving.apis import predict_pb2  # noqa: E402
from tensorflow_serving.apis import prediction_service_pb2_grpc  # noqa: E402
from timing import interleaved  # noqa: E402
from timing import table  # noqa: E402

import rs_keras  # noqa: E402
from rs_keras.export import export_certifier  # noqa: E402
from rs_keras.serving import EmbeddedServer  # noqa: E402
from rs_keras.serving.server.runtime import WHOLE  # noqa: E402
from rs_keras.serving.server.runtime import SessionModel  # noqa: E402

SIGMA = 0.5
CLIENTS = 32
PREDICT_DRAWS = 100


def connect(server):
    """A client with a connection of its own."""
    channel = grpc.insecure_channel(
        server.address, [("grpc.use_local_subchannel_pool", 1)]
    )
    return channel, prediction_service_pb2_grpc.PredictionServiceStub(channel)


def request(image, signature):
    message = predict_pb2.PredictRequest()
    message.model_spec.name = "lenet"
    message.model_spec.signature_name = signature
    message.inputs["images"].CopyFrom(tf.make_tensor_proto(image))
    return message


def cost_of_loopback(server, certifier, image, draws, pairs):
    """Seconds of one certificate, asked for and made in process."""
    channel, stub = connect(server)
    message = request(image, "certify")
    with channel:
        seconds = interleaved(
            {
                "in process": lambda: certifier.certify(image, n=draws),
                "over loopback": lambda: stub.Predict(message),
            },
            rounds=pairs,
        )
    return seconds["in process"], seconds["over loopback"]


def many_clients(server, image, requests):
    """Seconds of every request, and of all of them together."""
    message = request(image, "predict")
    taken = []

    def ask():
        channel, stub = connect(server)
        with channel:
            stub.Predict(message)
            ready.wait()
            for _ in range(requests):
                begun = time.perf_counter()
                stub.Predict(message)
                taken.append(time.perf_counter() - begun)

    ready = threading.Barrier(CLIENTS + 1)
    threads = [threading.Thread(target=ask) for _ in range(CLIENTS)]
    for thread in threads:
        thread.start()
    ready.wait()
    begun = time.perf_counter()
    for thread in threads:
        thread.join()
    return np.array(taken), time.perf_counter() - begun


def rates_of_clients(server, certifier, image, requests, rounds):
    """Draws per second in process and for 32 clients; their latencies."""
    draws = CLIENTS * requests * PREDICT_DRAWS
    in_process, served, latencies = [], [], []
    certifier.sample(image, n=draws, seed=1)
    for _ in range(rounds):
        begun = time.perf_counter()
        certifier.sample(image, n=draws, seed=1)
        in_process.append(draws / (time.perf_counter() - begun))
        taken, seconds = many_clients(server, image, requests)
        served.append(draws / seconds)
        latencies.append(taken)
    return np.median(in_process), np.median(served), np.concatenate(latencies)


def measure(arguments):
    model = rs_keras.models.lenet()
    certifier = rs_keras.Certifier(model, sigma=SIGMA)
    image = np.random.default_rng(0).uniform(size=[1, 28, 28, 1])
    image = image.astype("float32")
    with tempfile.TemporaryDirectory() as folder:
        export_certifier(
            certifier, folder, n=arguments.draws, predict_n=PREDICT_DRAWS
        )
        with EmbeddedServer(
            folder, model_name="lenet", port=0, max_concurrency=CLIENTS
        ) as server:
            alone, asked = cost_of_loopback(
                server, certifier, image, arguments.draws, arguments.pairs
            )
            rate, served, latencies = rates_of_clients(
                server, certifier, image, arguments.requests, rounds=5
            )
    rows = [
        [
            f"certify, n={arguments.draws}",
            f"{alone:.3f} s",
            f"{asked:.3f} s",
            f"{asked / alone:.3f} of the time (at most 1.05)",
        ],
        [
            f"predict, n={PREDICT_DRAWS}, {CLIENTS} clients",
            f"{rate:.0f} draws/s",
            f"{served:.0f} draws/s",
            f"{served / rate:.3f} of the rate (at least 0.5)",
        ],
    ]
    print(table(["", "in process", "served", "ratio"], rows))
    p50, p99 = np.percentile(latencies, [50, 99]) * 1e3
    print(
        f"latency of predict at {CLIENTS} clients: "
        f"p50 {p50:.1f} ms, p99 {p99:.1f} ms"
    )


def sample_request(image, n):
    message = request(image, "sample")
    for name, value in {"seed": [[1, 2]], "first": [0], "n": [n]}.items():
        proto = tf.make_tensor_proto(np.array(value, np.int64))
        message.inputs[name].CopyFrom(proto)
    return message


def latencies(server, image, seconds):
    """Seconds of short requests, five in a second."""
    channel, stub = connect(server)
    message = request(image, "predict")
    taken = []
    with channel:
        stub.Predict(message)
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            begun = time.perf_counter()
            stub.Predict(message)
            taken.append(time.perf_counter() - begun)
            time.sleep(max(0.0, 0.2 - taken[-1]))
    return taken


def beside(server, image, large, seconds):
    """As `latencies`, beside so many requests of a million draws."""
    channel, stub = connect(server)
    with channel:
        calls = [
            stub.Predict.future(sample_request(image, 10**6), timeout=600)
            for _ in range(large)
        ]
        time.sleep(1.0)
        taken = latencies(server, image, seconds)
        for call in calls:
            call.cancel()
    time.sleep(0.5)
    return taken


def whole(model, image, n):
    """A request as the session runs it uncut."""
    inputs = {
        "images": image,
        "seed": np.array([[1, 2]]),
        "first": np.array([0]),
        "n": np.array([n]),
    }
    return lambda: model.call("sample", inputs, ["counts"], kind=WHOLE)


def two_at_once(run):
    """Runs a function in two threads, to the end."""
    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def fair(arguments):
    """Prints what long requests do to short ones, and slices to long ones."""
    certifier = rs_keras.Certifier(rs_keras.models.lenet(), sigma=SIGMA)
    image = np.random.default_rng(0).uniform(size=[1, 28, 28, 1])
    image = image.astype("float32")
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        export_certifier(certifier, folder, predict_n=PREDICT_DRAWS)
        model = SessionModel(f"{folder}/1")
        with EmbeddedServer(folder, model_name="lenet", port=0) as server:
            channel, stub = connect(server)
            draws = arguments.draws
            message = sample_request(image, draws)
            stub.Predict(message)
            seconds = interleaved(
                {
                    "whole": lambda: two_at_once(whole(model, image, draws)),
                    "sliced": lambda: two_at_once(
                        lambda: stub.Predict(message)
                    ),
                },
                rounds=arguments.pairs,
            )
            rate = seconds["whole"] / seconds["sliced"]
            rows.append(
                [
                    f"two of {draws} draws",
                    f"{seconds['whole']:.2f} s",
                    f"{seconds['sliced']:.2f} s",
                    f"{rate:.3f} of the rate (at least 0.9)",
                ]
            )
            idle, busy = [], {large: [] for large in arguments.large}
            for _ in range(arguments.rounds):
                idle += latencies(server, image, 10)
                for large in arguments.large:
                    busy[large] += beside(server, image, large, 10)
            channel.close()
        model.close()
    p99 = np.percentile(idle, 99) * 1e3
    for large, taken in busy.items():
        slow = np.percentile(taken, 99) * 1e3
        rows.append(
            [
                f"p99 of predict, n={PREDICT_DRAWS}, beside {large} of 10**6",
                f"{p99:.1f} ms",
                f"{slow:.1f} ms",
                f"{slow / p99:.1f} times idle (at most 5)",
            ]
        )
    print(table(["", "whole or idle", "sliced or beside", "ratio"], rows))


class Arithmetic(tf.Module):
    """A model so small that all growth is the server's."""

    def __init__(self):
        super().__init__()
        self.half = tf.Variable(0.5)

    @tf.function(input_signature=[tf.TensorSpec([None], name="images")])
    def line(self, images):
        return {"y": images * self.half}


def left_behind():
    """Threads, sockets and megabytes of this process."""
    gc.collect()
    process = psutil.Process()
    return np.array(
        [
            process.num_threads(),
            len(process.net_connections()),
            process.memory_info().rss / 1e6,
        ]
    )


def soak():
    """Prints what requests, reloads and lost connections leave behind."""
    module = Arithmetic()
    with tempfile.TemporaryDirectory() as folder:
        tf.saved_model.save(module, f"{folder}/1", signatures=module.line)
        with EmbeddedServer(
            folder, model_name="lenet", port=0, allow_reload=True
        ) as server:
            work = {
                "requests": (send, 10_000),
                "dropped connections": (drop, 2_000),
                "reloads": (partial(reload, folder), 1_000),
            }
            rows = []
            for name, (run, times) in work.items():
                run(server, min(times, 500))
                settle()
                before = left_behind()
                run(server, times)
                settle()
                threads, sockets, megabytes = left_behind() - before
                rows.append(
                    [
                        f"{times} {name}",
                        f"{threads:+.0f}",
                        f"{sockets:+.0f}",
                        f"{megabytes:+.1f}",
                    ]
                )
    print(table(["after", "threads", "sockets", "MB"], rows))


def settle():
    """Waits until the server has noticed dropped connections."""
    time.sleep(12)


def send(server, times):
    channel, stub = connect(server)
    message = request(np.zeros(100, "float32"), "")
    with channel:
        for _ in range(times):
            stub.Predict(message)


def drop(server, times):
    host, port = server.address.split(":")
    message = request(np.zeros(100, "float32"), "")
    for _ in range(times):
        with socket.create_connection((host, port), 5) as connection:
            connection.sendall(b"PRI")
        channel, stub = connect(server)
        with channel:
            stub.Predict.future(message).cancel()


def reload(folder, server, times):
    """The model goes and comes back, by the call that operators use."""
    full = model_management_pb2.ReloadConfigRequest()
    full.config.model_config_list.config.add(
        name="lenet", base_path=folder, model_platform="tensorflow"
    )
    empty = model_management_pb2.ReloadConfigRequest()
    empty.config.model_config_list.SetInParent()
    channel, _ = connect(server)
    with channel:
        stub = model_service_pb2_grpc.ModelServiceStub(channel)
        for _ in range(times):
            stub.HandleReloadConfigRequest(empty)
            stub.HandleReloadConfigRequest(full)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=100_000)
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--requests", type=int, default=20)
    parser.add_argument("--fair", action="store_true")
    parser.add_argument("--large", type=int, nargs="+", default=[2, 8])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--soak", action="store_true")
    arguments = parser.parse_args()
    if arguments.soak:
        soak()
    elif arguments.fair:
        fair(arguments)
    else:
        measure(arguments)


if __name__ == "__main__":
    main()
