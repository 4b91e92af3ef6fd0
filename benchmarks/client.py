"""Several servers, one that freezes, many threads, and the client's own cost.

    python benchmarks/client.py [--n 20000] [--rounds 5]

Two embedded servers in processes of their own, each pinned to one core, count
votes of LeNet (28 x 28) for the client in this process: one of them alone and
both together, in turn. The client's cost is the processor time of this process
a request, everything included: arrays, protocol buffers, gRPC, bookkeeping.

Then 64 threads ask a third server that takes four requests at a time. It joins
the others and is stopped (SIGSTOP): printed are the latencies of `predict`
before and after. Last, 200 connections are closed.
"""

import argparse
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from contextlib import suppress
from functools import partial
from pathlib import Path

import numpy as np
from timing import interleaved
from timing import table

from rs_keras import Certifier
from rs_keras import models
from rs_keras.export import export_certifier
from rs_keras.serving import CertificationClient
from rs_keras.serving import ServingError

ROOT = Path(__file__).resolve().parent.parent
SERVE = "import sys; from rs_keras.cli import main; main(sys.argv[1:])"


class PinnedServer:
    """`rs-keras serve` on one core."""

    def __init__(self, folder: str, core: int, *flags: str) -> None:
        self.process = subprocess.Popen(
            [
                *[sys.executable, "-c", SERVE, "serve", folder, *flags],
                *["--port", "0", "--embedded", "--model-name", "lenet"],
            ],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            preexec_fn=partial(os.sched_setaffinity, 0, [core]),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def __enter__(self) -> "PinnedServer":
        return self

    def __exit__(self, *error: object) -> None:
        self.process.kill()
        self.process.wait()

    def address(self) -> str:
        """Blocks until it serves."""
        if self.process.stdout is None:
            raise RuntimeError("the server's output is not captured")
        for line in self.process.stdout:
            found = re.search(r"on (\S+:\d+) with", line)
            if found:
                return found[1]
        raise RuntimeError("the server ended before it served")


def main() -> None:
    """Prints both ratios and the machine's load."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--n", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))[:2]
    if len(cores) < 2:
        sys.exit("two cores are needed, one per server")
    folder = tempfile.mkdtemp()
    export_certifier(Certifier(models.lenet(), sigma=0.5), folder)
    with ExitStack() as stack:
        servers = [
            stack.enter_context(PinnedServer(folder, core)) for core in cores
        ]
        addresses = [server.address() for server in servers]
        fleets = [addresses[:1], addresses[1:], addresses]
        one, other, both = (
            stack.enter_context(CertificationClient(fleet, "lenet"))
            for fleet in fleets
        )
        compare_fleets(one, other, both, args.n, args.rounds)
        client_cost(both)
        third = stack.enter_context(
            PinnedServer(folder, cores[0], "--max-concurrency", "4")
        )
        addresses.append(third.address())
        many_threads(addresses[2])
        freeze(addresses, third)
    close()
    print(f"load of the last minute: {os.getloadavg()[0]:.1f}")


def compare_fleets(
    one: CertificationClient,
    other: CertificationClient,
    both: CertificationClient,
    n: int,
    rounds: int,
) -> None:
    """Prints draws per second of each server alone, and of both."""
    image = np.full([1, 28, 28, 1], 0.5, np.float32)
    seconds = interleaved(
        {
            "one server": lambda: one.sample(image, n),
            "the other": lambda: other.sample(image, n),
            "both": lambda: both.sample(image, n),
        },
        rounds,
    )
    rows = [
        [name, f"{taken:.2f} s", f"{n / taken:,.0f}"]
        for name, taken in seconds.items()
    ]
    print(table(["servers", f"{n} draws", "draws/s"], rows))
    alone = (seconds["one server"] + seconds["the other"]) / 2
    print(f"both are {alone / seconds['both']:.2f} times one")


def client_cost(client: CertificationClient, requests: int = 300) -> None:
    """Prints this process' own time for a request of few draws."""
    image = np.full([1, 28, 28, 1], 0.5, np.float32)
    client.sample(image, requests, chunk=1)
    processor, wall = time.process_time(), time.perf_counter()
    client.sample(image, requests, chunk=1)
    wall = time.perf_counter() - wall
    processor = time.process_time() - processor
    print(
        f"client's own cost: {1e3 * processor / requests:.2f} ms a request "
        f"(with the servers {1e3 * wall / requests:.2f} ms)"
    )


def many_threads(address: str, threads: int = 64, calls: int = 192) -> None:
    """Prints how many calls of many threads fail on a small server."""
    image = np.full([1, 28, 28, 1], 0.5, np.float32)
    with CertificationClient(address, "lenet") as client:

        def ask(number: int) -> bool:
            try:
                client.predict(image, seed=number)
            except ServingError:
                return False
            return True

        with ThreadPoolExecutor(threads) as pool:
            done = sum(pool.map(ask, range(calls)))
    print(
        f"{threads} threads, a server of 4 requests at a time: {calls - done} "
        f"of {calls} calls lost"
    )


def freeze(addresses: list[str], frozen: PinnedServer) -> None:
    """Prints the latency of `predict` before and after a server freezes."""
    image = np.full([1, 28, 28, 1], 0.5, np.float32)
    with CertificationClient(addresses, "lenet") as client:

        def latencies(calls: int) -> np.ndarray:
            taken = []
            for _ in range(calls):
                begun = time.perf_counter()
                client.predict(image)
                taken.append(time.perf_counter() - begun)
            return 1e3 * np.array(taken)

        latencies(50)
        before = latencies(200)
        frozen.process.send_signal(signal.SIGSTOP)
        after = latencies(200)
        frozen.process.send_signal(signal.SIGCONT)
    rows = [
        [name, *(f"{np.percentile(taken, q):.0f} ms" for q in (50, 99, 100))]
        for name, taken in (("all work", before), ("one is frozen", after))
    ]
    print(table(["predict on 3 servers", "median", "p99", "longest"], rows))


def close(connections: int = 200) -> None:
    """Prints how long the end of a client with many servers takes."""
    with socket.create_server(("0.0.0.0", 0)) as listener:
        port = listener.getsockname()[1]
        servers = [f"127.0.1.{n}:{port}" for n in range(1, connections + 1)]
        client = CertificationClient(servers, timeout=1.0, retries=0)
        with suppress(ServingError):
            _ = client.model
        begun = time.perf_counter()
        client.close()
    seconds = time.perf_counter() - begun
    print(f"{connections} connections are closed in {seconds:.2f} s")


if __name__ == "__main__":
    main()
