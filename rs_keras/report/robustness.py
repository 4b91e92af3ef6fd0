"""Certified and empirical robust accuracy: a table, a figure, a section.

References:
- [Salman et al., 2019](https://arxiv.org/abs/1906.04584)
"""

import base64
import os
from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

import numpy as np

from rs_keras.logs.log import CertificationLog
from rs_keras.logs.robustness import RobustnessGap
from rs_keras.logs.robustness import is_attack
from rs_keras.logs.robustness import largest_tried
from rs_keras.logs.robustness import on_examples_of
from rs_keras.logs.robustness import pairs
from rs_keras.logs.robustness import robust_accuracy
from rs_keras.logs.robustness import robustness_gap
from rs_keras.report import plots
from rs_keras.report import tables

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Radii of a table, if none are given: so many steps to the largest tried.
_STEPS = 8

_HOW_TO_READ = (
    "No attack can lower the robust accuracy below the certified curve, and no "
    "certificate can show more than the empirical one: the truth lies between, "
    "up to the error probabilities of certificates and predictions. A "
    "perturbation counts if another class than the label is predicted; the "
    "last row also counts abstentions as errors, as the literature does."
)


def gap_table(
    logs: Sequence[CertificationLog],
    radii: Sequence[float] | None = None,
    format: str = "text",
) -> str:
    """Returns certified and empirical robust accuracy at radii, and the gap.

    Args:
        logs: Certification logs, and logs of attacks on the same classifiers
            and examples: a block of rows each pair.
        radii: >= 0; by default, eight steps to the largest that was tried.
        format: "text", "markdown" or "latex".

    Returns:
        The table, in percent, without a final line break.

    Raises:
        ValueError: If there is no pair, or see `rs_keras.logs.robustness_gap`.

    Example:

    >>> from rs_keras import CertificationLog
    >>> from rs_keras.report.robustness import gap_table
    >>> certified = CertificationLog(
    ...     [0, 1], [1, 1], [1, 1], [0.25, 0.5], [1, 1], [1.0, 1.0],
    ...     "certified")
    >>> attacked = CertificationLog(
    ...     [0, 1], [1, 1], [1, 1], [0.375, 1.0], [1, 1], [1.0, 1.0], "pgd",
    ...     settings={"scope": "attack", "attack_radii": [1.0]},
    ...     extra={"adversarial_norm": [0.375, float("inf")],
    ...            "abstain_norm": [0.375, 0.75]})
    >>> print(gap_table([certified, attacked], [0.25, 0.5, 1.0]))
    accuracy                    0.25  0.50  1.00  log
    certified                  100.0  50.0   0.0  certified
    empirical                  100.0  50.0  50.0  pgd
    gap                          0.0   0.0  50.0
    abstentions are errors     100.0  50.0   0.0  pgd
    """
    return tables.formatted(gap_cells(gaps(logs, radii)), format)


def gaps(
    logs: Sequence[CertificationLog], radii: Sequence[float] | None = None
) -> list[RobustnessGap]:
    """Returns the gap of each pair of a certification log and an attack.

    Args:
        logs: See `gap_table`.
        radii: See `gap_table`.

    Raises:
        ValueError: See `gap_table`.
    """
    found = _pairs(logs)
    if radii is None:
        reach = max(largest_tried(attacked) for _, attacked in found)
        radii = [reach * step / _STEPS for step in range(_STEPS + 1)]
    return [
        robustness_gap(certified, attacked, radii)
        for certified, attacked in found
    ]


def _pairs(
    logs: Sequence[CertificationLog],
) -> list[tuple[CertificationLog, CertificationLog]]:
    """Returns the pairs of a certification log and an attack, at least one."""
    found = pairs(logs)
    if not found:
        raise ValueError(
            "`logs` must hold a certification log and one of an attack. "
            f"Received: {', '.join(log.name for log in logs) or 'none'}"
        )
    return found


def gap_cells(found: Sequence[RobustnessGap]) -> list[Sequence[str]]:
    """Returns the header and the rows of `gap_table` as cells.

    Example:

    >>> import numpy as np
    >>> from rs_keras.logs import RobustnessGap
    >>> from rs_keras.report.robustness import gap_cells
    >>> half, whole = np.array([0.5]), np.array([1.0])
    >>> gap_cells([RobustnessGap(
    ...     ("a", "pgd"), whole, half, whole, whole, 8, np.array([], int))])[3]
    ['gap', '50.0', '']
    """
    names = [tables.radius_name(radius) for radius in found[0].radii]
    cells: list[Sequence[str]] = [["accuracy", *names, "log"]]
    for gap in found:
        certified, attacked = gap.names
        cells += [
            ["certified", *map(_percent, gap.certified), certified],
            ["empirical", *map(_percent, gap.empirical), attacked],
            ["gap", *map(_percent, gap.gap), ""],
            [
                "abstentions are errors",
                *map(_percent, gap.with_abstentions),
                attacked,
            ],
        ]
    return cells


def _percent(share: float) -> str:
    return f"{100 * share:.1f}"


def plot_robustness(
    logs: Sequence[CertificationLog],
    path: str | os.PathLike[str] | None = None,
    title: str | None = None,
    ax: "Axes | None" = None,
) -> "Figure":
    """Draws certified and empirical robust accuracy of the same examples.

    Each pair of a certification log (solid: a lower bound) and an attack
    (dashed: an upper bound) encloses a shaded region, in which the robust
    accuracy of the smoothed classifier lies. The curve of an attack ends at the
    largest radius that it tried.

    Args:
        logs: See `gap_table`.
        path: Where to save it: .png, .svg or .pdf.
        title: Above the plot.
        ax: Axes to draw into; None for a new figure.

    Returns:
        A `matplotlib.figure.Figure`.

    Raises:
        ValueError: See `gap_table`; or if the file has another ending.
        OSError: If the file cannot be written.

    Example:

    >>> from rs_keras import CertificationLog
    >>> from rs_keras.report.robustness import plot_robustness
    >>> certified = CertificationLog(
    ...     [0, 1], [1, 1], [1, 1], [0.25, 0.5], [1, 1], [1.0, 1.0],
    ...     "certified")
    >>> attacked = CertificationLog(
    ...     [0, 1], [1, 1], [1, 1], [0.375, 1.0], [1, 1], [1.0, 1.0], "pgd",
    ...     settings={"scope": "attack", "attack_radii": [1.0]},
    ...     extra={"adversarial_norm": [0.375, float("inf")],
    ...            "abstain_norm": [0.375, 0.75]})
    >>> figure = plot_robustness([certified, attacked])
    >>> figure.axes[0].get_legend_handles_labels()[1]
    ['certified (certified, at least)', 'pgd (attacked, at most)']
    """
    found = _pairs(logs)
    if ax is None:
        figure = plots.new_figure(path, height=4.0 + 0.18 * 2 * len(found))
        axes = figure.add_subplot()
    else:
        plots.check_path(path)
        figure, axes = ax.get_figure(), ax
    for colour, (certified, attacked) in zip(
        plots.colours(), found, strict=False
    ):
        _draw(axes, on_examples_of(attacked, certified), attacked, colour)
    plots.plain_axes(axes, "L2 radius, pixels in [0, 1]", "robust accuracy")
    axes.set_xlim(left=0)
    axes.set_ylim(0, 1)
    if title is not None:
        axes.set_title(title)
    if ax is None:
        figure.legend(loc="outside lower left", frameon=False, fontsize="small")
    else:
        axes.legend(frameon=False, fontsize="small")
    plots.save(figure, path)
    return figure


def _draw(
    axes: "Axes",
    certified: CertificationLog,
    attacked: CertificationLog,
    colour: str,
) -> None:
    """Draws the two curves of a pair, and fills between them."""
    reach = largest_tried(attacked)
    norms = np.asarray(attacked.extra["adversarial_norm"], np.float64)
    # Both shares change just above these radii, and only there.
    steps = np.concatenate([[0.0, reach], certified.radius, norms])
    radii = np.unique(steps[steps <= max(reach, certified.radius.max())])
    lower = certified.certified_accuracy(radii)
    tried = radii[radii <= reach]
    upper = robust_accuracy(attacked, tried)
    style = {"color": colour, "linewidth": 1.6, "where": "pre"}
    axes.step(
        np.append(radii, radii[-1]),
        np.append(lower, 0.0),
        label=f"{certified.name} (certified, at least)",
        **style,
    )
    axes.step(
        tried,
        upper,
        linestyle="--",
        label=f"{attacked.name} (attacked, at most)",
        **style,
    )
    axes.fill_between(
        tried, lower[: len(tried)], upper, step="pre", alpha=0.12, color=colour
    )


def section(
    logs: Sequence[CertificationLog], radii: Sequence[float] | None = None
) -> str:
    """Returns the part of a report about attacks, as HTML; empty for none.

    Args:
        logs: Of the report, those of attacks among them.
        radii: Of the table.

    Raises:
        ValueError: See `gap_table`.
    """
    if not any(map(is_attack, logs)):
        return ""
    found = gaps(logs, radii)
    picture = plots.svg(plot_robustness(logs))
    source = base64.b64encode(picture).decode("ascii")
    header, *rows = gap_cells(found)
    heads = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in header)
    body = "".join(
        f'<tr><th scope="row">{escape(name)}</th>'
        + "".join(f"<td>{escape(cell)}</td>" for cell in cells)
        + "</tr>"
        for name, *cells in rows
    )
    verdicts = "".join(f"<p>{escape(verdict(gap))}</p>" for gap in found)
    return (
        "<h3>Certified and under attack</h3>"
        f"<p>{escape(_HOW_TO_READ)}</p>"
        '<img class="curves" alt="Certified and empirical robust accuracy" '
        f'src="data:image/svg+xml;base64,{source}">'
        '<div class="scroll" tabindex="0" role="group" aria-label="Attacks">'
        f'<table class="numbers"><thead><tr>{heads}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>{verdicts}"
    )


def verdict(gap: RobustnessGap) -> str:
    """Says how many certificates an attack contradicts.

    Example:

    >>> import numpy as np
    >>> from rs_keras.logs import RobustnessGap
    >>> from rs_keras.report.robustness import verdict
    >>> ones = np.ones(1)
    >>> verdict(RobustnessGap(
    ...     ("a", "pgd"), ones, ones, ones, ones, 8, np.array([], int)))
    'pgd contradicts none of the certificates of a on 8 examples.'
    """
    certified, attacked = gap.names
    if not len(gap.broken):
        count, which = "none", ""
    else:
        numbers = ", ".join(map(str, gap.broken.tolist()))
        count, which = f"{len(gap.broken)}", f" (examples {numbers})"
    return (
        f"{attacked} contradicts {count} of the certificates of {certified} on "
        f"{gap.examples:,} examples{which}."
    )
