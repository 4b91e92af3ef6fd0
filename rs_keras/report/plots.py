"""Plots of certification logs."""

import io
import os
from collections.abc import Iterator
from collections.abc import Sequence
from functools import cache
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING
from typing import Any

import numpy as np

from rs_keras.logs.log import CertificationLog
from rs_keras.logs.log import Envelope

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's colours, distinct for any colour vision, without the yellow,
# which is too pale on white. Line styles distinguish them in grey, too.
_COLOURS = (
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#CC79A7",
    "#E69F00",
    "#56B4E9",
    "#000000",
)
_STYLES = ("-", "--", "-.", ":")

_FORMATS = (".png", ".svg", ".pdf")

# Inches. The legend is below the plot, since curves may be anywhere in it.
_LEGEND_LINE = 0.18


def plot_certified_accuracy(
    logs: Sequence[CertificationLog | Envelope] | CertificationLog,
    path: str | os.PathLike[str] | None = None,
    title: str | None = None,
    ax: "Axes | None" = None,
) -> "Figure":
    """Draws certified accuracy against radius, one step curve a log.

    It needs no display and does not change matplotlib's global state. Logs
    whose sigma varies from image to image are marked, without an ACR.

    Args:
        logs: The logs, or envelopes (drawn as a broad band behind the rest);
            at least one. Or a log.
        path: Where to save it: .png, .svg or .pdf.
        title: Above the plot.
        ax: Axes to draw into, with their own legend; None for a new figure.

    Returns:
        A `matplotlib.figure.Figure`, which notebooks show: a new one, or that
        of `ax`.

    Raises:
        ValueError: If there is no log, a log holds no example, or the file has
            another ending.
        OSError: If the file cannot be written.

    Example:

    >>> from rs_keras import CertificationLog
    >>> from rs_keras.report.plots import plot_certified_accuracy
    >>> log = CertificationLog(
    ...     idx=[0, 1], label=[7, 2], predict=[7, -1], radius=[0.6, 0.0],
    ...     correct=[True, False], time=[2.0, 2.0], name="gaussian")
    >>> figure = plot_certified_accuracy([log])
    >>> figure.axes[0].get_legend_handles_labels()[1]
    ['gaussian (ACR 0.300)']
    """
    if isinstance(logs, CertificationLog):
        logs = [logs]
    if not logs:
        raise ValueError("`logs` must hold at least one log. Received: none")
    if ax is None:
        figure = new_figure(path, height=4.0 + _LEGEND_LINE * len(logs))
        axes = figure.add_subplot()
    else:
        check_path(path)
        figure, axes = ax.get_figure(), ax
    colour = colours()
    styles = cycle(_STYLES)
    for log in logs:
        if isinstance(log, Envelope):
            _draw(axes, log, color="#BBBBBB", linewidth=6, zorder=1)
        else:
            _draw(axes, log, color=next(colour), linestyle=next(styles))
    _label(axes, title)
    if ax is None:
        figure.legend(loc="outside lower left", frameon=False, fontsize="small")
    else:
        axes.legend(frameon=False, fontsize="small")
    save(figure, path)
    return figure


def new_figure(
    path: str | os.PathLike[str] | None,
    width: float = 6.4,
    height: float = 4.0,
) -> "Figure":
    """Returns an empty figure that may be saved at `path`.

    Args:
        path: Where it will be saved; None for nowhere.
        width: Inches.
        height: Inches.

    Raises:
        ValueError: If the file has an ending other than .png, .svg or .pdf.

    Example:

    >>> from rs_keras.report import plots
    >>> figure = plots.new_figure("points.svg", width=5.0)
    >>> figure.get_size_inches().tolist()
    [5.0, 4.0]
    >>> plots.new_figure("points.bmp")
    Traceback (most recent call last):
    ValueError: `path` must end with .png, .svg, .pdf. Received: points.bmp
    """
    check_path(path)
    return _figure_class()(figsize=(width, height), layout="constrained")


def check_path(path: str | os.PathLike[str] | None) -> None:
    """Raises unless a figure can be saved at `path`; None is nowhere.

    Raises:
        ValueError: If the file has an ending other than .png, .svg or .pdf.

    Example:

    >>> from rs_keras.report import plots
    >>> plots.check_path("points.svg")
    """
    if path is not None and Path(path).suffix.lower() not in _FORMATS:
        raise ValueError(
            f"`path` must end with {', '.join(_FORMATS)}. Received: {path}"
        )


@cache
def _figure_class() -> Any:
    """Returns the class of figures, which notebooks show by themselves.

    Those of matplotlib are shown only once pyplot has been imported.
    """
    # Imported here, since it takes half a second that tables do not need.
    from matplotlib.figure import Figure

    class ShownFigure(Figure):
        def _repr_png_(self) -> bytes:
            file = io.BytesIO()
            self.savefig(file, format="png", dpi=100)
            return file.getvalue()

    return ShownFigure


def save(figure: "Figure", path: str | os.PathLike[str] | None) -> None:
    """Saves a figure, so that the same data give the same file.

    Args:
        figure: From `new_figure`.
        path: As given there; None does nothing.

    Example:

    >>> from pathlib import Path
    >>> from rs_keras.report import plots
    >>> for name in ("a.svg", "b.svg"):
    ...     plots.save(plots.new_figure(name), name)
    >>> Path("a.svg").read_bytes() == Path("b.svg").read_bytes()
    True
    """
    if path is None:
        return
    from matplotlib import rc_context

    # A fixed salt and no date.
    dates = {".svg": "Date", ".pdf": "CreationDate"}
    key = dates.get(Path(path).suffix.lower())
    with rc_context({"svg.hashsalt": "rs-keras"}):
        figure.savefig(path, dpi=200, metadata={key: None} if key else None)


def svg(figure: "Figure") -> bytes:
    """Returns a figure as SVG: the same bytes for the same data.

    Args:
        figure: From `new_figure`.

    Example:

    >>> from rs_keras.report import plots
    >>> plots.svg(plots.new_figure(None))[:5]
    b'<?xml'
    """
    from matplotlib import rc_context

    file = io.BytesIO()
    with rc_context({"svg.hashsalt": "rs-keras"}):
        figure.savefig(file, format="svg", metadata={"Date": None})
    return file.getvalue()


def colours() -> Iterator[str]:
    """Yields the colours of curves, over and over.

    Example:

    >>> from itertools import islice
    >>> from rs_keras.report import plots
    >>> list(islice(plots.colours(), 2))
    ['#0072B2', '#D55E00']
    """
    return cycle(_COLOURS)


def plain_axes(axes: "Axes", x: str, y: str) -> None:
    """Gives axes their names, a faint grid and no frame.

    Example:

    >>> from rs_keras.report import plots
    >>> axes = plots.new_figure(None).add_subplot()
    >>> plots.plain_axes(axes, "epoch", "ACR")
    >>> axes.get_xlabel(), axes.spines["top"].get_visible()
    ('epoch', False)
    """
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.grid(color="#E5E5E5", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _draw(
    axes: "Axes", log: CertificationLog | Envelope, **style: object
) -> None:
    # Certified accuracy changes just above each radius, and only there.
    radii = np.unique(np.append(log.radius, 0.0))
    shares = log.certified_accuracy(radii)
    axes.step(
        np.append(radii, radii[-1]),
        np.append(shares, 0.0),
        where="pre",
        label=_legend(log),
        **{"linewidth": 1.6, **style},
    )


def _legend(log: CertificationLog | Envelope) -> str:
    if log.scope == "per_input_sigma":
        return f"{log.name} (per-input sigma)"
    if isinstance(log, Envelope):
        return log.name
    return f"{log.name} (ACR {log.acr():.3f})"


def _label(axes: "Axes", title: str | None) -> None:
    plain_axes(axes, "L2 radius, pixels in [0, 1]", "certified accuracy")
    axes.set_xlim(left=0)
    axes.set_ylim(0, 1)
    if title is not None:
        axes.set_title(title)
