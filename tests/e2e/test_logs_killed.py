"""Certifications and log writers that are killed, and what the logs hold."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import time

import numpy as np

from rs_keras import CertificationLog

CERTIFY = textwrap.dedent(
    """
    import signal, sys, time
    import numpy as np
    import tensorflow as tf
    from rs_keras import Certifier, certify_dataset

    # Ignored in what a shell starts in the background.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    rng = np.random.default_rng(5)
    images = rng.uniform(size=(30, 4, 4, 1)).astype(np.float32)
    labels = rng.integers(0, 2, 30)
    kernel = rng.normal(size=(4, 4, 1)).astype(np.float32)

    def model(x):
        score = tf.reduce_sum((x - 0.5) * kernel, [1, 2, 3])
        return tf.stack([-score, score], -1)

    certify_dataset(
        Certifier(model, sigma=0.5, batch_size=50),
        tf.data.Dataset.from_tensor_slices((images, labels)),
        sys.argv[1], seed=3, n=20_000, progress=False,
    )
    """
)


def lines_of(path):
    return len(path.read_text().splitlines()) if path.exists() else 0


def test_a_certification_killed_twice_ends_with_the_same_log(
    tmp_path, monkeypatch
):
    def certify_here(path):
        monkeypatch.setattr(sys, "argv", ["certify", str(path)])
        exec(compile(CERTIFY, "certify", "exec"), {"__name__": "__main__"})

    killed = tmp_path / "killed.tsv"
    for sign in (signal.SIGKILL, signal.SIGINT):
        process = subprocess.Popen(
            [sys.executable, "-c", CERTIFY, str(killed)],
            env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
            stderr=subprocess.PIPE,
        )
        deadline, before = time.monotonic() + 60, lines_of(killed)
        while lines_of(killed) < before + 4 and time.monotonic() < deadline:
            time.sleep(0.02)
        # Again and again: one that comes while Python destroys an object is
        # printed and forgotten.
        while process.poll() is None:
            process.send_signal(sign)
            time.sleep(0.2)
        process.communicate(timeout=60)
        assert process.returncode != 0
    with open(killed, "a") as file:
        # As if the kill had come in the middle of a line.
        file.write("29\t1\t")
    whole = tmp_path / "whole.tsv"
    for path in (killed, whole):
        certify_here(path)
    a, b = CertificationLog.read(whole), CertificationLog.read(killed)
    for column in ("idx", "label", "predict", "radius", "correct"):
        np.testing.assert_array_equal(getattr(a, column), getattr(b, column))
    assert json.loads((tmp_path / "whole.tsv.json").read_text()) == json.loads(
        (tmp_path / "killed.tsv.json").read_text()
    )


def test_a_killed_log_writer_loses_one_example_at_most(tmp_path):
    path = tmp_path / "log.tsv"
    script = (
        "import itertools, sys\n"
        "from rs_keras.logs import LogWriter\n"
        f"writer = LogWriter({str(path)!r}, {{'n': 5}})\n"
        "for idx in itertools.count(max(writer.done, default=-1) + 1):\n"
        "    writer.write(idx, 1, 1, 0.5, 0.0)\n"
        "    print(idx, flush=True)\n"
    )
    said = -1
    for _ in range(2):
        process = subprocess.Popen(
            [sys.executable, "-c", script], stdout=subprocess.PIPE
        )
        with process:
            for _ in range(50):
                said = int(process.stdout.readline())
            process.send_signal(signal.SIGKILL)
            rest = process.stdout.read().split(b"\n")[:-1]
        said = int(rest[-1]) if rest else said
        log = CertificationLog.read(path, recover=True)
        assert len(log) in (said + 1, said + 2)
        assert log.idx.tolist() == list(range(len(log)))
