"""Tables, pairs and their order, from logs with known radii."""

import json

import pytest
from kits.reproduction import IMAGES
from kits.reproduction import ablations_of
from kits.reproduction import constant
from kits.reproduction import order_of
from kits.reproduction import pair_of
from kits.reproduction import table_of
from kits.reproduction import write_run

from rs_keras.trainers.reproduction import mnist as reproduction
from rs_keras.trainers.reproduction import pairs as reproduction_pairs
from rs_keras.trainers.reproduction import published
from rs_keras.trainers.reproduction import results
from rs_keras.trainers.reproduction import tables


def outcomes(pairs):
    return {(pair.first.label, pair.second.label): pair.holds for pair in pairs}


def test_ablations_are_compared_on_the_images_of_both(tmp_path):
    write_run(tmp_path, "ablations/base", constant(1.0))
    # +0.5 on 119 images of both, and one that the base has not.
    more = {idx: 1.5 for idx in IMAGES if idx} | {9_990: 4.0}
    write_run(tmp_path, "ablations/eta_4", more)
    # The paper's is smaller with m = 1, this is larger.
    write_run(tmp_path, "ablations/m_1", more)
    # Half are .5 larger, half are .5 smaller.
    mixed = {idx: 1.5 - (idx // 10) % 2 for idx in IMAGES}
    write_run(tmp_path, "ablations/eta_16", mixed)
    # The paper's is nearly the same: so is this; and this is not.
    write_run(tmp_path, "ablations/T_2", constant(1.01))
    write_run(tmp_path, "ablations/T_8", constant(1.5))
    # As long as no base: cannot be compared.
    write_run(tmp_path, "ablations/T_4", constant(1.0), epochs=10)
    rows = ablations_of(tmp_path)
    assert outcomes(rows) == {
        ("base", "eta_4"): True,
        ("base", "eta_16"): None,
        ("eta_4", "eta_16"): True,
        ("base", "m_1"): False,
        ("base", "T_2"): True,
        ("base", "T_8"): False,
    }
    assert results.read_ablations(tmp_path, 0.5) == []
    assert rows[0].comparison.examples == 119
    assert rows[0].comparison.difference == pytest.approx(0.5, abs=1e-12)
    text = tables.report(tmp_path)
    assert (
        "| eta_4 against base | 9 of 90 | 119 | 100,000 | +0.031 | 0.006 | "
        "+0.500 [+0.500, +0.500] | [+0.494, +0.506] | as published |"
    ) in text
    assert "| m_1 against base | 9 of 90 | 119 | 100,000 | -0.045 |" in text
    assert "### Ablations, in part\n\n6 pairs: 3 as published, 2 rev" in text
    assert "| T_8 | 9 of 90 | 120 of 1,000 | 100,000 | 1.500 ± 0.000 |" in text
    assert "| T_4 |" not in text


def test_a_full_ablation_is_compared_with_the_method_it_changes(tmp_path):
    write_run(tmp_path, "smoothmix_T1", constant(1.0), 90)
    write_run(tmp_path, "ablations/eta_4", constant(1.5), 90)
    # As long, but of fewer draws: it is passed over.
    write_run(tmp_path, "ablations/base", constant(1.4), 90, n=10_000)
    text = tables.report(tmp_path)
    assert "### Ablations\n\n1 pair: 1 yes, 0 no, 0 inconclusive." in text
    assert "| eta_4 against smoothmix_T1 | 90 of 90 | 120 | 100,000 |" in text
    assert text.count("| smoothmix_T1 | 90 of 90 | 120 of 1,000 |") == 2


def test_the_order_is_that_of_all_pairs(tmp_path):
    # Published: macer 1.598, gaussian 1.620, smoothadv 1.779, T = 1 1.785.
    write_run(tmp_path, "macer", constant(0.5), 90)
    write_run(tmp_path, "gaussian", constant(1.0), 90)
    write_run(tmp_path, "smoothadv", constant(0.8), 90)
    write_run(tmp_path, "smoothmix_T1", constant(0.75), 90)
    rows = order_of(tmp_path)
    assert outcomes(rows) == {
        ("macer", "gaussian"): True,
        ("macer", "smoothadv"): True,
        ("macer", "smoothmix_T1"): True,
        ("gaussian", "smoothadv"): False,
        ("gaussian", "smoothmix_T1"): False,
        ("smoothadv", "smoothmix_T1"): False,
    }
    assert rows[0].published == pytest.approx(0.022)
    # Twice the root of .0051**2 + .0021**2, of SmoothMix's table 5.
    assert rows[0].seeds == pytest.approx(0.01103, abs=1e-5)
    text = tables.report(tmp_path)
    wanted = "| gaussian against macer | 90 of 90 | 120 | 100,000 | +0.022 |"
    assert wanted in text
    assert "6 pairs: 3 yes, 3 no, 0 inconclusive." in text


@pytest.mark.parametrize(
    ("radius", "holds"),
    [(1.009, True), (1.01, None), (1.03, None), (1.031, False), (0.969, False)],
)
def test_what_seeds_can_make_holds_if_it_is_small(radius, holds, tmp_path):
    """Published at sigma 1.0: MACER 1.598, here as another of 1.6.

    Seeds alone make 2 * (.0051**2 + .0017**2)**.5 = .0108: so 1.009 is within
    .02 of 1 whatever they did, and 1.031 is not.
    """
    write_run(tmp_path, "macer", constant(1.0), 90)
    write_run(tmp_path, "smoothadv", constant(radius), 90)
    pair = pair_of(tmp_path, "macer", "smoothadv", 0.002)
    assert pair.holds is holds


@pytest.mark.parametrize(
    ("difference", "holds"), [(0.012, None), (0.018, True)]
)
def test_seeds_and_images_err_together(difference, holds, tmp_path):
    """Each by itself would let 0.012 pass: their variances add."""
    write_run(tmp_path, "macer", constant(0.5), 90)
    # 120 images, +-.056 each: 1.96 standard errors are .0100.
    radii = {
        idx: 0.5 + difference + 0.056 * (-1) ** (idx // 10) for idx in IMAGES
    }
    write_run(tmp_path, "gaussian", radii, 90)
    pair = pair_of(tmp_path, "macer", "gaussian", 0.022)
    assert pair.seeds < difference and 0 < pair.comparison.low
    assert pair.comparison.low == pytest.approx(difference - 0.0100, abs=5e-4)
    # Seeds make .01103: together .0149.
    assert pair.low == pytest.approx(difference - 0.0149, abs=5e-4)
    assert pair.high == pytest.approx(difference + 0.0149, abs=5e-4)
    assert pair.holds is holds


def test_what_seeds_make_at_a_small_sigma_is_less():
    # 0.0003 and 0.0007, and for CAT-RS the largest of SmoothMix's, 0.0004.
    found = published.seeds(0.25, "gaussian", "stability")
    assert found == pytest.approx(2 * 58e-8**0.5)
    found = published.seeds(0.25, "catrs", "consistency")
    assert found == pytest.approx(2 * 25e-8**0.5)


@pytest.mark.parametrize(
    "other",
    [
        {"epochs": 40},
        {"n": 200},
        {"radii": dict.fromkeys(range(0, 990, 10), 1.0)},
        {"radii": constant(0.51)},
    ],
    ids=["length", "n", "99 images", "within seeds"],
)
def test_inconclusive_pairs(other, tmp_path):
    write_run(tmp_path, "macer", constant(0.5), 90)
    arguments = {"radii": constant(1.0), "epochs": 90} | other
    write_run(tmp_path, "gaussian", **arguments)
    pair = pair_of(tmp_path, "macer", "gaussian", 0.022)
    assert pair.holds is None
    assert "| inconclusive |" in tables.pairs_table([pair])
    listed = order_of(tmp_path)
    # Runs that cannot be compared are no pair at all.
    assert len(listed) == (0 if {"epochs", "n"} & {*other} else 1)


def test_runs_of_another_length_as_much_of_their_schedule(tmp_path):
    write_run(tmp_path, "gaussian", constant(0.5), 9)
    write_run(tmp_path, "catrs", constant(1.0), 15)
    (pair,) = order_of(tmp_path)
    assert pair.holds is True
    text = tables.pairs_table([pair])
    assert "| catrs against gaussian | 15 of 150 and 9 of 90 |" in text
    assert text.endswith("| as published |")


def test_what_was_stopped_is_no_pair_with_what_is_shorter(tmp_path):
    """The first 15 of 150 epochs have seen no drop, the 9 of 90 both."""
    write_run(tmp_path, "gaussian", constant(0.5), 9)
    folder = write_run(tmp_path, "catrs", constant(1.0), 15)
    cut = reproduction.recipe_of("catrs", 1.0).replace(epochs=15)
    cut.save(folder / "recipe.json")
    assert order_of(tmp_path) == []


def test_a_full_run_of_fewer_draws_is_a_part(tmp_path):
    write_run(tmp_path, "gaussian", constant(0.5), 90, n=10_000)
    write_run(tmp_path, "catrs", constant(0.2), 150, n=10_000)
    (pair,) = order_of(tmp_path)
    assert tables.pairs_table([pair]).endswith("| reversed |")


@pytest.mark.parametrize("votes", [1_000, 10_000])
def test_fewer_votes_than_the_authors_are_told(votes, tmp_path):
    folder = write_run(tmp_path, "catrs", constant(1.0), 150)
    recipe = reproduction.recipe_of("catrs", 1.0)
    recipe.replace(**{"teacher.n": votes}).save(folder / "recipe.json")
    text = tables.report(tmp_path)
    assert ("`catrs` are shares of 1,000 votes" in text) is (votes == 1_000)


def test_a_training_in_another_type_is_told(tmp_path):
    """In its row, wherever that is shown, and beside the other of a pair."""
    write_run(tmp_path, "gaussian", constant(0.5), 90)
    folder = write_run(tmp_path, "catrs", constant(1.0), 150)
    assert "150, mixed" not in tables.report(tmp_path)
    recipe = reproduction.recipe_of("catrs", 1.0, dtype="mixed_bfloat16")
    recipe.save(folder / "recipe.json")
    text = tables.report(tmp_path)
    assert "| catrs | 150 of 150, mixed_bfloat16 |" in text
    assert "| gaussian | 90 of 90 |" in text
    both = "150 of 150, mixed_bfloat16 and 90 of 90"
    assert f"| catrs against gaussian | {both} |" in text


def test_a_method_that_the_table_does_not_have_gets_a_row(tmp_path):
    write_run(tmp_path, "macer_original", constant(1.0), 440)
    text = tables.report(tmp_path)
    assert "| macer_original | 440 of 440 | 120 of 1,000 |" in text


def test_a_log_that_is_an_image_ahead_waits_for_the_other(tmp_path):
    folder = write_run(tmp_path, "gaussian", {0: 1.0, 10: 2.0, 20: 3.0}, 90)
    path = folder / "runner_up.tsv"
    path.write_text("".join(path.read_text().splitlines(True)[:-1]))
    (run,) = results.read_methods(tmp_path, 1.0)
    assert run.plain.idx.tolist() == run.runner_up.idx.tolist() == [0, 10]
    assert "| 2 of 1,000 | 100,000 | 1.500 ± 0.500 |" in table_of(tmp_path)


def test_a_log_that_has_only_begun_is_left_out(tmp_path):
    write_run(tmp_path, "gaussian", constant(0.5), 90)
    for run, kept in (("macer", 1), ("smoothadv", 0)):
        path = write_run(tmp_path, run, {0: 1.0}, 90) / "runner_up.tsv"
        path.write_text("".join(path.read_text().splitlines(True)[:kept]))
    runs = results.read_methods(tmp_path, 1.0)
    assert [run.name for run in runs] == ["gaussian"]
    assert order_of(tmp_path) == []


def test_a_difference_is_shown_beside_its_own_log_alone(tmp_path):
    folder = write_run(tmp_path, "gaussian", constant(0.5), 90)
    kept = {"authors_acr": 1.0, "difference": 0.1, "low": 0.05, "high": 0.15}
    cases = [(120, None, True), (119, None, False), (120, "feed", False)]
    for examples, model, shown in cases:
        text = json.dumps({**kept, "examples": examples, "model": model})
        (folder / "against_authors.json").write_text(text)
        assert ("| +0.100 [" in table_of(tmp_path)) is shown


@pytest.mark.parametrize("apart", [False, True])
def test_a_difference_beyond_its_interval_is_told(apart, tmp_path):
    folder = write_run(tmp_path, "gaussian", constant(0.5), 90)
    low = 0.01 if apart else -0.01
    kept = {"authors_acr": 1.0, "difference": 0.1, "low": low, "high": 0.2}
    text = json.dumps({**kept, "examples": 120, "model": None})
    (folder / "against_authors.json").write_text(text)
    text = tables.report(tmp_path)
    assert ("excludes 0): `gaussian`." in text) is apart


def test_a_log_of_few_draws_is_not_held_against_the_authors(tmp_path):
    write_run(tmp_path, "gaussian", constant(0.5), 90, n=10_000)
    lines = ["idx\tlabel\tpredict\tradius\tcorrect\ttime"]
    lines += [f"{idx}\t3\t3\t0.5\t1\t1.0" for idx in IMAGES]
    path = tmp_path / "mnist_gaussian_sigma1.0.tsv"
    path.write_text("\n".join(lines) + "\n")
    run = results.read(tmp_path, 1.0, "gaussian")
    assert reproduction_pairs.against_authors(run, tmp_path) is None
