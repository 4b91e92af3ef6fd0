"""Oracles: the authors' published logs, sums by hand, a killed process."""

import errno
import json
import math
import os
import signal
import subprocess
import sys
from fractions import Fraction

import numpy as np
import pytest

from rs_keras.log import CertificationLog
from rs_keras.log import LogWriter
from rs_keras.log import read_settings

HEADER = "idx\tlabel\tpredict\tradius\tcorrect\ttime\n"
ROWS = (
    "0\t7\t7\t1.5\t1\t0:00:01.500000\n"
    "20\t2\t2\t0.5\t1\t15.4\n"
    "40\t1\t8\t0.75\t0\t2\n"
    "60\t0\t-1\t0.0\t0\t1 day, 1:00:00\n"
)
SETTINGS = {"sigma": 0.5, "n": 1000, "alpha": 0.001}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "log.tsv"


def written(path, text):
    path.write_text(text)
    return path


def reference_entries(shared):
    expected = json.loads(
        (shared / "reference_logs" / "expected.json").read_text()
    )
    yield from expected["logs"].items()
    for group in expected["cifar10c"].values():
        yield from group["logs"].items()


class TestReferenceLogs:
    def test_give_the_expected_values(self, shared):
        count = 0
        for name, wanted in reference_entries(shared):
            log = CertificationLog.read(shared / "reference_logs" / name)
            shares = wanted["certified_accuracy"]
            radii = [float(radius) for radius in shares]
            assert len(log) == wanted["rows"], name
            assert log.correct.sum() == wanted["correct"], name
            assert (log.predict == -1).sum() == wanted["abstentions"], name
            assert log.acr() == pytest.approx(wanted["acr"], rel=1e-12), name
            np.testing.assert_allclose(
                log.certified_accuracy(radii),
                list(shares.values()),
                rtol=1e-12,
                err_msg=name,
            )
            largest = wanted.get("max_radius", log.radius.max())
            assert log.radius.max() == largest, name
            assert np.unique(np.diff(log.idx)) == [wanted["idx_step"]], name
            assert not log.settings
            assert log.bound_form is None
            count += 1
        assert count == 53

    def test_corruption_means(self, shared):
        expected = json.loads(
            (shared / "reference_logs" / "expected.json").read_text()
        )
        for group in expected["cifar10c"].values():
            logs = [
                CertificationLog.read(shared / "reference_logs" / name)
                for name in group["logs"]
            ]
            mean = np.mean([log.accuracy for log in logs])
            assert mean == pytest.approx(group["mAcc"], rel=1e-12)
            mean = np.mean([log.acr() for log in logs])
            assert mean == pytest.approx(group["mACR"], rel=1e-12)


class TestMeasures:
    def test_by_hand(self, path):
        log = CertificationLog.read(written(path, HEADER + ROWS))
        # Correct: radii 1.5 and 0.5 of four examples.
        assert log.acr() == (1.5 + 0.5) / 4
        assert log.accuracy == 0.5
        assert log.abstention_rate() == 0.25
        np.testing.assert_array_equal(
            log.certified_accuracy([0, 0.5, 0.51, 1.5, 2]),
            [0.5, 0.5, 0.25, 0.25, 0],
        )
        assert log.certified_accuracy(0.75) == 0.25
        np.testing.assert_array_equal(log.time, [1.5, 15.4, 2, 90_000])
        assert log.name == "log"

    def test_acr_is_the_area_under_the_curve(self, path):
        log = CertificationLog.read(written(path, HEADER + ROWS))
        radii = np.arange(0, 2, 1e-3) + 5e-4
        area = log.certified_accuracy(radii).sum() * 1e-3
        assert log.acr() == pytest.approx(area, abs=1e-3)

    def test_high_probability_by_hand(self, path):
        rows = [f"{i}\t1\t1\t0.5\t1\t0\n" for i in range(1000)]
        log = CertificationLog.read(written(path, HEADER + "".join(rows)))
        # Nearly Poisson(1): more than 4 with probability .0037, more than 5
        # with .0006.
        found = log.certified_accuracy([0.25, 0.75], rho=1e-3, alpha=1e-3)
        np.testing.assert_allclose(found, [1 - 5 / 1000, 0], rtol=1e-12)

    @pytest.mark.parametrize("rho", [0.5, 1e-3, 1e-6])
    @pytest.mark.parametrize("alpha", [0.001, 0.05])
    @pytest.mark.parametrize("m", [1, 50, 400])
    def test_high_probability_fails_as_seldom_as_told(self, m, alpha, rho):
        """Nothing is certified, each certificate is false with alpha: exactly.

        The bound is wrong where it is above 0: of so many false ones.
        """

        def share(count):
            i, half, zero = np.arange(m), np.full(m, 0.5), np.zeros(m)
            predict = np.where(i < count, 0, 1)
            log = CertificationLog(i, zero, predict, half, i < count, zero)
            return log.certified_accuracy(0.25, rho=rho, alpha=alpha)

        p = Fraction(str(alpha))
        exact = [
            math.comb(m, k) * p**k * (1 - p) ** (m - k) for k in range(m + 1)
        ]
        first = next((k for k in range(m + 1) if share(k) > 0), m + 1)
        assert sum(exact[first:]) <= Fraction(str(rho))
        # With one false certificate less allowed for, it would be more.
        assert first == 1 or sum(exact[first - 1 :]) > Fraction(str(rho))

    def test_high_probability_needs_an_alpha(self, path):
        log = CertificationLog.read(written(path, HEADER + ROWS))
        with pytest.raises(ValueError, match="`alpha` must be given"):
            log.certified_accuracy([0.0], rho=1e-3)
        with pytest.raises(ValueError, match="`rho` must be in"):
            log.certified_accuracy([0.0], rho=0.0, alpha=1e-3)

    @pytest.mark.parametrize("radius", [-0.1, float("nan"), float("inf")])
    def test_radii_are_checked(self, path, radius):
        log = CertificationLog.read(written(path, HEADER + ROWS))
        with pytest.raises(ValueError, match="`radii` must be >= 0"):
            log.certified_accuracy([0.0, radius])

    def test_no_examples(self, path):
        log = CertificationLog.read(written(path, HEADER))
        assert len(log) == 0
        for measure in (log.acr, log.abstention_rate):
            with pytest.raises(ValueError, match="log holds no example"):
                measure()
        with pytest.raises(ValueError, match="log holds no example"):
            log.certified_accuracy([0.0])

    def test_envelope_is_the_best_log_at_each_radius(self, path):
        near = HEADER + "0\t1\t1\t0.9\t1\t0\n1\t1\t1\t0.9\t1\t0\n"
        far = HEADER + "0\t1\t1\t1.8\t1\t0\n1\t1\t-1\t0\t0\t0\n"
        logs = [CertificationLog.read(written(path, t)) for t in (near, far)]
        found = CertificationLog.envelope(logs)
        np.testing.assert_array_equal(
            found.certified_accuracy([0, 0.9, 1.0, 1.8, 2]),
            [1, 1, 0.5, 0.5, 0],
        )
        with pytest.raises(ValueError, match="at least one log"):
            CertificationLog.envelope([])

    def test_columns_must_match(self):
        with pytest.raises(ValueError, match="`label` must be a vector as"):
            CertificationLog([0, 1], [1], [1, 1], [0, 0], [1, 1], [0, 0])


class TestReading:
    def test_further_columns_are_kept(self, path):
        text = (
            "idx\tsigma\tlabel\tpredict\tradius\tcorrect\ttime\tfile\n"
            "0\t0.25\t1\t1\t0.5\t1\t3\ta.png\n"
            "1\t0.5\t1\t1\t0.5\t1\t3\tb.png\n"
        )
        log = CertificationLog.read(written(path, text))
        np.testing.assert_array_equal(log.extra["sigma"], [0.25, 0.5])
        assert log.extra["file"].tolist() == ["a.png", "b.png"]

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            pytest.param("", "line 1: the header is missing", id="empty"),
            pytest.param("idx,label\n0,1\n", "line 1: not a certif", id="csv"),
            pytest.param(
                HEADER.replace("radius", "r"), "missing: radius", id="column"
            ),
            pytest.param(
                HEADER[:-1] + "\tidx\n", "a column is named twice", id="twice"
            ),
            pytest.param(
                HEADER + ROWS[:10], "line 2: cut off, it does", id="first-line"
            ),
            pytest.param(
                HEADER + ROWS[:-3], "line 5: cut off, it does", id="last-line"
            ),
            pytest.param(
                HEADER + ROWS[:-1], "line 5: cut off, it does", id="last-byte"
            ),
            pytest.param(
                HEADER + "0\t7\t7\t1.5\t1\n" + ROWS,
                "line 2: must have 6 tab-separated columns",
                id="short-line",
            ),
            pytest.param(
                HEADER + "0\t7\t7\tx\t1\t1\n",
                "line 2: `radius` must be a finite number >= 0. Received: 'x'",
                id="no-number",
            ),
            pytest.param(
                HEADER + "0\t7\t7\tnan\t1\t1\n", "`radius` must", id="nan"
            ),
            pytest.param(
                HEADER + "0\t7\t7\t-1\t1\t1\n", "`radius` must", id="negative"
            ),
            pytest.param(
                HEADER + "0\t7\t7\t1\t2\t1\n", "`correct` must be 0", id="two"
            ),
            pytest.param(
                HEADER + "0\t7\t6\t1\t1\t1\n",
                "`correct` must be 0 unless `predict` is `label`",
                id="not-correct",
            ),
            pytest.param(
                HEADER + "0\t7\t-2\t1\t0\t1\n", "`predict` must", id="class"
            ),
            pytest.param(
                HEADER + "-1\t7\t7\t1\t1\t1\n", "`idx` must", id="idx"
            ),
            pytest.param(
                HEADER + "0\t7\t7\t1\t1\t1:75:00\n", "`time` must", id="clock"
            ),
            pytest.param(
                HEADER + ROWS + "20\t2\t2\t0.5\t1\t15.4\n",
                "line 6: `idx` must be in one row only. Received: idx=20",
                id="again",
            ),
        ],
    )
    def test_what_is_wrong_is_said(self, path, text, message):
        with pytest.raises(ValueError) as error:
            CertificationLog.read(written(path, text))
        assert message in str(error.value)
        assert str(path) in str(error.value)

    def test_binary_files(self, path):
        path.write_bytes(b"\x89PNG\r\n\x1a\n\xff\xfe\n")
        with pytest.raises(ValueError, match="not a text file"):
            CertificationLog.read(path)

    @pytest.mark.parametrize("cut", range(len(ROWS)))
    def test_recover_keeps_whole_lines(self, path, cut):
        log = CertificationLog.read(
            written(path, HEADER + ROWS[:cut]), recover=True
        )
        assert len(log) == ROWS[:cut].count("\n")

    def test_line_breaks_of_windows(self, path):
        path.write_bytes((HEADER + ROWS).replace("\n", "\r\n").encode())
        assert len(CertificationLog.read(path)) == 4

    def test_settings_that_are_none(self, path):
        written(path, HEADER + ROWS)
        sidecar = path.with_name("log.tsv.json")
        sidecar.write_text("{")
        with pytest.raises(ValueError, match="json: not a JSON file"):
            CertificationLog.read(path)
        sidecar.write_text("[]")
        with pytest.raises(ValueError, match="must hold a JSON object"):
            CertificationLog.read(path)


class TestWriting:
    def test_what_is_written_is_read(self, path):
        settings = {**SETTINGS, "bound": "clopper_pearson", "runner_up": True}
        settings["n"] = 10_000
        with LogWriter(path, settings, extra=["n_used"]) as writer:
            writer.write(3, 7, 7, 1.25, 0.5, n_used=400)
            writer.write(4, 7, 2, 0.5, 0.25, n_used=100)
            writer.write(5, 7, -1, 0.0, 0.125, n_used=100)
            # Flushed: another reader sees it before the writer closes.
            log = CertificationLog.read(path)
        np.testing.assert_array_equal(log.idx, [3, 4, 5])
        np.testing.assert_array_equal(log.radius, [1.25, 0.5, 0])
        np.testing.assert_array_equal(log.correct, [True, False, False])
        np.testing.assert_array_equal(log.time, [0.5, 0.25, 0.125])
        np.testing.assert_array_equal(log.extra["n_used"], [400, 100, 100])
        assert log.settings == settings
        assert log.bound_form == "clopper_pearson, runner-up"

    def test_unknown_labels_are_never_correct(self, path):
        with LogWriter(path, SETTINGS) as writer:
            writer.write(0, -1, -1, 0.0, 0.0)
        assert not CertificationLog.read(path).correct.any()

    def test_radii_are_rounded_down(self, path):
        radii = [1e-7, 0.1234565, 1.9999999, 0.3, 2 / 3, 0.1 + 0.2]
        radii += [np.nextafter(0.123457, 0), np.nextafter(0.7, 1)]
        with LogWriter(path, SETTINGS) as writer:
            for idx, radius in enumerate(radii):
                writer.write(idx, 1, 1, radius, 0.0)
        texts = [r.split("\t")[3] for r in path.read_text().splitlines()[1:]]
        for text, radius in zip(texts, radii, strict=True):
            assert 0 <= float(radius) - float(text) < 1e-6
        assert (CertificationLog.read(path).radius <= radii).all()

    def test_resumes(self, path):
        with LogWriter(path, SETTINGS) as writer:
            assert writer.done == set()
            assert len(writer.previous) == 0
            writer.write(0, 7, 7, 1.5, 0.0)
            writer.write(20, 7, 7, 0.5, 0.0)
        whole = path.read_bytes()
        path.write_bytes(whole + b"40\t7\t7\t0.")
        with LogWriter(path, SETTINGS) as writer:
            assert writer.done == {0, 20}
            np.testing.assert_array_equal(writer.previous.radius, [1.5, 0.5])
            assert path.read_bytes() == whole
            writer.write(40, 7, 7, 0.75, 0.0)
            with pytest.raises(ValueError, match="`idx` must be new to the"):
                writer.write(20, 7, 7, 0.5, 0.0)
        assert path.read_bytes().startswith(whole)
        assert CertificationLog.read(path).idx.tolist() == [0, 20, 40]

    def test_two_cannot_write_one_log(self, path):
        with LogWriter(path, SETTINGS) as writer:
            writer.write(0, 7, 7, 1.5, 0.0)
            with pytest.raises(OSError, match="written by another process"):
                LogWriter(path, SETTINGS)
            writer.write(20, 7, 7, 1.5, 0.0)
        with LogWriter(path, SETTINGS) as writer:
            assert writer.done == {0, 20}

    def test_a_file_system_without_locks(self, path, monkeypatch):
        def flock(file, how):
            raise OSError(errno.ENOLCK, "No locks available")

        monkeypatch.setattr("fcntl.flock", flock)
        with LogWriter(path, SETTINGS) as writer:
            writer.write(0, 7, 7, 1.5, 0.0)
        assert len(CertificationLog.read(path)) == 1

    def test_settings_compare_as_they_are_read_back(self, path):
        settings = {"seed": np.int64(7), "shape": (28, 28), "p": np.ones(2)}
        for _ in range(2):
            with LogWriter(path, settings):
                pass
        assert read_settings(path) == {
            "seed": 7,
            "shape": [28, 28],
            "p": [1, 1],
        }

    def test_other_settings_are_refused_by_name(self, path):
        with LogWriter(path, {**SETTINGS, "seed": 7}) as writer:
            writer.write(0, 7, 7, 1.5, 0.0)
        before = path.read_bytes(), path.with_name("log.tsv.json").read_bytes()
        with pytest.raises(ValueError) as error:
            LogWriter(path, {**SETTINGS, "sigma": 0.25, "noise": "grid"})
        message = str(error.value)
        assert 'noise: not set there, "grid" now' in message
        assert "seed: 7 there, not set now" in message
        assert "sigma: 0.5 there, 0.25 now" in message
        assert "alpha" not in message
        after = path.read_bytes(), path.with_name("log.tsv.json").read_bytes()
        assert before == after

    def test_a_log_without_examples_may_change_its_settings(self, path):
        with LogWriter(path, SETTINGS):
            pass
        with LogWriter(path, {"sigma": 1.0}, extra=["n_used"]) as writer:
            writer.write(0, 1, 1, 0.5, 0.0, n_used=7)
        log = CertificationLog.read(path)
        assert log.settings == {"sigma": 1.0}
        assert log.extra["n_used"].tolist() == [7]

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            pytest.param(HEADER + ROWS, "no settings beside it", id="foreign"),
            pytest.param("a,b\n1,2\n", "not a certification log", id="csv"),
            pytest.param("my notes", "is no certification log", id="one-line"),
            pytest.param(HEADER + "x\n" + ROWS, "line 2: must have", id="bad"),
        ],
    )
    def test_other_files_are_left_alone(self, path, text, message):
        written(path, text)
        with pytest.raises(ValueError, match=message):
            LogWriter(path, SETTINGS)
        assert path.read_text() == text

    @pytest.mark.parametrize("cut", [0, 5, len(HEADER) - 1])
    def test_a_cut_header_is_begun_again(self, path, cut):
        written(path, HEADER[:cut])
        with LogWriter(path, SETTINGS) as writer:
            writer.write(0, 1, 1, 0.5, 0.0)
        assert len(CertificationLog.read(path)) == 1

    def test_other_columns_are_refused(self, path):
        with LogWriter(path, SETTINGS) as writer:
            writer.write(0, 1, 1, 0.5, 0.0)
        with pytest.raises(ValueError, match="has other columns"):
            LogWriter(path, SETTINGS, extra=["n_used"])

    @pytest.mark.parametrize(
        ("values", "message"),
        [
            ({"radius": float("nan")}, "`radius` must be >= 0"),
            ({"radius": float("inf")}, "`radius` must be >= 0"),
            ({"radius": -0.1}, "`radius` must be >= 0"),
            ({"n_used": 5}, "`extra` must name the columns"),
        ],
        ids=["nan", "inf", "negative", "column"],
    )
    def test_values_are_checked(self, path, values, message):
        row = {"idx": 0, "label": 1, "predict": 1, "radius": 0.5, "time": 0.0}
        with LogWriter(path, SETTINGS) as writer:
            with pytest.raises(ValueError, match=message):
                writer.write(**{**row, **values})
        assert path.read_text() == HEADER

    @pytest.mark.parametrize("value", [object(), float("nan")])
    def test_settings_must_be_json(self, path, value):
        with pytest.raises(ValueError, match="`settings` must hold JSON"):
            LogWriter(path, {"x": value})
        assert not path.exists()

    def test_folders_are_made_and_nothing_else_is_left(self, tmp_path):
        path = tmp_path / "runs" / "a" / "log.tsv"
        with LogWriter(path, SETTINGS):
            pass
        assert sorted(os.listdir(path.parent)) == ["log.tsv", "log.tsv.json"]

    def test_a_folder_in_the_way(self, tmp_path):
        with pytest.raises(OSError):
            LogWriter(tmp_path, SETTINGS)

    @pytest.mark.skipif(os.name != "posix", reason="needs SIGKILL")
    def test_a_killed_process_loses_one_example_at_most(self, path):
        script = (
            "import itertools, sys\n"
            "from rs_keras.log import LogWriter\n"
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
