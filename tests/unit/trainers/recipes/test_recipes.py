"""Recipes against the papers' numbers, and as data."""

import json

import keras
import numpy as np
import pytest

from rs_keras.trainers import recipes

# Read off the released commands by hand:
# data set, method, sigma -> lr, epochs, batch, drops, arguments.
PUBLISHED = [
    ("mnist", "gaussian", 1.0, 0.01, 90, 256, [31, 61], {}),
    ("mnist", "stability", 0.5, 0.01, 90, 256, [31, 61], {"weight": 2.0}),
    (
        "mnist",
        "smoothadv",
        1.0,
        0.01,
        90,
        64,
        [31, 61],
        {"steps": 10, "epsilon": 0.99609375, "num_noise": 4},
    ),
    (
        "mnist",
        "macer",
        1.0,
        0.01,
        90,
        256,
        [31, 61],
        {"weight": 6.0, "deferred_epochs": 31, "num_noise": 16},
    ),
    ("mnist", "consistency", 0.25, 0.01, 90, 128, [31, 61], {"weight": 10.0}),
    (
        "fashion_mnist",
        "smoothmix_onestep",
        1.0,
        0.01,
        90,
        64,
        [31, 61],
        {"steps": 8, "eta": 5.0, "one_step_adversary": True},
    ),
    (
        "mnist",
        "smoothmix_T1",
        1.0,
        0.01,
        90,
        64,
        [31, 61],
        {"steps": 1, "step_size": 8.0, "eta": 1.0},
    ),
    ("mnist", "smoothmix", 0.25, 0.01, 90, 64, [31, 61], {"steps": 2}),
    ("mnist", "smoothmix_eta1", 0.25, 0.01, 90, 64, [31, 61], {"steps": 3}),
    ("mnist", "catrs", 1.0, 0.01, 150, 64, [51, 101], {"weight": 1.0}),
    (
        "cifar10",
        "smoothadv",
        1.0,
        0.1,
        150,
        128,
        [51, 101],
        {"epsilon": 2.0, "num_noise": 2},
    ),
    (
        "cifar100",
        "smoothmix",
        0.5,
        0.1,
        150,
        128,
        [51, 101],
        {"step_size": 1.0, "steps": 4},
    ),
    (
        "cifar10",
        "macer_original",
        0.5,
        0.01,
        440,
        64,
        [200, 400],
        {"weight": 4.0},
    ),
    (
        "svhn_cropped",
        "macer",
        0.5,
        0.01,
        440,
        64,
        [200, 400],
        {"weight": 12.0},
    ),
    (
        "imagenet2012",
        "catrs",
        1.0,
        0.1,
        90,
        128,
        [31, 61, 85],
        {"weight": 2.0, "confidence_mask": True, "steps": 1},
    ),
]


@pytest.mark.parametrize(
    "dataset, method, sigma, rate, epochs, batch, drops, arguments",
    PUBLISHED,
    ids=[f"{row[0]}-{row[1]}-{row[2]}" for row in PUBLISHED],
)
def test_recipes_are_the_published_ones(
    dataset, method, sigma, rate, epochs, batch, drops, arguments
):
    recipe = recipes.get(dataset, method, sigma)
    assert recipe.optimizer["learning_rate"] == rate
    assert (recipe.epochs, recipe.batch_size) == (epochs, batch)
    assert recipe.schedule["drops"] == drops
    assert arguments.items() <= recipe.trainer.items()
    assert recipe.sources["trainer"]


ALL = [
    (dataset, method)
    for dataset in (
        "mnist",
        "fashion_mnist",
        "cifar10",
        "cifar100",
        "svhn_cropped",
        "imagenet2012",
        "fashion_mini",
    )
    for method in recipes.methods(dataset)
]


@pytest.mark.parametrize("sigma", [0.12, 0.25, 0.5, 1.0])
def test_every_method_has_a_recipe_that_is_json(sigma, tmp_path):
    for dataset, method in ALL:
        recipe = recipes.get(dataset, method, sigma)
        path = tmp_path / "recipe.json"
        recipe.save(path)
        assert recipes.load(path) == recipe


@pytest.mark.parametrize("method", recipes.methods("fashion_mini"))
def test_a_recipe_builds_what_it_says(method):
    recipe = recipes.get("fashion_mini", method, 0.5, seed=3)
    trainer = recipe.build()
    assert type(trainer).__name__ == recipe.trainer["name"]
    assert (trainer.sigma, trainer.seed) == (0.5, 3)
    for name, value in recipe.trainer.items():
        if name != "name":
            assert getattr(trainer, name) == value
    decay = 5e-4 if method == "macer_original" else 1e-4
    assert trainer.optimizer.weight_decay == decay
    assert trainer.optimizer.momentum == 0.9


@pytest.mark.parametrize(
    "dataset, epochs, drops",
    [
        # On MNIST the released teacher was trained as long as CAT-RS.
        ("mnist", 150, [51, 101]),
        ("cifar10", 150, [51, 101]),
        ("imagenet2012", 90, [31, 61]),
    ],
)
@pytest.mark.parametrize("sigma", [0.25, 1.0])
def test_the_teacher_of_every_sigma(dataset, epochs, drops, sigma):
    teacher = recipes.get(dataset, "catrs", sigma).teacher
    assert (teacher["epochs"], teacher["drops"]) == (epochs, drops)
    assert (teacher["sigma"], teacher["n"]) == (0.25, 10_000)


def test_the_rate_drops_one_epoch_late():
    recipe = recipes.get("mnist", "gaussian", 1.0)
    rates = [recipe.learning_rate(epoch) for epoch in range(90)]
    # 31 epochs at the full rate, 30 at a tenth, 29 at a hundredth.
    assert rates == [0.01] * 31 + [0.001] * 30 + [0.0001] * 29


def test_fit_follows_the_schedule():
    recipe = recipes.get("fashion_mini", "gaussian", 0.5).shortened(3)
    trainer = recipe.build(jit_compile=False)
    x, y = np.full([4, 28, 28, 1], 0.5, "float32"), np.arange(4)
    history = trainer.fit(
        x, y, epochs=3, verbose=0, callbacks=recipe.callbacks()
    )
    found = history.history["learning_rate"]
    np.testing.assert_allclose(found, [0.01, 0.001, 0.0001], rtol=1e-6)


def test_initial_weights_follow_the_seed_and_leave_the_generator_alone():
    import random

    random.seed(5)
    wanted = random.random()
    random.seed(5)
    recipe = recipes.get("fashion_mini", "gaussian", 0.5)
    first, again, other = (
        recipe.replace(seed=seed).build_model().get_weights()
        for seed in (1, 1, 2)
    )
    assert random.random() == wanted
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert not np.array_equal(first[0], other[0])


def test_dtype_is_for_the_network_only():
    recipe = recipes.get("fashion_mini", "gaussian", 0.5, dtype="mixed_float16")
    trainer = recipe.build()
    assert trainer.model.layers[1].compute_dtype == "float16"
    assert isinstance(trainer.optimizer, keras.optimizers.LossScaleOptimizer)
    assert keras.config.dtype_policy().name == "float32"


def test_overrides_by_plain_and_dotted_name():
    recipe = recipes.get("mnist", "smoothmix", 1.0)
    changed = recipe.replace(
        eta=2.0, learning_rate=0.5, **{"schedule.factor": 0.5}
    )
    assert changed.trainer["eta"] == 2.0
    assert changed.optimizer["learning_rate"] == 0.5
    assert changed.learning_rate(31) == 0.25
    assert changed.sources["trainer.eta"] == "given"
    assert recipe.trainer["eta"] == 5.0


def test_another_network_comes_without_the_old_ones_arguments():
    recipe = recipes.get("cifar10", "gaussian", 0.5, model="resnet18")
    assert recipe.model == {"name": "resnet18"}


@pytest.mark.parametrize("num_noise, batch", [(1, 256), (4, 64), (8, 32)])
def test_the_batch_follows_the_number_of_noises(num_noise, batch):
    recipe = recipes.get("mnist", "smoothmix", 1.0, num_noise=num_noise)
    assert recipe.batch_size == batch


def test_the_batch_follows_a_later_number_of_noises():
    recipe = recipes.get("mnist", "smoothmix", 1.0)
    assert recipe.replace(num_noise=8).batch_size == 32
    assert recipe.replace(**{"trainer.num_noise": 512}).batch_size == 1
    # Not where it is given, was given, or the method takes whole batches.
    assert recipe.replace(num_noise=8, batch_size=7).batch_size == 7
    assert recipe.replace(batch_size=7).replace(num_noise=8).batch_size == 7
    macer = recipes.get("mnist", "macer", 1.0)
    alone = macer.replace(num_noise=1)
    assert alone.replace(num_noise=2).batch_size == macer.batch_size == 256


@pytest.mark.parametrize("sigma", [0.25, 0.5, 1.0])
@pytest.mark.parametrize(
    "dataset, deferred", [("mnist", True), ("cifar10", False)]
)
def test_macer_is_deferred_until_the_rate_drops(dataset, deferred, sigma):
    # The reference: `if args.deferred and epoch <= args.lr_step_size`, with
    # epochs from 0, and a rate that drops one epoch late.
    recipe = recipes.get(dataset, "macer", sigma)
    step = {"mnist": 30, "cifar10": 50}[dataset]
    found = recipe.trainer.get("deferred_epochs", 0)
    assert found == (step + 1 if deferred or sigma == 1.0 else 0)
    assert recipe.schedule["drops"][0] == step + 1


def test_shortened_keeps_the_shares():
    recipe = recipes.get("mnist", "macer", 1.0).shortened(30)
    assert recipe.schedule["drops"] == [10, 20]
    assert recipe.trainer["deferred_epochs"] == 10
    short = recipes.get("mnist", "catrs", 1.0).shortened(15)
    assert short.teacher["epochs"] == 15
    assert short.teacher["drops"] == [5, 10]
    large = recipes.get("imagenet2012", "catrs", 1.0)
    assert (large.epochs, large.trainer["doubled_from"]) == (90, 80)
    assert large.shortened(9).trainer["doubled_from"] == 8


@pytest.mark.parametrize(
    "epochs, drops", [(1, [1, 2]), (2, [1, 2]), (3, [1, 2]), (9, [3, 6])]
)
def test_in_a_short_run_the_rate_drops_once_at_a_time(epochs, drops):
    recipe = recipes.get("mnist", "gaussian", 1.0).shortened(epochs)
    assert recipe.schedule["drops"] == drops


def test_what_was_not_published_is_said():
    recipe = recipes.get("svhn_cropped", "smoothmix", 0.3)
    assert "cifar10" in recipe.sources["dataset"]
    assert "0.25" in recipe.sources["sigma"]
    assert "dataset" not in recipes.get("mnist", "macer", 0.5).sources


@pytest.mark.parametrize(
    "shape, network",
    [((28, 28, 1), "lenet"), ((32, 32, 3), "cifar_resnet")],
    ids=["grey", "colour"],
)
def test_data_from_disk_is_trained_like_its_like(shape, network, tmp_path):
    images = np.zeros([4, *shape], np.uint8)
    labels = np.arange(4)
    np.savez(tmp_path / "d.npz", images=images, labels=labels)
    recipe = recipes.get(f"npz:{tmp_path}/d.npz", "gaussian", 0.5)
    assert recipe.model["name"] == network


@pytest.mark.parametrize(
    "call, message",
    [
        (("mnst", "gaussian", 1.0), "`dataset`.*'mnst'.*'mnist'"),
        (("mnist", "smothmix", 1.0), "`method`.*'smothmix'.*'smoothmix'"),
        (("mnist", "smoothmix", -1), "`sigma` must be .* > 0"),
    ],
    ids=["dataset", "method", "sigma"],
)
def test_unknown_recipes_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        recipes.get(*call)


@pytest.mark.parametrize(
    "overrides, message",
    [
        ({"etta": 1.0}, "'etta'.*Did you mean 'eta'"),
        ({"trainer.etta": 1.0}, "Did you mean 'trainer.eta'"),
        ({"epochs": 0}, "`epochs` must be"),
        ({"dtype": "float31"}, "`dtype`.*float32"),
        ({"model": "lennet"}, "'lennet'.*lenet"),
        ({"dataset": "cifar10"}, "`override`"),
        ({"model": 5}, "`model` must be names with values"),
        ({"num_noise": 0}, "`num_noise` must be"),
        ({"learning_rate": -1}, "`optimizer.learning_rate` must be .* > 0"),
        ({"weight_decay": -1}, "`optimizer.weight_decay` must be .* >= 0"),
        ({"nesterov": "no"}, "`optimizer.nesterov` must be True or False"),
        ({"drops": 5}, "`schedule.drops` must be a list"),
        ({"drops": [2.5]}, "`schedule.drops` must be a whole number"),
        ({"factor": 0}, "`schedule.factor` must be .* > 0"),
        ({"schedule": {"drops": [1]}}, "`schedule.factor` must be given"),
        ({"certify.every": 0}, "`certify.every` must be"),
        ({"jit_compile": "no"}, "`jit_compile` must be True or False"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_bad_overrides_of_a_recipe_are_refused(overrides, message):
    recipe = recipes.get("mnist", "smoothmix", 1.0)
    with pytest.raises(ValueError, match=message):
        recipe.replace(**overrides)


@pytest.mark.parametrize(
    "text, message",
    [
        ("{", "is not a recipe"),
        ("[]", "must be a JSON object"),
        ('{"dataset": "mnist"}', "lacks method, sigma"),
        ('{"datasett": "mnist"}', "'datasett'.*'dataset'"),
    ],
    ids=["cut", "list", "lacking", "unknown"],
)
def test_bad_recipe_files_are_refused(text, message, tmp_path):
    path = tmp_path / "recipe.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        recipes.load(path)


def test_a_person_can_leave_out_what_has_a_default(tmp_path):
    values = recipes.get("mnist", "gaussian", 1.0).to_json()
    for name in ("sources", "seed", "dtype", "limit", "teacher"):
        del values[name]
    path = tmp_path / "recipe.json"
    path.write_text(json.dumps(values))
    assert recipes.load(path).seed == 0


def test_an_adversary_stands_in_the_recipe_as_its_configuration():
    from rs_keras import adversaries

    adversary = adversaries.PGD(3, 0.5, order="project_clip")
    packed = keras.saving.serialize_keras_object(adversary)
    recipe = recipes.get("fashion_mini", "consistency", 0.5, adversary=packed)
    assert recipe.build().adversary.steps == 3
    short = {"class_name": "DDN", "config": {"steps": 2, "epsilon": 0.5}}
    found = recipe.replace(adversary=short).build().adversary
    assert isinstance(found, adversaries.DDN) and found.steps == 2


@pytest.mark.parametrize(
    "adversary, message",
    [
        ({"class_name": "PDG"}, "`adversary` must have the `class_name`"),
        (
            {"class_name": "Dense", "module": "keras.layers", "config": {}},
            "`adversary` must have the `class_name`",
        ),
        (
            {"class_name": "PGD", "config": {"steps": 2, "epsilom": 0.5}},
            "Did you mean 'epsilon'",
        ),
        ({"class_name": "PGD", "config": 3}, "`adversary.config` must be"),
    ],
    ids=["name", "another class", "argument", "config"],
)
def test_nothing_but_an_adversary_is_made_of_a_configuration(
    adversary, message
):
    recipe = recipes.get("fashion_mini", "smoothadv", 0.5, adversary=adversary)
    with pytest.raises(ValueError, match=message):
        recipe.build()
