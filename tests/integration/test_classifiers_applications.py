"""Models of keras.applications and KerasHub are certified as they come.

One of each family, with random weights; their preprocessing inside.
"""

import keras
import numpy as np
import pytest
from keras import applications

from rs_keras import Certifier
from rs_keras.classifiers import with_logits
from rs_keras.classifiers import with_preprocessing
from rs_keras.classifiers.adapters import as_logits
from rs_keras.trainers import SGD
from rs_keras.trainers import Gaussian

# The smallest of each family, and the smallest images that it takes.
FAMILIES = {
    "vgg16": ("VGG16", 32),
    "resnet": ("ResNet50", 32),
    "resnet_v2": ("ResNet50V2", 32),
    "inception_v3": ("InceptionV3", 75),
    "inception_resnet_v2": ("InceptionResNetV2", 75),
    "xception": ("Xception", 71),
    "mobilenet": ("MobileNet", 32),
    "mobilenet_v2": ("MobileNetV2", 32),
    "mobilenet_v3": ("MobileNetV3Small", 32),
    "densenet": ("DenseNet121", 32),
    "nasnet": ("NASNetMobile", 32),
    "efficientnet": ("EfficientNetB0", 32),
    "efficientnet_v2": ("EfficientNetV2B0", 32),
    "convnext": ("ConvNeXtTiny", 32),
}


def pictures(size, count=2):
    random = np.random.default_rng(5)
    return random.uniform(size=[count, size, size, 3]).astype("float32")


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_of_keras_applications(family):
    name, size = FAMILIES[family]
    keras.utils.set_random_seed(1)
    make = getattr(applications, name)
    network = make(weights=None, input_shape=(size, size, 3), classes=5)
    preprocess = getattr(applications, family).preprocess_input
    classifier = with_preprocessing(network, preprocess, value_range=(0, 255))
    images = pictures(size)
    # On arrays, Keras preprocesses with NumPy.
    wanted = network(preprocess(255 * images)).numpy()
    np.testing.assert_allclose(classifier(images), wanted, atol=1e-5)
    logits = with_logits(classifier)(images).numpy()
    np.testing.assert_allclose(
        np.exp(logits) / np.exp(logits).sum(-1, keepdims=True),
        wanted,
        atol=1e-5,
    )


def test_a_classifier_with_its_preprocessing_is_used_like_any(tmp_path):
    """Certified, trained, saved and loaded without the package."""
    keras.utils.set_random_seed(1)
    network = applications.MobileNet(
        alpha=0.25, weights=None, input_shape=(32, 32, 3), classes=5
    )
    classifier = with_preprocessing(
        network,
        applications.mobilenet.preprocess_input,
        value_range=(0, 255),
    )
    images = pictures(32)
    certificate = Certifier(classifier, 0.25).certify(images, n=50, seed=1)
    assert certificate.counts.shape == (2, 5)
    trainer = Gaussian(classifier, sigma=0.25)
    trainer.compile(optimizer=SGD(0.01))
    before = network.get_weights()[0].copy()
    trainer.fit(images, np.array([0, 1]), verbose=0)
    assert (network.get_weights()[0] != before).any()
    classifier.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded(images), classifier(images))


def linear(shape=(4, 4, 3)):
    keras.utils.set_random_seed(1)
    return keras.Sequential(
        [keras.Input(shape), keras.layers.Flatten(), keras.layers.Dense(3)]
    )


def test_mean_and_std_are_in_units_of_the_value_range():
    network, images = linear(), pictures(4)
    mean, std = [100.0, 110.0, 120.0], [50.0, 60.0, 70.0]
    classifier = with_preprocessing(
        network, value_range=(0, 255), mean=mean, std=std
    )
    x = (255 * images.astype(np.float64) - mean) / std
    np.testing.assert_allclose(
        classifier(images), network(x.astype("float32")), rtol=1e-4, atol=1e-5
    )
    centred = with_preprocessing(
        network, keras.layers.Rescaling(3.0), (-1, 1), mean=[0.5, 0.0, 0.25]
    )
    x = 3 * (2 * images.astype(np.float64) - 1 - [0.5, 0.0, 0.25])
    np.testing.assert_allclose(
        centred(images), network(x.astype("float32")), rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"value_range": (255, 0)}, "`value_range` must be two finite"),
        ({"value_range": 255}, "`value_range` must be two finite"),
        ({"mean": [0.5]}, r"`mean` must hold one finite number a channel \(3"),
        ({"std": [0.5, 0.0, 0.5]}, "`std` must be > 0"),
    ],
)
def test_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        with_preprocessing(linear(), **arguments)


def test_a_model_of_any_size_needs_one():
    images = keras.Input([None, None, 3])
    pooled = keras.layers.GlobalAveragePooling2D()(images)
    model = keras.Model(images, keras.layers.Dense(3)(pooled))
    with pytest.raises(ValueError, match="`input_shape` must be .height"):
        with_preprocessing(model)
    classifier = with_preprocessing(model, input_shape=(8, 6, 3))
    assert classifier.input_shape == (None, 8, 6, 3)


HUB_FAMILIES = {
    "resnet": (
        "ResNet",
        {
            "input_conv_filters": [64],
            "input_conv_kernel_sizes": [3],
            "stackwise_num_filters": [64, 64],
            "stackwise_num_blocks": [1, 1],
            "stackwise_num_strides": [1, 2],
            "block_type": "basic_block",
        },
    ),
    "densenet": ("DenseNet", {"stackwise_num_repeats": [1, 1]}),
    "vgg": (
        "VGG",
        {"stackwise_num_repeats": [1, 1], "stackwise_num_filters": [4, 8]},
    ),
    "vit": (
        "ViT",
        {
            "patch_size": 8,
            "num_layers": 1,
            "num_heads": 2,
            "hidden_dim": 8,
            "mlp_dim": 16,
        },
    ),
    "xception": (
        "Xception",
        {
            "stackwise_conv_filters": [[8, 8], [8, 8]],
            "stackwise_pooling": [True, False],
        },
    ),
    "swin": (
        "SwinTransformer",
        {
            "embed_dim": 8,
            "depths": (1, 1),
            "num_heads": (1, 2),
            "window_size": 4,
        },
    ),
}


@pytest.mark.parametrize("family", HUB_FAMILIES)
def test_a_classifier_of_keras_hub_and_its_image_converter(family):
    hub = pytest.importorskip(
        "keras_hub", reason="keras-hub is not installed (extra: frameworks)"
    )
    name, sizes = HUB_FAMILIES[family]
    keras.utils.set_random_seed(1)
    backbone = getattr(hub.models, f"{name}Backbone")
    network = getattr(hub.models, f"{name}ImageClassifier")(
        backbone=backbone(image_shape=(32, 32, 3), **sizes),
        num_classes=5,
        activation="softmax",
    )
    converter = hub.layers.ImageConverter(
        image_size=(32, 32), scale=1 / 127.5, offset=-1.0
    )
    classifier = with_preprocessing(
        network, converter, value_range=(0, 255), input_shape=(32, 32, 3)
    )
    images = pictures(32)
    # The converter is in training mode unless it is told otherwise, and with
    # it what comes behind.
    wanted = network(2 * images - 1, training=False).numpy()
    found = classifier(images, training=False)
    np.testing.assert_allclose(found, wanted, atol=1e-5)
    logits = as_logits(classifier)(images).numpy()
    np.testing.assert_allclose(
        np.exp(logits) / np.exp(logits).sum(-1, keepdims=True),
        wanted,
        atol=1e-5,
    )
    counts = Certifier(classifier, sigma=0.25).sample(images, n=50)
    assert counts.sum() == 100
