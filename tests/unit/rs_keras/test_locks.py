"""Locks of files and folders, and what is removed for lack of one."""

import subprocess
import sys

import pytest

from rs_keras import _atomic_files
from rs_keras._atomic_files import written_whole
from rs_keras._locks import only_writer

# Holds a lock on what its argument names, until its input ends.
HOLDER = """
import fcntl, os, sys
handle = os.open(sys.argv[1], os.O_RDONLY)
fcntl.flock(handle, fcntl.LOCK_EX)
print("locked", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def holder():
    """Starts another process that locks a path."""
    processes = []

    def start(path):
        process = subprocess.Popen(
            [sys.executable, "-c", HOLDER, str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        processes.append(process)
        assert process.stdout.readline() == b"locked\n"
        return process

    yield start
    for process in processes:
        process.kill()
        process.communicate()


@pytest.fixture(autouse=True)
def first_start(monkeypatch):
    monkeypatch.setattr(_atomic_files, "_tidied", set())


def test_a_folder_has_one_writer(tmp_path, holder):
    other = holder(tmp_path)
    with pytest.raises(BlockingIOError, match="written by another process"):
        with only_writer(tmp_path):
            pass
    other.kill()
    other.wait()
    with only_writer(tmp_path):
        pass


def test_what_killed_processes_left_is_removed(tmp_path, holder):
    """But neither what is being written, nor files of other names."""
    dead, living = tmp_path / ".writing.a.npz", tmp_path / ".writing.b.npz"
    own = tmp_path / "writing.txt"
    for path in (dead, living, own):
        path.write_text("half of it")
    holder(living)
    with written_whole(tmp_path / "new.txt") as temporary:
        assert temporary.exists()
        temporary.write_text("all of it")
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == [".writing.b.npz", "new.txt", "writing.txt"]


def test_what_this_process_is_writing_stays(tmp_path, monkeypatch):
    with written_whole(tmp_path / "one.txt") as one:
        one.write_text("1")
        monkeypatch.setattr(_atomic_files, "_tidied", set())
        with written_whole(tmp_path / "two.txt") as two:
            two.write_text("2")
        assert one.exists()
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["one.txt", "two.txt"]


def test_folders_that_were_left_are_removed(tmp_path, holder):
    dead, living = tmp_path / "tmp.1.a", tmp_path / "tmp.2.b"
    for folder in (dead, living):
        folder.mkdir()
        (folder / "weights").write_text("half of them")
    holder(living)
    _atomic_files.remove_left_over(tmp_path, "tmp.*")
    assert list(tmp_path.iterdir()) == [living]


def test_without_locks_nothing_is_removed(tmp_path, monkeypatch):
    def no_locks(*_):
        raise OSError("not supported")

    monkeypatch.setattr("fcntl.flock", no_locks)
    (tmp_path / ".writing.a").write_text("whose is it?")
    with written_whole(tmp_path / "new.txt") as temporary:
        temporary.write_text("all of it")
    assert (tmp_path / ".writing.a").exists()
    with only_writer(tmp_path), only_writer(tmp_path):
        pass
