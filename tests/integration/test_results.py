"""The committed results: whole, of one model, and near the authors' own."""

import dataclasses
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from rs_keras import CertificationLog
from rs_keras.cli import main
from rs_keras.trainers.recipes import registry as recipes
from rs_keras.trainers.reproduction import mnist as reproduction
from rs_keras.trainers.reproduction import pairs
from rs_keras.trainers.reproduction import results
from rs_keras.trainers.reproduction import tables
from rs_keras.trainers.reproduction.published import ABLATIONS
from rs_keras.trainers.reproduction.published import PUBLISHED
from rs_keras.trainers.reproduction.published import reference_log

RESULTS = Path(__file__).resolve().parents[2] / "results"
RUNS = sorted(path.parent for path in RESULTS.glob("mnist/**/plain.tsv"))

each = pytest.mark.parametrize(
    "run", RUNS, ids=lambda run: "-".join(map(str, place_of(run)))
)


def place_of(run):
    """Sigma, and the run's name below it."""
    sigma, *names = run.relative_to(RESULTS / "mnist").parts
    return float(sigma.removeprefix("sigma_")), "/".join(names)


def sigma_of(run):
    return place_of(run)[0]


def draws_of(run, log):
    """The papers' n; ablations, compared among themselves, may have less."""
    n = log.settings["n"]
    assert n == 100_000 or (run.parent.name == "ablations" and n == 10_000)
    return n


WHOLE = [
    *((0.25, name) for name in ("gaussian", "smoothmix")),
    *((0.5, name) for name in ("gaussian", "smoothmix")),
    *((1.0, name) for name in reproduction.methods(1.0)),
]


@pytest.mark.parametrize(("sigma", "method"), WHOLE)
def test_what_the_table_promises_is_whole(sigma, method):
    """The papers' schedule and n, on every 10th image."""
    run = reproduction.folder_of(RESULTS, sigma, method)
    full = reproduction.recipe_of(method, sigma)
    assert recipes.load(run / "recipe.json").epochs == full.epochs
    for bound in reproduction.BOUNDS:
        log = CertificationLog.read(run / f"{bound}.tsv")
        assert sorted(log.idx.tolist()) == list(range(0, 10_000, 10))
        assert log.settings["n"] == 100_000


def test_every_ablation_of_the_paper_is_there():
    names = {run.name for run in RUNS if run.parent.name == "ablations"}
    assert names == {"base", *ABLATIONS}


@each
def test_both_logs_are_of_one_model_and_the_same_images(run):
    plain = CertificationLog.read(run / "plain.tsv")
    runner_up = CertificationLog.read(run / "runner_up.tsv")
    np.testing.assert_array_equal(plain.idx, runner_up.idx)
    # Every 10th image, or some of them, once each.
    assert set(plain.idx.tolist()) <= set(range(0, 10_000, 10))
    assert len(set(plain.idx.tolist())) == len(plain)
    wanted = {"sigma": sigma_of(run), "n0": 100, "alpha": 1e-3}
    wanted["n"] = draws_of(run, plain)
    for log, has_runner_up in ((plain, False), (runner_up, True)):
        assert log.settings.items() >= wanted.items()
        assert log.settings["runner_up"] is has_runner_up
        assert log.settings["model"] == plain.settings["model"]
    # Both classes' bounds share alpha, so a top class with nearly all votes
    # gets a little less; an image that only they certify gets more.
    assert (runner_up.radius > 0).sum() >= (plain.radius > 0).sum()


@each
def test_radii_are_those_that_votes_can_give(run):
    """With n votes the largest bound is alpha**(1/n): Clopper and Pearson."""
    plain = CertificationLog.read(run / "plain.tsv")
    most = sigma_of(run) * stats.norm.ppf(1e-3 ** (1 / draws_of(run, plain)))
    assert plain.radius.max() <= most
    abstained = plain.predict == -1
    assert not plain.radius[abstained].any()
    assert (plain.correct == (plain.predict == plain.label)).all()


@each
def test_both_radii_are_those_of_one_pair_of_counts(run):
    """Clopper and Pearson by SciPy: whole votes k and k2 give both radii.

    k votes for the top class follow from the plain radius. The runner-up's k2,
    the most of nine others, is at least (n - k) / 9 and at most n - k.
    """
    plain = CertificationLog.read(run / "plain.tsv")
    runner_up = CertificationLog.read(run / "runner_up.tsv")
    n, sigma = draws_of(run, plain), sigma_of(run)
    k = np.arange(n // 2, n + 1)
    radii = sigma * stats.norm.ppf(stats.beta.ppf(1e-3, k, n - k + 1))
    top = stats.norm.ppf(stats.beta.ppf(0.9e-3, k, n - k + 1))
    k2 = np.arange(n // 2)
    second = stats.norm.ppf(stats.beta.ppf(1 - 0.1e-3, k2 + 1, n - k2))
    certified = np.flatnonzero(plain.predict >= 0)
    assert len(certified) > 50
    for row in certified:
        nearest = np.argmin(np.abs(radii - plain.radius[row]))
        # Logs have six digits after the point, rounded down.
        assert -1e-9 < radii[nearest] - plain.radius[row] < 2e-6
        assert plain.predict[row] == runner_up.predict[row]
        rest = n - k[nearest]
        few, most = -(-rest // 9), min(rest, len(k2) - 1)
        bound = np.minimum(second[few : most + 1], -top[nearest])
        both = sigma / 2 * (top[nearest] - bound)
        assert np.abs(both - runner_up.radius[row]).min() < 2e-6


@each
def test_the_recipe_is_the_one_that_is_told(run):
    recipe = recipes.load(run / "recipe.json")
    sigma, name = place_of(run)
    # What was not trained in float32 is told beside the table.
    assert recipe.dtype in ("float32", "mixed_bfloat16")
    # Of one that was stopped the table says so, and its schedule is whole.
    epochs = None if recipes.is_cut(recipe) else recipe.epochs
    wanted = reproduction.recipe_of(
        name, sigma, epochs=epochs, dtype=recipe.dtype
    ).replace(epochs=recipe.epochs)
    if recipe.teacher:
        # Fewer votes than the papers' are told beside the table.
        wanted = wanted.replace(**{"teacher.n": recipe.teacher["n"]})
    assert dataclasses.replace(recipe, sources={}) == dataclasses.replace(
        wanted, sources={}
    )
    lines = (run / "history.csv").read_text().splitlines()
    assert len(lines) == recipe.epochs + 1


def is_whole(run, log):
    sigma, name = place_of(run)
    full = reproduction.recipe_of(name, sigma).epochs
    return (
        recipes.load(run / "recipe.json").epochs == full and len(log) == 1_000
    )


@each
def test_the_published_value_is_met(run):
    """Within two standard errors of the choice of images."""
    published = PUBLISHED[sigma_of(run)].get(run.name)
    log = CertificationLog.read(run / "plain.tsv")
    if published is None or not is_whole(run, log):
        pytest.skip("not the papers' schedule and images")
    radii = log.radius * log.correct
    error = np.std(radii, ddof=1) / np.sqrt(len(radii))
    assert abs(radii.mean() - published) < 2 * error


@each
def test_the_authors_log_is_matched_on_the_same_images(run, shared):
    """Full schedules within 0.02; MACER, whose seeds differ more, 0.03."""
    sigma = sigma_of(run)
    theirs = reference_log(shared / "reference_logs", sigma, run.name)
    if theirs is None:
        pytest.skip(f"the authors published no log of {run.name}")
    ours = CertificationLog.read(run / "plain.tsv")
    at = {idx: place for place, idx in enumerate(theirs.idx.tolist())}
    rows = [at[idx] for idx in ours.idx.tolist()]
    np.testing.assert_array_equal(theirs.label[rows], ours.label)
    difference = np.mean(
        ours.radius * ours.correct - theirs.radius[rows] * theirs.correct[rows]
    )
    kept = json.loads((run / pairs.AGAINST).read_text())
    assert kept["difference"] == pytest.approx(difference, abs=1e-12)
    assert kept["examples"] == len(ours)
    if is_whole(run, ours):
        assert abs(difference) < (0.03 if run.name == "macer" else 0.02)


def test_the_page_is_made_from_the_files():
    text = (RESULTS / "README.md").read_text()
    assert text == tables.report(RESULTS)


def test_the_page_says_once_how_pairs_are_judged():
    text = (RESULTS / "README.md").read_text()
    assert text.count("### Order of the methods\n") > 1
    assert text.count("How pairs are judged:") == 1


def test_the_readme_shows_the_same_table():
    runs = results.read_methods(RESULTS, 1.0)
    parts = [tables.table(runs), *tables.notes(runs)]
    assert "\n\n".join(parts) in (RESULTS.parent / "README.md").read_text()


def test_the_command_shows_what_is_here(tmp_path, monkeypatch, capsys):
    """In a clone: it trains nothing again, and leaves every file as it is."""

    def fail(*_, **__):
        pytest.fail("a run was begun")

    monkeypatch.setattr("rs_keras.trainers.runs.training.train", fail)
    place = tmp_path / "results"
    shutil.copytree(RESULTS, place)
    before = {path: path.read_bytes() for path in contents(place)}
    call = ["reproduce", "mnist", "--sigma", "1.0", "--out", str(place)]
    assert main(call) == 0
    runs = results.read_methods(RESULTS, 1.0)
    assert tables.table(runs) in capsys.readouterr().out
    assert {path: path.read_bytes() for path in contents(place)} == before


def contents(folder):
    return [path for path in folder.rglob("*") if path.is_file()]
