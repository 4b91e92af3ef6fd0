"""A stream of certificates over three servers that are killed and stopped.

    python benchmarks/fleet_soak.py                    # half a minute
    python benchmarks/fleet_soak.py --examples 10000   # ten minutes

Three embedded servers in processes of their own serve one export; meanwhile one
after the other is killed (kill -9) and restarted, or stopped (SIGSTOP) and
continued. Every certificate is then replayed in this process from its seed.
Prints how many are missing or differ (none may), and the draws made a second,
divided by what the living servers can do.

A server's speed is set: it waits, for one request at a time, as an accelerator
would take. So the ratio does not depend on what else the machine does.
"""

import argparse
import os
import random
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

from rs_keras import Certifier  # noqa: E402
from rs_keras.export import export_certifier  # noqa: E402
from rs_keras.serving import CertificationClient  # noqa: E402
from rs_keras.serving import EmbeddedServer  # noqa: E402
from rs_keras.serving.server.handlers import Handlers  # noqa: E402

ROOT = Path(__file__).resolve().parent.parent
SHAPE = (4, 4, 1)
N0, N = 100, 1_000
# Draws per second of one server.
RATE = 6_500
SERVERS = 3
# Relative differences that are allowed: floats of another number of rows are
# computed in another order.
EXACT = {"seed": 0, "selection_counts": 0, "counts": 0, "label": 0}
EXACT["radius"] = 1e-9
# Seconds between two faults, and how long a fault lasts.
PAUSE = (2.0, 12.0)
FAULT = (1.0, 10.0)


def classifier():
    """A small linear classifier: two classes, true radius near sigma."""
    kernel = np.random.default_rng(0).normal(size=SHAPE)
    bias = -0.5 * kernel.sum()

    def logits(images):
        weights = tf.constant(kernel, images.dtype)
        score = tf.reduce_sum(images * weights, [1, 2, 3])
        score += tf.constant(bias, images.dtype)
        return tf.stack([-score, score], -1)

    return Certifier(logits, sigma=0.5)


# -- servers -------------------------------------------------------------------


def slow_down(rate):
    """Lets each Predict request wait for the time that its draws take."""
    answer, device = Handlers.answer, threading.Lock()

    def slow_answer(handlers, api, request, caller, *entrypoint):
        content = b""
        # Reading an input that is not there would add it.
        if api == "Predict" and "n" in request.inputs:
            content = request.inputs["n"].tensor_content
        draws = int(np.frombuffer(content, np.int64).sum())
        # Descriptions do not wait; nor does a request that was given up.
        if draws:
            with device:
                if caller.active():
                    time.sleep(draws / rate)
        return answer(handlers, api, request, caller, *entrypoint)

    Handlers.answer = slow_answer


def serve(folder, port, rate):
    slow_down(rate)
    with EmbeddedServer(
        folder, model_name="m", port=port, poll_seconds=0, warmup=False
    ) as server:
        print(os.getpid(), server.address, flush=True)
        signal.pause()


def spawn(folder, rate):
    """Forks a server for each port that is read from the standard input.

    TensorFlow is imported once, so a restart takes a fraction of a second.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for line in sys.stdin:
        if os.fork() == 0:
            serve(folder, int(line), rate)


class Spawner:
    """The process that starts the servers."""

    def __init__(self, folder, rate):
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--spawn", folder, "--rate", str(rate)],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def start(self, port=0):
        """Returns the process number and the address of a new server."""
        self.process.stdin.write(f"{port}\n")
        self.process.stdin.flush()
        ready, _, _ = select.select([self.process.stdout], [], [], 120)
        if not ready:
            raise RuntimeError("no server started within 120 s")
        pid, address = self.process.stdout.readline().split()
        return int(pid), address

    def stop(self):
        # Closes its pipes, too.
        with self.process:
            self.process.kill()


class Server:
    """One server, and for how long it could work.

    Attributes:
        address: Its address, the same after a restart.
        events: How often it was killed and stopped.
    """

    def __init__(self, spawner):
        self._spawner = spawner
        self._pid, self.address = spawner.start()
        self._lived, self._since = 0.0, time.monotonic()
        self.events = {"killed": 0, "stopped": 0}

    def lived(self):
        """Seconds for which it could work so far."""
        running = 0.0 if self._since is None else time.monotonic() - self._since
        return self._lived + running

    def fault(self, kind, seconds, ended):
        """Kills or stops it; after some seconds it works again."""
        self._lived, self._since = self.lived(), None
        self.events[kind] += 1
        number = signal.SIGKILL if kind == "killed" else signal.SIGSTOP
        os.kill(self._pid, number)
        ended.wait(seconds)
        if kind == "killed":
            port = int(self.address.rpartition(":")[2])
            self._pid, _ = self._spawner.start(port)
        else:
            os.kill(self._pid, signal.SIGCONT)
        self._since = time.monotonic()

    def kill(self):
        os.kill(self._pid, signal.SIGKILL)


def disturb(servers, ended, rng):
    """Kills and stops one server after the other until `ended` is set."""
    while not ended.wait(rng.uniform(*PAUSE)):
        kind = rng.choice(["killed", "stopped"])
        rng.choice(servers).fault(kind, rng.uniform(*FAULT), ended)


# -- the stream ----------------------------------------------------------------


def examples(count):
    rng = np.random.default_rng(1)
    for key in range(count):
        image = rng.uniform(size=SHAPE).astype("float32")
        yield key, image, np.array([key, 7])


def stream(servers, count):
    """Returns the certificates by key, and the seconds that they took."""
    addresses = [server.address for server in servers]
    found = {}
    with CertificationClient(addresses, "m", timeout=30) as client:
        client.wait_ready()
        begun, lived = time.monotonic(), sum(one.lived() for one in servers)
        results = client.certify_each(examples(count), n0=N0, n=N)
        for key, certificate in results:
            if key in found:
                raise RuntimeError(f"example {key} was answered twice")
            found[key] = certificate
        lived = sum(one.lived() for one in servers) - lived
        return found, time.monotonic() - begun, lived


def wrong(found, count):
    """Counts examples without a certificate, or with another than here."""
    certifier, missing, differing = classifier(), 0, 0
    given = list(examples(count))
    for start in range(0, count, 500):
        keys, images, seeds = zip(*given[start : start + 500], strict=True)
        own = certifier.certify(
            np.stack(images), n0=N0, n=N, seed=np.stack(seeds)
        )
        for row, key in enumerate(keys):
            if key not in found:
                missing += 1
                continue
            differing += not all(
                np.allclose(
                    getattr(found[key], name)[0],
                    getattr(own, name)[row],
                    rtol=rtol,
                    atol=0,
                )
                for name, rtol in EXACT.items()
            )
    return missing, differing


def soak(count, rate, seed):
    """Returns (missing, differing, share of the possible rate, summary)."""
    rng, ended = random.Random(seed), threading.Event()
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        options = {"n": N, "max_n": 100_000, "image_shape": SHAPE}
        export_certifier(classifier(), folder, warmup=False, **options)
        spawner = Spawner(folder, rate)
        stack.callback(spawner.stop)
        servers = []
        for _ in range(SERVERS):
            servers.append(Server(spawner))
            stack.callback(servers[-1].kill)
        thread = threading.Thread(target=disturb, args=(servers, ended, rng))
        thread.start()
        try:
            found, seconds, lived = stream(servers, count)
        finally:
            ended.set()
            thread.join()
    missing, differing = wrong(found, count)
    killed, stopped = (
        sum(one.events[kind] for one in servers)
        for kind in ("killed", "stopped")
    )
    share = count * (N0 + N) / (lived * rate)
    summary = (
        f"{count} certificates in {seconds:.0f} s; {killed} kills and "
        f"{stopped} stops; {missing} missing, {differing} differ from the "
        f"replay; {share:.2f} of what the living servers can do"
    )
    return missing, differing, share, summary


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--examples", type=int, default=400)
    parser.add_argument("--rate", type=int, default=RATE)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--spawn", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.spawn:
        spawn(args.spawn, args.rate)
        return
    missing, differing, share, summary = soak(
        args.examples, args.rate, args.seed
    )
    print(summary)
    sys.exit(int(bool(missing or differing)))


if __name__ == "__main__":
    main()
