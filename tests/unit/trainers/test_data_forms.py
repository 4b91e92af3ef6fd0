"""Data of other libraries in `fit`, `evaluate` and `certify_dataset`."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from kits import golden_cases as golden
from kits import libraries

from rs_keras import Certifier
from rs_keras import certify_dataset
from rs_keras.logs.examples import example_hash
from rs_keras.trainers import SGD
from rs_keras.trainers import Gaussian

RNG = np.random.default_rng(0)
BYTES = RNG.integers(0, 256, [10, 8, 8, 1]).astype(np.uint8)
IMAGES = BYTES.astype(np.float32) / np.float32(255)
LABELS = RNG.integers(0, 3, 10)
NAMES = ["ant", "bee", "cow"]
WORDS = np.array(NAMES)[LABELS]


def tfds_rows(images, labels):
    return tf.data.Dataset.from_tensor_slices(
        {"id": [b"a"] * len(labels), "image": images, "label": labels}
    )


# Each from (floats or bytes, labels) to what `fit` and `certify_dataset` take.
FORMS = {
    "pair of arrays": lambda x, y: (x, y),
    "bytes": lambda x, y: (libraries.as_bytes(x), y),
    "column": lambda x, y: (x, y[:, None]),
    "one-hot": lambda x, y: (x, np.eye(3)[y]),
    "words": lambda x, y: (x, np.array(NAMES)[y]),
    "tfds": lambda x, y: tfds_rows(x, y).batch(4),
    "tfds, one by one": tfds_rows,
    "tfds words": lambda x, y: tfds_rows(x, np.array(NAMES)[y]),
    "one-hot data set": lambda x, y: tf.data.Dataset.from_tensor_slices(
        (x, np.eye(3)[y])
    ).batch(4),
    "loader": libraries.DataLoader,
    "map style": libraries.MapStyle,
    "rows": libraries.Rows,
    "list": lambda x, y: list(zip(x, y, strict=True)),
}


@pytest.fixture(params=FORMS, ids=lambda name: name.replace(" ", "_"))
def form(request):
    return FORMS[request.param]


def trainer_of(**kwargs):
    trainer = Gaussian(golden.tiny(), 0.25, num_noise=2)
    options = {"metrics": ["accuracy"], "run_eagerly": True, **kwargs}
    trainer.compile(optimizer=SGD(0.05), **options)
    return trainer


def fit(trainer, *data, **kwargs):
    options = {"batch_size": 4, "shuffle": False, "verbose": 0, **kwargs}
    return trainer.fit(*data, class_names=NAMES, **options).history


@pytest.fixture(scope="module")
def wanted():
    trainer = trainer_of()
    trainer.fit(IMAGES, LABELS, batch_size=4, shuffle=False, verbose=0)
    measured = trainer.evaluate(
        IMAGES, LABELS, batch_size=4, verbose=0, return_dict=True
    )
    return trainer.model.get_weights(), measured


def test_each_form_trains_and_measures_as_arrays_do(form, wanted):
    trainer = trainer_of()
    fit(trainer, form(IMAGES, LABELS))
    weights, measured = wanted
    for one, other in zip(trainer.model.get_weights(), weights, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-7)
    found = trainer.evaluate(
        form(IMAGES, LABELS),
        batch_size=4,
        class_names=NAMES,
        verbose=0,
        return_dict=True,
    )
    assert found == pytest.approx(measured, rel=1e-4)


@pytest.fixture(scope="module")
def certifier():
    return Certifier(golden.tiny(), sigma=0.25)


def test_each_form_is_certified_as_arrays_are(form, certifier, tmp_path):
    log = certify_dataset(
        certifier,
        form(IMAGES, LABELS),
        tmp_path / "log.tsv",
        class_names=NAMES,
        n=100,
        seed=7,
        progress=False,
    )
    np.testing.assert_array_equal(log.label, LABELS)
    hashes = [
        example_hash(image, label)
        for image, label in zip(IMAGES, LABELS, strict=True)
    ]
    assert log.extra["example"].tolist() == hashes


# What no row of bytes can hold.
FLOATS = {
    name: FORMS[name]
    for name in ("pair of arrays", "tfds", "tfds, one by one", "loader", "list")
}


@pytest.mark.parametrize("name", FLOATS)
@pytest.mark.parametrize("call", ["fit", "evaluate", "validation", "certify"])
def test_the_first_batch_of_each_form_is_checked(
    name, call, certifier, tmp_path
):
    trainer, bad = trainer_of(), FLOATS[name](IMAGES * 255, LABELS)
    wrong = FLOATS[name](IMAGES, LABELS + 3)
    calls = {
        "fit": lambda data: fit(trainer, data),
        "evaluate": lambda data: trainer.evaluate(data, verbose=0),
        "validation": lambda data: fit(
            trainer, IMAGES, LABELS, validation_data=data
        ),
        "certify": lambda data: certify_dataset(
            certifier,
            data,
            tmp_path / "log.tsv",
            n=100,
            seed=7,
            progress=False,
        ),
    }
    with pytest.raises(ValueError, match=r"`images` must lie.*divide by 255"):
        calls[call](bad)
    with pytest.raises(ValueError, match=r"`labels` must be in \[0, 3\)"):
        calls[call](wrong)
    assert int(trainer.step.numpy()) == 0


def test_arrays_of_evaluate_are_checked():
    with pytest.raises(ValueError, match=r"`images` must lie.*divide by 255"):
        trainer_of().evaluate(IMAGES * 255, LABELS, verbose=0)


@pytest.mark.parametrize("kind", ["arrays", "batch", "generator"])
def test_bytes_are_divided_by_255(kind):
    one, other = trainer_of(), trainer_of(run_eagerly=False)
    one.train_on_batch(IMAGES, LABELS)
    if kind == "batch":
        other.train_on_batch(BYTES, LABELS)
    elif kind == "arrays":
        fit(other, BYTES, LABELS, batch_size=10)
    else:
        batches = (pair for pair in [(BYTES, LABELS)])
        fit(other, batches, steps_per_epoch=1)
    for a, b in zip(one.get_weights(), other.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


def test_sequences_are_shuffled_anew_in_each_epoch():
    seen = []

    class Watched(libraries.MapStyle):
        def __getitem__(self, number):
            seen.append(number)
            return super().__getitem__(number)

    fit(trainer_of(), Watched(IMAGES, LABELS), shuffle=True, epochs=2)
    # The first batch was looked at before.
    first, second = seen[-20:-10], seen[-10:]
    assert sorted(first) == sorted(second) == list(range(10))
    assert first != second and first != sorted(first)


def test_validation_data_have_any_form():
    trainer = trainer_of()
    data = libraries.Rows(IMAGES, LABELS)
    found = fit(trainer, IMAGES, LABELS, validation_data=data)
    again = trainer.evaluate(IMAGES, LABELS, verbose=0, return_dict=True)
    assert found["val_loss"][0] == pytest.approx(again["loss"], rel=1e-4)


def test_a_generator_of_single_images_is_batched():
    trainer = trainer_of()
    pairs = ((x, y) for x, y in zip(IMAGES, WORDS, strict=True))
    fit(trainer, pairs, steps_per_epoch=3)
    assert int(trainer.step.numpy()) == 3


@pytest.mark.parametrize(
    "data, message",
    [
        ((IMAGES, WORDS), "`class_names` must be given .*label='"),
        (libraries.Rows(IMAGES[:0], LABELS[:0]), "must hold at least one"),
        ([{"image": IMAGES[0]}], "rows with label or labels"),
        ([IMAGES[0]], "`dataset` must yield pairs"),
        ([(IMAGES[0], {"soft_label": 1})], "`label` must be among"),
        ([(IMAGES[0], 1), (IMAGES[0, :4], 1)], "must have one size"),
        (7, "`x` must be images, or a data set"),
        ((IMAGES, LABELS, np.ones(10)), "give weights as `sample_weight`"),
    ],
    ids="words none row image dict sizes number weights".split(),
)
def test_what_cannot_be_read_is_refused(data, message):
    with pytest.raises(ValueError, match=message):
        trainer_of().fit(data, verbose=0)


def test_a_word_that_is_no_class_is_told():
    with pytest.raises(ValueError, match="label='bea'. Did you mean 'bee'"):
        fit(trainer_of(), (IMAGES, np.array(["bea"] * 10)))


def test_a_data_set_of_keras_is_read_as_it_is():
    class Sequence(keras.utils.PyDataset):
        def __len__(self):
            return 1

        def __getitem__(self, number):
            return IMAGES, LABELS

    trainer = trainer_of()
    fit(trainer, Sequence())
    assert int(trainer.step.numpy()) == 1
