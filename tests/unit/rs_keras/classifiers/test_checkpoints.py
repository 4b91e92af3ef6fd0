"""Loading classifiers: what goes in comes out, and errors say what to give."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from rs_keras import Certifier
from rs_keras.classifiers import load_classifier
from rs_keras.classifiers import trained_sigma
from rs_keras.trainers import Gaussian


@keras.saving.register_keras_serializable("test_checkpoints")
class Shell(keras.Model):
    """A classifier of its own: one that holds another as `model`."""

    def __init__(self, model, **kwargs):
        super().__init__(**kwargs)
        self.model = model
        self.built = True

    def call(self, images):
        return -self.model(images)

    def get_config(self):
        return {
            **super().get_config(),
            "model": keras.saving.serialize_keras_object(self.model),
        }

    @classmethod
    def from_config(cls, config):
        config["model"] = keras.saving.deserialize_keras_object(config["model"])
        return cls(**config)


@pytest.fixture(scope="module")
def model():
    keras.utils.set_random_seed(3)
    return keras.Sequential(
        [
            keras.Input([4, 4, 1]),
            keras.layers.Flatten(),
            keras.layers.Dense(3),
        ]
    )


def _as_keras(model, folder):
    model.save(folder / "net.keras")
    return folder / "net.keras"


def _as_run(model, folder):
    model.save(folder / "model.keras")
    return folder


def _as_trainer(model, folder):
    Gaussian(model, sigma=0.5).save(folder / "trainer.keras")
    return folder / "trainer.keras"


def _as_saved_model(model, folder):
    # By hand: `model.export` prints, and warns of what Keras itself does.
    module = tf.Module()
    module.weights = [variable.value for variable in model.variables]
    serve = tf.function(
        lambda images: {"logits": model(images)},
        [tf.TensorSpec([None, 4, 4, 1], tf.float32)],
    )
    tf.saved_model.save(module, str(folder), {"serving_default": serve})
    return folder


@pytest.mark.parametrize(
    "saved", [_as_keras, _as_run, _as_trainer, _as_saved_model]
)
def test_a_saved_classifier_comes_back(saved, model, tmp_path):
    loaded = load_classifier(saved(model, tmp_path))
    images = np.random.default_rng(0).random((2, 4, 4, 1), np.float32)
    # By hand: a dense layer is a matrix product.
    kernel, bias = model.get_weights()
    want = images.reshape(2, 16) @ kernel + bias
    if isinstance(loaded, keras.Model):
        assert not isinstance(loaded, Gaussian)
        logits = loaded(images)
    else:
        logits = loaded.signatures["serving_default"](tf.constant(images))
        logits = logits["logits"]
    np.testing.assert_allclose(logits, want, rtol=1e-5, atol=1e-6)


def test_a_model_around_a_model_is_no_trainer(model, tmp_path):
    """What is inside of it is another classifier."""
    Shell(model).save(tmp_path / "shell.keras")
    loaded = load_classifier(tmp_path / "shell.keras")
    images = np.random.default_rng(0).random((2, 4, 4, 1), np.float32)
    np.testing.assert_array_equal(loaded(images), -model(images))
    with pytest.raises(ValueError, match="needs a Sequential or Functional"):
        Certifier(loaded, sigma=0.5, dtype="bfloat16").sample(images, n=1)


def test_a_checkpoint_that_is_not_there_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"nowhere.*`\.keras` file"):
        load_classifier(tmp_path / "nowhere")


def test_an_empty_folder_is_no_checkpoint(tmp_path):
    with pytest.raises(ValueError, match=r"not a checkpoint.*model\.keras"):
        load_classifier(tmp_path)


def test_another_kind_of_file_is_no_checkpoint(tmp_path):
    path = tmp_path / "weights.txt"
    path.write_text("1 2 3")
    with pytest.raises(ValueError, match=r"not a checkpoint: .*weights\.txt"):
        load_classifier(path)


def test_damaged_files_are_loaded_or_refused(model, tmp_path):
    """Sixty bytes changed, one after the other: one kind of error."""
    path, rng = tmp_path / "model.keras", np.random.default_rng(0)
    Gaussian(model, sigma=0.25).save(path)
    whole, refused = path.read_bytes(), 0
    for at in rng.integers(0, len(whole), 60):
        damaged = bytearray(whole)
        damaged[at] ^= 1 << int(rng.integers(8))
        path.write_bytes(damaged)
        for read in (load_classifier, trained_sigma):
            try:
                read(path)
            except ValueError as error:
                assert str(path) in str(error)
                refused += 1
    assert refused > 20


def test_a_keras_file_cut_short_is_no_checkpoint(model, tmp_path):
    path = _as_keras(model, tmp_path)
    path.write_bytes(path.read_bytes()[:500])
    with pytest.raises(ValueError, match=r"cannot load .*net\.keras"):
        load_classifier(path)


def test_a_broken_saved_model(tmp_path):
    (tmp_path / "saved_model.pb").write_bytes(b"no protocol buffer")
    with pytest.raises(ValueError, match="cannot load the SavedModel"):
        load_classifier(tmp_path)


def test_a_saved_model_without_the_signature(tmp_path):
    module = tf.Module()
    other = tf.function(lambda x: {"y": x}, [tf.TensorSpec([None], tf.float32)])
    tf.saved_model.save(module, str(tmp_path), {"other": other})
    with pytest.raises(ValueError, match=r"`serving_default`.*\['other'\]"):
        load_classifier(tmp_path)


def test_no_checkpoint_has_no_sigma(tmp_path):
    with pytest.raises(FileNotFoundError, match="no such checkpoint"):
        trained_sigma(tmp_path / "nothing")
    (tmp_path / "saved").mkdir()
    assert trained_sigma(tmp_path / "saved") is None
