"""The figure, the table and the section of a report about attacks."""

import base64
import re

import numpy as np
import pytest
from kits.report import NASTY
from kits.report import log_of

import rs_keras.cli
from rs_keras import CertificationLog
from rs_keras.logs import LogWriter
from rs_keras.report import report_page
from rs_keras.report.robustness import gap_table
from rs_keras.report.robustness import plot_robustness


def attack_of(name="pgd"):
    """On the examples of `log_of`: one broken at 1.0, one unbroken."""
    return CertificationLog(
        [0, 3, 5, 8],
        [1, 2, 0, 1],
        [1, 1, 0, -1],
        [1.0, 0.0, 2.0, 0.0],
        [1, 0, 1, 0],
        np.ones(4),
        name,
        {"scope": "attack", "attack": "PGD", "attack_radii": [1.0, 2.0]},
        {
            "adversarial_norm": np.array([1.0, 0.0, np.inf, 0.5]),
            "abstain_norm": np.array([0.95, 0.0, 1.5, 0.0]),
        },
    )


def test_the_two_curves_step_where_they_must():
    axes = plot_robustness([log_of(), attack_of()]).axes[0]
    lower, upper = axes.get_lines()
    # Certified .9 and .25 of four; unbroken norms 1, inf and .5 of four.
    at = dict(zip(lower.get_xdata(), lower.get_ydata(), strict=True))
    assert (at[0.0], at[0.25], at[0.9]) == (0.5, 0.5, 0.25)
    assert lower.get_drawstyle() == upper.get_drawstyle() == "steps-pre"
    at = dict(zip(upper.get_xdata(), upper.get_ydata(), strict=True))
    assert (at[0.0], at[0.5], at[1.0], at[2.0]) == (0.75, 0.75, 0.5, 0.25)
    assert upper.get_xdata().max() == 2.0
    assert upper.get_linestyle() == "--" and lower.get_linestyle() == "-"
    assert upper.get_color() == lower.get_color()


def test_a_table_has_the_gap():
    text = gap_table([log_of(), attack_of()], [0.25, 0.95])
    rows = [line.split("  ") for line in text.splitlines()]
    cells = [[cell.strip() for cell in row if cell.strip()] for row in rows]
    assert cells == [
        ["accuracy", "0.25", "0.95", "log"],
        ["certified", "50.0", "0.0", "one"],
        ["empirical", "75.0", "50.0", "pgd"],
        ["gap", "25.0", "50.0"],
        ["abstentions are errors", "50.0", "50.0", "pgd"],
    ]
    assert "\\toprule" in gap_table([log_of(), attack_of()], format="latex")


def test_a_report_shows_attacks_apart_from_certificates():
    page = report_page([log_of(), attack_of()])
    assert "Certified and under attack" in page
    assert "pgd contradicts none of the certificates of one on 4" in page
    picture = re.search(r'src="data:image/svg\+xml;base64,(.*?)"', page)[1]
    assert base64.b64decode(picture).startswith(b"<?xml")
    # The attack is no curve of certificates, and states no guarantee.
    data = re.search(r'id="data">(.*?)</script>', page)[1]
    assert '"pgd"' not in data
    assert page == report_page([log_of(), attack_of()])
    assert "Certified and under attack" not in report_page([log_of()])


def test_a_contradiction_is_told():
    rows = [(0, 1, 1, 1.1), (3, 2, 1, 0.4), (5, 0, 0, 0.25), (8, 1, -1, 0)]
    page = report_page([log_of(rows=rows), attack_of()])
    assert "contradicts 1 of the certificates" in page
    assert "(examples 0)" in page


def test_texts_of_attacks_are_escaped():
    assert NASTY not in report_page([log_of(), attack_of(NASTY)])


def test_attacks_alone_are_no_report():
    with pytest.raises(ValueError, match="at least one log of certificates"):
        report_page([attack_of()])
    with pytest.raises(ValueError, match="a certification log and one of an"):
        gap_table([attack_of()])
    with pytest.raises(ValueError, match="a certification log and one of an"):
        plot_robustness([log_of()])


@pytest.fixture
def files(tmp_path):
    """The two logs as files."""
    paths = []
    for log in (log_of(), attack_of()):
        path = tmp_path / f"{log.name}.tsv"
        with LogWriter(path, log.settings, [*log.extra]) as writer:
            for row in range(len(log)):
                writer.write(
                    int(log.idx[row]),
                    int(log.label[row]),
                    int(log.predict[row]),
                    float(log.radius[row]),
                    1.0,
                    **{key: v[row] for key, v in log.extra.items()},
                )
        paths.append(str(path))
    return paths


def test_commands_take_both_kinds_of_logs(files, tmp_path, capsys):
    assert rs_keras.cli.main(["table", *files, "--radii", "0.25"]) == 0
    assert "empirical" in capsys.readouterr().out
    # An attack alone is a log like others, marked.
    assert rs_keras.cli.main(["table", files[1], "--radii", "0.25"]) == 0
    assert "none: attack, PGD" in capsys.readouterr().out
    for command, *flags in (("plot",), ("report", "--max-images", "0")):
        out = str(tmp_path / ("a.svg" if command == "plot" else "a.html"))
        assert rs_keras.cli.main([command, *files, "-o", out, *flags]) == 0
    assert "contradicts none" in (tmp_path / "a.html").read_text()
    flags = ["--envelope", "-o", str(tmp_path / "b.svg")]
    assert rs_keras.cli.main(["plot", *files, *flags]) == 2
