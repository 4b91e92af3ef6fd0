import keras
import numpy as np
import pytest

from rs_keras import CertificationLog
from rs_keras import Certifier
from rs_keras import datasets
from rs_keras.cli import main
from rs_keras.noise import fold_in
from rs_keras.trainers import recipes
from rs_keras.trainers import reproduction


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


def test_images_come_in_the_original_order(mnist):
    found = list(reproduction.test_images(1_000))
    assert [idx for idx, _, _ in found] == list(range(0, 10_000, 1_000))
    # The first labels of t10k-labels-idx1-ubyte.
    first = [label for _, _, label in reproduction.test_images(1)][:10]
    assert first == [7, 2, 1, 0, 4, 1, 4, 9, 5, 9]
    assert found[0][1].shape == (1, 28, 28, 1)


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
    short = reproduction.scheduled(recipe, "short")
    assert short.epochs == 9
    short.save(folder / "recipe.json")
    (row,) = reproduction.rows_of(tmp_path, 1.0)
    assert row["acr"] == logs["plain"].acr()
    assert (row["published"], row["epochs"], row["of"]) == (1.620, 9, 90)
    assert (row["examples"], row["n"]) == (3, 300)
    line = reproduction.table([row]).splitlines()[2]
    acr = logs["plain"].acr()
    assert f"| {acr:.3f} | 1.620 | {acr - 1.62:+.3f} |" in line
    text = reproduction.report(tmp_path)
    assert "## sigma = 1.00" in text and "## sigma = 0.25" not in text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--sigma", "0.3"], "--sigma"),
        (["--methods", "gausian"], "Did you mean 'gaussian'"),
    ],
    ids=["sigma", "method"],
)
def test_wrong_calls(words, message, capsys):
    assert main(["reproduce", "mnist", *words]) == 2
    assert message in capsys.readouterr().err
