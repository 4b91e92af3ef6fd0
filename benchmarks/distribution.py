"""What distribution costs and saves: steps, bytes sent, certificates.

    python benchmarks/distribution.py

A training step under `MirroredStrategy` with one replica against none, through
`fit`, interleaved; what a step on two workers hands to the all-reduce, read
from its graph; the time that 1, 2 and 3 workers, each a process on one
core's worth of threads, take to certify the same images, against the ideal (on
fewer cores than workers, that of the cores); and what replicas save that share
the cores of this machine, two processes in turn.
"""

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np  # noqa: E402
from timing import table  # noqa: E402

ROOT = Path(__file__).parents[1]
BATCH = 128


def data(steps):
    import tensorflow as tf

    rng = np.random.default_rng(0)
    images = rng.random([BATCH * steps, 28, 28, 1], dtype=np.float32)
    labels = rng.integers(0, 10, BATCH * steps)
    batches = tf.data.Dataset.from_tensor_slices((images, labels))
    return batches.batch(BATCH, drop_remainder=True).cache()


def trainer_of(strategy, network=None):
    from rs_keras import distribution
    from rs_keras import models
    from rs_keras.trainers import SGD
    from rs_keras.trainers import Gaussian

    with distribution.scope_of(strategy):
        trainer = Gaussian((network or models.lenet)(), sigma=0.5)
        trainer.compile(SGD(0.01, weight_decay=1e-4), metrics=["accuracy"])
    return trainer


def step_times(steps, rounds):
    """Prints what one mirrored replica costs over none.

    The quartile, because what else the machine does makes steps longer only.
    """
    import keras
    import tensorflow as tf

    class Clock(keras.callbacks.Callback):
        seconds = ()

        def on_epoch_begin(self, epoch, logs=None):
            self.last = None

        def on_train_batch_end(self, batch, logs=None):
            now = time.perf_counter()
            if self.last is not None:
                self.seconds = (*self.seconds, now - self.last)
            self.last = now

    batches = data(steps)
    mirrored = tf.distribute.MirroredStrategy(["CPU:0"])
    trainers = [trainer_of(None), trainer_of(mirrored)]
    clocks = [Clock(), Clock()]
    for round_number in range(rounds + 1):
        for trainer, clock in zip(trainers, clocks, strict=True):
            if round_number == 1:
                # The first one traces.
                clock.seconds = ()
            trainer.fit(batches, verbose=0, shuffle=False, callbacks=[clock])
    rows = []
    for name, q in {"quartile": 25, "median": 50}.items():
        none, one = (np.percentile(clock.seconds, q) for clock in clocks)
        each = [f"{1e3 * none:.2f} ms", f"{1e3 * one:.2f} ms"]
        rows.append([f"{BATCH} images, {name}", *each, f"{one / none:.3f}"])
    print(table(["a step of", "none", "mirrored, 1 replica", "ratio"], rows))


def reduced(graph):
    """Returns how many all-reduces a graph has, and of how many bytes."""
    sizes = [
        op.inputs[0].shape.num_elements() * op.inputs[0].dtype.size
        for op in graph.get_operations()
        if op.type.startswith("CollectiveReduce")
    ]
    return len(sizes), sum(sizes)


def bytes_of_a_step():
    """As worker: prints what a step of each network reduces, as JSON."""
    import tensorflow as tf

    from rs_keras import distribution
    from rs_keras import models
    from rs_keras.trainers._distributed import batch_norm

    strategy = distribution.strategy_of("multi_worker", 120)

    def resnet():
        shape = (28, 28, 1)
        return models.cifar_resnet(8, shape, mean=None, std=None)

    networks = {
        "lenet": models.lenet,
        "cifar_resnet, depth 8": resnet,
        "the same, synchronised": lambda: batch_norm.synchronized(resnet()),
    }
    rows = []
    for name, network in networks.items():
        trainer = trainer_of(strategy, network)
        trainer.build_variables()
        batch = next(iter(data(1)))

        def step(batch=batch, trainer=trainer):
            results = strategy.run(trainer.train_step, args=(batch,))
            # As Keras does with what a step reports.
            return [
                strategy.reduce("MEAN", one, axis=0) for one in results.values()
            ]

        graph = tf.function(step).get_concrete_function().graph
        count, size = reduced(graph)
        weights = sum(
            int(np.prod(w.shape)) * 4 for w in trainer.trainable_variables
        )
        rows.append([name, count, size, weights])
    if distribution.member_of(strategy).is_chief:
        print(json.dumps(rows))


def certify(count, index, images, n):
    """As worker: certifies a shard, prints its seconds, and those of CPU."""
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    from rs_keras import Certifier
    from rs_keras import certify_dataset
    from rs_keras import models

    rng = np.random.default_rng(0)
    pixels = rng.random([images, 28, 28, 1], dtype=np.float32)
    examples = list(zip(pixels, np.zeros(images, int), strict=True))
    certifier = Certifier(models.lenet(), sigma=0.5)
    certifier.certify(pixels[:1], n=1_000)
    print("ready", flush=True)
    sys.stdin.readline()
    with tempfile.TemporaryDirectory() as folder:
        begun, busy = time.perf_counter(), time.process_time()
        certify_dataset(
            certifier,
            examples,
            f"{folder}/log.tsv",
            seed=7,
            progress=False,
            shard=(index, count),
            n=n,
        )
        print(
            time.perf_counter() - begun, time.process_time() - busy, flush=True
        )


def start(*arguments, environment=None):
    return subprocess.Popen(
        [sys.executable, __file__, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": str(ROOT), **(environment or {})},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def certification_times(images, n):
    """Prints how long 1, 2 and 3 workers take for the same work.

    On a machine that does other things, too, the CPU's seconds say more.
    """
    cores = len(os.sched_getaffinity(0))
    rows, alone = [], None
    for count in (1, 2, 3):
        workers = [
            start("--certify", count, index, images, n)
            for index in range(count)
        ]
        for worker in workers:
            worker.stdout.readline()
        for worker in workers:
            worker.stdin.write("\n")
            worker.stdin.flush()
        taken = [
            tuple(map(float, worker.stdout.readline().split()))
            for worker in workers
        ]
        for worker in workers:
            worker.communicate()
        seconds, busy = max(t for t, _ in taken), sum(b for _, b in taken)
        alone = alone or (seconds, busy)
        ideal = alone[0] / min(count, cores)
        rows.append(
            [
                str(count),
                f"{seconds:.2f} s",
                f"{seconds / ideal:.2f}",
                f"{busy:.2f} s",
                f"{busy / alone[1]:.2f}",
            ]
        )
    print(f"certifying {images} images, n = {n}, on {cores} cores")
    header = ["workers", "time", "of the ideal", "CPU, all", "of one's"]
    print(table(header, rows))


def shared_cores(rounds):
    """Prints how long work takes without replicas, and with one per core."""
    cores = len(os.sched_getaffinity(0))
    workers = [start("--share", count) for count in (1, cores)]
    names = [json.loads(worker.stdout.readline()) for worker in workers][0]

    def timed(worker, name):
        worker.stdin.write(f"{name}\n")
        worker.stdin.flush()
        return float(worker.stdout.readline())

    rows = []
    for name in names:
        # The first round warms up.
        taken = [
            [timed(worker, name) for worker in workers]
            for _ in range(rounds + 1)
        ][1:]
        none, all_cores = np.median(taken, axis=0)
        each = [f"{1e3 * none:.0f} ms", f"{1e3 * all_cores:.0f} ms"]
        rows.append([name, *each, f"{none / all_cores:.2f}"])
    for worker in workers:
        worker.communicate()
    header = ["", "no replicas", f"{cores} replicas", "times as quick"]
    print(table(header, rows))


def share(replicas):
    """In a process of its own: does what it is told, and prints the seconds."""
    from rs_keras import distribution

    strategy = None
    if replicas > 1:
        strategy = distribution.strategy_of("mirrored", replicas=replicas)
    work = shared_work(strategy)
    print(json.dumps(list(work)), flush=True)
    for line in sys.stdin:
        begun = time.perf_counter()
        work[line.strip()]()
        print(time.perf_counter() - begun, flush=True)


def shared_work(strategy):
    """Returns work for replicas that share the cores, by name."""
    import keras
    import tensorflow as tf

    from rs_keras import Certifier
    from rs_keras import distribution
    from rs_keras import models
    from rs_keras import trainers

    rng = np.random.default_rng(0)
    images = rng.random([64 * 10, 28, 28, 1], dtype=np.float32)
    labels = rng.integers(0, 10, len(images))
    batches = tf.data.Dataset.from_tensor_slices((images, labels)).batch(64)
    work = {}
    for dtype in ("float32", "mixed_bfloat16"):
        keras.config.set_dtype_policy(dtype)
        with distribution.scope_of(strategy):
            trainer = trainers.SmoothMix(models.lenet(), 1.0, 4, steps=8)
            trainer.compile(trainers.SGD(0.01, weight_decay=1e-4))
        certifier = Certifier(trainer.model, 0.5, strategy=strategy)
        work |= {
            f"{dtype}: 10 steps of SmoothMix, T = 8": partial(
                trainer.fit, batches, verbose=0, shuffle=False
            ),
            f"{dtype}: 1,000 draws for each of 64 images": partial(
                certifier.sample, images[:64], 1_000
            ),
            f"{dtype}: 100,000 draws for one image": partial(
                certifier.sample, images[:1], 100_000
            ),
        }
    return work


def all_reduces():
    """Prints what a step on two workers hands to the all-reduce."""
    with socket.socket() as one, socket.socket() as two:
        for free in (one, two):
            free.bind(("127.0.0.1", 0))
        names = [f"127.0.0.1:{free.getsockname()[1]}" for free in (one, two)]
    workers = []
    for index in range(2):
        task = {"type": "worker", "index": index}
        config = {"cluster": {"worker": names}, "task": task}
        variables = {"TF_CONFIG": json.dumps(config)}
        workers.append(start("--bytes", environment=variables))
    said = [worker.communicate()[0] for worker in workers][0]
    rows = [
        [name, str(count), f"{size / 1e3:.1f} kB", f"{size / weights:.3f}"]
        for name, count, size, weights in json.loads(said.splitlines()[-1])
    ]
    print(table(["network", "all-reduces", "bytes", "of the weights"], rows))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--images", type=int, default=12)
    parser.add_argument("--n", type=int, default=20_000)
    parser.add_argument("--bytes", action="store_true", help="as a worker")
    parser.add_argument("--certify", type=int, nargs=4, help="as a worker")
    parser.add_argument("--share", type=int, help="as one of two processes")
    args = parser.parse_args()
    if args.bytes:
        bytes_of_a_step()
    elif args.certify:
        certify(*args.certify)
    elif args.share:
        share(args.share)
    else:
        step_times(args.steps, args.rounds)
        print()
        all_reduces()
        print()
        certification_times(args.images, args.n)
        print()
        shared_cores(args.rounds)


if __name__ == "__main__":
    main()
