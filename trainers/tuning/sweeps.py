"""Results of a sweep: a table, the Pareto front, a plot."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from typing import Any

import keras_tuner

from rs_keras.report import plots
from rs_keras.trainers.tuning import hypermodel as tuning
from rs_keras.trainers.tuning.own_models import CLEAN

if TYPE_CHECKING:
    from matplotlib.figure import Figure


TRIALS = "trials.tsv"
FRONT = "front.svg"
BEST = "best.json"


@dataclass(frozen=True)
class TrialResult:
    """One trial of a sweep.

    Attributes:
        trial: Keras Tuner's name of it.
        status: "COMPLETED", "FAILED", "RUNNING" or "INVALID".
        score: Of the objective; None unless completed.
        acr: Average certified radius on the examples held out; None as above.
        clean: Certified accuracy there at radius 0; None as above.
        values: What was varied.
        message: Why it failed, in one line; empty if it did not.

    Example:

    >>> from rs_keras.trainers.tuning import sweeps
    >>> trial = sweeps.TrialResult("03", "COMPLETED", score=0.6, acr=0.6,
    ...                            clean=0.8, values={"eta": 2.5})
    >>> sweeps.pareto([trial])[0].values
    {'eta': 2.5}
    """

    trial: str
    status: str
    score: float | None
    acr: float | None
    clean: float | None
    values: dict[str, Any]
    message: str = ""


def results(tuner: keras_tuner.Tuner) -> list[TrialResult]:
    """Returns a search's trials, the best first and failed ones last.

    Example:

    >>> import keras_tuner
    >>> from rs_keras.trainers.tuning import sweeps
    >>> from rs_keras.trainers import tuning
    >>> model = tuning.SmoothingHyperModel(
    ...     "gaussian", "fashion_mini", sigma=0.5, validation=10)
    >>> tuner = tuning.tuner(model, "random", trials=2)
    >>> sweeps.results(tuner)  # none before tuner.search()
    []
    """
    trials = map(_result, tuner.oracle.trials.values())
    return sorted(
        trials, key=lambda t: (t.score is None, -(t.score or 0), t.trial)
    )


def _result(trial: Any) -> TrialResult:
    def best(name: str) -> float | None:
        known = trial.status == "COMPLETED" and trial.metrics.exists(name)
        return float(trial.metrics.get_best_value(name)) if known else None

    return TrialResult(
        trial=trial.trial_id,
        status=str(trial.status),
        score=trial.score if trial.status == "COMPLETED" else None,
        acr=best("val_acr"),
        clean=best(CLEAN),
        values={
            name: value
            for name, value in trial.hyperparameters.values.items()
            if name != "tuner/trial_id"
        },
        message=tuning.last_line(trial.message),
    )


def pareto(trials: Sequence[TrialResult]) -> list[TrialResult]:
    """Returns the Pareto front of clean accuracy and ACR.

    A trial is not in it if another one is as good in both and better in one.
    Ordered by falling clean accuracy and rising ACR; of equals, the first.

    Example:

    >>> from rs_keras.trainers.tuning.sweeps import TrialResult
    >>> from rs_keras.trainers.tuning.sweeps import pareto
    >>> def one(name, clean, acr):
    ...     return TrialResult(name, "COMPLETED", acr, acr, clean, {})
    >>> front = pareto([one("a", .9, .5), one("b", .8, .6), one("c", .8, .5)])
    >>> [trial.trial for trial in front]
    ['a', 'b']
    """
    measured = [
        (trial.clean, trial.acr, trial)
        for trial in trials
        if trial.clean is not None and trial.acr is not None
    ]
    front: list[TrialResult] = []
    highest = -1.0
    for _, acr, trial in sorted(measured, key=lambda row: (-row[0], -row[1])):
        if acr > highest:
            front.append(trial)
            highest = acr
    return front


def table(trials: Sequence[TrialResult]) -> str:
    r"""Returns one tab-separated line a trial, under a header line.

    `front` is 1 for the trials of the Pareto front.

    Example:

    >>> from rs_keras.trainers.tuning import sweeps
    >>> trial = sweeps.TrialResult("03", "COMPLETED", score=0.6, acr=0.6,
    ...                            clean=0.8, values={"eta": 2.5})
    >>> header, row = sweeps.table([trial]).split("\n")
    >>> dict(zip(header.split("\t"), row.split("\t")))
    {'trial': '03', 'status': 'COMPLETED', 'score': '0.6', 'acr': '0.6',
     'clean': '0.8', 'front': '1', 'eta': '2.5', 'message': ''}
    """
    names = list(dict.fromkeys(name for t in trials for name in t.values))
    front = {trial.trial for trial in pareto(trials)}
    rows = [
        [
            trial.trial,
            trial.status,
            *map(_number, (trial.score, trial.acr, trial.clean)),
            str(int(trial.trial in front)),
            *(_number(trial.values.get(name)) for name in names),
            trial.message.replace("\t", " "),
        ]
        for trial in trials
    ]
    header = ["trial", "status", "score", "acr", "clean", "front", *names]
    return "\n".join("\t".join(row) for row in [[*header, "message"], *rows])


def _number(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def plot_front(
    trials: Sequence[TrialResult],
    path: str | os.PathLike[str] | None = None,
) -> "Figure":
    """Draws each trial's clean accuracy against its ACR, and the front.

    Args:
        trials: From `results`; at least one completed.
        path: Where to save it: .png, .svg or .pdf.

    Raises:
        ValueError: If no trial was completed, or the file has another ending.
        OSError: If the file cannot be written.

    Example:

    >>> from rs_keras.trainers.tuning import sweeps
    >>> def one(name, clean, acr):
    ...     return sweeps.TrialResult(name, "COMPLETED", acr, acr, clean, {})
    >>> figure = sweeps.plot_front([one("a", .9, .5), one("b", .8, .6)])
    >>> [line.get_label() for line in figure.axes[0].lines]
    ['Pareto front']
    """
    front = pareto(trials)
    if not front:
        raise ValueError("`trials` must hold a completed trial. Received: none")
    figure = plots.new_figure(path)
    axes = figure.add_subplot()
    done = [trial for trial in trials if trial.acr is not None]
    axes.scatter(*_points(done), color="#56B4E9", label="trial", zorder=2)
    axes.plot(
        *_points(front),
        color="#D55E00",
        marker="o",
        label="Pareto front",
        zorder=3,
    )
    for trial in front:
        axes.annotate(
            trial.trial,
            (trial.clean, trial.acr),
            xytext=(5, 5),
            textcoords="offset points",
            fontsize="small",
        )
    plots.plain_axes(
        axes, "certified accuracy at radius 0", "average certified radius"
    )
    axes.legend(frameon=False)
    plots.save(figure, path)
    return figure


def _points(trials: Sequence[TrialResult]) -> tuple[list, list]:
    return [trial.clean for trial in trials], [trial.acr for trial in trials]


def write(tuner: keras_tuner.Tuner, directory: str | Path) -> list[str]:
    """Writes trials.tsv, front.svg and best.json; returns what was written.

    The last two need a completed trial.

    Args:
        tuner: After its search.
        directory: Where to; it has to be there.

    Example:

    >>> from rs_keras.trainers.tuning import sweeps
    >>> from rs_keras.trainers import tuning
    >>> model = tuning.SmoothingHyperModel(
    ...     "gaussian", "fashion_mini", sigma=0.5, epochs=1, validation=10,
    ...     n=100, overrides={"limit": 500})
    >>> tuner = tuning.tuner(model, "random", trials=1, directory="sweep")
    >>> tuner.search(verbose=0)
    >>> sweeps.write(tuner, "sweep")
    ['sweep/trials.tsv', 'sweep/front.svg', 'sweep/best.json']
    """
    directory = Path(directory)
    listed = results(tuner)
    trials, front, best = (directory / n for n in (TRIALS, FRONT, BEST))
    trials.write_text(table(listed) + "\n", encoding="utf-8")
    if not pareto(listed):
        return [str(trials)]
    plot_front(listed, front)
    tuning.best_recipe(tuner).save(best)
    return [str(trials), str(front), str(best)]
