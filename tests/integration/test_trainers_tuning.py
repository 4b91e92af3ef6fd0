"""Sweeps: what is varied, trials that compare, failures, resuming, results."""

import json
from types import SimpleNamespace

import numpy as np
import pytest

# Keras Tuner needs both, and does not declare them: see setup.py.
pytest.importorskip("tensorboard", reason="tensorboard is not installed")
pytest.importorskip("sklearn", reason="scikit-learn is not installed")

import keras  # noqa: E402
import keras_tuner  # noqa: E402
from scipy import stats  # noqa: E402

from rs_keras import datasets  # noqa: E402
from rs_keras.trainers import recipes  # noqa: E402
from rs_keras.trainers import tuning  # noqa: E402
from rs_keras.trainers.callbacks import CertifyCallback  # noqa: E402
from rs_keras.trainers.tuning import sweeps  # noqa: E402
from rs_keras.trainers.tuning.search_spaces import Choice  # noqa: E402
from rs_keras.trainers.tuning.search_spaces import Log  # noqa: E402
from rs_keras.trainers.tuning.search_spaces import Per  # noqa: E402
from rs_keras.trainers.tuning.search_spaces import Uniform  # noqa: E402

pytestmark = [
    # Keras Tuner 1.4.8 asks threads for their names as Python 2 did, ...
    pytest.mark.filterwarnings("ignore:currentThread:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:getName:DeprecationWarning"),
    # ... loads weights into a trainer whose optimiser has made no step yet,
    pytest.mark.filterwarnings("ignore:Skipping variable loading:UserWarning"),
    # and lets scikit-learn fit on two points.
    pytest.mark.filterwarnings(
        "ignore:.*:sklearn.exceptions.ConvergenceWarning"
    ),
]

# 40 images, one epoch, a linear network: a trial takes a second.
SMALL = {"limit": 40, "batch_size": 20}


def hyper_model(**arguments):
    arguments = {
        "space": {"learning_rate": Log(0.001, 0.1)},
        "epochs": 1,
        "validation": 20,
        "n": 50,
        "overrides": SMALL,
        **arguments,
    }
    return tuning.SmoothingHyperModel(
        "gaussian", "fashion_mini", 0.5, **arguments
    )


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: Log(0, 1), "`low` must be a finite number > 0"),
        (lambda: Log(2, 1), "`high` must be > low"),
        (lambda: Uniform(1, 1), "`high` must be > low"),
        (lambda: Choice(()), "at least one value"),
        (lambda: hyper_model(space={"etaa": Log(1, 2)}), "etaa"),
        (
            lambda: hyper_model(space={"num_noise": Per(4, "steps")}),
            "must vary 'steps', which 'num_noise' follows",
        ),
        (lambda: hyper_model(validation=4000), "`validation` must be < 4000"),
        (lambda: hyper_model(validation=0), "`validation`"),
        (lambda: hyper_model(n=0), "`n`"),
        (lambda: hyper_model(cap=-1), "`cap`"),
    ],
    ids=[
        "low",
        "order",
        "empty-range",
        "no-choice",
        "name",
        "per",
        "all-held-out",
        "none-held-out",
        "n",
        "cap",
    ],
)
def test_bad_arguments_of_a_hyper_model_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def training_data_of(model):
    """What a hyper model hands to the `fit` of a trial."""
    handed = {}
    trial = SimpleNamespace(fit=lambda **kwargs: handed.update(kwargs))
    model.fit(keras_tuner.HyperParameters(), trial)
    return handed


def test_held_out_examples_are_not_trained_on():
    images, labels = datasets.arrays("fashion_mini", "train")
    found = hyper_model(overrides={"batch_size": 100})
    data = training_data_of(found)
    assert data["steps_per_epoch"] == 40 and len(found.validation) == 20
    trained = np.concatenate([x for x, _ in data["x"].take(40)])
    held = np.stack([image for image, _ in found.validation])
    # Together they are the split, each image once; all are different.
    both = np.concatenate([trained, held]).reshape(4000, -1)
    split = images.reshape(4000, -1)
    np.testing.assert_array_equal(
        np.unique(both, axis=0), np.unique(split, axis=0)
    )
    places = [int(np.where((split == x.ravel()).all(1))[0][0]) for x in held]
    assert places == sorted(places)
    assert [label for _, label in found.validation] == labels[places].tolist()


def test_held_out_examples_are_of_all_classes_also_in_turns_or_sorted(tmp_path):
    for name, labels in {
        "turns": np.arange(2000) % 10,
        "sorted": np.arange(2000) // 200,
    }.items():
        path = tmp_path / f"{name}.npz"
        images = np.zeros((2000, 2, 2, 1), np.uint8)
        np.savez(
            path, x_train=images, y_train=labels, x_test=images, y_test=labels
        )
        _, found = datasets.held_out(f"npz:{path}", 100)
        # 10 of each expected, standard deviation 3.
        assert np.bincount(found, minlength=10).min() >= 2


def test_other_validation_data():
    few = datasets.load("fashion_mini").take(3)
    found = hyper_model(validation=few, overrides={"batch_size": 100})
    assert len(found.validation) == 3
    assert training_data_of(found)["steps_per_epoch"] == 40


@pytest.fixture(scope="module")
def searched(tmp_path_factory):
    """Three trials of a random search, in a folder."""
    folder = tmp_path_factory.mktemp("sweep")
    tuner = tuning.tuner(hyper_model(), "random", 3, directory=folder, seed=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TF_CPP_MIN_LOG_LEVEL", "3")
        tuner.search(verbose=0)
    return tuner, folder


def test_trials_are_certified(searched):
    tuner, _ = searched
    found = sweeps.results(tuner)
    assert [one.status for one in found] == ["COMPLETED"] * 3
    assert [one.score for one in found] == sorted(
        (one.score for one in found), reverse=True
    )
    for one in found:
        assert one.score == one.acr >= 0
        assert one.clean * 20 == pytest.approx(round(one.clean * 20))
        assert 0.001 <= one.values["learning_rate"] <= 0.1


def test_a_finished_search_is_not_run_again(searched):
    tuner, folder = searched
    again = tuning.tuner(hyper_model(), "random", 3, directory=folder, seed=1)
    assert sweeps.results(again) == sweeps.results(tuner)
    again.search(verbose=0)
    assert len(again.oracle.trials) == 3


def test_a_search_under_other_settings_is_refused(searched):
    _, folder = searched
    with pytest.raises(ValueError, match="n: stored 50, given 60"):
        tuning.tuner(hyper_model(n=60), "random", 3, directory=folder, seed=1)


def test_best_recipe_trains_on_everything(searched, tmp_path):
    tuner, _ = searched
    best = sweeps.results(tuner)[0]
    sweeps.write(tuner, tmp_path)
    recipe = recipes.load(tmp_path / "best.json")
    rate = recipe.optimizer["learning_rate"]
    assert rate == best.values["learning_rate"]
    assert recipe.limit == 40 and recipe == tuning.best_recipe(tuner)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["best.json", "front.svg", "trials.tsv"]
    lines = (tmp_path / "trials.tsv").read_text().splitlines()
    assert lines[0].split("\t")[:7] == [
        "trial",
        "status",
        "score",
        "acr",
        "clean",
        "front",
        "learning_rate",
    ]
    assert len(lines) == 4


def test_same_hyperparameters_same_result():
    model = hyper_model()
    hp = keras_tuner.HyperParameters()
    found = [
        model.fit(hp, model.build(hp), verbose=0).history for _ in range(2)
    ]
    assert found[0]["val_acr"] == found[1]["val_acr"]
    assert found[0]["val_capped_acr"] == found[1]["val_capped_acr"]


def test_capped_average_radius():
    # A constant network votes for class 0 always, so each of its images gets
    # the largest radius, 0.5 * icdf(0.001 ** (1 / 50)) = 0.5650..., or less.
    network = keras.Sequential(
        [
            keras.Input([28, 28, 1]),
            keras.layers.Flatten(),
            keras.layers.Dense(
                10,
                kernel_initializer="zeros",
                bias_initializer=lambda *_, **__: np.eye(10)[0],
            ),
        ]
    )
    network.compile()
    zeros = [
        (np.zeros((28, 28, 1), "float32"), label) for label in (0, 0, 1, 2)
    ]
    largest = 0.5 * stats.norm.ppf(0.001 ** (1 / 50))
    for cap in (0.2, 10.0):
        callback = CertifyCallback(zeros, n=50, radii=[0.0], sigma=0.5, cap=cap)
        callback.set_params({"epochs": 1})
        callback.set_model(network)
        logs = {}
        callback.on_epoch_end(0, logs)
        assert logs["val_acr"] == pytest.approx(largest / 2)
        assert logs["val_capped_acr"] == pytest.approx(min(largest, cap) / 2)
        assert logs["val_certified_accuracy_r000"] == 0.5


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: datasets.held_out("fashion_mini", 0), "`count`"),
        (lambda: datasets.held_out("fashion_mini", 5000), "must be <= 4000"),
        (
            lambda: datasets.stream("fashion_mini", 10, held_out=4000),
            "must be < 4000",
        ),
        (
            lambda: datasets.stream(
                "fashion_mini", 10, held_out=5, example_id=True
            ),
            "must be 0 with `example_id`",
        ),
    ],
    ids=["none", "too-many", "all", "places"],
)
def test_bad_numbers_of_held_out_examples_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_a_trial_that_diverges_has_failed_and_the_search_goes_on(tmp_path):
    space = {"learning_rate": Choice((1e30, 0.01))}
    tuner = tuning.tuner(
        hyper_model(space=space, overrides=SMALL | {"batch_size": 4}),
        "random",
        2,
        directory=tmp_path,
    )
    tuner.search(verbose=0)
    found = sweeps.results(tuner)
    assert [one.status for one in found] == ["COMPLETED", "FAILED"]
    assert found[0].values == {"learning_rate": 0.01}
    assert found[1].score is None and "finite" in found[1].message
    assert tuning.best_recipe(tuner).optimizer["learning_rate"] == 0.01


def test_a_search_of_failures_alone_has_no_best_recipe(tmp_path):
    tuner = tuning.tuner(
        hyper_model(
            space={"learning_rate": Choice((1e30,))},
            overrides=SMALL | {"batch_size": 4},
        ),
        "random",
        1,
        directory=tmp_path,
    )
    tuner.search(verbose=0)
    with pytest.raises(ValueError, match="no trial was completed: .*finite"):
        tuning.best_recipe(tuner)
    assert sweeps.write(tuner, tmp_path) == [str(tmp_path / "trials.tsv")]


def test_a_search_that_was_killed_goes_on(tmp_path, monkeypatch):
    model = hyper_model()
    real, calls = model.fit, []

    def killed_in_the_second(*args, **kwargs):
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return real(*args, **kwargs)

    monkeypatch.setattr(model, "fit", killed_in_the_second)
    arguments = ("random", 2, "val_acr", tmp_path)
    first = tuning.tuner(model, *arguments)
    with pytest.raises(KeyboardInterrupt):
        first.search(verbose=0)
    done = {one.trial: one.score for one in sweeps.results(first)}
    second = tuning.tuner(model, *arguments)
    second.search(verbose=0)
    found = sweeps.results(second)
    assert [one.status for one in found] == ["COMPLETED"] * 2
    finished = [name for name, score in done.items() if score is not None]
    for one in found:
        if one.trial in finished:
            assert one.score == done[one.trial]
    # The trial that was cut off ran again, the other did not.
    assert len(calls) == 3


def test_other_errors_stop_the_search(tmp_path, monkeypatch):
    model = hyper_model()
    tuner = tuning.tuner(model, "random", 2, directory=tmp_path)

    def no_disk(*_, **__):
        raise OSError("No space left on device")

    monkeypatch.setattr(datasets, "stream", no_disk)
    with pytest.raises(keras_tuner.errors.FatalError, match="No space left"):
        tuner.search(verbose=0)


def test_values_out_of_range_stop_the_search():
    model = hyper_model(space=lambda hp: {"num_noise": hp.Int("m", 0, 1)})
    with pytest.raises(keras_tuner.errors.FatalError, match="`num_noise`"):
        model.build(keras_tuner.HyperParameters())


def test_bayesian_search(tmp_path):
    objective = "val_certified_accuracy_r050"
    tuner = tuning.tuner(
        hyper_model(), "bayesian", 3, objective, tmp_path, num_initial_points=2
    )
    tuner.search(verbose=0)
    found = sweeps.results(tuner)
    assert [one.status for one in found] == ["COMPLETED"] * 3
    assert tuner.oracle.objective.name == objective


def test_hyperband_goes_on_with_the_better_ones(tmp_path):
    tuner = tuning.tuner(
        hyper_model(epochs=3), "hyperband", 4, directory=tmp_path
    )
    tuner.search(verbose=0)
    found = sweeps.results(tuner)
    assert [one.status for one in found] == ["COMPLETED"] * 4
    begun = {one.trial: one.values["tuner/initial_epoch"] for one in found}
    assert sorted(begun.values()) == [0, 0, 0, 1]
    (later,) = (one for one in found if begun[one.trial])
    rates = [one.values["learning_rate"] for one in found]
    assert rates.count(later.values["learning_rate"]) == 2


@pytest.mark.parametrize(
    "arguments, message",
    [
        (("grid",), "Did you mean|`kind` must be one of random"),
        (("random", 0), "`trials`"),
        (("random", 1, "val_acc"), "Did you mean 'val_acr'"),
    ],
    ids=["kind", "trials", "objective"],
)
def test_bad_tuners_are_refused(tmp_path, arguments, message):
    with pytest.raises(ValueError, match=message):
        tuning.tuner(hyper_model(), *arguments, directory=tmp_path)


def test_settings_are_json():
    settings = hyper_model().settings()
    assert json.loads(json.dumps(settings)) == settings
