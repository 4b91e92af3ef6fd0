"""Distribution: strategies, the workers of TF_CONFIG, and their collectives.

Workers are processes, on one machine or many, that `TF_CONFIG` names. All run
the same program; the first of them is the chief, who writes what is kept. What
is here works with any strategy: one without workers is a cluster of one.
"""

import contextlib
import functools
import json
import os
import socket
import time
from collections.abc import Callable
from collections.abc import Mapping
from typing import Any
from typing import NamedTuple
from typing import TypeVar

import keras
import numpy as np
import tensorflow as tf

import rs_keras
from rs_keras import _compat
from rs_keras._checks import check_choice
from rs_keras._checks import check_count
from rs_keras._checks import check_positive

Result = TypeVar("Result")

STRATEGIES = ("one", "mirrored", "multi_worker")

# What TensorFlow raises in a worker whose peer is gone or silent.
LOST = (
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.DeadlineExceededError,
    tf.errors.UnavailableError,
)

_JOBS = ("chief", "worker")
_WANTED = (
    '`TF_CONFIG` must be {"cluster": {"worker": ["host:port", ...]}, "task": '
    '{"type": "worker", "index": i}}'
)


class Member(NamedTuple):
    """A worker's place among the workers.

    Attributes:
        rank: 0 for the chief.
        size: Of all workers.

    Example:

    >>> from rs_keras import distribution
    >>> member = distribution.Member(rank=1, size=4)
    >>> member.is_chief
    False
    """

    rank: int
    size: int

    @property
    def is_chief(self) -> bool:
        """Whether this worker writes what is kept."""
        return self.rank == 0


def member_from_environment() -> Member:
    """Returns the place that `TF_CONFIG` gives this process.

    Raises:
        ValueError: If `TF_CONFIG` is not set, no such JSON, or names no such
            task.

    Example:

    >>> import json, os
    >>> from rs_keras import distribution
    >>> os.environ["TF_CONFIG"] = json.dumps({
    ...     "cluster": {"worker": ["a.example:2222", "b.example:2222"]},
    ...     "task": {"type": "worker", "index": 1}})
    >>> distribution.member_from_environment()
    Member(rank=1, size=2)
    >>> del os.environ["TF_CONFIG"]
    """
    return _parsed(os.environ.get("TF_CONFIG", ""))[0]


def _parsed(text: str) -> tuple[Member, dict[str, list[str]]]:
    """Returns the place of this process, and the addresses of each job."""
    if not text:
        raise ValueError(f"{_WANTED}. Received: none, it is not set")
    try:
        config = json.loads(text)
        jobs = {
            job: list(map(str, names))
            for job, names in config["cluster"].items()
        }
        task = str(config["task"]["type"])
        index = int(config["task"]["index"])
    except (
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        OverflowError,
        RecursionError,
    ) as error:
        raise ValueError(f"{_WANTED}. Received: {text[:300]!r}") from error
    unknown_jobs = [job for job in jobs if job not in _JOBS]
    if unknown_jobs:
        raise ValueError(
            f"`TF_CONFIG` must have no jobs but {' and '.join(_JOBS)}. "
            f"Received: {', '.join(unknown_jobs)}"
        )
    addresses = [name for job in _JOBS for name in jobs.get(job, [])]
    for address in addresses:
        host, _, port = str(address).rpartition(":")
        if not (host and port.isdecimal() and 0 < int(port) < 65536):
            raise ValueError(
                "`TF_CONFIG` must name each worker as host:port. "
                f"Received: {address!r}"
            )
    if len(set(addresses)) < len(addresses):
        raise ValueError(
            f"`TF_CONFIG` must name each worker once. Received: {addresses}"
        )
    if len(jobs.get("chief", [])) > 1:
        raise ValueError(
            f"`TF_CONFIG` must name one chief. Received: {jobs['chief']}"
        )
    if not 0 <= index < len(jobs.get(task, [])):
        sizes = {job: len(names) for job, names in jobs.items()}
        raise ValueError(
            f"`TF_CONFIG` names no such task: {task} {index}, where the "
            f"cluster has {sizes}"
        )
    return _place(jobs, task, index), jobs


def _place(jobs: Mapping[str, list[str]], task: str, index: int) -> Member:
    """Returns a task's place among the tasks of all jobs, the chief first."""
    before = len(jobs.get("chief", [])) if task == "worker" else 0
    return Member(index + before, sum(len(names) for names in jobs.values()))


def strategy_of(
    name: str, timeout: float = 300.0, replicas: int | None = None
) -> tf.distribute.Strategy | None:
    """Returns the strategy that a command's flag asks for.

    Call it before anything else of TensorFlow: workers have to meet, and cores
    to be shared out, first.

    Args:
        name: "one" (device), "mirrored" (all accelerators of this machine; if
            there are none, all logical CPUs) or "multi_worker" (those of all
            workers of `TF_CONFIG`).
        timeout: Seconds, > 0, that workers wait for each other, to start and
            in each step. The first step, with its tracing, has to fit.
        replicas: Of "mirrored" on a machine without accelerators, >= 1: so
            many logical CPUs are made. As many as there are cores have one
            each, which is quicker than one replica on all: an operation on few
            images has too little to do for several threads. Fewer replicas
            than cores share the threads of all.

    Returns:
        None for "one".

    Raises:
        ValueError: For another name, `replicas` without a use for it or after
            TensorFlow began with fewer logical CPUs, or a `TF_CONFIG` that is
            missing, no such JSON, or names no such task.
        ConnectionError: If the workers did not all come within `timeout`.

    Example:

    >>> from rs_keras import Certifier
    >>> from rs_keras import distribution
    >>> distribution.strategy_of("one") is None
    True
    >>> strategy = distribution.strategy_of("mirrored")
    >>> certifier = Certifier(lambda x: x[:, 0, 0], 0.5, 2, strategy=strategy)
    >>> certifier.sample([[[[0.9, 0.1]]]], n=100).sum().item()
    100
    """
    check_choice("strategy", name, STRATEGIES)
    check_positive("timeout", timeout)
    if replicas is not None:
        _share_cores(name, check_count("replicas", replicas))
    if name == "one":
        return None
    if name == "mirrored":
        return _mirrored(tuple(_local_devices()[:replicas]))
    member, jobs = _parsed(os.environ.get("TF_CONFIG", ""))
    who = f"worker {member.rank} of {member.size}"
    if member.is_chief:
        _await_others(who, jobs, timeout)
    _compat.set_worker_timeout(jobs, timeout)
    options = tf.distribute.experimental.CommunicationOptions(
        timeout_seconds=timeout
    )
    try:
        return tf.distribute.MultiWorkerMirroredStrategy(
            communication_options=options
        )
    except LOST as error:
        raise _timeout_error(who, jobs, timeout, error.message) from error
    except (tf.errors.UnknownError, tf.errors.InternalError) as error:
        raise ConnectionError(
            f"{who} could not begin to listen at its address of {jobs}: is "
            f"another process there? ({error.message})"
        ) from error


def _share_cores(name: str, replicas: int) -> None:
    """Makes as many logical CPUs, of equal shares of the cores."""
    if name != "mirrored":
        raise ValueError(
            "`replicas` must be None but for strategy='mirrored'. Received: "
            f"strategy={name!r}, replicas={replicas}"
        )
    if tf.config.get_visible_devices("GPU"):
        raise ValueError(
            "`replicas` must be None on a machine with accelerators: each "
            f"makes one. Received: replicas={replicas}"
        )
    (processor,) = tf.config.list_physical_devices("CPU")
    share = tf.config.LogicalDeviceConfiguration()
    try:
        tf.config.set_logical_device_configuration(
            processor, [share] * replicas
        )
        # The logical CPUs of a process have one pool of threads in common.
        if 1 < len(os.sched_getaffinity(0)) <= replicas:
            tf.config.threading.set_intra_op_parallelism_threads(1)
    except RuntimeError as error:
        existing = len(tf.config.list_logical_devices("CPU"))
        if existing < replicas:
            raise ValueError(
                f"`replicas` must be <= {existing}, or be asked for before "
                "TensorFlow begins, which then makes as many logical CPUs. "
                f"Received: replicas={replicas}"
            ) from error


@functools.cache
def _mirrored(devices: tuple[str, ...]) -> tf.distribute.Strategy:
    """Returns the strategy of these devices, one per process.

    Each counts its collectives from the same number on, and TensorFlow takes
    those of two strategies for one.
    """
    # Named, because under TF_CONFIG the default is those of all workers.
    return tf.distribute.MirroredStrategy(list(devices))


def _local_devices() -> list[str]:
    """Returns the accelerators of this machine, or its logical CPUs."""
    list_devices = tf.config.list_logical_devices
    devices = list_devices("GPU") or list_devices("CPU")
    return [f"{device.device_type}:{i}" for i, device in enumerate(devices)]


def _await_others(
    who: str, jobs: Mapping[str, list[str]], timeout: float
) -> None:
    """Waits until every other worker listens.

    The chief's part of the start waits for them without end; theirs, for the
    chief, has a time-out.
    """
    latest = time.monotonic() + timeout
    _, *others = [name for job in _JOBS for name in jobs.get(job, [])]
    for address in others:
        host, _, port = address.rpartition(":")
        place = host.strip("[]"), int(port)
        while True:
            try:
                socket.create_connection(place, 5).close()
                break
            except OSError as error:
                if time.monotonic() > latest:
                    raise _timeout_error(who, jobs, timeout, address) from error
            time.sleep(0.2)


def _timeout_error(
    who: str, jobs: Mapping[str, list[str]], timeout: float, why: str
) -> ConnectionError:
    return ConnectionError(
        f"{who} timed out after waiting {timeout:g} s for the other workers "
        f"of {jobs}. Start the same command on each of them, with its own "
        f"index in TF_CONFIG. No answer: {why}"
    )


def scope_of(
    strategy: tf.distribute.Strategy | None,
) -> contextlib.AbstractContextManager[Any]:
    """Returns the context in which a strategy's variables are made.

    Example:

    >>> import tensorflow as tf
    >>> from rs_keras import distribution
    >>> with distribution.scope_of(None):  # no strategy: as without it
    ...     tf.Variable(1.0).numpy().item()
    1.0
    """
    return strategy.scope() if strategy else contextlib.nullcontext()


def has_workers(strategy: tf.distribute.Strategy | None) -> bool:
    """Returns whether a strategy was made for workers, if only for one.

    Example:

    >>> from rs_keras import distribution
    >>> distribution.has_workers(distribution.strategy_of("mirrored"))
    False
    """
    resolver = getattr(strategy, "cluster_resolver", None)
    return bool(resolver and resolver.cluster_spec().as_dict())


def within_machine(
    strategy: tf.distribute.Strategy | None,
) -> tf.distribute.Strategy | None:
    """Returns the strategy for the work that each worker does by itself.

    Returns:
        The strategy; None if it has one replica, or was made for workers, who
        would wait for each other.

    Example:

    >>> from rs_keras import distribution
    >>> mirrored = distribution.strategy_of("mirrored")
    >>> distribution.within_machine(mirrored) is None
    True
    """
    if has_workers(strategy) or local_replicas(strategy) == 1:
        return None
    return strategy


def local_replicas(strategy: tf.distribute.Strategy | None) -> int:
    """Returns how many replicas of a strategy this process has.

    Example:

    >>> from rs_keras import distribution
    >>> distribution.local_replicas(distribution.strategy_of("mirrored"))
    1
    """
    if strategy is None:
        return 1
    return strategy.num_replicas_in_sync // member_of(strategy).size


def member_of(strategy: tf.distribute.Strategy | None) -> Member:
    """Returns this process' place among the workers of a strategy.

    Example:

    >>> from rs_keras import distribution
    >>> distribution.member_of(distribution.strategy_of("mirrored"))
    Member(rank=0, size=1)
    """
    if strategy is None or not has_workers(strategy):
        return Member(0, 1)
    resolver = strategy.cluster_resolver
    jobs = resolver.cluster_spec().as_dict()
    return _place(jobs, resolver.task_type, int(resolver.task_id))


def largest(
    strategy: tf.distribute.Strategy | None, values: list[float]
) -> list[float]:
    """Returns the maximum over all workers of each value, to all of them.

    Example:

    >>> from rs_keras import distribution
    >>> distribution.largest(None, [0.5, 2.0])  # alone, its own
    [0.5, 2.0]
    """
    member = member_of(strategy)
    mine = np.zeros([member.size, len(values)])
    mine[member.rank] = values
    return _summed(strategy, mine).max(axis=0).tolist()


def gather(strategy: tf.distribute.Strategy | None, data: bytes) -> list[bytes]:
    """Returns the data of all workers, in their order, to each of them.

    Example:

    >>> from rs_keras import distribution
    >>> distribution.gather(None, b"mine")  # alone, its own
    [b'mine']
    """
    member = member_of(strategy)
    if member.size == 1:
        return [data]
    sizes = np.zeros([member.size, 1], np.int64)
    sizes[member.rank] = len(data)
    sizes = _summed(strategy, sizes)[:, 0]
    # Eight bytes a number, and no collective of nothing.
    width = max(1, -(-int(sizes.max()) // 8))
    mine = np.zeros([member.size, width], np.int64)
    padded = data.ljust(8 * width, b"\0")
    mine[member.rank] = np.frombuffer(padded, np.int64)
    rows = _summed(strategy, mine)
    return [row.tobytes()[:size] for row, size in zip(rows, sizes, strict=True)]


def from_chief(
    strategy: tf.distribute.Strategy | None, data: bytes | None
) -> bytes | None:
    """Returns the chief's data to all workers; that of the others is ignored.

    Example:

    >>> from rs_keras import distribution
    >>> distribution.from_chief(None, b"the chief's")  # alone, it is the chief
    b"the chief's"
    """
    member = member_of(strategy)
    if member.size == 1:
        return data
    # Nothing at all stands for None, "+" before the data for data.
    own = b"" if data is None or not member.is_chief else b"+" + data
    chief = gather(strategy, own)[0]
    return chief[1:] if chief else None


def _summed(
    strategy: tf.distribute.Strategy | None, mine: np.ndarray
) -> np.ndarray:
    """Sums an array [workers, numbers] over the workers."""
    if member_of(strategy).size == 1:
        return mine
    return _total(strategy, tf.as_dtype(mine.dtype))(tf.constant(mine)).numpy()


@functools.lru_cache(maxsize=8)
def _total(
    strategy: tf.distribute.Strategy, dtype: tf.DType
) -> Callable[[tf.Tensor], tf.Tensor]:
    """Returns the graph that adds up, so that it is traced once."""
    replicas = local_replicas(strategy)

    def part(values: tf.Tensor) -> tf.Tensor:
        here = tf.distribute.get_replica_context()
        # A worker's replicas all hold its values: the first one counts.
        is_first = here.replica_id_in_sync_group % replicas == 0
        return tf.where(is_first, values, tf.zeros_like(values))

    def total(values: tf.Tensor) -> tf.Tensor:
        parts = strategy.run(part, args=(values,))
        return strategy.reduce("SUM", parts, axis=None)

    return tf.function(total, [tf.TensorSpec([None, None], dtype)])


def everywhere(
    strategy: tf.distribute.Strategy | None, work: Callable[[], Result]
) -> Result:
    """Calls `work` in each worker; an error in one is raised in all.

    Args:
        strategy: Of the workers.
        work: Uses no collective operations: reads, checks.

    Raises:
        ValueError: If `work` raised one, or an OSError, here or elsewhere;
            with several workers, it names those.

    Example:

    >>> from rs_keras import distribution
    >>> distribution.everywhere(None, lambda: int("7"))
    7
    """
    if member_of(strategy).size == 1:
        return work()
    result, problem = None, ""
    try:
        result = work()
    except (ValueError, OSError) as error:
        problem = str(error) or type(error).__name__
    problems = [
        f"worker {i}: {text.decode()}"
        for i, text in enumerate(gather(strategy, problem.encode()))
        if text
    ]
    if problems:
        raise ValueError("; ".join(problems))
    return result  # type: ignore[return-value]


def agree(
    strategy: tf.distribute.Strategy | None, facts: Mapping[str, Any]
) -> None:
    """Raises in every worker unless all have the same facts and versions.

    Args:
        strategy: Of the workers.
        facts: JSON values.

    Raises:
        ValueError: That names each fact that differs, and who says what.

    Example:

    >>> from rs_keras import distribution
    >>> distribution.agree(None, {"sigma": 0.5}) is None  # alone
    True
    """
    if member_of(strategy).size == 1:
        return
    versions = {
        "rs_keras": rs_keras.__version__,
        "tensorflow": tf.__version__,
        "keras": keras.__version__,
    }
    own = json.dumps({**facts, **versions}, sort_keys=True)
    workers = [json.loads(row) for row in gather(strategy, own.encode())]
    differing = []
    for name in sorted({name for facts in workers for name in facts}):
        values = [facts.get(name) for facts in workers]
        if any(value != values[0] for value in values):
            each = (f"worker {i} {value}" for i, value in enumerate(values))
            differing.append(f"{name}: {', '.join(each)}")
    if differing:
        raise ValueError(
            f"all workers must run the same job. Differing: "
            f"{'; '.join(differing)}"
        )
