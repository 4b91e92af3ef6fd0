"""What the scale tests run in processes of their own, and how they do.

    python tests/kits/distributed.py replicas OUT   one device, and two replicas
    python tests/kits/distributed.py four OUT       four replicas
    python tests/kits/distributed.py workers OUT    a worker of TF_CONFIG

A process writes what it found into OUT/<what>.npz; the tests compare.
"""

import contextlib
import functools
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]

# Of two steps, the second has 5 rows: of four replicas, one gets none.
ROWS, BATCH = 13, 8


# -- in the tests -------------------------------------------------------------


def free_ports(count):
    """Returns ports that nobody listens at."""
    with contextlib.ExitStack() as stack:
        found = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in found:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in found]


def environment(ports=None, index=0, **extra):
    """Returns the variables of a worker, or of a process by itself."""
    variables = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "-1",
        **extra,
    }
    variables.pop("TF_CONFIG", None)
    if ports is not None:
        addresses = [f"127.0.0.1:{port}" for port in ports]
        variables["TF_CONFIG"] = json.dumps(
            {
                "cluster": {"worker": addresses},
                "task": {"type": "worker", "index": index},
            }
        )
    return variables


def start(arguments, log, variables):
    """Starts a Python process that writes all it says into a file."""
    with open(log, "ab") as file:
        return subprocess.Popen(
            [sys.executable, *map(str, arguments)],
            cwd=ROOT,
            env=variables,
            stdout=file,
            stderr=subprocess.STDOUT,
        )


def wait(processes, seconds=1_200):
    """Returns the exit codes; ends what is still there after the time."""
    try:
        return [process.wait(seconds) for process in processes]
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
                process.wait()


# -- in the processes ---------------------------------------------------------


def methods():
    """Returns how to make each trainer, with few draws and steps."""
    from rs_keras import adversaries
    from rs_keras import trainers

    pgd = adversaries.PGD(1, 0.5, order="project_clip")
    made = {
        "gaussian": (trainers.Gaussian, {}),
        "stability": (trainers.Stability, {"weight": 1.5}),
        "smoothadv": (trainers.SmoothAdv, {"steps": 1}),
        "macer": (trainers.MACER, {"weight": 0.5}),
        "consistency": (trainers.Consistency, {"adversary": pgd}),
        "smoothmix": (trainers.SmoothMix, {"steps": 1}),
        "catrs": (trainers.CATRS, {"steps": 1}),
        # Attacks some images only.
        "catrs_apart": (trainers.CATRS, {"steps": 1}),
    }
    found = {}
    for name, (make, arguments) in made.items():
        if name != "stability":
            arguments = {"num_noise": 2, **arguments}
        found[name] = functools.partial(make, **arguments)
    sigma = trainers.PerExampleSigma(0.25, ROWS, learning_rate=0.01)
    found["per_example_sigma"] = lambda model, _: trainers.Gaussian(
        model, sigma, num_noise=2
    )
    return found


def data(targets=False, batch=BATCH):
    """Returns the batches, the same in every process."""
    import numpy as np
    import tensorflow as tf

    rng = np.random.default_rng(0)
    images, labels = rng.random((ROWS, 8, 8, 1)), rng.integers(0, 3, ROWS)
    if targets:
        labels = {"label": labels, "example_id": np.arange(ROWS)}
    return tf.data.Dataset.from_tensor_slices((images, labels)).batch(batch)


def without_statistics(**kwargs):
    """Returns a small network without batch normalisation."""
    import keras

    keras.utils.set_random_seed(0)
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            layers.Conv2D(4, 3, activation="relu", **kwargs),
            layers.Flatten(),
            layers.Dense(3),
        ]
    )


def train(strategy, name, eager=False):
    """Returns the history and the weights after two steps."""
    import keras
    from kits import golden_cases as golden

    from rs_keras import distribution
    from rs_keras.trainers import SGD
    from rs_keras.trainers._distributed import batch_norm

    with distribution.scope_of(strategy):
        l2 = keras.regularizers.L2(0.01)
        if name in ("per_example_sigma", "catrs_apart"):
            # A loop over the network leaves no room for synchronising.
            network = without_statistics(kernel_regularizer=l2)
        else:
            network = batch_norm.synchronized(
                golden.tiny(kernel_regularizer=l2)
            )
        trainer = methods()[name](network, 0.25)
        trainer.compile(SGD(0.1), metrics=["accuracy"], run_eagerly=eager)
    batches = data(targets=name == "per_example_sigma")
    history = trainer.fit(
        batches, verbose=0, shuffle=False, validation_data=batches
    ).history
    weights = {f"w{i}": w.numpy() for i, w in enumerate(trainer.model.weights)}
    if name == "per_example_sigma":
        weights["sigma"] = trainer.sigma.values.numpy()
    return {**{k: v[0] for k, v in history.items()}, **weights}


def votes(strategy):
    """Returns what a certifier counts under a strategy."""
    import numpy as np
    from kits import golden_cases as golden

    from rs_keras import Certifier
    from rs_keras import distribution

    images = np.random.default_rng(2).random((3, 8, 8, 1), np.float32)
    with distribution.scope_of(strategy):
        network = golden.tiny()
    certifier = Certifier(network, 0.5, batch_size=16, strategy=strategy)
    found = certifier.certify(images, n0=10, n=103, seed=3)
    counts = certifier.sample(images, n=2, seed=3, first=5)
    fresh = certifier.certify(images, n0=10, n=50)
    again = certifier.certify(images, n0=10, n=50, seed=fresh.seed)
    return {
        "counts": found.counts,
        "radius": found.radius,
        "few": counts,
        "replayed": (fresh.counts == again.counts).all(),
    }


def save(folder, name, arrays):
    import numpy as np

    np.savez(Path(folder) / f"{name}.npz", **arrays)


def in_double():
    """Has networks, and Keras' metrics, compute in float64."""
    import keras

    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")


def replicas(folder):
    """Trains on one device, and on 2 replicas."""
    import tensorflow as tf

    from rs_keras import distribution

    two = distribution.strategy_of("mirrored", replicas=2)
    one = tf.distribute.OneDeviceStrategy("CPU:1")
    for place, strategy in {
        "none": None,
        "one_device": one,
        "two": two,
    }.items():
        save(folder, f"votes-{place}", votes(strategy))
    in_double()
    for name in methods():
        save(folder, f"{name}-none", train(None, name, eager=True))
        save(folder, f"{name}-two", train(two, name))
    save(folder, "smoothmix-one_device", train(one, "smoothmix"))
    save(folder, "refusals", refusals(two))
    save(folder, "cores", cores())
    for name, stop_at in {"whole": None, "resumed": (1, 1)}.items():
        save(folder, name, interrupted(two, Path(folder) / name, stop_at))


def cores():
    """Returns how the cores are shared out, once they have been."""
    import tensorflow as tf

    from rs_keras import distribution

    counts = {
        name: distribution.strategy_of("mirrored", replicas=asked)
        for name, asked in {"fewer": 1, "again": 2, "all": None}.items()
    }
    try:
        distribution.strategy_of("mirrored", replicas=3)
    except ValueError as error:
        late = str(error)
    return {
        **{name: found.num_replicas_in_sync for name, found in counts.items()},
        "threads": tf.config.threading.get_intra_op_parallelism_threads(),
        "late": late,
        "seconds": seconds_of_an_end(distribution.strategy_of("mirrored")),
    }


def seconds_of_an_end(strategy):
    """Returns how long the iterator of a pipeline with work takes to end."""
    import tensorflow as tf

    from rs_keras.trainers._distributed import startup

    def add(number):
        return number + 1

    numbers = tf.data.Dataset.range(10_000).batch(8)
    for _ in range(3):
        numbers = numbers.map(add, num_parallel_calls=tf.data.AUTOTUNE)
    shared = startup.shared_out(strategy, numbers.prefetch(tf.data.AUTOTUNE))
    with startup.device_queues(strategy):
        iterator = iter(strategy.experimental_distribute_dataset(shared))
    for _ in range(30):
        next(iterator)
        # The tuner sleeps for longer and longer.
        time.sleep(0.1)
    begun = time.perf_counter()
    del iterator
    return time.perf_counter() - begun


def interrupted(strategy, folder, stop_at):
    """Returns the weights of a run that stops at (epoch, step), and goes on."""
    import keras
    from kits import golden_cases as golden

    from rs_keras import trainers
    from rs_keras.trainers.runs import snapshots

    class Stop(keras.callbacks.Callback):
        at = stop_at

        def on_epoch_begin(self, epoch, logs=None):
            self.epoch = epoch

        def on_train_batch_end(self, batch, logs=None):
            if (self.epoch, batch) == self.at:
                raise KeyboardInterrupt

    def run():
        with strategy.scope():
            # The attack reads the moving statistics, which replicas keep
            # apart between the sums over them.
            trainer = trainers.SmoothAdv(golden.tiny(), 0.25, 2, steps=1)
            trainer.compile(trainers.SGD(0.1))
        snapshots.fit(
            trainer,
            lambda epoch, step: data().skip(step),
            2,
            folder / "snapshot.npz",
            callbacks=[Stop()],
            every_seconds=0,
            verbose=0,
        )
        return trainer

    try:
        trainer = run()
    except KeyboardInterrupt:
        Stop.at = None
        trainer = run()
    weights = trainer.model.weights
    return {f"w{i}": weight.numpy() for i, weight in enumerate(weights)}


def four(folder):
    """Trains on 4 replicas: TensorFlow wants one size of group a process."""
    from rs_keras import distribution

    strategy = distribution.strategy_of("mirrored", replicas=4)
    save(folder, "votes-four", votes(strategy))
    in_double()
    save(folder, "smoothmix-four", train(strategy, "smoothmix"))


def refusals(strategy):
    """Returns the messages of what is refused before the first step."""
    from kits import golden_cases as golden

    from rs_keras import trainers
    from rs_keras.trainers._distributed import batch_norm

    def message(network, sigma, batches, call="fit", **options):
        trainer = trainers.Gaussian(network, sigma)
        trainer.compile(trainers.SGD(0.1), **options)
        more = {"shuffle": False} if call == "fit" else {}
        try:
            getattr(trainer, call)(batches, verbose=0, **more)
        except ValueError as error:
            return str(error)
        return "none"

    with strategy.scope():
        loop = message(
            batch_norm.synchronized(golden.tiny()),
            trainers.PerExampleSigma(0.25, ROWS),
            data(targets=True),
        )
        few = message(golden.tiny(), 0.25, data().unbatch().batch(1))
        steps, evaluated = (
            message(golden.tiny(), 0.25, data(), call, steps_per_execution=4)
            for call in ("fit", "evaluate")
        )
    return {"loop": loop, "few": few, "steps": steps, "evaluated": evaluated}


def workers(folder):
    """Trains every method on the workers of TF_CONFIG."""
    from rs_keras import distribution

    strategy = distribution.strategy_of("multi_worker", timeout=300)
    member = distribution.member_of(strategy)
    save(folder, f"votes-worker{member.rank}", votes(strategy))
    in_double()
    for name in methods():
        found = train(strategy, name)
        save(folder, f"{name}-worker{member.rank}", found)
    problems = faults(strategy, member.rank)
    text = json.dumps(problems)
    (Path(folder) / f"faults-worker{member.rank}.json").write_text(text)
    save(folder, f"stopped-worker{member.rank}", stopped(strategy, folder))


def stopped(strategy, folder):
    """Returns where a run ends of which worker 1 is stopped between steps."""
    import keras
    from kits import golden_cases as golden

    from rs_keras import distribution
    from rs_keras import trainers
    from rs_keras.trainers.runs import snapshots

    rank = distribution.member_of(strategy).rank
    path = Path(folder) / f"stopped{rank}" / "snapshot.npz"

    class Between(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            if rank == 1 and batch == 1:
                os.kill(os.getpid(), signal.SIGTERM)

    with strategy.scope():
        trainer = trainers.Gaussian(golden.tiny(), 0.25)
        trainer.compile(trainers.SGD(0.1))

    def fit(every_seconds):
        try:
            snapshots.fit(
                trainer,
                lambda epoch, step: data(batch=4).skip(step),
                2,
                path,
                callbacks=[Between()],
                every_seconds=every_seconds,
                verbose=0,
            )
        except (KeyboardInterrupt, ValueError) as error:
            return str(error) or type(error).__name__
        return "none"

    refused, ended = fit(every_seconds=rank), fit(every_seconds=0)
    return {
        "refused": refused,
        "ended": ended,
        "steps": int(trainer.step.numpy()),
        "kept": path.exists(),
    }


def faults(strategy, index):
    """Returns the messages of jobs that workers must not begin."""
    import numpy as np
    from kits import golden_cases as golden

    import rs_keras
    from rs_keras import trainers

    with strategy.scope():
        trainer = trainers.Gaussian(golden.tiny(), 0.25)
        trainer.compile(trainers.SGD(0.1))
    images, labels = np.zeros([8, 8, 8, 1]), np.zeros([8], int)
    other = images + 0.5 * index

    def message(x, y, **arguments):
        arguments = {"shuffle": False, "verbose": 0, **arguments}
        try:
            trainer.fit(x, y, **arguments)
        except ValueError as error:
            return str(error)
        return "none"

    found = {
        "data": message(other, labels),
        "labels": message(images, labels + 3 * index),
        "batch": message(images, labels, batch_size=1),
        "shuffle": message(images, labels, shuffle=True),
    }
    version = rs_keras.__version__
    rs_keras.__version__ = f"9.{index}"
    found["version"] = message(images, labels)
    rs_keras.__version__ = version
    return found


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))
    jobs = {"replicas": replicas, "four": four, "workers": workers}
    jobs[sys.argv[1]](sys.argv[2])
