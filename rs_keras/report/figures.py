"""Figures of the confidence between an image and its adversarial example.

SmoothMix trains on mixtures of the two; here the confidence on them is measured
and plotted, for any smoothed classifier.
"""

import os
from collections.abc import Mapping
from collections.abc import Sequence
from typing import TYPE_CHECKING
from typing import Any

import numpy as np
import tensorflow as tf

from rs_keras import noise
from rs_keras._checks import check_count
from rs_keras._checks import check_images
from rs_keras.adversaries import Ascent
from rs_keras.certification.certifier import Certifier
from rs_keras.report import plots

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_SHOWN_RATIOS = (0.25, 0.5, 0.75)

# Keeps the adversary's noise apart from that of the votes.
_STREAM = 11

# Images that are attacked at a time.
_ROWS = 32

# step_size * steps / sigma of SmoothMix's published settings.
_REACH = 8.0


def adversarial_images(
    certifier: Certifier,
    images: Any,
    labels: Any,
    steps: int = 8,
    step_size: float | None = None,
    num_noise: int = 16,
    seed: int = 0,
) -> np.ndarray:
    """Maximises the smoothed classifier's loss within the range of pixels.

    As SmoothMix does in training, see `rs_keras.adversaries.Ascent`.

    Args:
        certifier: Of the classifier.
        images: [B, H, W, C] in [0, 1].
        labels: Integers [B].
        steps: T in the paper, >= 0.
        step_size: alpha in the paper, > 0; None for 8 * sigma / steps.
        num_noise: Noisy copies of each image that it looks at, >= 1.
        seed: Of their noise.

    Returns:
        float32 [B, H, W, C] in [0, 1].

    Raises:
        ValueError: If an argument is out of its range.

    Example:

    >>> import numpy as np
    >>> from rs_keras import Certifier
    >>> from rs_keras.report.figures import adversarial_images
    >>> certifier = Certifier(lambda x: x[:, 0, 0] - 0.5, 0.25, num_classes=2)
    >>> image = np.array([0.75, 0.25]).reshape(1, 1, 1, 2)
    >>> adversarial_images(certifier, image, [0]).ravel()
    array([0., 1.], dtype=float32)

    References:
    - [Jeong et al., 2021](https://arxiv.org/abs/2111.09277), equation 7
    """
    images, labels = _checked(images, labels)
    check_count("num_noise", num_noise)
    check_count("steps", steps, 0)
    size = _REACH * certifier.sigma / max(1, steps)
    ascent = Ascent(steps, size if step_size is None else step_size)
    seeds = noise.as_seeds(seed, len(images))
    logits = certifier.sampler(images.shape[1:]).logits

    @tf.function
    def climb(x: tf.Tensor, y: tf.Tensor, eps: tf.Tensor) -> tf.Tensor:
        def classify(at: tf.Tensor) -> tf.Tensor:
            copies = tf.reshape(at + eps, [-1, *images.shape[1:]])
            scores = logits(copies)
            return tf.reshape(scores, [num_noise, -1, scores.shape[-1]])

        return ascent(classify, x, y)

    return np.concatenate(
        [
            climb(
                tf.constant(images[rows]),
                tf.constant(labels[rows]),
                certifier.sigma * _noise(images, seeds[rows], num_noise),
            ).numpy()
            for rows in _parts(len(images))
        ]
    )


def confidences(
    certifier: Certifier,
    images: Any,
    adversarial: Any,
    ratios: Any,
    n: int = 1_000,
    seed: int = 0,
) -> np.ndarray:
    """The share of votes of every class along the way.

    Of (1 - ratio) * image + ratio * adversarial, under the same noise for all
    ratios.

    Args:
        certifier: Of the classifier.
        images: [B, H, W, C] in [0, 1].
        adversarial: As `images`.
        ratios: Numbers in [0, 1], [R].
        n: Votes, >= 1.
        seed: Of the noise.

    Returns:
        float64 [R, B, num_classes].

    Raises:
        ValueError: If an argument is out of its range.

    Example:

    >>> import numpy as np
    >>> from rs_keras import Certifier
    >>> from rs_keras.report.figures import confidences
    >>> certifier = Certifier(lambda x: x[:, 0, 0] - 0.5, 0.25, num_classes=2)
    >>> image = np.array([1.0, 0.0]).reshape(1, 1, 1, 2)
    >>> shares = confidences(certifier, image, 1 - image, [0.0, 0.5, 1.0])
    >>> shares[:, 0, 0].round(1)
    array([1. , 0.5, 0. ])
    """
    images, adversarial = _pair(images, adversarial)
    ratios = np.atleast_1d(np.asarray(ratios, np.float64))
    if not ((ratios >= 0) & (ratios <= 1)).all():
        raise ValueError(
            f"`ratios` must lie in [0, 1]. Received: ratios={ratios}"
        )
    seeds = noise.as_seeds(seed, len(images))
    votes = [
        certifier.sample(_mixed(images, adversarial, ratio), n, seeds)
        for ratio in ratios
    ]
    return np.stack(votes) / n


def equal_confidence_ratios(
    certifier: Certifier,
    images: Any,
    labels: Any,
    adversarial: Any,
    n: int = 1_000,
    points: int = 32,
    halvings: int = 5,
    seed: int = 0,
) -> np.ndarray:
    """The smallest mixing ratio that changes a correct smoothed prediction.

    There the confidences of two classes are equal, and near 1/2 it lies where
    a classifier is as sure of an image as of its adversarial example.
    Miscalibrated classifiers give in sooner.

    Args:
        certifier: Of the classifier.
        images: [B, H, W, C] in [0, 1].
        labels: Integers [B].
        adversarial: As `images`, such as from `adversarial_images`.
        n: Votes per prediction, >= 1; with the same noise for all ratios of an
            image.
        points: Ratios 1 / points, 2 / points, ..., 1 are looked at, >= 1: a
            prediction that changes and changes back in between is not seen.
        halvings: Of the first such interval, >= 0: the result is at most
            1 / (points * 2**halvings) above the change.
        seed: Of the noise.

    Returns:
        float64 [B], in (0, 1]; infinity where the prediction stays up to the
        adversarial example, NaN where it is not the label to begin with.

    Raises:
        ValueError: If an argument is out of its range.

    Example:

    >>> import tensorflow as tf
    >>> from rs_keras import Certifier
    >>> from rs_keras.report.figures import equal_confidence_ratios
    >>> certifier = Certifier(
    ...     lambda x: x[:, 0, 0, :1] * [[1.0, -1.0]] - [[0.5, -0.5]], 0.01)
    >>> bright, dark = tf.ones([1, 1, 1, 1]), tf.zeros([1, 1, 1, 1])
    >>> ratio = equal_confidence_ratios(certifier, bright, [0], dark)
    >>> bool(abs(ratio[0] - 0.5) < 0.01)
    True

    References:
    - [Jeong et al., 2021](https://arxiv.org/abs/2111.09277), section 4 (figure
      5: equal-confidence mixing ratios)
    """
    images, labels = _checked(images, labels)
    images, adversarial = _pair(images, adversarial)
    check_count("n", n)
    check_count("points", points)
    check_count("halvings", halvings, 0)
    seeds = noise.as_seeds(seed, len(images))

    def keeps(rows: np.ndarray, ratios: Any) -> np.ndarray:
        mixed = _mixed(images[rows], adversarial[rows], ratios)
        votes = certifier.sample(mixed, n, seeds[rows])
        return votes.argmax(1) == labels[rows]

    everyone = np.arange(len(images))
    right = keeps(everyone, 0.0)
    # The ratio found so far: infinity while no point changes the prediction.
    smallest = np.where(right, np.inf, np.nan)
    rows = everyone[right]
    for point in range(1, points + 1):
        if not len(rows):
            break
        kept = keeps(rows, point / points)
        smallest[rows[~kept]] = point / points
        rows = rows[kept]
    # Bisection: the prediction is kept at `low`, and changed at `smallest`.
    changed = np.flatnonzero(np.isfinite(smallest))
    low = smallest[changed] - 1 / points
    for _ in range(halvings if len(changed) else 0):
        middle = (low + smallest[changed]) / 2
        kept = keeps(changed, middle)
        low[kept] = middle[kept]
        smallest[changed[~kept]] = middle[~kept]
    return smallest


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
            `rs_keras.report.figures.adversarial_images`.
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
    shares = confidences(certifier, pair[:1], pair[1:], ratios, n=n, seed=seed)
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
    row = noise.as_seeds(seed, 1)[0]
    eps = noise.normal(image.shape, row, 0, copies).numpy()
    return list(image + certifier.sigma * eps)


def _pictures(figure: Any, pictures: Sequence[np.ndarray], *names: str) -> None:
    axes = figure.subplots(1, len(pictures), squeeze=False)[0]
    for i, (axis, picture) in enumerate(zip(axes, pictures, strict=True)):
        # Noise leaves the range that can be shown.
        shown = np.clip(picture, 0, 1)
        grey = shown.shape[-1] == 1
        axis.imshow(
            shown[..., 0] if grey else shown,
            cmap="gray" if grey else None,
            vmin=0,
            vmax=1,
        )
        axis.set_title(names[i % len(names)], fontsize="small")
        axis.set_axis_off()


def _curves(
    axes: "Axes",
    ratios: np.ndarray,
    shares: np.ndarray,
    label: int,
    class_names: Sequence[str] | None,
) -> None:
    leaders = shares.argmax(-1).tolist()
    for colour, index in zip(
        plots.colours(), dict.fromkeys([label, *leaders]), strict=False
    ):
        name = class_names[index] if class_names else f"class {index}"
        axes.plot(
            ratios,
            shares[:, index],
            color=colour,
            linestyle="-" if index == label else "--",
            label=f"{name} (label)" if index == label else name,
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
            `rs_keras.report.figures.equal_confidence_ratios`.
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


def _checked(images: Any, labels: Any) -> tuple[np.ndarray, np.ndarray]:
    images = check_images(images)
    labels = np.asarray(labels, np.int64)
    if labels.shape != images.shape[:1]:
        raise ValueError(
            f"`labels` must have shape [{len(images)}], one per image. "
            f"Received: shape={list(labels.shape)}"
        )
    return images, labels


def _pair(images: Any, adversarial: Any) -> tuple[np.ndarray, np.ndarray]:
    images, adversarial = check_images(images), check_images(adversarial)
    if images.shape != adversarial.shape:
        raise ValueError(
            f"`adversarial` must have the shape of `images`, "
            f"{list(images.shape)}. Received: shape={list(adversarial.shape)}"
        )
    return images, adversarial


def _mixed(
    images: np.ndarray, adversarial: np.ndarray, ratios: Any
) -> np.ndarray:
    share = np.asarray(ratios, np.float32).reshape(-1, 1, 1, 1)
    mixed = (1 - share) * images + share * adversarial
    # White mixed with white may be rounded to more than white.
    return np.clip(mixed, 0, 1)


def _noise(images: np.ndarray, seeds: np.ndarray, count: int) -> tf.Tensor:
    """Returns [count, len(seeds), H, W, C]."""
    shape = images.shape[1:]
    return tf.stack(
        [noise.normal(shape, row, 0, count, stream=_STREAM) for row in seeds],
        axis=1,
    )


def _parts(count: int) -> list[slice]:
    return [slice(i, i + _ROWS) for i in range(0, count, _ROWS)]
