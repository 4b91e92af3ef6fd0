"""Workers that are killed, and that are told to stop, in mid-epoch."""

import csv
import json
import signal
import time

import numpy as np
import pytest
from kits import distributed

EPOCHS, STEPS = 3, 20
COMMAND = [
    *("-m", "rs_keras.cli", "train", "fashion_mini", "--method", "gaussian"),
    *("--sigma", "0.5", "--epochs", EPOCHS, "--set", "batch_size=50"),
    *("--limit", "1000"),
    *("--snapshot-seconds", "0", "--resume", "--strategy", "multi_worker"),
    *("--worker-timeout", "200", "--out"),
]


class Run:
    """Two workers on one command."""

    def __init__(self, folder, name):
        self.folder, self.name = folder / name, name
        self.ports = distributed.free_ports(2)
        self.logs = [folder / f"{name}{i}.log" for i in range(2)]
        self.workers = [self.start(i) for i in range(2)]

    def start(self, index):
        # Only the chief's folder is the run's.
        out = self.folder if index == 0 else self.folder / "unused"
        return distributed.start(
            [*COMMAND, out],
            self.logs[index],
            distributed.environment(self.ports, index),
        )

    def restart(self, index):
        self.workers[index].wait(60)
        self.workers[index] = self.start(index)

    def state(self):
        """Returns epoch and step of the snapshot."""
        try:
            with np.load(self.folder / "snapshot.npz") as archive:
                state = json.loads(str(archive["state"]))
        except FileNotFoundError:
            return 0, 0
        return state["epoch"], state["step"]

    def reach(self, epoch, step, seconds=600):
        """Waits until the run is within an epoch, some steps in."""
        until = time.monotonic() + seconds
        while self.state() < (epoch, step):
            assert time.monotonic() < until, self.said()
            assert all(w.poll() is None for w in self.workers), self.said()
            time.sleep(0.02)
        found = self.state()
        assert found[0] == epoch, found

    def said(self):
        return [log.read_text() for log in self.logs]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A run that was left alone, and one that was not."""
    folder = tmp_path_factory.mktemp("recovery")
    made = []
    try:
        alone, hurt = made = [Run(folder, "alone"), Run(folder, "hurt")]
        hurt.reach(0, 3)
        hurt.workers[1].kill()
        hurt.restart(1)
        hurt.reach(1, 3)
        hurt.workers[0].kill()
        hurt.restart(0)
        hurt.reach(2, 3)
        hurt.workers[1].send_signal(signal.SIGTERM)
        # Less than a worker waits for one that stopped alone.
        hurt.codes = distributed.wait(hurt.workers, 150)
        hurt.stopped_at = hurt.state()
        hurt.workers = [hurt.start(i) for i in range(2)]
        for run in made:
            run.ends = distributed.wait(run.workers)
        yield alone, hurt
    finally:
        distributed.wait([w for run in made for w in run.workers], 0.1)


def test_workers_that_were_killed_end_well(runs):
    for run in runs:
        assert run.ends == [0, 0], run.said()


def test_the_survivor_says_what_it_does(runs):
    _, hurt = runs
    for text in hurt.said():
        assert "a worker was lost" in text
        assert "the same command" in text


def test_a_signal_to_one_stops_all_with_a_snapshot(runs):
    _, hurt = runs
    assert hurt.codes == [130, 130], hurt.said()
    epoch, step = hurt.stopped_at
    assert epoch == 2 and 3 <= step < STEPS


def test_a_recovered_training_ends_as_if_nothing_had_been(runs):
    archives = [np.load(run.folder / "snapshot.npz") for run in runs]
    with archives[0] as alone, archives[1] as hurt:
        names = [name for name in alone.files if name.startswith("model/")]
        assert len(names) > 8
        for name in names:
            np.testing.assert_array_equal(alone[name], hurt[name])
    tables = []
    for run in runs:
        with open(run.folder / "history.csv") as file:
            tables.append(list(csv.DictReader(file)))
    assert [row["epoch"] for row in tables[1]] == ["0", "1", "2"]
    for one, other in zip(*tables, strict=True):
        for name, value in one.items():
            # The means of an epoch are sums that resuming spreads anew.
            assert float(other[name]) == pytest.approx(float(value), rel=1e-4)


def test_the_chief_alone_writes(runs):
    for run in runs:
        assert not (run.folder / "unused").exists()
        assert (run.folder / "model.keras").is_file()
        assert "epochs of batch 50" in run.logs[0].read_text()
        assert "epochs of batch 50" not in run.logs[1].read_text()
