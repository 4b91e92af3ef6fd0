import dataclasses
import json
import os
import signal
import time
from types import SimpleNamespace

import keras
import numpy as np
import pytest
from scipy import stats

import rs_keras
from rs_keras import CertificationLog
from rs_keras import Certifier
from rs_keras import datasets
from rs_keras.classifiers.fingerprint import fingerprint
from rs_keras.classifiers.precision import computing_in
from rs_keras.cli import main
from rs_keras.logs import LogWriter
from rs_keras.models import Pretrained
from rs_keras.noise import fold_in
from rs_keras.trainers import recipes
from rs_keras.trainers.reproduction import mnist as reproduction
from rs_keras.trainers.reproduction import model_cards
from rs_keras.trainers.reproduction import pairs as reproduction_pairs
from rs_keras.trainers.reproduction import published
from rs_keras.trainers.reproduction import results
from rs_keras.trainers.reproduction import tables
from rs_keras.trainers.runs import training as runs


@pytest.fixture(scope="module")
def mnist():
    try:
        datasets.arrays("mnist", "test")
    except OSError as error:
        pytest.skip(f"MNIST is not here: {error}")


@pytest.fixture
def tiny(monkeypatch):
    """Three images and a small budget, in place of MNIST."""
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [keras.Input((4, 4, 1)), keras.layers.Flatten(), keras.layers.Dense(3)]
    )
    rng = np.random.default_rng(1)
    images = rng.uniform(size=(3, 1, 4, 4, 1)).astype(np.float32)
    examples = [(10 * i, images[i], i) for i in range(3)]
    monkeypatch.setattr(
        reproduction, "test_images", lambda skip, data_dir: iter(examples)
    )
    small = {"share": 0.1, "skip": 10, "n": 300}
    monkeypatch.setitem(reproduction.BUDGETS, "short", small)
    return model, examples


def test_images_have_their_original_numbers(mnist):
    found = list(reproduction.test_images(1_000))
    assert sorted(idx for idx, _, _ in found) == list(range(0, 10_000, 1_000))
    # The first labels of t10k-labels-idx1-ubyte.
    labels = {idx: label for idx, _, label in reproduction.test_images(1)}
    first = [labels[idx] for idx in range(10)]
    assert first == [7, 2, 1, 0, 4, 1, 4, 9, 5, 9]
    assert found[0][1].shape == (1, 28, 28, 1)


@pytest.mark.parametrize("count", [1, 2, 3, 7, 100, 1_000])
def test_what_is_stopped_is_spread_over_the_file(count):
    places = list(reproduction.spread(count))
    assert sorted(places) == list(range(count))
    for done in (count // 10, count // 2):
        # Both halves have as many, but for two in a hundred.
        late = sum(2 * place >= count for place in places[:done])
        assert abs(2 * late - done) <= max(2, done / 50)


def test_both_bounds_come_from_the_same_counts(tiny, tmp_path):
    model, examples = tiny
    logs = reproduction.certify(model, 0.5, tmp_path, "short", progress=False)
    certifier = Certifier(model, 0.5)
    for bound, runner_up in reproduction.BOUNDS.items():
        assert logs[bound].idx.tolist() == [0, 10, 20]
        assert logs[bound].settings["runner_up"] is runner_up
        for row, (idx, image, _) in enumerate(examples):
            one = certifier.certify(
                image, n=300, runner_up=runner_up, seed=fold_in(0, idx)[None]
            )
            assert logs[bound].predict[row] == one.label[0]
            assert 0 <= one.radius[0] - logs[bound].radius[row] < 1e-6


def test_a_line_that_one_log_lacks_is_made_up(tiny, tmp_path):
    reproduction.certify(tiny[0], 0.5, tmp_path, "short", progress=False)
    path = tmp_path / "runner_up.tsv"
    whole = CertificationLog.read(path)
    path.write_text("".join(path.read_text().splitlines(True)[:-1]))
    reproduction.certify(tiny[0], 0.5, tmp_path, "short", progress=False)
    again = CertificationLog.read(path)
    np.testing.assert_array_equal(again.radius, whole.radius)
    assert len(CertificationLog.read(tmp_path / "plain.tsv")) == 3


def test_the_table_is_made_from_the_files(tiny, tmp_path):
    folder = reproduction.folder_of(tmp_path, 1.0, "gaussian")
    logs = reproduction.certify(tiny[0], 1.0, folder, "short", progress=False)
    recipe = recipes.get("mnist", "gaussian", 1.0)
    short = reproduction.recipe_of("gaussian", 1.0, "short")
    assert (short.epochs, recipe.epochs) == (9, 90)
    short.save(folder / "recipe.json")
    _, _, line = table_of(tmp_path).splitlines()
    assert line.startswith("| gaussian | 9 of 90 | 3 of 1,000 | 300 |")
    radii = logs["plain"].radius * logs["plain"].correct
    error = stats.sem(radii)
    assert f"| {radii.mean():.3f} ± {error:.3f} | 1.620 | - | - |" in line
    text = tables.report(tmp_path)
    assert "## sigma = 1.00" in text and "## sigma = 0.25" not in text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--sigma", "0.3"], "--sigma"),
        (["--methods", "gausian"], "Did you mean 'gaussian'"),
        (["--ablations", "eta4"], "Did you mean 'eta_4'"),
        (["--ablations", "--methods", "macer"], "beside --ablations"),
        (["--ablations", "--sigma", "0.5"], "--sigma must be 1.0"),
        (["--epochs", "0"], "--epochs"),
    ],
    ids=["sigma", "method", "ablation", "both", "where", "epochs"],
)
def test_bad_reproduce_calls_are_refused(words, message, capsys):
    assert main(["reproduce", "mnist", *words]) == 2
    assert message in capsys.readouterr().err


def test_each_sigma_has_the_methods_that_were_published():
    for sigma, known in published.PUBLISHED.items():
        found = reproduction.methods(sigma)
        assert set(found) <= set(known)
        families = {name.partition("_")[0] for name in known}
        assert {name.partition("_")[0] for name in found} == families


def test_references_that_are_no_folder(no_training, tmp_path, capsys):
    call = ["reproduce", "mnist", "--references", str(tmp_path / "logs")]
    assert main([*call, "--out", str(tmp_path)]) == 2
    assert "--references must be a folder" in capsys.readouterr().err


def test_a_run_is_trained_when_its_last_epoch_is_written(tmp_path):
    recipe = recipes.get("mnist", "gaussian", 1.0).shortened(2)
    assert not reproduction.is_trained(tmp_path, recipe)
    recipe.save(tmp_path / "recipe.json")
    (tmp_path / "model.keras").touch()
    (tmp_path / "history.csv").write_text("epoch,loss\n0,2.0\n")
    assert not reproduction.is_trained(tmp_path, recipe)
    (tmp_path / "history.csv").write_text("epoch,loss\n0,2.0\n1,1.0\n")
    assert reproduction.is_trained(tmp_path, recipe)
    for resume in (False, True):
        with pytest.raises(FileExistsError, match="holds a finished run"):
            runs.train(recipe, tmp_path, resume=resume)
    one = recipes.get("mnist", "catrs", 1.0).shortened(2)
    one.replace(**{"teacher.n": 7}).save(tmp_path / "recipe.json")
    assert reproduction.is_trained(tmp_path, one)
    one.replace(teacher={}).save(tmp_path / "recipe.json")
    assert not reproduction.is_trained(tmp_path, one)
    recipe.save(tmp_path / "recipe.json")
    other = recipes.get("mnist", "gaussian", 1.0).shortened(3)
    assert not reproduction.is_trained(tmp_path, other)


def test_the_authors_log_is_compared_on_the_same_images(
    tiny, tmp_path, monkeypatch
):
    monkeypatch.setattr(published, "AUTHORS_N", 300)
    folder = reproduction.folder_of(tmp_path, 1.0, "smoothmix")
    logs = reproduction.certify(tiny[0], 1.0, folder, "short", progress=False)
    ours = logs["plain"].radius * logs["plain"].correct
    lines = ["idx\tlabel\tpredict\tradius\tcorrect\ttime"]
    # idx, radius and whether it is right; 5 and 30 are not among ours.
    theirs = {0: 0.5, 5: 9.0, 10: 0.25, 20: 0.0, 30: 9.0}
    for idx, radius in theirs.items():
        label = idx // 10
        right = int(radius > 0)
        predict = label if right else -1
        lines.append(f"{idx}\t{label}\t{predict}\t{radius}\t{right}\t0:00:01")
    name = "mnist_smoothmix_eta5_sigma1.0.tsv"
    (tmp_path / name).write_text("\n".join(lines) + "\n")
    recipes.get("mnist", "smoothmix", 1.0).save(folder / "recipe.json")
    run = results.read(tmp_path, 1.0, "smoothmix")
    found = reproduction_pairs.against_authors(run, tmp_path)
    assert found.examples == 3
    assert found.difference == pytest.approx(ours.mean() - 0.25, abs=1e-12)
    assert f"| 0.250 | {found.difference:+.3f} [" in table_of(tmp_path)
    other = dataclasses.replace(run, name="macer")
    assert reproduction_pairs.against_authors(other, tmp_path) is None


def test_a_card_tells_what_the_logs_hold(tiny, tmp_path):
    known = Pretrained("mnist", "gaussian", 1.0)
    logs = reproduction.certify(tiny[0], 1.0, tmp_path, "short", progress=False)
    recipes.get("mnist", "gaussian", 1.0).save(tmp_path / "recipe.json")
    text = model_cards.card(known, tmp_path, fingerprint(tiny[0]))
    assert text.startswith("# mnist-gaussian-1.00\n")
    assert f"| plain     | {logs['plain'].acr():.3f} |" in text
    assert "90 epochs of batch 256" in text and "n = 300" in text
    assert "Soft labels" not in text and "published: " not in text
    with pytest.raises(ValueError, match="of the weights feed. Received: "):
        model_cards.card(known, tmp_path, "feed")


def test_a_card_tells_what_is_shorter_than_published(tiny, tmp_path):
    known = Pretrained("mnist", "catrs", 1.0)
    reproduction.certify(tiny[0], 1.0, tmp_path, "short", progress=False)
    recipe = reproduction.recipe_of("catrs", 1.0, epochs=20)
    recipe.replace(**{"teacher.n": 1_000}).save(tmp_path / "recipe.json")
    text = model_cards.card(known, tmp_path, fingerprint(tiny[0]))
    assert "--sigma 1.0 --methods catrs --epochs 20`" in text
    assert "20 epochs (published: 150) of batch 64" in text
    assert (
        "1,000 votes per image (published: 10,000) of a Gaussian network, "
        "sigma 0.25, 20 epochs."
    ) in text
    short = recipe.replace(dtype="mixed_bfloat16", **{"teacher.n": 1_000})
    short.save(tmp_path / "recipe.json")
    text = model_cards.card(known, tmp_path, fingerprint(tiny[0]))
    assert "--epochs 20 --dtype mixed_bfloat16`" in text
    assert "in mixed_bfloat16 (published: float32) of batch 64" in text


def test_a_schedule_that_was_stopped_is_told(tiny, tmp_path):
    """In the card and in the table: what is shorter has drops of its own."""
    known = Pretrained("mnist", "catrs", 1.0)
    reproduction.certify(tiny[0], 1.0, tmp_path, "short", progress=False)
    recipe = reproduction.recipe_of("catrs", 1.0).replace(epochs=107)
    recipe.replace(**{"teacher.n": 1_000}).save(tmp_path / "recipe.json")
    text = model_cards.card(known, tmp_path, fingerprint(tiny[0]))
    assert "--sigma 1.0 --methods catrs`" in text
    assert "stopped after 107 epochs of the command's 150 of batch 64" in text
    assert "from each of the epochs 51, 101 on" in text
    folder = write_run(tmp_path, "catrs", constant(1.0), 107)
    assert "| catrs | 107 of 150 |" in tables.report(tmp_path)
    recipe.save(folder / "recipe.json")
    text = tables.report(tmp_path)
    assert "| catrs | the first 107 of 150 |" in text


ABLATED = [f"ablations/{name}" for name in published.ABLATIONS]


class Enough(Exception):
    """What a test is about has been seen."""


LONG = ["--epochs", "20"]
SHORT = ["--budget", "short"]
QUICK = [*LONG, "--dtype", "mixed_bfloat16"]
SPREAD = [*LONG, "--replicas", "1"]


@pytest.mark.parametrize(
    ("run", "words"),
    [
        *((run, LONG) for run in (*reproduction.methods(1.0), *ABLATED)),
        *((run, SHORT) for run in ("catrs", "ablations/base", ABLATED[0])),
        *((run, QUICK) for run in ("macer", "catrs")),
        *((run, SPREAD) for run in ("macer", "catrs")),
    ],
)
def test_the_command_trains_what_the_table_tells(
    run, words, tmp_path, monkeypatch
):
    """What `train` makes of its words is what the table compares with."""
    trained, votes, strategies = [], [], []

    def train(recipe, folder, strategy, **_):
        trained.append(recipe)
        strategies.append(strategy)
        if folder.name != "teacher":
            raise Enough
        return SimpleNamespace(model=None)

    def labels(model, data, sigma, n, *_, **__):
        votes.append((sigma, n))
        return np.full([60_000, 10], 0.1, np.float32)

    monkeypatch.setattr(runs, "train", train)
    monkeypatch.setattr(rs_keras, "smoothed_labels", labels)
    call = ["reproduce", "mnist", "--out", str(tmp_path), *words]
    name = run.partition("/")[2]
    if name in published.ABLATIONS:
        call += ["--ablations", name]
        monkeypatch.setattr(
            reproduction,
            "is_certified",
            lambda folder, *_: folder.name == "base",
        )
    else:
        call += ["--ablations"] if name else ["--methods", run]
    with pytest.raises(Enough):
        main(call)
    budget, epochs = ("short", None) if "short" in words else ("paper", 20)
    dtype = "mixed_bfloat16" if "--dtype" in words else "float32"
    wanted = reproduction.recipe_of(run, 1.0, budget, epochs, dtype=dtype)
    assert wanted.dtype == dtype
    assert wanted.epochs < recipes.get("mnist", wanted.method, 1.0).epochs
    if wanted.teacher:
        teacher = trained[0]
        assert (teacher.method, teacher.sigma) == ("gaussian", 0.25)
        assert teacher.epochs == wanted.teacher["epochs"] == wanted.epochs
        assert teacher.dtype == dtype
        assert votes == [(0.25, 1_000)]
        wanted = wanted.replace(**{"teacher.n": 1_000})
    assert dataclasses.replace(trained[-1], sources={}) == dataclasses.replace(
        wanted, sources={}
    )
    spread = [strategy is not None for strategy in strategies]
    assert spread == ["--replicas" in words] * len(spread)


def test_a_student_that_has_begun_needs_no_teacher(tmp_path, monkeypatch):
    """Its votes are there, and its snapshot knows them."""
    folder = reproduction.folder_of(tmp_path, 1.0, "catrs")
    folder.mkdir(parents=True)
    votes = np.full([60_000, 10], 0.1, np.float32)
    np.savez(folder / "soft_labels_1000.npz", soft_label=votes)
    (folder / "snapshot.npz").touch()
    begun = []

    def train(recipe, folder, soft_labels, **_):
        begun.append(folder.name)
        np.testing.assert_array_equal(soft_labels, votes)
        raise Enough

    monkeypatch.setattr(runs, "train", train)
    call = ["reproduce", "mnist", "--methods", "catrs"]
    with pytest.raises(Enough):
        main([*call, "--out", str(tmp_path)])
    assert begun == ["catrs"]


@pytest.fixture
def recipes_of(monkeypatch, tmp_path, capsys):
    """{run: recipe} of the runs that flags ask for; none is begun."""
    asked = []

    def is_certified(folder, recipe, budget):
        asked.append(recipe)
        return True

    monkeypatch.setattr(reproduction, "is_certified", is_certified)

    def run(*words):
        asked.clear()
        call = ["reproduce", "mnist", *words, "--out", str(tmp_path)]
        assert main(call) == 0
        told = capsys.readouterr().err.splitlines()
        names = [line.removesuffix(": done before") for line in told]
        return dict(zip(names, asked, strict=True))

    return run


def test_what_is_ablated_in_full_is_a_method_of_the_table(recipes_of):
    def runs_of(*words):
        return list(recipes_of(*words))

    changed = ["ablations/eta_4", "ablations/m_1"]
    words = ["--ablations", "eta_4", "m_1"]
    assert runs_of(*words) == ["smoothmix_T1", *changed]
    assert runs_of(*words, "--epochs", "90") == ["smoothmix_T1", *changed]
    assert runs_of(*words, "--epochs", "9") == ["ablations/base", *changed]
    assert runs_of(*words, "--budget", "short")[0] == "ablations/base"
    # As long, but with fewer draws than the method's log.
    longer = [*words, "--budget", "short", "--epochs", "90"]
    assert runs_of(*longer)[0] == "ablations/base"
    assert runs_of("--ablations")[1:] == ABLATED


def write_run(root, run, radii, epochs=9, n=100_000, skip=10):
    """A run's log, by number of the image; all are certified rightly."""
    folder = reproduction.folder_of(root, 1.0, run)
    folder.mkdir(parents=True)
    reproduction.recipe_of(run, 1.0, epochs=epochs).save(folder / "recipe.json")
    for bound in reproduction.BOUNDS:
        settings = {"sigma": 1.0, "n": n, "skip": skip, "dataset": "mnist/test"}
        with LogWriter(folder / f"{bound}.tsv", settings) as writer:
            for idx, radius in radii.items():
                writer.write(idx, 3, 3, radius, 1.0)
    return folder


IMAGES = range(0, 1_200, 10)


def constant(radius):
    return dict.fromkeys(IMAGES, radius)


def table_of(root):
    runs = results.read_methods(root, 1.0)
    return tables.table(runs)


def order_of(root):
    return reproduction_pairs.order(results.read_methods(root, 1.0))


def ablations_of(root):
    runs = results.read_ablations(root, 1.0)
    return reproduction_pairs.ablations(runs)


def pair_of(root, first, second, difference):
    runs = [results.read(root, 1.0, name) for name in (first, second)]
    return reproduction_pairs.pair(*runs, difference)


def verdicts(pairs):
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
    assert verdicts(rows) == {
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
    assert verdicts(rows) == {
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


def test_logs_of_another_type_are_not_added_to(tmp_path, capsys):
    folder = write_run(tmp_path, "gaussian", constant(0.5), 90)
    for path in folder.glob("*.tsv.json"):
        settings = {**json.loads(path.read_text()), "dtype": "bfloat16"}
        path.write_text(json.dumps(settings))
    call = ["reproduce", "mnist", "--methods", "gaussian"]
    assert main([*call, "--out", str(tmp_path)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "100,000 draws in bfloat16 for each of 120 images" in line
    assert "Asked for: 100,000 draws in float32, 90 epochs in float32" in line


@pytest.mark.parametrize("spread", [[], ["--replicas", "1"]])
def test_what_was_trained_in_half_precision_is_certified_in_float32(
    spread, tiny, tmp_path, monkeypatch
):
    """The certificates are those of a network that has always been float32."""
    exact, _ = tiny
    whole = reproduction.certify(
        exact, 1.0, tmp_path / "exact", "short", progress=False
    )
    recipe = reproduction.recipe_of(
        "gaussian", 1.0, "short", dtype="mixed_bfloat16"
    )
    folder = reproduction.folder_of(tmp_path, 1.0, "gaussian")
    folder.mkdir(parents=True)
    computing_in(exact, "bfloat16").save(folder / "model.keras")
    recipe.save(folder / "recipe.json")
    (folder / "history.csv").write_text("epoch\n" + "0\n" * recipe.epochs)
    words = ["--budget", "short", "--dtype", "mixed_bfloat16", *spread]
    call = ["reproduce", "mnist", "--methods", "gaussian", *words]
    assert main([*call, "--out", str(tmp_path)]) == 0
    # Stopped after one image, the same command does the others.
    for bound in whole:
        path = folder / f"{bound}.tsv"
        path.write_text("".join(path.read_text().splitlines(True)[:2]))
        assert len(CertificationLog.read(path)) == 1
    assert main([*call, "--out", str(tmp_path)]) == 0
    for bound, log in whole.items():
        found = CertificationLog.read(folder / f"{bound}.tsv")
        np.testing.assert_array_equal(found.radius, log.radius)
        assert found.settings == log.settings
        assert found.settings["dtype"] == "float32"


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


@pytest.fixture
def no_training(monkeypatch):
    def fail(*_, **__):
        pytest.fail("a run was begun")

    monkeypatch.setattr(runs, "train", fail)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["--epochs", "9"],
            "120 images, 90 epochs in float32. Asked for: 100,000 draws in "
            "float32, 9 epochs",
        ),
        (["--dtype", "mixed_bfloat16"], "float32, 90 epochs in mixed_bfloat16"),
        (["--budget", "short", "--epochs", "90"], "Asked for: 10,000 draws"),
        ([], "gaussian/model.keras must exist"),
    ],
    ids=["length", "type", "budget", "no model"],
)
def test_results_are_not_trained_over(
    words, message, no_training, tmp_path, capsys
):
    """A clone has logs and recipes, and no model."""
    write_run(tmp_path, "gaussian", constant(0.5), 90, n=100_000)
    folder = reproduction.folder_of(tmp_path, 1.0, "gaussian")
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    call = ["reproduce", "mnist", "--methods", "gaussian", *words]
    assert main([*call, "--out", str(tmp_path)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "`--out` must be" in line and message in line
    assert before == {path.name: path.read_bytes() for path in folder.iterdir()}


def test_what_stands_in_the_way_is_told_first(no_training, tmp_path, capsys):
    """Not when the methods before it are trained."""
    write_run(tmp_path, "macer", constant(0.5), 9)
    call = ["reproduce", "mnist", "--methods", "gaussian", "macer"]
    assert main([*call, "--out", str(tmp_path)]) == 2
    assert "120 images, 9 epochs in float32" in capsys.readouterr().err
    assert not reproduction.folder_of(tmp_path, 1.0, "gaussian").exists()


def test_what_is_there_is_shown_before_a_refusal(no_training, tmp_path, capsys):
    """And before the first training, which may take hours."""
    write_run(tmp_path, "macer", constant(0.5), 90)
    write_run(tmp_path, "gaussian", constant(0.5), 90)
    call = ["reproduce", "mnist", "--methods", "stability", "gaussian"]
    assert main([*call, "--out", str(tmp_path)]) == 2
    out, err = capsys.readouterr()
    assert "gaussian/model.keras must exist" in err
    assert out.count("| macer | 90 of 90 | 120 of 1,000 |") == 1


def test_one_log_is_enough_to_stand_in_the_way(no_training, tmp_path, capsys):
    """The other was lost, and with it the run would be."""
    folder = write_run(tmp_path, "gaussian", constant(0.5), 90)
    (folder / "runner_up.tsv").unlink()
    call = ["reproduce", "mnist", "--methods", "gaussian"]
    for words, message in (
        (["--epochs", "1"], "float32, 1 epochs in float32"),
        ([], "gaussian/model.keras must exist"),
    ):
        assert main([*call, *words, "--out", str(tmp_path)]) == 2
        assert message in capsys.readouterr().err
    assert recipes.load(folder / "recipe.json").epochs == 90


def finish(folder, recipe):
    """A training that came to its end; nothing is certified."""
    folder.mkdir(parents=True)
    recipe.save(folder / "recipe.json")
    (folder / "model.keras").touch()
    rows = "".join(f"{epoch},1.0\n" for epoch in range(recipe.epochs))
    (folder / "history.csv").write_text("epoch,loss\n" + rows)


@pytest.mark.parametrize("state", ["finished", "snapshot", "just begun"])
def test_another_training_is_told_first(state, tmp_path, monkeypatch, capsys):
    begun = []

    def train(recipe, folder, **_):
        begun.append(folder.name)
        raise Enough

    monkeypatch.setattr(runs, "train", train)
    folder = reproduction.folder_of(tmp_path, 1.0, "macer")
    finish(folder, reproduction.recipe_of("macer", 1.0))
    if state != "finished":
        (folder / "history.csv").unlink()
    if state == "snapshot":
        (folder / "snapshot.npz").touch()
    call = ["reproduce", "mnist", "--methods", "gaussian", "macer"]
    call += ["--epochs", "9", "--out", str(tmp_path)]
    if state == "just begun":
        # Nothing is lost: training begins anew.
        with pytest.raises(Enough):
            main(call)
        assert begun == ["gaussian"]
        return
    assert main(call) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "without another training in" in line
    assert "macer: 90 epochs in float32. Asked for: 9 epochs in" in line
    assert begun == []


def test_a_run_goes_on_in_its_own_type(tmp_path, recipes_of):
    """Without --dtype, as it began; a new one in float32."""
    recipe = reproduction.recipe_of("macer", 1.0, dtype="mixed_bfloat16")
    finish(reproduction.folder_of(tmp_path, 1.0, "macer"), recipe)
    asked = recipes_of("--methods", "macer", "gaussian")
    types = {name: recipe.dtype for name, recipe in asked.items()}
    assert types == {"macer": "mixed_bfloat16", "gaussian": "float32"}
    asked = recipes_of("--methods", "macer", "--dtype", "float32")
    assert asked["macer"].dtype == "float32"


@pytest.mark.parametrize("apart", [False, True])
def test_a_difference_beyond_its_interval_is_told(apart, tmp_path):
    folder = write_run(tmp_path, "gaussian", constant(0.5), 90)
    low = 0.01 if apart else -0.01
    kept = {"authors_acr": 1.0, "difference": 0.1, "low": low, "high": 0.2}
    text = json.dumps({**kept, "examples": 120, "model": None})
    (folder / "against_authors.json").write_text(text)
    text = tables.report(tmp_path)
    assert ("excludes 0): `gaussian`." in text) is apart


def test_a_log_without_its_settings_is_named(tmp_path, capsys):
    folder = write_run(tmp_path, "gaussian", constant(0.5), 90)
    (folder / "plain.tsv.json").unlink()
    call = ["reproduce", "mnist", "--methods", "gaussian"]
    assert main([*call, "--out", str(tmp_path)]) == 2
    assert "plain.tsv.json, with `n` and `skip`" in capsys.readouterr().err


def test_what_is_done_is_shown_again(no_training, tmp_path, capsys):
    whole = dict.fromkeys(range(0, 10_000, 10), 0.5)
    write_run(tmp_path, "gaussian", whole, 90, n=100_000)
    write_run(tmp_path, "macer", whole, 90, n=100_000)
    call = ["reproduce", "mnist", "--methods", "gaussian", "macer", "gaussian"]
    assert main([*call, "--out", str(tmp_path)]) == 0
    out, err = capsys.readouterr()
    row = "| gaussian | 90 of 90 | 1,000 of 1,000 | 100,000 | 0.500 ±"
    assert out.count(row) == 1
    assert "gaussian: done before\nmacer: done before" in err
    assert (tmp_path / "README.md").read_text() == (tables.report(tmp_path))


def test_the_page_tells_of_what_was_stopped(tmp_path, monkeypatch):
    write_run(tmp_path, "macer", constant(0.5), 90)

    def stop(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(runs, "train", stop)
    call = ["reproduce", "mnist", "--methods", "gaussian"]
    assert main([*call, "--out", str(tmp_path)]) == 130
    page = (tmp_path / "README.md").read_text()
    assert "| macer | 90 of 90 | 120 of 1,000 |" in page


def test_a_certification_that_was_stopped_is_compared(
    tmp_path, monkeypatch, no_training
):
    folder = write_run(tmp_path, "gaussian", constant(0.5), 90)
    keras.Sequential([keras.Input((1,)), keras.layers.Dense(2)]).save(
        folder / "model.keras"
    )
    rows = "".join(f"{epoch},1.0\n" for epoch in range(90))
    (folder / "history.csv").write_text("epoch,loss\n" + rows)
    lines = ["idx\tlabel\tpredict\tradius\tcorrect\ttime"]
    lines += [f"{idx}\t3\t3\t0.25\t1\t1.0" for idx in IMAGES]
    path = tmp_path / "mnist_gaussian_sigma1.0.tsv"
    path.write_text("\n".join(lines) + "\n")

    def stop(*_, **__):
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(5)

    monkeypatch.setattr(reproduction, "certify", stop)
    call = ["reproduce", "mnist", "--methods", "gaussian"]
    call += ["--references", str(tmp_path), "--out", str(tmp_path)]
    assert main(call) == 130
    page = (tmp_path / "README.md").read_text()
    assert "| 0.250 | +0.250 [+0.250, +0.250] |" in page


def test_a_page_of_somebody_else_is_left_alone(no_training, tmp_path, capsys):
    (tmp_path / "README.md").write_text("# My project\n")
    call = ["reproduce", "mnist", "--out", str(tmp_path)]
    assert main(call) == 2
    assert "another README.md" in capsys.readouterr().err
    assert (tmp_path / "README.md").read_text() == "# My project\n"


def test_a_log_of_few_draws_is_not_held_against_the_authors(tmp_path):
    write_run(tmp_path, "gaussian", constant(0.5), 90, n=10_000)
    lines = ["idx\tlabel\tpredict\tradius\tcorrect\ttime"]
    lines += [f"{idx}\t3\t3\t0.5\t1\t1.0" for idx in IMAGES]
    path = tmp_path / "mnist_gaussian_sigma1.0.tsv"
    path.write_text("\n".join(lines) + "\n")
    run = results.read(tmp_path, 1.0, "gaussian")
    assert reproduction_pairs.against_authors(run, tmp_path) is None
