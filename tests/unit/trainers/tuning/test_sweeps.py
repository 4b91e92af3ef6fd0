"""Results of a sweep: the Pareto front and its plot."""

import pytest

# Keras Tuner needs both, and does not declare them: see setup.py.
pytest.importorskip("tensorboard", reason="tensorboard is not installed")
pytest.importorskip("sklearn", reason="scikit-learn is not installed")

import numpy as np  # noqa: E402

from rs_keras.trainers.tuning import sweeps  # noqa: E402
from rs_keras.trainers.tuning.sweeps import TrialResult  # noqa: E402


def result(name, clean, acr):
    return TrialResult(name, "COMPLETED", acr, acr, clean, {})


@pytest.mark.parametrize("seed", range(3))
def test_pareto_front_is_what_nothing_beats(seed):
    rng = np.random.default_rng(seed)
    points = rng.integers(0, 6, (30, 2)) / 5
    found = [result(str(i), *point) for i, point in enumerate(points)]
    front = {one.trial for one in sweeps.pareto(found)}
    for i, (clean, acr) in enumerate(points):
        beaten = any(
            (c >= clean and a >= acr and (c > clean or a > acr))
            for c, a in points
        )
        twin = any((points[j] == (clean, acr)).all() for j in range(i))
        assert (str(i) in front) == (not beaten and not twin)


def test_plot_draws_every_trial():
    found = [
        result("a", 0.9, 0.5),
        result("b", 0.8, 0.6),
        result("c", 0.7, 0.1),
    ]
    axes = sweeps.plot_front(found).axes[0]
    assert len(axes.collections[0].get_offsets()) == 3
    np.testing.assert_allclose(
        axes.lines[0].get_xydata(), [[0.9, 0.5], [0.8, 0.6]]
    )
    with pytest.raises(ValueError, match="a completed trial"):
        sweeps.plot_front([])
