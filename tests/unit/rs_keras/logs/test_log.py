"""Oracles: the authors' published logs, sums by hand, a killed process."""

import errno
import json
import math
import os
import zlib
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from rs_keras.logs import CertificationLog
from rs_keras.logs import LogWriter
from rs_keras.logs import read_settings
from rs_keras.logs.rules import largest_radius

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


# Every example is certified at most within 1.2316 = 0.5 * 2.4633.
LIMITED = {
    **SETTINGS,
    "bound": "clopper_pearson",
    "runner_up": False,
    "skip": 20,
}


class TestRules:
    """The same ones for a file and for columns in memory."""

    @pytest.mark.parametrize(
        ("column", "text", "value", "message"),
        [
            ("radius", "nan", math.nan, "`radius` must be a finite number"),
            ("radius", "inf", math.inf, "`radius` must be a finite number"),
            ("radius", "1e400", math.inf, "`radius` must be a finite number"),
            ("radius", "-0.5", -0.5, "`radius` must be a finite number >= 0"),
            ("radius", "1.231633", 1.231633, "`radius` must be <= 1.231631"),
            ("correct", "0", 0, "`correct` must be 1 where `predict` is"),
            ("correct", "2", 2, "`correct` must be 0 or 1"),
            ("predict", "8", 8, "`correct` must be 0 unless `predict` is"),
            ("predict", "-1", -1, "`correct` must be 0 unless `predict` is"),
            ("predict", "-2", -2, "`predict` must be a class number"),
            ("label", "-2", -2, "`label` must be a class number"),
            ("idx", "-20", -20, "`idx` must be a whole number >= 0"),
            ("idx", "30", 30, "`idx` must be a multiple of `skip`, 20"),
            ("idx", "0", 0, "`idx` must be in one row only"),
            ("idx", "1.5", 1.5, "`idx` must be a whole number"),
            ("label", "7.5", 7.5, "`label` must be a whole|a class number"),
            ("idx", str(2**63), 2.0**63, "`idx` must be a whole number"),
            ("time", "-1", -1.0, "`time` must be"),
        ],
    )
    def test_rows_are_named(self, path, column, text, value, message):
        row = {
            "idx": "20",
            "label": "7",
            "predict": "7",
            "radius": "0.5",
            "correct": "1",
            "time": "2.0",
        }
        rows = [{**row, "idx": "0"}, {**row, column: text}]
        lines = ["\t".join(one.values()) + "\n" for one in rows]
        path.write_text(HEADER + "".join(lines))
        path.with_name("log.tsv.json").write_text(json.dumps(LIMITED))
        with pytest.raises(ValueError, match=message) as error:
            CertificationLog.read(path)
        assert f"{path}, line 3: " in str(error.value)
        columns = {name: [float(one)] * 2 for name, one in row.items()}
        columns["idx"] = [0.0, 20.0]
        columns[column][1] = value
        message = message.partition("|")[0]
        with pytest.raises(ValueError, match=message) as error:
            CertificationLog(**columns, settings=LIMITED)
        assert str(error.value).startswith("row 1: ")

    @pytest.mark.parametrize("text", ["1_0", " 7", "7 ", "+7", "٣", "7.0", ""])
    @pytest.mark.parametrize("column", ["idx", "label", "predict"])
    def test_whole_numbers_are_digits(self, path, column, text):
        row = {"idx": "7", "label": "7", "predict": "7"}
        row = {
            **row,
            "radius": "0.5",
            "correct": "1",
            "time": "2",
            column: text,
        }
        path.write_text(HEADER + "\t".join(row.values()) + "\n")
        with pytest.raises(ValueError, match=f"line 2: `{column}` must be a"):
            CertificationLog.read(path)

    @pytest.mark.parametrize("text", ["1_0.5", " 1", "+1", "٣", "0x1", "", "."])
    @pytest.mark.parametrize("column", ["radius", "time"])
    def test_numbers_are_digits(self, path, column, text):
        row = {"idx": "7", "label": "7", "predict": "7"}
        row |= {"radius": "0.5", "correct": "1", "time": "2", column: text}
        path.write_text(HEADER + "\t".join(row.values()) + "\n")
        with pytest.raises(ValueError, match=f"line 2: `{column}` must be"):
            CertificationLog.read(path)

    @pytest.mark.parametrize("text", ["2", "2.", ".5", "2e-3", "1.5E+2"])
    def test_numbers_as_others_write_them(self, path, text):
        path.write_text(f"{HEADER}0\t7\t7\t{text}\t1\t{text}\n")
        log = CertificationLog.read(path)
        assert log.radius.tolist() == log.time.tolist() == [float(text)]

    @pytest.mark.parametrize(
        ("column", "values"),
        [
            ("idx", [False, True]),
            ("idx", ["0", "1"]),
            ("idx", [0, None]),
            ("label", [1j, 1j]),
            ("radius", [True, True]),
            ("radius", ["0.5", "0.5"]),
            ("time", np.array(["2020", "2021"], "datetime64[Y]")),
            ("correct", ["1", "1"]),
        ],
    )
    def test_types_are_named(self, column, values):
        ones = [1, 1]
        columns = dict.fromkeys(HEADER.split(), ones)
        columns |= {"idx": [0, 1], column: values}
        with pytest.raises(ValueError, match=f"`{column}` must hold .* dtype="):
            CertificationLog(**columns)

    @pytest.mark.parametrize(
        ("settings", "limit"),
        [
            # Phi^-1(0.001^(1/1000)), Phi^-1(0.0009^(1/1000)).
            ({}, 0.5 * stats.norm.ppf(0.001 ** (1 / 1000))),
            ({"runner_up": True}, 0.5 * stats.norm.ppf(0.0009 ** (1 / 1000))),
            ({"sigma": 2.0}, 2 * stats.norm.ppf(0.001 ** (1 / 1000))),
            (
                {"bound": "hoeffding"},
                0.5 * stats.norm.ppf(1 - math.sqrt(math.log(1000) / 2000)),
            ),
            (
                {"bound": "bernstein"},
                0.5 * stats.norm.ppf(1 - 7 * math.log(2000) / (3 * 999)),
            ),
            ({"max_radius": 0.7, "tolerance": 0.1}, 0.7),
            ({"n": 1}, 0.0),
            ({"n": 1, "bound": "bernstein"}, 0.0),
            (
                {
                    "sigma": None,
                    "scope": "composition",
                    "router_sigma": 0.5,
                    "expert_sigmas": [0.25, 1.0],
                },
                0.5 * stats.norm.ppf(0.0005 ** (1 / 1000)),
            ),
        ],
        ids=[
            "plain",
            "runner-up",
            "sigma",
            "hoeffding",
            "bernstein",
            "max-radius",
            "one-draw",
            "one-draw-bernstein",
            "composition",
        ],
    )
    def test_radii_that_the_draws_cannot_give(self, settings, limit):
        settings = {**LIMITED, **settings}

        def log(radius):
            ones = [1]
            return CertificationLog(
                [0], ones, ones, [radius], ones, ones, settings=settings
            )

        assert len(log(max(limit - 1e-6, 0))) == 1
        with pytest.raises(ValueError, match="row 0: `radius` must be <= "):
            log(limit + 2e-6)

    def test_limits_are_those_of_the_bounds(self):
        """Said there again, without TensorFlow."""
        from rs_keras import bounds

        for bound in ("clopper_pearson", "hoeffding", "bernstein"):
            for runner_up in (False, True):
                for n in (1, 10, 1_000, 10**6):
                    settings = {"n": n, "bound": bound, "runner_up": runner_up}
                    found = largest_radius({**LIMITED, **settings})
                    wanted = bounds.max_radius(n, 0.001, 0.5, bound, runner_up)
                    assert float(found) == pytest.approx(wanted, abs=1e-9)
        settings = {"n": 1_000, "bound": "joint", "runner_up": True}
        found = largest_radius({**LIMITED, **settings})
        wanted = bounds.max_radius(1_000, 0.001, 0.5, "joint")
        assert wanted <= float(found) < 1.01 * wanted

    def test_each_row_has_the_limit_of_its_sigma(self):
        settings = {**LIMITED, "scope": "per_input_sigma", "sigma": None}
        columns = dict.fromkeys(HEADER.split(), [1, 1]) | {"idx": [0, 20]}
        columns["radius"] = [0.6, 1.2]
        log = CertificationLog(
            **columns, settings=settings, extra={"sigma": [0.25, 0.5]}
        )
        assert len(log) == 2
        with pytest.raises(ValueError, match="row 1: `radius` must be <= 0.61"):
            CertificationLog(
                **columns, settings=settings, extra={"sigma": [0.5, 0.25]}
            )
        with pytest.raises(ValueError, match="row 1: `sigma` must be a finite"):
            CertificationLog(
                **columns, settings=settings, extra={"sigma": [0.5, 0.0]}
            )

    @pytest.mark.parametrize(
        "settings",
        [{"n": "many"}, {"alpha": 2}, {"bound": "none"}, {"runner_up": "no"}],
        ids=str,
    )
    def test_settings_that_limit_radii_are_checked(self, settings):
        ones = [1]
        (name,) = settings
        with pytest.raises(ValueError, match=f"`{name}` must be"):
            CertificationLog([0], *[ones] * 5, settings={**LIMITED, **settings})

    @pytest.mark.parametrize(
        ("radius", "found"),
        [
            (0.50196, 128 / 255),
            (128 / 255, 128 / 255),
            (0.25, 0.25),
            (0.0, None),
            (0.501961, None),
            (0.1, None),
        ],
    )
    def test_decided_radii_are_those_asked_for(self, radius, found):
        ones = [1]
        settings = {"radii": [0.25, 128 / 255]}
        columns = [0], ones, ones, [radius], ones, ones
        if found is not None:
            log = CertificationLog(*columns, settings=settings)
            assert log.radius.tolist() == [found]
            return
        with pytest.raises(ValueError, match="0 or one of the radii asked for"):
            CertificationLog(*columns, settings=settings)

    def test_what_is_not_decided_has_radius_0(self):
        settings = {"radii": [1e-7, 0.25]}
        # 1e-7 is 0.000000 in a file: the label tells it from none.
        log = CertificationLog(
            [0, 1], [1, 1], [1, -1], [0, 0], [1, 0], [1, 1], settings=settings
        )
        assert log.radius.tolist() == [1e-7, 0.0]


class TestChecksums:
    HEADER = [*HEADER.split(), "n", "checksum"]

    @pytest.fixture
    def log(self, path):
        with LogWriter(path, SETTINGS, ["n"], checksum=True) as writer:
            writer.write(0, 7, 7, 0.5, 1.25, n=1100)
            writer.write(20, 2, -1, 0.0, 0.75, n=1100)
        return path.read_bytes()

    def test_by_hand(self, path, log):
        header, first, second = log.decode().splitlines()
        assert header.split("\t") == self.HEADER
        text = f"{header}\n0\t7\t7\t0.500000\t1\t1100"
        assert first.endswith(f"\t{zlib.crc32(text.encode()):08x}")
        text = f"{header}\n20\t2\t-1\t0.000000\t0\t1100"
        assert second.endswith(f"\t{zlib.crc32(text.encode()):08x}")
        assert list(CertificationLog.read(path).extra) == ["n"]

    def test_every_bit_counts_but_those_of_the_time(self, path, log):
        """And those of the word checksum: without it, a log of old."""
        time = [log.index(b"1.25"), log.index(b"0.75")]
        spared = {at + i for at in time for i in range(len("1.250000"))}
        word = log.index(b"checksum")
        spared |= set(range(word, word + len("checksum")))
        wanted = CertificationLog.read(path)
        for at in sorted(set(range(len(log))) - spared):
            for bit in range(8):
                other = bytearray(log)
                other[at] ^= 1 << bit
                path.write_bytes(other)
                try:
                    found = CertificationLog.read(path)
                except ValueError as error:
                    assert str(path) in str(error)
                    continue
                # The last line break is all that a log can lose.
                pytest.fail(f"{at}, {bit}: {bytes(other)!r}, {found}, {wanted}")

    def test_an_altered_line_is_named_and_left_alone(self, path, log):
        altered = log.replace(b"\t0.500000\t", b"\t0.600000\t")
        path.write_bytes(altered)
        message = "line 2: does not agree with its checksum"
        with pytest.raises(ValueError, match=message):
            CertificationLog.read(path)
        with pytest.raises(ValueError, match=message):
            LogWriter(path, SETTINGS, ["n"], checksum=True)
        assert path.read_bytes() == altered
        # As the message says.
        path.write_bytes(b"".join(log.splitlines(True)[::2]))
        with LogWriter(path, SETTINGS, ["n"], checksum=True) as writer:
            assert writer.done == {20}

    def test_the_time_may_be_altered(self, path, log):
        path.write_bytes(log.replace(b"1.250000", b"0.000000"))
        assert CertificationLog.read(path).time.tolist() == [0.0, 0.75]

    def test_a_column_that_must_be_there(self, path, log):
        """The settings of a hashed log tell that its lines have checksums."""
        beside = path.with_name("log.tsv.json")
        beside.write_text(json.dumps({**SETTINGS, "first_example": "0" * 16}))
        assert len(CertificationLog.read(path)) == 2
        path.write_bytes(log.replace(b"checksum", b"chocksum"))
        with pytest.raises(ValueError, match="line 1: must name the column"):
            CertificationLog.read(path)

    def test_hashes_of_digits_alone_are_text(self, path):
        path.write_text(
            f"{HEADER[:-1]}\texample\n0\t1\t1\t0.5\t1\t2\t0123456789012345\n"
        )
        log = CertificationLog.read(path)
        assert log.extra["example"].tolist() == ["0123456789012345"]


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
        assert 'noise: stored not set, given "grid"' in message
        assert "seed: stored 7, given not set" in message
        assert "sigma: stored 0.5, given 0.25" in message
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
            pytest.param(
                "my notes", "is not a certification log", id="one-line"
            ),
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
            ({"idx": 1.5}, "`idx` must be a whole number"),
            ({"idx": -20}, "`idx` must be a whole number"),
            ({"idx": 30}, "^`idx` must be a multiple of `skip`, 20"),
            ({"label": -2}, "`label` must be a whole number >= -1"),
            ({"predict": True}, "`predict` must be a whole number >= -1"),
            ({"radius": 1.25}, "^`radius` must be <= 1.231631, the largest"),
            ({"time": float("nan")}, "^`time` must be a finite number >= 0"),
        ],
        ids=[
            "nan",
            "inf",
            "negative",
            "column",
            "idx",
            "idx-negative",
            "grid",
            "label",
            "predict",
            "limit",
            "time",
        ],
    )
    def test_values_are_checked(self, path, values, message):
        row = {"idx": 0, "label": 1, "predict": 1, "radius": 0.5, "time": 0.0}
        with LogWriter(path, LIMITED) as writer:
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


DRAWN = {
    "sigma": 0.5,
    "n": 100_000,
    "n0": 1_000,
    "alpha": 0.001,
    "bound": "clopper_pearson",
    "runner_up": False,
    "tolerance": 0.02,
}


def drawn(radius, n, predict=1):
    return CertificationLog(
        [0], [1], [predict], [radius], [predict == 1], [1.0],
        settings=DRAWN, extra={"n": [n]},
    )  # fmt: skip


def test_a_row_is_held_to_its_own_draws():
    """With n draws that agree, radius = sigma * icdf(alpha**(1 / n))."""
    for n in (300, 5_000):
        most = 0.5 * stats.norm.ppf(0.001 ** (1 / n))
        assert len(drawn(most, n)) == 1
        with pytest.raises(ValueError, match="`radius` must be <= "):
            drawn(most + 1e-4, n)


def test_an_abstention_has_no_radius():
    assert len(drawn(0.0, 300, predict=-1)) == 1
    with pytest.raises(ValueError, match="`radius` must be 0 where `predict`"):
        drawn(0.1, 300, predict=-1)
