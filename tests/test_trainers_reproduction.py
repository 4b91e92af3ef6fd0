import dataclasses

import keras
import numpy as np
import pytest

from rs_keras import CertificationLog
from rs_keras import Certifier
from rs_keras import checkpoints
from rs_keras import datasets
from rs_keras.classifiers import fingerprint
from rs_keras.cli import main
from rs_keras.cli import make_parser
from rs_keras.cli import reproduce
from rs_keras.log import LogWriter
from rs_keras.models import Pretrained
from rs_keras.noise import fold_in
from rs_keras.trainers import model_cards
from rs_keras.trainers import recipes
from rs_keras.trainers import reproduction
from rs_keras.trainers import reproduction_pairs
from rs_keras.trainers import reproduction_published
from rs_keras.trainers import reproduction_table
from rs_keras.trainers import runs


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
    for form, runner_up in reproduction.FORMS.items():
        assert logs[form].idx.tolist() == [0, 10, 20]
        assert logs[form].settings["runner_up"] is runner_up
        for row, (idx, image, _) in enumerate(examples):
            one = certifier.certify(
                image, n=300, runner_up=runner_up, seed=fold_in(0, idx)[None]
            )
            assert logs[form].predict[row] == one.label[0]
            assert 0 <= one.radius[0] - logs[form].radius[row] < 1e-6


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
    (row,) = reproduction_table.rows_of(tmp_path, 1.0)
    assert row["acr"] == logs["plain"].acr()
    assert (row["published"], row["epochs"], row["of"]) == (1.620, 9, 90)
    assert (row["examples"], row["n"]) == (3, 300)
    line = reproduction_table.table([row]).splitlines()[2]
    acr = logs["plain"].acr()
    assert f"| {acr:.3f} | 1.620 | - | - |" in line
    text = reproduction_table.report(tmp_path)
    assert "## sigma = 1.00" in text and "## sigma = 0.25" not in text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--sigma", "0.3"], "--sigma"),
        (["--methods", "gausian"], "Did you mean 'gaussian'"),
        (["--ablations", "eta4"], "Did you mean 'eta_4'"),
        (["--ablations", "--methods", "macer"], "beside --ablations"),
        (["--epochs", "0"], "--epochs"),
    ],
    ids=["sigma", "method", "ablation", "both", "epochs"],
)
def test_wrong_calls(words, message, capsys):
    assert main(["reproduce", "mnist", *words]) == 2
    assert message in capsys.readouterr().err


def test_a_run_is_trained_when_its_last_epoch_is_written(tmp_path):
    recipe = recipes.get("mnist", "gaussian", 1.0).shortened(2)
    assert not reproduction.is_trained(tmp_path, recipe)
    recipe.save(tmp_path / "recipe.json")
    (tmp_path / "model.keras").touch()
    (tmp_path / "history.csv").write_text("epoch,loss\n0,2.0\n")
    assert not reproduction.is_trained(tmp_path, recipe)
    (tmp_path / "history.csv").write_text("epoch,loss\n0,2.0\n1,1.0\n")
    assert reproduction.is_trained(tmp_path, recipe)
    other = recipes.get("mnist", "gaussian", 1.0).shortened(3)
    assert not reproduction.is_trained(tmp_path, other)


def test_the_authors_log_is_compared_on_the_same_images(tiny, tmp_path):
    folder = reproduction.folder_of(tmp_path, 1.0, "smoothmix")
    logs = reproduction.certify(tiny[0], 1.0, folder, "short", progress=False)
    ours = logs["plain"].radius * logs["plain"].correct
    lines = ["idx\tlabel\tpredict\tradius\tcorrect\ttime"]
    # idx, radius and whether it is right; 5 and 30 are not among ours.
    theirs = {0: 0.5, 5: 9.0, 10: 0.25, 20: 0.0, 30: 9.0}
    for idx, radius in theirs.items():
        label = idx // 10
        right = int(radius > 0)
        lines.append(f"{idx}\t{label}\t{label}\t{radius}\t{right}\t0:00:01")
    name = "mnist_smoothmix_eta5_sigma1.0.tsv"
    (tmp_path / name).write_text("\n".join(lines) + "\n")
    found = reproduction_pairs.against_authors(
        tmp_path, 1.0, "smoothmix", tmp_path
    )
    assert found.examples == 3
    assert found.difference == pytest.approx(ours.mean() - 0.25, abs=1e-12)
    recipes.get("mnist", "smoothmix", 1.0).save(folder / "recipe.json")
    (row,) = reproduction_table.rows_of(tmp_path, 1.0)
    assert f"| 0.250 | {found.difference:+.3f} [" in (
        reproduction_table.table([row])
    )
    nothing = reproduction_pairs.against_authors(
        tmp_path, 1.0, "macer", tmp_path
    )
    assert nothing is None


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
        "1,000 votes an image (published: 10,000) of a Gaussian network, "
        "sigma 0.25, 20 epochs."
    ) in text


ABLATED = [f"ablations/{name}" for name in reproduction_published.ABLATIONS]


@pytest.mark.parametrize(
    "run", [*reproduction.METHODS, "ablations/base", *ABLATED]
)
def test_the_command_trains_what_the_table_tells(run, tmp_path, monkeypatch):
    """What `train` makes of its words is what the table compares with."""
    trained = []

    def remember(recipe, *_, **__):
        trained.append(recipe)
        raise RuntimeError("enough")

    monkeypatch.setattr(runs, "train", remember)
    words = ["reproduce", "mnist", "--out", str(tmp_path), "--epochs", "20"]
    method = run.partition("/")[2]
    if method == "base":
        words += ["--ablations"]
    elif method:
        words += ["--ablations", method]
        kept = reproduction.is_trained
        monkeypatch.setattr(
            reproduction,
            "is_trained",
            lambda folder, recipe: (
                folder.name == "base" or kept(folder, recipe)
            ),
        )
        monkeypatch.setattr(reproduction, "certify", lambda *_: None)
        monkeypatch.setattr(checkpoints, "load_classifier", lambda _: None)
    else:
        words += ["--methods", run]
    with pytest.raises(RuntimeError, match="enough"):
        main(words)
    wanted = reproduction.recipe_of(run, 1.0, epochs=20)
    assert wanted.epochs == 20
    if wanted.teacher:
        # Gaussian, trained first, as much shorter as the student.
        assert (trained[0].method, trained[0].epochs) == ("gaussian", 20)
        assert trained[0].sigma == wanted.teacher["sigma"]
        return
    blank = {"sources": {}}
    assert dataclasses.replace(trained[0], **blank) == dataclasses.replace(
        wanted, **blank
    )


def test_what_is_ablated_in_full_is_a_method_of_the_table():
    def runs_of(*words):
        args = make_parser().parse_args(["reproduce", "mnist", *words])
        return reproduce._runs(args)

    changed = ["ablations/eta_4", "ablations/m_1"]
    words = ["--ablations", "eta_4", "m_1"]
    assert runs_of(*words) == ["smoothmix_T1", *changed]
    assert runs_of(*words, "--epochs", "90") == ["smoothmix_T1", *changed]
    assert runs_of(*words, "--epochs", "9") == ["ablations/base", *changed]
    assert runs_of(*words, "--budget", "short")[0] == "ablations/base"
    assert runs_of("--ablations")[1:] == ABLATED


def write_run(root, run, radii, epochs=9, n=100):
    """A run's log, by number of the image; all are certified rightly."""
    folder = reproduction.folder_of(root, 1.0, run)
    folder.mkdir(parents=True)
    reproduction.recipe_of(run, 1.0, epochs=epochs).save(folder / "recipe.json")
    for form in reproduction.FORMS:
        settings = {"sigma": 1.0, "n": n, "dataset": "mnist/test"}
        with LogWriter(folder / f"{form}.tsv", settings) as writer:
            for idx, radius in radii.items():
                writer.write(idx, 3, 3, radius, 1.0)


def test_pairs_are_compared_on_the_images_of_both(tmp_path):
    base = {idx: 1.0 for idx in range(0, 400, 10)}
    write_run(tmp_path, "ablations/base", base)
    # +0.5 on the 39 images of both, and one that the base has not.
    higher = {idx: 1.5 for idx in range(10, 400, 10)} | {9_990: 4.0}
    write_run(tmp_path, "ablations/eta_4", higher)
    # The paper's is smaller with m = 1, this is larger.
    write_run(tmp_path, "ablations/m_1", higher)
    even = {idx: 1.5 - (idx // 10) % 2 for idx in range(0, 400, 10)}
    write_run(tmp_path, "ablations/T_2", even)
    # As long as no base: cannot be compared.
    write_run(tmp_path, "ablations/T_4", base, epochs=10)
    rows = reproduction_pairs.ablations(tmp_path, 1.0)
    told = {row["runs"][1]: row["holds"] for row in rows}
    assert told == {"eta_4": True, "m_1": False, "T_2": None}
    assert all(row["runs"][0] == "base" for row in rows)
    assert rows[0]["found"].examples == 39
    assert rows[0]["found"].difference == pytest.approx(0.5, abs=1e-12)
    text = reproduction_table.report(tmp_path)
    assert (
        "| eta_4 against base | 9 | 39 | 100 | +0.031 | "
        "+0.500 [+0.500, +0.500] | yes |"
    ) in text
    assert "| m_1 against base | 9 | 39 | 100 | -0.045 |" in text
    assert text.count("| not told |") == 1


def test_the_order_is_that_of_neighbours(tmp_path):
    numbers = range(0, 300, 10)
    # Published: macer 1.598, gaussian 1.620, smoothmix_T1 1.785.
    write_run(tmp_path, "macer", {idx: 0.5 for idx in numbers}, 40)
    write_run(tmp_path, "smoothmix_T1", {idx: 0.75 for idx in numbers}, 90)
    write_run(tmp_path, "gaussian", {idx: 1.0 for idx in numbers}, 90)
    rows = reproduction_pairs.order(tmp_path, 1.0)
    assert [(row["runs"], row["holds"]) for row in rows] == [
        (("macer", "gaussian"), True),
        (("gaussian", "smoothmix_T1"), False),
    ]
    assert rows[0]["published"] == pytest.approx(0.022)
    text = reproduction_table.report(tmp_path)
    assert "| gaussian against macer | 90 and 40 | 30 | 100 | +0.022 |" in text
    assert "| smoothmix_T1 against gaussian | 90 | 30 |" in text
