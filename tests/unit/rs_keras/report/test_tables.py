"""Oracles: tables laid out by hand, and the numbers printed in the papers."""

import pytest

import rs_keras.cli
from rs_keras.logs import CertificationLog
from rs_keras.report.tables import certified_table

HEADER = "idx\tlabel\tpredict\tradius\tcorrect\ttime\n"


def log_of(name="a_log", radii=(1.5, 0.5, 0.25, 0.0), **settings):
    m = len(radii)
    return CertificationLog(
        idx=range(m),
        label=[1] * m,
        predict=[1 if radius else -1 for radius in radii],
        radius=radii,
        correct=[radius > 0 for radius in radii],
        time=[1.0] * m,
        name=name,
        settings=settings,
    )


COHEN = {"n": 1000, "bound": "clopper_pearson", "runner_up": False}
TWO = {"n": 1000, "bound": "clopper_pearson", "runner_up": True}


@pytest.fixture
def logs():
    two = log_of("b", (1.0, 1.0), **TWO)
    return [log_of(**COHEN), two, CertificationLog.envelope([two])]


class TestFormats:
    # a_log: ACR (1.5 + 0.5 + 0.25) / 4 = 0.5625, three of four correct.
    def test_text(self, logs):
        assert certified_table(logs, [0.0, 0.5]).splitlines() == [
            "log         ACR   0.00   0.50  abstain  examples     n  bound",
            "a_log     0.562   75.0   50.0     25.0         4  1000  "
            "clopper_pearson",
            "b         1.000  100.0  100.0      0.0         2  1000  "
            "clopper_pearson, runner-up",
            "envelope      -  100.0  100.0        -         -     -  -",
        ]

    def test_markdown(self):
        table = certified_table([log_of("a|b")], [0.125], "markdown")
        assert table.splitlines() == [
            "| log  |   ACR | 0.125 | abstain | examples |   n | bound |",
            "| :--- | ----: | ----: | ------: | -------: | --: | :---- |",
            "| a\\|b | 0.562 |  75.0 |    25.0 |        4 |   - | -     |",
        ]

    def test_latex(self):
        table = certified_table([log_of("a_b&50%")], [1.0], "latex")
        assert table.splitlines() == [
            r"\begin{tabular}{lrrrrrl}",
            r"\toprule",
            r"log        &   ACR & 1.00 & abstain & examples & n & bound \\",
            r"\midrule",
            r"a\_b\&50\% & 0.562 & 25.0 &    25.0 &        4 & - & -     \\",
            r"\bottomrule",
            r"\end{tabular}",
        ]

    def test_latex_escapes_what_is_special(self):
        table = certified_table([log_of("\\~^{$#}")], [1.0], "latex")
        assert (
            "\\textbackslash{}\\textasciitilde{}\\textasciicircum{}\\{\\$\\#\\}"
        ) in table

    @pytest.mark.parametrize(
        ("largest", "wanted"),
        [
            (0.0, "0.00"),
            (0.6, "0.00 0.25 0.50"),
            (3.8, "0.00 0.50 1.00 1.50 2.00 2.50 3.00 3.50"),
        ],
    )
    def test_default_radii(self, largest, wanted):
        header = certified_table([log_of(radii=(largest,))]).splitlines()[0]
        assert header.split()[2:-4] == wanted.split()

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (([],), "`logs` must hold at least one"),
            (([log_of()], [0.0], "html"), "`format` must be one of"),
            (([log_of()], [-1.0]), "`radii` must be >= 0"),
            (([log_of(radii=())],), "a_log holds no example"),
        ],
        ids=["no-logs", "format", "radius", "no-examples"],
    )
    def test_wrong_arguments_are_named(self, arguments, message):
        with pytest.raises(ValueError, match=message):
            certified_table(*arguments)

    def test_published_rows(self, shared):
        # CAT-RS, Jeong et al., 2023, table 1: CIFAR-10, sigma 0.25.
        folder = shared / "reference_logs"
        log = CertificationLog.read(folder / "cifar10_catrs_sigma0.25.tsv")
        row = certified_table([log], [0.0, 0.25, 0.5, 0.75]).splitlines()[1]
        assert row.split()[1:6] == ["0.562", "76.3", "68.1", "58.8", "48.2"]


class TestCommand:
    @pytest.fixture
    def path(self, tmp_path):
        path = tmp_path / "log.tsv"
        path.write_text(HEADER + "0\t1\t1\t0.5\t1\t1\n")
        return path

    def test_prints_the_table(self, path, capsys):
        arguments = ["table", str(path), "--radii", "0,0.75"]
        assert rs_keras.cli.main([*arguments, "--format", "markdown"]) == 0
        printed = capsys.readouterr().out
        log = CertificationLog.read(path)
        wanted = certified_table([log], [0.0, 0.75], "markdown")
        assert printed == wanted + "\n"

    def test_equal_names_are_told_apart(self, path, tmp_path, capsys):
        other = tmp_path / "other" / "log.tsv"
        other.parent.mkdir()
        other.write_text(path.read_text())
        paths = [str(path), str(other)]
        assert rs_keras.cli.main(["table", *paths, "--envelope"]) == 0
        rows = capsys.readouterr().out.splitlines()[1:]
        assert [row.split()[0] for row in rows] == [*paths, "envelope"]

    @pytest.mark.parametrize(
        ("flags", "message"),
        [
            (["nowhere.tsv"], "No such file"),
            (["LOG", "--format", "latx"], "Did you mean 'latex'?"),
            (["LOG", "CUT"], "line 2: cut off"),
        ],
        ids=["no-file", "format", "cut"],
    )
    def test_says_what_is_wrong_in_one_line(self, path, capsys, flags, message):
        cut = path.with_name("cut.tsv")
        cut.write_bytes(path.read_bytes()[:-4])
        names = {"LOG": str(path), "CUT": str(cut)}
        flags = [names.get(flag, flag) for flag in flags]
        assert rs_keras.cli.main(["table", *flags]) == 2
        said = capsys.readouterr().err
        assert message in said
        assert said.startswith("rs-keras table: ")
        assert said.count("\n") == 1
