"""Certifying a data set in shards, and one log of them."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from rs_keras import CertificationLog
from rs_keras import Certifier
from rs_keras import certify_dataset
from rs_keras.cli import main
from rs_keras.logs import decide_dataset
from rs_keras.logs.writer import merge_files

CALL = {"n0": 10, "n": 100, "seed": 9, "progress": False}


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(5)
    images = rng.uniform(size=(23, 4, 4, 1)).astype(np.float32)
    labels = rng.integers(0, 2, 23)
    return tf.data.Dataset.from_tensor_slices((images, labels))


@pytest.fixture(scope="module")
def folder(data, tmp_path_factory):
    """A folder of the whole log and of its three shards."""
    from kits.linear import Linear

    place = tmp_path_factory.mktemp("shards")
    certifier = Certifier(Linear(), sigma=0.5)
    call = {"skip": 2, "max_examples": 10, **CALL}
    certify_dataset(certifier, data, place / "whole.tsv", **call)
    for i in range(3):
        path = place / f"{i}.tsv"
        certify_dataset(certifier, data, path, shard=(i, 3), **call)
    other = place / "other.tsv"
    certify_dataset(certifier, data, other, shard=(1, 3), **{**call, "n": 99})
    return place


def read(folder, *names):
    return [CertificationLog.read(folder / f"{name}.tsv") for name in names]


def test_shards_are_the_log_of_one(folder):
    whole, *shards = read(folder, "whole", 0, 1, 2)
    assert [len(shard) for shard in shards] == [4, 3, 3]
    assert shards[1].idx.tolist() == [2, 8, 14]
    merged = CertificationLog.merge(reversed(shards), "all", examples=10)
    for column in ("idx", "label", "predict", "radius", "correct"):
        wanted = getattr(whole, column)
        np.testing.assert_array_equal(getattr(merged, column), wanted)
    np.testing.assert_array_equal(merged.extra["n"], whole.extra["n"])
    assert merged.name == "all"
    assert merged.settings == whole.settings


def test_files_are_merged_line_by_line(folder, tmp_path, capsys):
    out = tmp_path / "new" / "all.tsv"
    shards = [str(folder / f"{i}.tsv") for i in (1, 2, 0)]
    assert main(["merge", *shards, "--out", str(out)]) == 0
    assert "10 examples of 3 shards" in capsys.readouterr().out
    lines = sorted(
        line
        for shard in shards
        for line in Path(shard).read_text().splitlines()[1:]
    )
    assert sorted(out.read_text().splitlines()[1:]) == lines
    idx = CertificationLog.read(out).idx
    assert idx.tolist() == list(range(0, 20, 2))
    assert main(["merge", *shards, "--out", str(out)]) == 2
    assert "exists: choose" in capsys.readouterr().err


@pytest.mark.parametrize(
    "names, message",
    [
        ([], "`logs` must hold at least one"),
        ([0, 1], r"all shards, each once: \[0, 1, 2\]. Received: \[0, 1\]"),
        ([0, 1, 1], r"Received: \[0, 1, 1\]"),
        ([0, "other", 2], "same settings.*n: stored 100, given 99"),
        (["whole", 1, 2], "must be shards.*whole"),
    ],
    ids=["none", "missing", "twice", "settings", "whole"],
)
def test_logs_that_are_not_the_shards_of_one(folder, names, message):
    with pytest.raises(ValueError, match=message):
        CertificationLog.merge(read(folder, *names))


def test_shards_of_two_data_sets(linear, data, folder, tmp_path, capsys):
    """Shard 1 of images in another order: no example is in two shards."""
    certifier = Certifier(linear, sigma=0.5)
    other = list(data)[::-1]
    path = tmp_path / "1.tsv"
    call = {"skip": 2, "max_examples": 10, "shard": (1, 3), **CALL}
    certify_dataset(certifier, other, path, **call)
    shards = [folder / "0.tsv", path, folder / "2.tsv"]
    with pytest.raises(ValueError, match="same data set. Example 0 differs"):
        CertificationLog.merge(map(CertificationLog.read, shards))
    out = tmp_path / "all.tsv"
    assert main(["merge", *map(str, shards), "--out", str(out)]) == 2
    assert "Example 0 differs between 0 (hash " in capsys.readouterr().err
    assert not out.exists()


def test_merged_lines_keep_their_hashes(folder, tmp_path):
    out = tmp_path / "all.tsv"
    log = merge_files([folder / f"{i}.tsv" for i in range(3)], out)
    whole = read(folder, "whole")[0]
    for found in (log, CertificationLog.read(out)):
        assert found.settings["first_example"] == whole.extra["example"][0]
        assert found.extra["example"].tolist() == (
            whole.extra["example"].tolist()
        )


def test_radii_of_merged_decisions_are_those_asked_for(linear, data, tmp_path):
    certifier = Certifier(linear, sigma=0.5)
    paths = [tmp_path / f"{i}.tsv" for i in range(2)]
    for i, path in enumerate(paths):
        decide_dataset(
            certifier,
            data,
            path,
            radius=128 / 255,
            n_max=1_000,
            seed=1,
            shard=(i, 2),
            progress=False,
        )
    merged = merge_files(paths, tmp_path / "all.tsv")
    for log in (merged, CertificationLog.read(tmp_path / "all.tsv")):
        assert set(log.radius.tolist()) == {0.0, 128 / 255}
        assert log.certified_accuracy(128 / 255) == log.accuracy > 0


@pytest.mark.parametrize(
    "lines, examples, message",
    [
        (3, None, r"no gaps.*Missing: 14"),
        (4, 11, r"no gaps.*Missing: 20"),
        (4, 9, r"every 2-th of 9 examples, no others.*also: 18"),
    ],
    ids=["stopped", "too_few", "too_many"],
)
def test_shards_with_gaps_are_not_merged(
    folder, tmp_path, lines, examples, message
):
    for i in range(3):
        shutil.copy(folder / f"{i}.tsv", tmp_path)
        shutil.copy(folder / f"{i}.tsv.json", tmp_path)
    text = (folder / "1.tsv").read_text().splitlines(True)
    (tmp_path / "1.tsv").write_text("".join(text[:lines]))
    paths = [tmp_path / f"{i}.tsv" for i in range(3)]
    with pytest.raises(ValueError, match=message):
        merge_files(paths, tmp_path / "all.tsv", examples)
    assert not (tmp_path / "all.tsv").exists()


def test_shards_that_overlap_are_not_merged(folder):
    shards = read(folder, 0, 1, 2)
    double = CertificationLog(
        **{
            column: np.concatenate([getattr(shard, column)[:1], values])
            for shard in shards[:1]
            for column, values in vars(shards[1]).items()
            if column in ("idx", "label", "predict", "radius", "correct")
        },
        time=np.zeros(4),
        settings=shards[1].settings,
        extra={name: np.full(4, 1e5) for name in shards[0].extra},
    )
    with pytest.raises(ValueError, match="must not overlap. Twice: 0"):
        CertificationLog.merge([shards[0], double, shards[2]])


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"shard": (3, 3)}, r"0 <= i < m. Received: \(3, 3\)"),
        ({"shard": (-1, 3)}, "0 <= i < m"),
        ({"shard": (0, 0)}, r"`shard\[1\]` must be"),
        ({"shard": (0, 2), "seed": None}, "`seed` must be given for a shard"),
    ],
    ids=["high", "low", "none", "seed"],
)
def test_bad_shards_are_refused(linear, data, tmp_path, arguments, message):
    certifier = Certifier(linear, sigma=0.5)
    with pytest.raises(ValueError, match=message):
        certify_dataset(
            certifier, data, tmp_path / "x.tsv", **{**CALL, **arguments}
        )
    assert not (tmp_path / "x.tsv").exists()
