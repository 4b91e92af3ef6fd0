"""Search spaces: what is varied, and the values that follow."""

import pytest

# Keras Tuner needs both, and does not declare them: see setup.py.
pytest.importorskip("tensorboard", reason="tensorboard is not installed")
pytest.importorskip("sklearn", reason="scikit-learn is not installed")

import keras_tuner  # noqa: E402

from rs_keras.trainers import recipes  # noqa: E402
from rs_keras.trainers.tuning import search_spaces  # noqa: E402
from rs_keras.trainers.tuning.search_spaces import Choice  # noqa: E402
from rs_keras.trainers.tuning.search_spaces import Uniform  # noqa: E402


class Asked(keras_tuner.HyperParameters):
    """Answers each question with what a test wants."""

    def __init__(self, **wanted):
        super().__init__()
        self.values.update(wanted)


@pytest.mark.parametrize("dataset", ["mnist", "cifar10", "imagenet2012"])
def test_every_method_has_a_space_around_its_recipe(dataset):
    for method in recipes.methods(dataset):
        recipe = recipes.get(dataset, method, 0.5)
        space = search_spaces.default(recipe)
        found = search_spaces.sample(
            space, keras_tuner.HyperParameters(), recipe
        )
        assert set(found) == set(space)
        recipe.replace(**found).learning_rate(0)


@pytest.mark.parametrize("sigma", [0.25, 0.5, 1.0])
@pytest.mark.parametrize("steps", [1, 2, 4, 8])
def test_smoothmix_keeps_its_reach(sigma, steps):
    recipe = recipes.get("mnist", "smoothmix", sigma)
    space = search_spaces.default(recipe)
    found = search_spaces.sample(space, Asked(steps=steps), recipe)
    # The published runs: 8 steps of 1 at sigma 1, 4 at .5, 2 at .25.
    assert found["step_size"] * steps == pytest.approx(8 * sigma)


def test_first_guess_is_the_papers_recipe():
    recipe = recipes.get("mnist", "smoothmix", 1.0)
    found = search_spaces.sample(
        search_spaces.default(recipe), keras_tuner.HyperParameters(), recipe
    )
    assert found["eta"] == 5.0 and found["steps"] == 8
    assert found["step_size"] == 1.0 and found["learning_rate"] == 0.01


@pytest.mark.parametrize("chosen", [False, True])
def test_a_choice_of_booleans_stays_one(chosen):
    # Keras Tuner keeps 0 and 1 of it, which no trainer takes for a flag.
    recipe = recipes.get("mnist", "smoothmix", 1.0)
    found = search_spaces.sample(
        search_spaces.default(recipe),
        Asked(one_step_adversary=int(chosen)),
        recipe,
    )
    assert recipe.replace(**found).build().one_step_adversary is chosen


def test_ranges_are_kept():
    space = {"weight": Uniform(1, 2), "num_noise": Choice((2, 4))}
    recipe = recipes.get("mnist", "macer", 0.5)
    hp = keras_tuner.HyperParameters()
    search_spaces.sample(space, hp, recipe)
    weight, num_noise = hp.space
    assert (weight.min_value, weight.max_value) == (1, 2)
    assert weight.sampling == "linear" and num_noise.values == [2, 4]
