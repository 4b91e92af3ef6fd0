"""Networks against published sizes, SciPy convolutions and hand calculation."""

import keras
import numpy as np
import pytest
import scipy.signal
import scipy.stats
import tensorflow as tf

from rs_keras import models
from rs_keras.models import parts

CIFAR10_MEAN = (0.4914, 0.4822, 0.4465)
CIFAR10_STD = (0.2023, 0.1994, 0.2010)


@pytest.fixture(scope="module")
def resnet20():
    keras.utils.set_random_seed(3)
    return models.cifar_resnet(depth=20)


def trainable(model):
    return sum(int(np.prod(w.shape)) for w in model.trainable_weights)


def images_like(model, count=2, seed=0):
    shape = (count, *model.input_shape[1:])
    return np.random.default_rng(seed).random(shape, np.float32)


@pytest.mark.parametrize(
    ("name", "size"),
    [
        # conv 25*20+20, conv 25*20*50+50, dense 800*500+500, 500*10+10.
        pytest.param("lenet", 520 + 25_050 + 400_500 + 5_010, id="lenet"),
        # Stem 27*16; stages of 3 blocks: 6 3x3 convolutions each, of which
        # the first halves the image; 1x1 shortcuts; two numbers a channel
        # for each normalisation; dense 64*10+10.
        pytest.param(
            "cifar_resnet20",
            27 * 16
            + 9 * (6 * 16 * 16)
            + 9 * (16 * 32 + 5 * 32 * 32)
            + 9 * (32 * 64 + 5 * 64 * 64)
            + (16 * 32 + 32 * 64)
            + 2 * (7 * 16 + 7 * 32 + 7 * 64)
            + 650,
            id="cifar_resnet20",
        ),
        pytest.param("cifar_resnet110", 1_730_714, id="cifar_resnet110"),
        # Published with kuangliu/pytorch-cifar and with torchvision.
        pytest.param("resnet18", 11_173_962, id="resnet18"),
        pytest.param("resnet50", 25_557_032, id="resnet50"),
    ],
)
def test_sizes_are_the_published_ones(name, size):
    assert trainable(models.get(name)) == size


def test_resnet110_has_the_size_that_its_depth_gives():
    # 18 blocks a stage instead of 3: 15 more, each of two 3x3 convolutions
    # and two normalisations.
    more = sum(15 * (2 * 9 * c * c + 2 * 2 * c) for c in (16, 32, 64))
    assert 272_474 + more == 1_730_714


def test_lenet_is_what_scipy_computes():
    model = models.lenet()
    kernel1, bias1, kernel2, bias2, w1, b1, w2, b2 = model.get_weights()

    def conv_relu_pool(x, kernel, bias):
        # [H, W, in] to [H/2, W/2, out]; "valid", stride 1.
        maps = [
            sum(
                scipy.signal.correlate2d(x[..., i], kernel[..., i, o], "valid")
                for i in range(x.shape[-1])
            )
            for o in range(kernel.shape[-1])
        ]
        x = np.maximum(np.stack(maps, -1) + bias, 0)
        height, width, channels = x.shape
        x = x.reshape(height // 2, 2, width // 2, 2, channels)
        return x.max((1, 3))

    images = images_like(model)
    expected = []
    for x in images.astype(np.float64):
        x = conv_relu_pool(x, kernel1, bias1)
        x = conv_relu_pool(x, kernel2, bias2)
        x = np.maximum(x.reshape(-1) @ w1 + b1, 0)
        expected.append(x @ w2 + b2)
    np.testing.assert_allclose(model(images), expected, atol=1e-5)


@pytest.mark.parametrize("size", [1, 3, 7], ids="kernel{}".format)
@pytest.mark.parametrize("strides", [1, 2], ids="stride{}".format)
def test_convolutions_pad_alike_on_every_side(size, strides):
    x = keras.Input((8, 8, 1))
    model = keras.Model(x, parts.conv(x, 1, size, "conv", strides))
    image = np.random.default_rng(0).normal(size=(8, 8))
    kernel = model.get_weights()[0][..., 0, 0]
    whole = scipy.signal.correlate2d(image, kernel, "same")
    found = model(image[None, ..., None].astype(np.float32))[0, ..., 0]
    # PyTorch's strided convolution takes places 0, 2, 4, .. of the whole.
    np.testing.assert_allclose(found, whole[::strides, ::strides], atol=1e-5)


@pytest.mark.parametrize(
    ("build", "stages"),
    [
        pytest.param(
            lambda: models.cifar_resnet(8), [32, 16, 8], id="cifar_resnet"
        ),
        pytest.param(models.resnet18, [32, 16, 8, 4], id="resnet18"),
        pytest.param(models.resnet50, [56, 28, 14, 7], id="resnet50"),
    ],
)
def test_stages_halve_the_image(build, stages):
    model = build()
    for stage, side in enumerate(stages, 1):
        layer = model.get_layer(f"stage{stage}_block1_relu")
        assert layer.output.shape[1:3] == (side, side)


def test_resnet50_strides_in_the_middle_of_a_block():
    model = models.resnet50((64, 64, 3), num_classes=4)
    strides = [
        model.get_layer(f"stage2_block1_conv{i}").strides[0] for i in (1, 2, 3)
    ]
    assert strides == [1, 2, 1]
    assert model(images_like(model, 1)).shape == (1, 4)


def test_a_block_adds_its_input():
    model = models.cifar_resnet(8)
    # With the last normalisation of the block at zero, only the shortcut and
    # the ReLU are left.
    model.get_layer("stage1_block1_norm2").gamma.assign(np.zeros(16))
    probe = keras.Model(
        model.input,
        [
            model.get_layer("stem_relu").output,
            model.get_layer("stage1_block1_relu").output,
        ],
    )
    before, after = probe(images_like(model))
    np.testing.assert_array_equal(before, after)


def test_normalisation_is_the_first_layer(resnet20):
    layer = resnet20.layers[1]
    images = images_like(resnet20)
    expected = (images - np.array(CIFAR10_MEAN)) / np.array(CIFAR10_STD)
    np.testing.assert_allclose(layer(images), expected, atol=2e-6)


@pytest.mark.parametrize("name", ["float32", "mixed_bfloat16"])
def test_lenets_relu_may_follow_the_pool(name, policy):
    """Values and gradients of the textbook's order, to the bit."""
    policy(name)
    model = models.lenet()
    layers = [
        keras.layers.Conv2D(20, 5, activation="relu"),
        keras.layers.MaxPooling2D(),
        keras.layers.Conv2D(50, 5, activation="relu"),
        keras.layers.MaxPooling2D(),
        keras.layers.Flatten(),
        keras.layers.Dense(500, activation="relu"),
        keras.layers.Dense(10, dtype="float32"),
    ]
    textbook = keras.Sequential([keras.Input((28, 28, 1)), *layers])
    textbook.set_weights(model.get_weights())
    images = tf.constant(images_like(model))

    @tf.function
    def values_and_gradients(network):
        with tf.GradientTape() as tape:
            tape.watch(images)
            logits = network(images, training=True)
            loss = tf.reduce_sum(tf.nn.softmax(logits)[:, 3])
        weights = [weight.value for weight in network.trainable_variables]
        return [logits, *tape.gradient(loss, [images, *weights])]

    found = zip(*map(values_and_gradients, (model, textbook)), strict=True)
    for ours, theirs in found:
        assert np.abs(ours).max() > 0
        np.testing.assert_array_equal(ours, theirs)


def test_lenet_takes_images_as_they_are_unless_told():
    assert isinstance(models.lenet().layers[1], keras.layers.Conv2D)
    normalised = models.lenet(mean=[0.5], std=[0.25])
    # (0.75 - 0.5) / 0.25 = 1.
    ones = normalised.layers[1](np.full([1, 28, 28, 1], 0.75, np.float32))
    np.testing.assert_array_equal(ones, np.ones([1, 28, 28, 1]))


def test_lenet_starts_from_pytorchs_default():
    keras.utils.set_random_seed(0)
    model = models.lenet()
    fans = [25, 25, 500, 500, 800, 800, 500, 500]
    for values, fan_in in zip(model.get_weights(), fans, strict=True):
        bound = fan_in**-0.5
        assert np.abs(values).max() <= bound
        uniform = scipy.stats.uniform(-bound, 2 * bound)
        assert scipy.stats.kstest(values.ravel(), uniform.cdf).pvalue > 1e-3


@pytest.mark.parametrize(
    ("layer", "fan_out"),
    [
        pytest.param("stem_conv", 9 * 16, id="stem"),
        pytest.param("stage3_block2_conv1", 9 * 64, id="block"),
        pytest.param("stage3_block1_short_conv", 64, id="shortcut"),
    ],
)
def test_cifar_resnet_starts_from_kaiming_fan_out(resnet20, layer, fan_out):
    values = resnet20.get_layer(layer).get_weights()[0].ravel()
    normal = scipy.stats.norm(0, (2 / fan_out) ** 0.5)
    assert scipy.stats.kstest(values, normal.cdf).pvalue > 1e-3


def test_resnet18_starts_from_pytorchs_default():
    keras.utils.set_random_seed(0)
    model = models.resnet18()
    values = model.get_layer("stage1_block1_conv1").get_weights()[0].ravel()
    bound = (9 * 64) ** -0.5
    uniform = scipy.stats.uniform(-bound, 2 * bound)
    assert scipy.stats.kstest(values, uniform.cdf).pvalue > 1e-3


def test_last_layer_starts_from_pytorchs_default(resnet20):
    for values in resnet20.get_layer("logits").get_weights():
        assert 0 < np.abs(values).max() <= 64**-0.5


def test_no_two_layers_start_alike(resnet20):
    first = resnet20.get_layer("stage1_block1_conv1").get_weights()[0]
    second = resnet20.get_layer("stage1_block1_conv2").get_weights()[0]
    assert not np.array_equal(first, second)


def test_batch_normalisation_has_pytorchs_constants(resnet20):
    kind = keras.layers.BatchNormalization
    found = [x for x in resnet20.layers if isinstance(x, kind)]
    assert len(found) == 21
    assert {(x.epsilon, x.momentum) for x in found} == {(1e-5, 0.9)}


def test_the_same_seed_gives_the_same_weights():
    weights = []
    for seed in (7, 7, 8):
        keras.utils.set_random_seed(seed)
        weights.append(models.lenet().get_weights())
    assert all(map(np.array_equal, weights[0], weights[1]))
    assert not any(map(np.array_equal, weights[0], weights[2]))


def test_models_survive_a_file(resnet20, tmp_path):
    resnet20.save(tmp_path / "model.keras")
    copy = keras.models.load_model(tmp_path / "model.keras")
    images = images_like(resnet20)
    np.testing.assert_array_equal(copy(images), resnet20(images))


def test_mixed_precision_ends_in_float32(policy):
    policy("mixed_bfloat16")
    model = models.cifar_resnet(8)
    probe = keras.Model(model.input, [x.output for x in model.layers[1:3]])
    normalised, features = probe(images_like(model))
    assert normalised.dtype == tf.float32
    assert features.dtype == tf.bfloat16
    assert model(images_like(model)).dtype == tf.float32


def test_float64_stays_float64(policy):
    policy("float64")
    model = models.lenet((16, 16, 1), mean=[0.0], std=[1.0])
    assert model(np.zeros([1, 16, 16, 1])).dtype == tf.float64


@pytest.mark.parametrize(
    ("name", "network", "shape", "classes"),
    [
        ("mnist", "lenet", (28, 28, 1), 10),
        ("fashion_mini", "lenet", (28, 28, 1), 10),
        ("mnist_corrupted/fog", "lenet", (28, 28, 1), 10),
        ("cifar10_corrupted/fog_3", "cifar_resnet8", (32, 32, 3), 10),
        ("cifar100", "cifar_resnet8", (32, 32, 3), 100),
        ("svhn_cropped", "cifar_resnet8", (32, 32, 3), 10),
        ("imagenet2012", "resnet50", (224, 224, 3), 1000),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_for_dataset_builds_the_papers_network(name, network, shape, classes):
    chosen = {"depth": 8} if network == "cifar_resnet8" else {}
    model = models.for_dataset(name, **chosen)
    assert model.name == network
    assert model.input_shape == (None, *shape)
    assert model.output_shape == (None, classes)


def test_for_dataset_goes_by_size_where_no_paper_does(tmp_path):
    arrays = {"images": np.zeros([3, 48, 48, 3]), "labels": np.arange(3)}
    np.savez(tmp_path / "mine.npz", **arrays)
    model = models.for_dataset("npz:mine.npz", tmp_path, depth=8)
    assert model.name == "cifar_resnet8"
    assert model.output_shape == (None, 3)
    assert not isinstance(model.layers[1], keras.layers.Rescaling)


def test_get_names_the_nearest():
    with pytest.raises(ValueError, match=r"Did you mean 'resnet18'\?"):
        models.get("resnet19")


@pytest.mark.parametrize(
    ("build", "words"),
    [
        pytest.param(
            lambda: models.cifar_resnet(21), "`depth` must be 6 n", id="depth"
        ),
        pytest.param(
            lambda: models.lenet((28, 28)), "`input_shape` must", id="rank"
        ),
        pytest.param(
            lambda: models.lenet((15, 28, 1)), "width >= 16", id="small"
        ),
        pytest.param(
            lambda: models.lenet(num_classes=1), "`num_classes`", id="classes"
        ),
        pytest.param(
            lambda: models.lenet(mean=[0.5]), "given together", id="alone"
        ),
        pytest.param(
            lambda: models.lenet(mean=[0.5] * 3, std=[1.0] * 3),
            "one finite number per channel",
            id="channels",
        ),
        pytest.param(
            lambda: models.lenet(mean=[0.5], std=[0.0]),
            "`std` must be > 0",
            id="std",
        ),
    ],
)
def test_bad_arguments_are_named(build, words):
    with pytest.raises(ValueError, match=words):
        build()
