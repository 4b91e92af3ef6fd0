"""Networks with the weights of PyTorch checkpoints answer as they did there."""

import keras
import numpy as np
import pytest
from kits import torch_networks as kit

from rs_keras import datasets
from rs_keras import models
from rs_keras.cli import main
from rs_keras.models import torch_checkpoints

MEAN, STD = [0.5, 0.4, 0.3], [0.2, 0.25, 0.5]
SIZES = {"lenet": (28, 28, 1), "resnet50": (32, 32, 3)}
# Architecture, and how its file names and has things.
CASES = {
    "lenet": ("lenet", {}),
    "conv": ("cifar_resnet20", {}),
    "option A": (
        "cifar_resnet20",
        {"shortcut": None, "last": "linear", "tracked": False},
    ),
    "shortcut": ("cifar_resnet20", {"shortcut": "shortcut"}),
    "resnet110": ("cifar_resnet110", {}),
    "resnet50": ("resnet50", {"tracked": False}),
}


def pictures(arch, count=3):
    shape = SIZES.get(arch, (8, 8, 3))
    random = np.random.default_rng(4)
    return random.uniform(size=(count, *shape)).astype("float32")


def close(found, wanted):
    """To 1e-5 of the largest logit."""
    scale = np.abs(wanted).max()
    np.testing.assert_allclose(found / scale, wanted / scale, atol=1e-5)


@pytest.mark.parametrize("case", CASES)
def test_logits_are_those_of_the_published_code(
    case, tmp_path, golden, monkeypatch
):
    arch, names = CASES[case]
    state = kit.random_state(arch, **names)
    path = tmp_path / "checkpoint.pt"
    if arch == "resnet50":  # 100 MB
        monkeypatch.setattr(
            torch_checkpoints, "read_tensors", lambda path: state
        )
    else:
        kit.write_state(path, state)
    images = pictures(arch)
    model = models.from_torch_checkpoint(
        path, arch, input_shape=images.shape[1:]
    )
    found = model.predict(images, verbose=0)
    first = images.transpose(0, 3, 1, 2)
    close(found, kit.logits_of(arch, state, first))
    # PyTorch's own, stored.
    close(found, golden("torch_checkpoints")[case.replace(" ", "_")])


@pytest.mark.parametrize("case", CASES)
def test_stored_logits_are_pytorchs(case, golden):
    torch = pytest.importorskip(
        "torch", reason="PyTorch is not installed, nor ever in the CI"
    )
    arch, names = CASES[case]
    state = {
        name: torch.from_numpy(np.array(value))
        for name, value in kit.random_state(arch, **names).items()
    }
    first = torch.from_numpy(pictures(arch).transpose(0, 3, 1, 2).copy())
    logits = kit.logits_of(arch, state, first, kit.in_torch()).numpy()
    close(golden("torch_checkpoints")[case.replace(" ", "_")], logits)


def wrapped(**more):
    """Cohen et al.'s file: the state dict among other things."""

    def wrap(body):
        items = {
            "epoch": kit.number(90),
            "arch": kit.text("cifar_resnet20"),
            "state_dict": body,
            "optimizer": kit.of_dict({"state": b"}", "param_groups": b"]"}),
        }
        return kit.of_dict(items | more)

    return wrap


WRITTEN = {
    "parallel": ("module.", {}, {}),
    "behind a layer": ("1.", {}, {"mean": MEAN, "std": STD}),
    "inside parallel": ("module.1.", {}, {"mean": MEAN, "std": STD}),
    "parallel inside": ("1.module.", {}, {"mean": MEAN, "std": STD}),
    "centred": ("1.", {}, {"mean": MEAN}),
    "own values": ("1.", {"0.means": MEAN, "0.sds": STD}, {}),
    "own centre": ("module.1.", {"module.0.means": MEAN}, {}),
}


@pytest.mark.parametrize("case", WRITTEN)
def test_the_normalisation_in_front_of_a_network(case, tmp_path):
    prefix, values, given = WRITTEN[case]
    state = kit.random_state("cifar_resnet20")
    file = {prefix + name: value for name, value in state.items()}
    file |= {
        key: np.float32(value).reshape(3, 1, 1) for key, value in values.items()
    }
    kit.write_state(tmp_path / "c.pth", file, wrap=wrapped())
    images = pictures("cifar_resnet20", 1)
    model = models.from_torch_checkpoint(
        tmp_path / "c.pth", input_shape=(8, 8, 3), **given
    )
    mean = MEAN if given.get("mean") or "means" in str(values) else 0.0
    std = STD if given.get("std") or "sds" in str(values) else 1.0
    normal = (images - np.float32(mean)) / np.float32(std)
    first = normal.transpose(0, 3, 1, 2).astype("float32")
    close(
        model.predict(images, verbose=0),
        kit.logits_of("cifar_resnet20", state, first),
    )


def without(state, key):
    return {k: v for k, v in state.items() if k != key}


def with_(state, **values):
    return state | {
        k.replace("__", "."): np.float32(v) for k, v in values.items()
    }


WRONG = {
    "missing": (
        lambda s: without(s, "conv2.bias"),
        {},
        "missing keys: conv2.bias; unexpected keys: none",
    ),
    "more": (
        lambda s: with_(s, conv3__weight=[1.0]),
        {},
        "missing keys: none; unexpected keys: conv3.weight",
    ),
    "shape": (
        lambda s: with_(s, fc1__weight=np.ones([500, 801])),
        {},
        r"fc1.weight must have shape \[500, 800\]. Received: \[500, 801\]",
    ),
    "transposed": (
        lambda s: with_(s, conv1__weight=np.ones([20, 1, 5, 6])),
        {},
        "conv1.weight must have shape",
    ),
    "NaN": (
        lambda s: with_(s, fc2__bias=np.full([10], np.nan)),
        {},
        "fc2.bias must hold finite",
    ),
    "another network": (
        lambda s: s,
        {"arch": "cifar_resnet20"},
        "no cifar_resnet20: fc.weight must be a tensor of rank 2",
    ),
    "unknown network": (
        lambda s: s,
        {"arch": "lenet5"},
        "`arch` must be one of .* Did you mean 'lenet'",
    ),
    "no network": (lambda s: s, {"arch": None}, "`arch` must be given"),
    "no normalisation": (
        lambda s: {f"1.{k}": v for k, v in s.items()},
        {},
        "`mean` and `std` must be given.*cifar10: mean=.0.49",
    ),
    "both": (
        lambda s: (
            {"0.mean": np.float32([0.1])} | {f"1.{k}": v for k, v in s.items()}
        ),
        {"mean": [0.1]},
        "must be left out",
    ),
    "another layer": (
        lambda s: (
            {"0.conv.weight": np.float32([0.1])}
            | {f"1.{k}": v for k, v in s.items()}
        ),
        {},
        "layer 0, in front of the network, must be a normalisation",
    ),
    "two names": (
        lambda s: (
            {k.replace("fc2", "linear"): v for k, v in s.items()}
            | {k.replace("fc2", "fc"): v for k, v in s.items()}
        ),
        {},
        "c.pt is no lenet: two keys are names of one .* `fc` and `linear`",
    ),
    "three means": (
        lambda s: s,
        {"mean": MEAN},
        "one finite number per channel",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_checkpoint_must_be_the_networks(case, tmp_path):
    change, given, message = WRONG[case]
    state = change(kit.random_state("lenet"))
    kit.write_state(tmp_path / "c.pt", state)
    arguments = {"arch": "lenet"} | given
    with pytest.raises(ValueError, match=message):
        models.from_torch_checkpoint(tmp_path / "c.pt", **arguments)


def test_a_file_without_a_state_dict(tmp_path):
    kit.write_zip(tmp_path / "c.pt", kit.of_dict({"epoch": kit.number(3)}))
    with pytest.raises(ValueError, match=r"must be a state dict.*\['epoch'\]"):
        models.from_torch_checkpoint(tmp_path / "c.pt", "lenet")


def test_the_command_writes_a_model(tmp_path, capsys):
    kit.write_state(tmp_path / "c.pt", kit.random_state("lenet"))
    call = ["import", str(tmp_path / "c.pt"), "--arch", "lenet"]
    out = str(tmp_path / "model.keras")
    flags = ["--mean", "0.1307", "--std", "0.3081", "--out", out]
    assert main([*call, *flags]) == 0
    told = capsys.readouterr().out
    assert "28x28x1 in [0, 1], 10 classes, mean and std inside" in told
    model = keras.saving.load_model(out)
    images = pictures("lenet")
    direct = models.from_torch_checkpoint(
        tmp_path / "c.pt", "lenet", [0.1307], [0.3081]
    )
    np.testing.assert_array_equal(
        model.predict(images, verbose=0), direct.predict(images, verbose=0)
    )
    assert main([*call, "--out", str(tmp_path / "model.h5")]) == 2
    assert "`--out` must end in .keras" in capsys.readouterr().err
    call[1] = str(tmp_path / "none.pt")
    assert main([*call, *flags]) == 2
    assert "no such checkpoint" in capsys.readouterr().err


PUBLISHED = {
    "lenet_mnist.pt": ("lenet", "mnist", [0.1307], [0.3081], 0.985),
    "resnet20_cifar10.th": (
        "cifar_resnet20",
        "cifar10",
        [0.485, 0.456, 0.406],
        [0.229, 0.224, 0.225],
        0.90,
    ),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_checkpoints_are_as_right_as_published(name, shared):
    """99 % of MNIST, 91.7 % of CIFAR-10; here of every fifth image."""
    arch, data, mean, std, least = PUBLISHED[name]
    path = shared / "checkpoints" / name
    if not path.is_file():
        pytest.skip(f"{name} is not in {path.parent}")
    model = models.from_torch_checkpoint(path, arch, mean, std)
    try:
        images, labels = datasets.arrays(data, "test")
    except OSError as error:
        pytest.skip(f"{data} is not here: {error}")
    found = model.predict(images[::5], batch_size=250, verbose=0)
    assert np.mean(found.argmax(-1) == labels[::5]) >= least
