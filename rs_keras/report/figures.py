"""Figures of images and how sure a smoothed classifier is of them."""

import os
from collections.abc import Mapping
from collections.abc import Sequence
from typing import TYPE_CHECKING
from typing import Any

import numpy as np

from rs_keras import noise as noise_lib
from rs_keras._checks import check_count
from rs_keras._checks import check_images
from rs_keras.certification.certifier import Certifier
from rs_keras.report import interpolation
from rs_keras.report import plots

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_SHOWN_RATIOS = (0.25, 0.5, 0.75)


def plot_interpolation(
    certifier: Certifier,
    image: Any,
    label: int,
    adversarial: Any,
    path: str | os.PathLike[str] | None = None,
    class_names: Sequence[str] | None = None,
    n: int = 1_000,
    copies: int = 3,
    points: int = 33,
    seed: int = 0,
) -> "Figure":
    """Draws an image, noisy copies, the way to an adversarial example.

    Above, the noisy copies; then the way; below, the confidences (shares of
    votes) of the label and of the classes that overtake it along the way, as
    in SmoothMix, figure 2.

    Args:
        certifier: Of the classifier.
        image: [H, W, C] in [0, 1].
        label: Its class.
        adversarial: [H, W, C] in [0, 1], such as from
            `rs_keras.report.interpolation.adversarial_images`.
        path: Where to save it: .png, .svg or .pdf.
        class_names: In the order of the labels.
        n: Votes, >= 1.
        copies: Noisy ones that are shown, >= 1.
        points: Mixing ratios at which confidences are taken, >= 2.
        seed: Of the noise.

    Returns:
        A `matplotlib.figure.Figure`.

    Raises:
        ValueError: If an argument is out of its range.
        OSError: If the file cannot be written.

    Example:

    >>> import numpy as np
    >>> from rs_keras import Certifier
    >>> from rs_keras.report.figures import plot_interpolation
    >>> certifier = Certifier(lambda x: x[:, 0, 0] - 0.5, 0.25, num_classes=3)
    >>> white, black = np.ones([4, 4, 3]), np.zeros([4, 4, 3])
    >>> figure = plot_interpolation(certifier, white, 0, black, "way.png",
    ...                             n=100, points=5, seed=1)
    >>> figure.subfigs[2].axes[0].get_xlabel()
    'mixing ratio'

    References:
    - [Jeong et al., 2021](https://arxiv.org/abs/2111.09277), figure 2
    """
    pair = check_images(np.stack([image, adversarial]))
    check_count("copies", copies)
    check_count("points", points, 2)
    figure = plots.new_figure(path, width=7.2, height=5.2)
    ratios = np.linspace(0, 1, points)
    shares = interpolation.confidences(
        certifier, pair[:1], pair[1:], ratios, n, seed
    )
    if not 0 <= label < shares.shape[-1]:
        raise ValueError(
            f"`label` must be in [0, {shares.shape[-1]}). Received: {label}"
        )
    above, way, below = figure.subfigures(3, 1, height_ratios=[1, 1, 1.7])
    _pictures(above, _noisy(certifier, pair[0], copies, seed), "noisy copy")
    middle = [(1 - r) * pair[0] + r * pair[1] for r in _SHOWN_RATIOS]
    names = ["image", *(f"ratio {r:g}" for r in _SHOWN_RATIOS), "adversarial"]
    _pictures(way, [pair[0], *middle, pair[1]], *names)
    _curves(below.subplots(), ratios, shares[:, 0], label, class_names)
    plots.save(figure, path)
    return figure


def _noisy(
    certifier: Certifier, image: np.ndarray, copies: int, seed: int
) -> list[np.ndarray]:
    row = noise_lib.as_seeds(seed, 1)[0]
    eps = noise_lib.normal(image.shape, row, 0, copies).numpy()
    return list(image + certifier.sigma * eps)


def _pictures(figure: Any, pictures: Sequence[np.ndarray], *names: str) -> None:
    axes = figure.subplots(1, len(pictures), squeeze=False)[0]
    for i, (one, picture) in enumerate(zip(axes, pictures, strict=True)):
        # Noise leaves the range that can be shown.
        shown = np.clip(picture, 0, 1)
        grey = shown.shape[-1] == 1
        one.imshow(
            shown[..., 0] if grey else shown,
            cmap="gray" if grey else None,
            vmin=0,
            vmax=1,
        )
        one.set_title(names[i % len(names)], fontsize="small")
        one.set_axis_off()


def _curves(
    axes: "Axes",
    ratios: np.ndarray,
    shares: np.ndarray,
    label: int,
    class_names: Sequence[str] | None,
) -> None:
    leaders = [int(one) for one in shares.argmax(-1)]
    for colour, one in zip(
        plots.colours(), dict.fromkeys([label, *leaders]), strict=False
    ):
        name = class_names[one] if class_names else f"class {one}"
        axes.plot(
            ratios,
            shares[:, one],
            color=colour,
            linestyle="-" if one == label else "--",
            label=f"{name} (label)" if one == label else name,
        )
    plots.plain_axes(axes, "mixing ratio", "share of votes")
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1.02)
    axes.legend(frameon=False, fontsize="small")


def plot_mixing_ratios(
    ratios: Mapping[str, np.ndarray],
    path: str | os.PathLike[str] | None = None,
    bins: int = 20,
) -> "Figure":
    """Draws histograms of equal-confidence mixing ratios, one a classifier.

    Shares are of the examples predicted correctly. Those that no mixture
    changes are beyond the right end, and said in the legend.

    Args:
        ratios: By name, from
            `rs_keras.report.interpolation.equal_confidence_ratios`.
        path: Where to save it: .png, .svg or .pdf.
        bins: >= 1.

    Returns:
        A `matplotlib.figure.Figure`.

    Raises:
        ValueError: If there is none, one has no correct prediction, or an
            argument is out of its range.
        OSError: If the file cannot be written.

    Example:

    >>> import numpy as np
    >>> from rs_keras.report.figures import plot_mixing_ratios
    >>> ratios = {"gaussian": np.array([0.25, 0.5, np.inf, np.nan])}
    >>> figure = plot_mixing_ratios(ratios, "ratios.png")
    >>> figure.axes[0].get_legend_handles_labels()[1]
    ['gaussian (median 0.50, 33% never)']

    References:
    - [Jeong et al., 2021](https://arxiv.org/abs/2111.09277), figure 5
    """
    check_count("bins", bins)
    if not ratios:
        raise ValueError("`ratios` must hold at least one. Received: none")
    right = {name: row[~np.isnan(row)] for name, row in ratios.items()}
    for name, row in right.items():
        if not len(row):
            raise ValueError(
                f"`ratios` must hold a correct prediction of {name}. Received: "
                "none"
            )
    figure = plots.new_figure(path)
    axes = figure.add_subplot()
    edges = np.linspace(0, 1, bins + 1)
    for colour, (name, row) in zip(
        plots.colours(), right.items(), strict=False
    ):
        counts, _ = np.histogram(row[np.isfinite(row)], edges)
        never = np.isinf(row).mean()
        median = np.quantile(row, 0.5, method="lower")
        axes.stairs(
            counts / len(row),
            edges,
            color=colour,
            fill=True,
            alpha=0.25,
        )
        axes.stairs(
            counts / len(row),
            edges,
            color=colour,
            linewidth=1.6,
            label=f"{name} (median {median:.2f}, {never:.0%} never)",
        )
    plots.plain_axes(
        axes, "equal-confidence mixing ratio", "share of correct examples"
    )
    axes.set_xlim(0, 1)
    axes.legend(frameon=False, fontsize="small")
    plots.save(figure, path)
    return figure
