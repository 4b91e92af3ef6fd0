"""Archives from anywhere: read whole, or refused in one kind of error."""

import io
import pickle
import zipfile

import numpy as np
import pytest

from rs_keras import BallMemory
from rs_keras import _npz
from rs_keras import teacher
from rs_keras.datasets import readers
from rs_keras.trainers.runs import snapshot_file


def archive(**arrays):
    file = io.BytesIO()
    np.savez_compressed(file, **arrays)
    return file.getvalue()


def damaged(data, rng):
    """Some bytes changed, cut off or put in."""
    data = bytearray(data)
    kind = rng.integers(4)
    at = int(rng.integers(len(data)))
    if kind == 0:
        data[at] ^= 1 << int(rng.integers(8))
    elif kind == 1:
        del data[at:]
    elif kind == 2:
        data[at : at + 8] = rng.bytes(8)
    else:
        data[at:at] = rng.bytes(int(rng.integers(1, 20)))
    return bytes(data)


READERS = {
    "snapshot": (
        archive(state='{"format": 2}', a=np.arange(9.0)),
        lambda path: snapshot_file.read(path, path.read_bytes()),
    ),
    "soft labels": (
        archive(soft_label=np.full([5, 2], 0.5), settings="{}"),
        teacher.read_labels,
    ),
    "ball memory": (
        archive(
            format=np.array(2),
            strict=np.array(True),
            shape=np.array([2, 2, 1]),
            labels=np.array([1]),
            radii=np.array([0.5]),
            images_0=np.zeros([1, 4], np.float32),
        ),
        lambda path: BallMemory.load(path, lambda image: (0, 0.0)),
    ),
    "images": (
        archive(images=np.zeros([5, 4, 4, 1], np.uint8), labels=np.arange(5)),
        lambda path: readers.npz_source(path, "test"),
    ),
}


@pytest.mark.parametrize("name", READERS)
def test_damaged_archives_are_refused_or_read(name, tmp_path):
    """300 of each: never another error than the one that callers expect."""
    whole, read = READERS[name]
    path = tmp_path / "file.npz"
    path.write_bytes(whole)
    read(path)
    rng = np.random.default_rng(0)
    refused = 0
    for _ in range(300):
        path.write_bytes(damaged(whole, rng))
        try:
            read(path)
        except ValueError as error:
            assert str(path) in str(error)
            refused += 1
    assert refused > 100


class Bomb:
    def __reduce__(self):
        return exec, ("raise Exception('executed')",)


def archive_of_a_pickle():
    """An array of objects under every name that a reader asks for."""
    objects = io.BytesIO()
    np.lib.format.write_array(objects, np.array([Bomb()], object))
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as whole:
        for name in ("state", "soft_label", "format", "images", "labels"):
            whole.writestr(f"{name}.npy", objects.getvalue())
    return file.getvalue()


@pytest.mark.parametrize("name", READERS)
def test_nothing_in_a_file_is_executed(name, tmp_path):
    path = tmp_path / "file.npz"
    for data in (pickle.dumps(Bomb()), archive_of_a_pickle()):
        path.write_bytes(data)
        with pytest.raises(ValueError) as caught:
            READERS[name][1](path)
        assert "executed" not in str(caught.value)


def test_a_missing_file_is_an_oserror(tmp_path):
    with pytest.raises(FileNotFoundError, match="gone.npz"):
        with _npz.opened(tmp_path / "gone.npz", "no votes"):
            pass


def test_one_array_is_no_archive():
    file = io.BytesIO()
    np.save(file, np.zeros(3))
    with pytest.raises(ValueError, match="no votes: it holds one array"):
        with _npz.opened(file.getvalue(), "no votes"):
            pass
