"""Results as data: length, indices, frames, what notebooks show."""

import sys
from typing import get_args

import numpy as np
import pytest
from matplotlib.figure import Figure

from rs_keras import Certificate
from rs_keras import CertificationLog
from rs_keras import plots
from rs_keras.certification.spec import BOUNDS
from rs_keras.certification.spec import Bound

LABELS, RADII = np.array([2, -1, 0]), np.array([0.1239, 0.0, 1.5])


def certificate(copies=1, **given):
    label, radius = np.tile(LABELS, copies), np.tile(RADII, copies)
    count = len(label)
    numbers = np.arange(count)
    return Certificate(
        label=label,
        radius=radius,
        p_lower=numbers / count,
        counts=np.eye(3, dtype=int)[label],
        selection_counts=np.eye(3, dtype=int)[label],
        n=numbers + 100,
        seed=np.stack([numbers, numbers], 1),
        **{"settings": {"sigma": 0.5, "n": 100, "alpha": 0.001}, **given},
    )


def log(count=3, **given):
    return CertificationLog(
        idx=np.arange(count),
        label=np.tile([2, 2, 0], count)[:count],
        predict=np.tile(LABELS, count)[:count],
        radius=np.tile(RADII, count)[:count],
        correct=np.tile([True, False, True], count)[:count],
        time=np.ones(count),
        **{"settings": {"alpha": 0.001}, "name": "<b>", **given},
    )


@pytest.mark.parametrize(
    "key",
    [1, -1, slice(1, None), [2, 0], np.array([True, False, True])],
    ids=["number", "last", "slice", "list", "mask"],
)
def test_rows_are_those_of_numpy(key):
    whole, taken = certificate(sigma=RADII + 1), certificate(sigma=RADII + 1)
    found = taken[key]
    for name in ("label", "radius", "p_lower", "n", "seed", "sigma", "counts"):
        wanted = getattr(whole, name)[key]
        if np.ndim(key) == 0 and not isinstance(key, slice):
            wanted = wanted[None]
        np.testing.assert_array_equal(getattr(found, name), wanted)
    assert found.settings == whole.settings
    entries = log(extra={"n": [7, 8, 9]})[key]
    np.testing.assert_array_equal(entries.idx, np.arange(3)[key])
    np.testing.assert_array_equal(entries.extra["n"], np.arange(3)[key] + 7)


def test_a_loop_gives_every_image_once():
    for result in (certificate(), log()):
        assert len(result) == 3
        parts = list(result)
        assert [len(part) for part in parts] == [1, 1, 1]
        assert type(parts[0]) is type(result)
        with pytest.raises(IndexError):
            result[3]


def test_the_printed_form_rounds_down_and_is_short():
    text = repr(certificate())
    assert text.splitlines() == [
        "Certificate of 3 images, sigma 0.5, n 100, alpha 0.001",
        "  0: class 2, radius 0.123",
        "  1: abstains",
        "  2: class 0, radius 1.500",
    ]
    assert repr(certificate(copies=7)).endswith("... and 11 more images")
    assert "1 image," in repr(certificate()[0])
    assert repr(log()) == (
        "CertificationLog '<b>' of 3 examples, ACR 0.541, 33.3% abstained"
    )
    empty = CertificationLog([], [], [], [], [], [])
    assert repr(empty) == "CertificationLog 'log' of 0 examples"


def test_notebooks_show_a_log():
    shown = log(count=12)._repr_html_()
    assert shown.count("<tr>") == 11 and "and 2 more examples" in shown
    assert "<b>" not in shown and "&lt;b&gt;" in shown


def test_frames_hold_columns_and_settings():
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    frame = certificate(sigma=RADII).to_pandas()
    assert isinstance(frame, pandas.DataFrame)
    assert list(frame) == ["label", "radius", "p_lower", "n", "sigma"]
    assert frame.attrs["alpha"] == 0.001 and frame.radius[2] == 1.5
    columns = log(extra={"p_top": [1, 2, 3]}).to_pandas()
    assert [*columns][-2:] == ["time", "p_top"] and len(columns) == 3


def test_frames_say_how_to_install_pandas(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match=r"pip install rs-keras\[pandas\]"):
        certificate().to_pandas()


def test_figures_show_in_notebooks():
    figure = plots.plot_certified_accuracy(log())
    assert figure._repr_png_()[:4] == b"\x89PNG"


def test_curves_are_drawn_into_given_axes(tmp_path):
    figure = Figure()
    left, right = figure.subplots(1, 2)
    found = plots.plot_certified_accuracy([log()], ax=right, title="own")
    assert found is figure and not left.lines and len(right.lines) == 1
    assert right.get_title() == "own" and right.get_legend() is not None
    with pytest.raises(ValueError, match="`path` must end with"):
        plots.plot_certified_accuracy([log()], tmp_path / "a.bmp", ax=right)


def test_the_choices_of_types_are_those_that_are_checked():
    assert get_args(Bound) == BOUNDS
