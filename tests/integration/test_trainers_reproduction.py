import dataclasses
import json
import os
import signal
import time
from types import SimpleNamespace

import keras
import numpy as np
import pytest
from kits.reproduction import IMAGES
from kits.reproduction import constant
from kits.reproduction import table_of
from kits.reproduction import write_run
from scipy import stats

import rs_keras
from rs_keras import CertificationLog
from rs_keras import Certifier
from rs_keras import datasets
from rs_keras.classifiers.fingerprint import fingerprint
from rs_keras.classifiers.precision import computing_in
from rs_keras.cli import main
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


def test_references_that_are_no_folder(no_training, tmp_path, capsys):
    call = ["reproduce", "mnist", "--references", str(tmp_path / "logs")]
    assert main([*call, "--out", str(tmp_path)]) == 2
    assert "--references must be a folder" in capsys.readouterr().err


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


class Enough(BaseException):
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
