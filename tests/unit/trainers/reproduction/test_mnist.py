"""Order of the images, methods, and when a run is trained."""

import pytest

from rs_keras.trainers import recipes
from rs_keras.trainers.reproduction import mnist as reproduction
from rs_keras.trainers.reproduction import published
from rs_keras.trainers.runs import training as runs


@pytest.mark.parametrize("count", [1, 2, 3, 7, 100, 1_000])
def test_what_is_stopped_is_spread_over_the_file(count):
    places = list(reproduction.spread(count))
    assert sorted(places) == list(range(count))
    for done in (count // 10, count // 2):
        # Both halves have as many, but for two in a hundred.
        late = sum(2 * place >= count for place in places[:done])
        assert abs(2 * late - done) <= max(2, done / 50)


def test_each_sigma_has_the_methods_that_were_published():
    for sigma, known in published.PUBLISHED.items():
        found = reproduction.methods(sigma)
        assert set(found) <= set(known)
        families = {name.partition("_")[0] for name in known}
        assert {name.partition("_")[0] for name in found} == families


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
