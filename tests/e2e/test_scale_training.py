"""The same training on 1, 2 and 4 replicas, and on two workers."""

import json
import os

import numpy as np
import pytest
from kits import distributed

METHODS = list(distributed.methods())
PLACES = {
    **{f"{name}-two": f"{name}-none" for name in METHODS},
    **{f"{name}-worker0": f"{name}-none" for name in METHODS},
    **{f"{name}-worker1": f"{name}-worker0" for name in METHODS},
    "smoothmix-one_device": "smoothmix-none",
    "smoothmix-four": "smoothmix-none",
}
VOTES = ("one_device", "two", "four", "worker0", "worker1")


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """The folder of what one process, and two workers, have found."""
    folder = tmp_path_factory.mktemp("scale")
    ports = distributed.free_ports(2)
    jobs = {"replicas": [None], "four": [None], "workers": [0, 1]}
    processes = {}
    for job, indices in jobs.items():
        for index in indices:
            log = folder / f"{job}{index or 0}.log"
            processes[log] = distributed.start(
                ["tests/kits/distributed.py", job, folder],
                log,
                distributed.environment(
                    None if index is None else ports, index or 0
                ),
            )
    codes = distributed.wait(processes.values())
    for log, code in zip(processes, codes, strict=True):
        assert code == 0, log.read_text()[-3000:]
    return folder


def load(folder, name):
    with np.load(folder / f"{name}.npz") as archive:
        return dict(archive)


@pytest.mark.parametrize("place, wanted", PLACES.items(), ids=PLACES)
def test_training_is_that_of_one_device(found, place, wanted):
    one, other = load(found, wanted), load(found, place)
    assert set(one) == set(other)
    for name, value in one.items():
        # Weights are float64; Keras computes its metrics in float32.
        limit = 1e-9 if name.startswith(("w", "sigma")) else 1e-5
        np.testing.assert_allclose(
            other[name], value, rtol=limit, atol=limit, err_msg=name
        )


def test_replicas_share_the_cores(found):
    cores = load(found, "cores")
    numbers = {name: cores[name].item() for name in ("fewer", "again", "all")}
    assert numbers == {"fewer": 1, "again": 2, "all": 2}
    # 0 is TensorFlow's own choice: all cores.
    assert cores["threads"] == (len(os.sched_getaffinity(0)) == 2)
    assert "`replicas` must be <= 2, or be asked" in cores["late"].item()


def test_no_iterator_waits_for_the_tuner(found):
    # It sleeps for seconds by then.
    assert load(found, "cores")["seconds"] < 1


def test_a_resumed_run_on_two_replicas_is_the_whole_one(found):
    one, other = load(found, "whole"), load(found, "resumed")
    assert len(one) == 8
    for name, value in one.items():
        np.testing.assert_array_equal(other[name], value)


@pytest.mark.parametrize("place", VOTES)
def test_votes_are_those_of_one_device(found, place):
    one, other = load(found, "votes-none"), load(found, f"votes-{place}")
    for name, value in one.items():
        np.testing.assert_array_equal(other[name], value)
    # Two draws on four replicas: some draw none.
    assert (other["few"].sum(axis=1) == 2).all()


@pytest.mark.parametrize("place", VOTES)
def test_fresh_votes_replay_from_the_seed_that_is_told(found, place):
    """Workers have an entropy each, and draw under one seed."""
    assert load(found, f"votes-{place}")["replayed"]


@pytest.mark.parametrize(
    "kind, message",
    [
        ("few", "`batch_size` must be at least the number of replicas, 2"),
        ("loop", "`model` must have no synchronised batch normalisation"),
        ("steps", "`steps_per_execution` must be 1 on several devices"),
        ("evaluated", "`steps_per_execution` must be 1 on several devices"),
    ],
    ids=["few_rows", "loop", "steps", "evaluated"],
)
def test_refused_before_the_first_step(found, kind, message):
    assert message in str(load(found, "refusals")[kind])


@pytest.mark.parametrize(
    "kind, wanted",
    [
        ("data", ["Differing: data: worker 0", "worker 1"]),
        ("version", ["rs_keras: worker 0 9.0, worker 1 9.1"]),
        ("labels", ["worker 1: `labels` must be in [0, 3)"]),
        ("batch", ["worker 0: `batch_size` must be", "worker 1: `batch_size`"]),
        ("shuffle", ["`shuffle` must be False for arrays"]),
    ],
    ids=["data", "version", "labels", "batch", "shuffle"],
)
def test_every_worker_hears_of_a_fault_in_one(found, kind, wanted):
    texts = [
        json.loads((found / f"faults-worker{i}.json").read_text())[kind]
        for i in range(2)
    ]
    assert texts[0] == texts[1]
    for part in wanted:
        assert part in texts[0]


def test_a_signal_between_steps_stops_all_workers_at_one_step(found):
    chief, other = (load(found, f"stopped-worker{i}") for i in range(2))
    for one in (chief, other):
        assert "every_seconds: worker 0 0" in str(one["refused"])
        assert one["ended"] == "KeyboardInterrupt"
    # In the second of four steps; the chief alone writes.
    assert chief["steps"] == other["steps"] == 2
    assert chief["kept"] and not other["kept"]
