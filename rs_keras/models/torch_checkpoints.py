"""The networks of the papers with the weights of a PyTorch checkpoint."""

import re
from collections.abc import Mapping
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import keras
import numpy as np

from rs_keras._checks import check_choice
from rs_keras.datasets.registry import REGISTRY
from rs_keras.models.lenet import lenet
from rs_keras.models.resnet import cifar_resnet
from rs_keras.models.resnet import resnet50
from rs_keras.models.torch_files import read_tensors
from rs_keras.models.torch_pickles import CheckpointError

State = dict[str, np.ndarray]

# Each with the (height, width) that its checkpoints are about.
ARCHITECTURES: dict[str, tuple[Any, tuple[int, int]]] = {
    "lenet": (lenet, (28, 28)),
    "cifar_resnet20": (partial(cifar_resnet, 20), (32, 32)),
    "cifar_resnet110": (partial(cifar_resnet, 110), (32, 32)),
    "resnet50": (resnet50, (224, 224)),
}

# Where checkpoints keep the state dict, if they hold more than it.
_STATE_DICTS = ("state_dict", "model_state_dict", "model", "net")

# What a normalisation layer in front of the network calls its values.
_MEANS = ("means", "mean")
_STDS = ("sds", "stds", "std")

# The layers of `models.lenet`, and of the residual networks, in PyTorch.
_LENET = {"conv1": "conv1", "conv2": "conv2", "dense": "fc1", "logits": "fc2"}
_LENET_MAPS = 50
_RESNET = {"stem_conv": "conv1", "stem_norm": "bn1", "logits": "fc"}
_IN_BLOCK = re.compile(r"stage(\d)_block(\d+)_(short_)?(conv|norm)(\d?)")
_INNER = {"conv": "conv", "norm": "bn"}
_SHORT = {"conv": "downsample.0", "norm": "downsample.1"}
# Other names of the same layers.
_SYNONYMS = {"linear": "fc", "shortcut": "downsample"}

# The variables of a layer, where PyTorch calls them otherwise.
_VARIABLES = {
    "kernel": "weight",
    "gamma": "weight",
    "beta": "bias",
    "moving_mean": "running_mean",
    "moving_variance": "running_var",
}


def from_torch_checkpoint(
    path: str | Path,
    arch: str | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    input_shape: Sequence[int] | None = None,
) -> keras.Model:
    """Builds a network with the weights of a PyTorch checkpoint.

    The file is read without PyTorch, and nothing in it is executed: anything
    but tensors and plain data is refused. It holds a state dict, alone or
    under `state_dict` as in Cohen et al.'s `{"arch", "state_dict", ...}`; its
    keys may begin with `module.` (DataParallel) and `1.` (behind a
    `NormalizeLayer` or an `InputCenterLayer`). Every key must be the
    network's, in its shape, and none may be missing, but for
    `num_batches_tracked`, which does nothing.

    Args:
        path: The file: .pt, .pth, .th, .tar, or .safetensors.
        arch: "lenet", "cifar_resnet20", "cifar_resnet110" or "resnet50"; None
            for what the file says. Shortcuts without parameters (option A of
            He et al.) are recognised.
        mean: Of each channel, which the training subtracted from pixels in
            [0, 1] and the file does not hold.
        std: Of each channel, > 0, by which it divided; 1 where only `mean` is
            given.
        input_shape: (height, width, channels); None for the network's usual
            one.

    Returns:
        A model from images in [0, 1] to logits, as `models.get(arch)` makes
        it, with the normalisation inside.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If the file is damaged or holds anything but tensors, if a
            key or a shape is not the network's, or if the network stands
            behind a normalisation whose values are neither given nor there.

    Example:

    >>> import json, struct
    >>> import numpy as np
    >>> from rs_keras import models
    >>> shapes = {"conv1": (20, 1, 5, 5), "conv2": (50, 20, 5, 5),
    ...           "fc1": (500, 800), "fc2": (10, 500)}
    >>> header, end = {}, 0
    >>> for name, shape in shapes.items():
    ...     for key, each in (("weight", shape), ("bias", shape[:1])):
    ...         first, end = end, end + 4 * int(np.prod(each))
    ...         header[f"{name}.{key}"] = {
    ...             "dtype": "F32", "shape": each, "data_offsets": [first, end]}
    >>> text = json.dumps(header).encode()
    >>> with open("lenet.safetensors", "wb") as file:
    ...     _ = file.write(struct.pack("<Q", len(text)) + text + bytes(end))
    >>> model = models.from_torch_checkpoint(
    ...     "lenet.safetensors", "lenet", mean=[0.1307], std=[0.3081])
    >>> model.name, model.output_shape
    ('lenet', (None, 10))

    References:
    - [Cohen et al., 2019](https://arxiv.org/abs/1902.02918), whose code
      writes this format
    """
    saved = read_tensors(path)
    if arch is None:
        arch = _arch_in(saved)
    check_choice("arch", arch, ARCHITECTURES)
    try:
        state, found = _network_state(_state_dict(saved))
        mean, std = _normalisation(state, found, mean, std)
        model = _build(state, arch, mean, std, input_shape)
        _assign(model, state, arch)
    except CheckpointError as error:
        raise CheckpointError(f"{path} is no {arch}: {error}") from error
    return model


def _arch_in(saved: Any) -> str:
    arch = saved.get("arch") if isinstance(saved, Mapping) else None
    if not isinstance(arch, str):
        raise ValueError(
            "`arch` must be given where the checkpoint does not tell: "
            f"{', '.join(ARCHITECTURES)}. Received: arch=None"
        )
    return arch


def _state_dict(saved: Any) -> State:
    """Returns the tensors by name."""
    if isinstance(saved, Mapping):
        for name in _STATE_DICTS:
            if isinstance(saved.get(name), Mapping):
                saved = saved[name]
                break
    named = isinstance(saved, Mapping) and all(
        isinstance(key, str) and isinstance(value, np.ndarray)
        for key, value in saved.items()
    )
    if not named or not saved:
        told = sorted(map(str, saved))[:5] if isinstance(saved, Mapping) else ""
        raise CheckpointError(
            "a checkpoint must be a state dict (tensors by name), or hold one "
            f"as `state_dict`. Received: {type(saved).__name__} {told}"
        )
    return dict(saved)


def _network_state(state: State) -> tuple[State, State | None]:
    """Takes the prefixes off, and the normalisation layer out.

    Returns:
        The network's tensors, and those of the layer in front of it: None
        where there is no such layer.
    """
    front: State | None = None
    while True:
        if all(key.startswith("module.") for key in state):
            state = {k.removeprefix("module."): v for k, v in state.items()}
        elif front is None and all(key[:2] in ("0.", "1.") for key in state):
            front = {k[2:]: v for k, v in state.items() if k[:2] == "0."}
            state = {k[2:]: v for k, v in state.items() if k[:2] == "1."}
        else:
            break
        if not state:
            raise CheckpointError("there are no tensors behind layer 0")
    named = {
        ".".join(_SYNONYMS.get(part, part) for part in key.split(".")): value
        for key, value in state.items()
        if key.rpartition(".")[2] != "num_batches_tracked"
    }
    counted = [key.rpartition(".")[2] for key in state]
    if len(named) != len(state) - counted.count("num_batches_tracked"):
        raise CheckpointError(
            "two keys are names of one tensor of the network, such as `fc` and "
            f"`linear`. Received: {', '.join(sorted(state))}"
        )
    return named, front


def _normalisation(
    state: State,
    front: State | None,
    mean: Sequence[float] | None,
    std: Sequence[float] | None,
) -> tuple[Any, Any]:
    """Returns mean and std: of the file, or as they are given."""
    values = {
        key.rpartition(".")[2]: np.ravel(value)
        for key, value in (front or {}).items()
    }
    unknown = sorted(set(values) - {*_MEANS, *_STDS})
    if unknown:
        raise CheckpointError(
            "layer 0, in front of the network, must be a normalisation. "
            f"Received: {unknown}"
        )
    own_mean = next((values[k] for k in _MEANS if k in values), None)
    own_std = next((values[k] for k in _STDS if k in values), None)
    if values and (mean is not None or std is not None):
        raise ValueError(
            "`mean` and `std` must be left out where the checkpoint holds "
            f"them. Received: mean={mean}, std={std}"
        )
    if not values and front is not None and mean is None and std is None:
        told = "; ".join(
            f"{name}: mean={list(REGISTRY[name].mean or ())}, "
            f"std={list(REGISTRY[name].std or ())}"
            for name in ("cifar10", "imagenet2012")
        )
        raise ValueError(
            "`mean` and `std` must be given: the network stands behind a "
            "normalisation layer (its keys begin with `1.`) whose values the "
            f"checkpoint does not hold. The papers' are, {told}; an "
            "InputCenterLayer has a mean alone"
        )
    centre: Any = own_mean if values else mean
    scale: Any = own_std if values else std
    if centre is None and scale is None:
        return None, None
    channels = state["conv1.weight"].shape[1] if "conv1.weight" in state else 1
    return (
        np.zeros(channels) if centre is None else centre,
        np.ones(channels) if scale is None else scale,
    )


def _build(
    state: State,
    arch: str,
    mean: Any,
    std: Any,
    input_shape: Sequence[int] | None,
) -> keras.Model:
    """Makes the network with the channels and classes of the tensors."""
    network, (height, width) = ARCHITECTURES[arch]
    last = "fc2.weight" if arch == "lenet" else "fc.weight"
    for key, rank in (("conv1.weight", 4), (last, 2)):
        if key not in state or state[key].ndim != rank:
            raise CheckpointError(
                f"{key} must be a tensor of rank {rank}. Received: "
                f"{state[key].shape if key in state else _few(state)}"
            )
    channels = state["conv1.weight"].shape[1]
    options: dict[str, Any] = {}
    if arch.startswith("cifar_resnet"):
        has_convolutions = any(".downsample." in key for key in state)
        options["shortcuts"] = "conv" if has_convolutions else "pad"
    return network(
        input_shape=input_shape or (height, width, channels),
        num_classes=len(state[last]),
        mean=mean,
        std=std,
        **options,
    )


def _assign(model: keras.Model, state: State, arch: str) -> None:
    """Gives each variable its tensor, or raises before any is changed."""
    values = {}
    for layer in model.layers:
        for variable in layer.weights:
            values[_key(layer.name, variable.name, arch)] = variable
    missing, unknown = set(values) - set(state), set(state) - set(values)
    if missing or unknown:
        raise CheckpointError(
            f"missing keys: {_few(missing)}; unexpected keys: {_few(unknown)}"
        )
    arrays = {
        key: _in_keras(key, state[key], tuple(variable.shape))
        for key, variable in values.items()
    }
    for key, variable in values.items():
        variable.assign(arrays[key])


def _key(layer: str, variable: str, arch: str) -> str:
    """Returns the name in PyTorch of a layer's variable."""
    known = _LENET if arch == "lenet" else _RESNET
    block = _IN_BLOCK.fullmatch(layer)
    if block:
        stage, number, short, kind, place = block.groups()
        inner = _SHORT[kind] if short else _INNER[kind] + place
        name = f"layer{stage}.{int(number) - 1}.{inner}"
    else:
        name = known[layer]
    return f"{name}.{_VARIABLES.get(variable, variable)}"


def _in_keras(
    key: str, tensor: np.ndarray, wanted: tuple[int, ...]
) -> np.ndarray:
    """Returns a tensor with its axes in Keras' order."""
    # Keras' order of axes, from PyTorch's: [out, in, height, width], [out, in]
    # and [channels].
    axes = {4: (2, 3, 1, 0), 2: (1, 0), 1: (0,)}[len(wanted)]
    expected = tuple(wanted[axes.index(axis)] for axis in range(len(wanted)))
    if tensor.shape != expected:
        raise CheckpointError(
            f"{key} must have shape {list(expected)}. "
            f"Received: {list(tensor.shape)}"
        )
    if tensor.dtype.kind != "f" or not np.isfinite(tensor).all():
        raise CheckpointError(
            f"{key} must hold finite floating-point numbers. Received: "
            f"dtype={tensor.dtype}"
        )
    tensor = tensor.astype(np.float32)
    if key == "fc1.weight":
        # Behind a Flatten: of [channels, height, width] in PyTorch, of
        # [height, width, channels] in Keras.
        maps = tensor.reshape([len(tensor), _LENET_MAPS, -1])
        return maps.transpose(2, 1, 0).reshape(wanted)
    return tensor.transpose(axes)


def _few(names: Any) -> str:
    names = sorted(names)
    rest = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return f"{', '.join(names[:5]) or 'none'}{rest}"
