"""Oracles: curves counted by hand, the files' own signatures."""

import subprocess
import sys

import matplotlib
import numpy as np
import pytest
from PIL import Image

import rs_keras.cli
from rs_keras.logs import CertificationLog
from rs_keras.report.plots import plot_certified_accuracy


def log_of(name, radii, correct):
    m = len(radii)
    return CertificationLog(
        idx=range(m),
        label=[1] * m,
        predict=[1 if right else 2 for right in correct],
        radius=radii,
        correct=correct,
        time=[1.0] * m,
        name=name,
    )


@pytest.fixture
def logs():
    return [
        log_of("a", [0.5, 1.5, 1.5, 2.0], [True, True, True, False]),
        log_of("b", [0.25, 3.0], [True, False]),
    ]


class TestCurves:
    def test_steps_just_above_each_radius(self, logs):
        axes = plot_certified_accuracy(logs).axes[0]
        line = axes.get_lines()[0]
        x, y = line.get_xdata(), line.get_ydata()
        assert line.get_drawstyle() == "steps-pre"
        # 3/4 to 0.5 inclusive, then 2/4 to 1.5, then none, and down at 2.
        np.testing.assert_array_equal(x, [0, 0.5, 1.5, 2, 2])
        np.testing.assert_array_equal(y, [0.75, 0.75, 0.5, 0, 0])

    def test_area_is_the_acr(self, logs):
        for line, log in zip(
            plot_certified_accuracy(logs).axes[0].get_lines(),
            logs,
            strict=True,
        ):
            area = np.sum(np.diff(line.get_xdata()) * line.get_ydata()[1:])
            assert area == pytest.approx(log.acr(), rel=1e-12)

    def test_says_what_is_what(self, logs):
        figure = plot_certified_accuracy(logs, title="MNIST")
        axes = figure.axes[0]
        legend = [text.get_text() for text in figure.legends[0].get_texts()]
        assert legend == ["a (ACR 0.875)", "b (ACR 0.125)"]
        assert axes.get_title() == "MNIST"
        assert "radius" in axes.get_xlabel()
        assert "certified accuracy" in axes.get_ylabel()

    def test_every_curve_looks_different(self):
        logs = [log_of(str(i), [0.5], [True]) for i in range(20)]
        lines = plot_certified_accuracy(logs).axes[0].get_lines()
        looks = {(line.get_color(), line.get_linestyle()) for line in lines}
        assert len(looks) == 20

    def test_envelope_lies_behind(self, logs):
        envelope = CertificationLog.envelope(logs)
        axes = plot_certified_accuracy([*logs, envelope]).axes[0]
        *curves, band = axes.get_lines()
        assert band.get_zorder() < min(line.get_zorder() for line in curves)
        assert band.get_ydata()[0] == 0.75

    def test_state_of_matplotlib_is_left_alone(self, logs, tmp_path):
        before = dict(matplotlib.rcParams)
        plot_certified_accuracy(logs, tmp_path / "a.svg")
        assert dict(matplotlib.rcParams) == before
        import matplotlib.pyplot as plt

        assert plt.get_fignums() == []

    def test_matplotlib_is_imported_only_to_draw(self):
        code = (
            "import sys, rs_keras.report.plots, rs_keras.report.tables\n"
            "import rs_keras.cli.plot\n"
            "sys.exit('matplotlib' in sys.modules or 'tensorflow' in "
            "sys.modules)"
        )
        assert subprocess.run([sys.executable, "-c", code]).returncode == 0


class TestFiles:
    @pytest.mark.parametrize(
        ("suffix", "signature"),
        [(".png", b"\x89PNG"), (".svg", b"<?xml"), (".pdf", b"%PDF")],
    )
    def test_formats_and_repeatable(self, logs, tmp_path, suffix, signature):
        paths = [tmp_path / f"{name}{suffix}" for name in ("a", "b")]
        for path in paths:
            plot_certified_accuracy(logs, path)
        first, second = (path.read_bytes() for path in paths)
        assert first.startswith(signature)
        assert first == second

    def test_pixels_show_the_curves(self, logs, tmp_path):
        plot_certified_accuracy(logs, tmp_path / "a.png")
        with Image.open(tmp_path / "a.png") as image:
            pixels = np.asarray(image.convert("RGB")).reshape(-1, 3)
        for colour in ((0x00, 0x72, 0xB2), (0xD5, 0x5E, 0x00)):
            assert (pixels == colour).all(1).sum() > 100

    def test_nothing_certified(self, tmp_path):
        log = log_of("none", [0.0, 0.0], [False, False])
        plot_certified_accuracy([log], tmp_path / "a.png")

    @pytest.mark.parametrize(
        ("name", "message"),
        [("a.gif", "must end with .png, .svg, .pdf"), ("a", "must end with")],
    )
    def test_other_endings(self, logs, tmp_path, name, message):
        with pytest.raises(ValueError, match=message):
            plot_certified_accuracy(logs, tmp_path / name)

    def test_nothing_to_draw(self):
        with pytest.raises(ValueError, match="`logs` must hold at least one"):
            plot_certified_accuracy([])
        with pytest.raises(ValueError, match="empty holds no example"):
            plot_certified_accuracy([log_of("empty", [], [])])


class TestCommand:
    @pytest.fixture
    def path(self, tmp_path):
        path = tmp_path / "log.tsv"
        path.write_text(
            "idx\tlabel\tpredict\tradius\tcorrect\ttime\n0\t1\t1\t0.5\t1\t1\n"
        )
        return path

    def test_writes_the_plot(self, path, tmp_path, capsys):
        out = tmp_path / "curves.png"
        arguments = ["plot", str(path), "--envelope", "-o", str(out)]
        assert rs_keras.cli.main(arguments) == 0
        assert out.read_bytes().startswith(b"\x89PNG")
        assert capsys.readouterr().out == f"{out}\n"

    @pytest.mark.parametrize(
        ("out", "message"),
        [("no/where/a.png", "No such file"), ("a.jpg", "must end with")],
    )
    def test_says_what_is_wrong_in_one_line(
        self, path, tmp_path, capsys, out, message
    ):
        arguments = ["plot", str(path), "-o", str(tmp_path / out)]
        assert rs_keras.cli.main(arguments) == 2
        said = capsys.readouterr().err
        assert message in said
        assert said.count("\n") == 1
