"""The certifier, the servers and the examples that a command's flags name."""

import argparse
from collections.abc import Iterable
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from rs_keras import Certifier
from rs_keras import datasets
from rs_keras import distribution
from rs_keras import serving
from rs_keras._checks import fits
from rs_keras.classifiers.adapters import class_count
from rs_keras.classifiers.adapters import image_shape
from rs_keras.classifiers.checkpoints import load_classifier
from rs_keras.classifiers.checkpoints import trained_sigma
from rs_keras.cli import _photographs
from rs_keras.cli._photographs import is_image as is_image
from rs_keras.datasets.photographs import Resize
from rs_keras.datasets.photographs import opened
from rs_keras.datasets.photographs import read_photograph
from rs_keras.logs.selection import selected
from rs_keras.noise.draws import fresh_seeds

# Flags that an export fixes, and their defaults.
_FIXED = {"sigma": None, "batch_size": None, "dtype": None, "noise": "float"}


def root_seed(seed: int | str | None) -> Any:
    """Returns the seed of a whole run: the given one, or a fresh one."""
    return fresh_seeds(1)[0].tolist() if seed is None else seed


def certifier_of(args: argparse.Namespace) -> Any:
    """Returns the certifier of --model, or the client of --servers."""
    if getattr(args, "servers", None) is None:
        name = getattr(args, "strategy", "one")
        strategy = _local_strategy(name, getattr(args, "replicas", None))
        options = {key: getattr(args, key) for key in _FIXED if key != "sigma"}
        return load_certifier(args.model, args.sigma, strategy, **options)
    for name, default in _FIXED.items():
        if (value := getattr(args, name)) != default:
            raise ValueError(
                f"--{name.replace('_', '-')} must not be given with --servers: "
                f"the export fixes it. Received: {value}"
            )
    return client_of(args, args.servers)


def load_certifier(
    checkpoint: str,
    sigma: float | None,
    strategy: tf.distribute.Strategy | None = None,
    **options: Any,
) -> Certifier:
    """Loads a checkpoint and smooths it, by default as it was trained."""
    if sigma is None:
        sigma = trained_sigma(checkpoint)
    if sigma is None:
        raise ValueError(
            f"--sigma must be given: {checkpoint} does not record which noise "
            "it was trained with"
        )
    with distribution.scope_of(strategy):
        model = load_classifier(checkpoint)
    return Certifier(model, sigma=sigma, strategy=strategy, **options)


def _local_strategy(
    name: str, replicas: int | None
) -> tf.distribute.Strategy | None:
    """Returns the strategy that spreads draws over this machine's devices.

    TensorFlow must not have been used before.
    """
    if name == "multi_worker":
        several = len(tf.config.list_logical_devices("GPU")) > 1
        name = "mirrored" if several else "one"
    return distribution.strategy_of(name, replicas=replicas)


def client_of(
    args: argparse.Namespace, servers: str
) -> "serving.CertificationClient":
    """Connects to servers as the flags say."""
    # gRPC is imported here, at the first use of a name of `serving`.
    files = (args.tls_ca, args.tls_cert, args.tls_key, args.tls_server_name)
    client = serving.CertificationClient(
        servers,
        args.model_name,
        version=args.model_version,
        timeout=args.timeout,
        tls=serving.ClientTLS(*files) if args.tls or any(files) else None,
        audit=args.audit,
        token=None if args.token_file is None else partial(_token, args),
    )
    if args.wait:
        client.wait_ready(args.wait)
    return client


def _token(args: argparse.Namespace) -> str:
    """Reads the token of a request: the file may be replaced meanwhile."""
    return Path(args.token_file).read_text(encoding="utf-8").strip()


def read_image(
    path: str,
    shape: tuple[int | None, ...] | None = None,
    resize: Resize | None = None,
) -> np.ndarray:
    """Reads an image file: float32 [1, H, W, C] in [0, 1].

    Args:
        path: A PNG, JPEG, BMP or GIF file.
        shape: The (H, W, C) wanted, None for what may vary; one channel is
            read as grey.
        resize: None does not resize, because the radius is about the image
            that the classifier gets.

    Raises:
        ValueError: If the file is not an image, or of another size.
    """
    if resize is not None:
        channels = 1 if shape is not None and shape[-1] == 1 else 3
        photograph = read_photograph(path, channels, resize)
        return _of_shape(path, photograph.astype(np.float32) / 255, shape)
    mode = "L" if shape is not None and shape[-1] == 1 else "RGB"
    with opened(path) as picture:
        pixels = np.asarray(picture.convert(mode), np.float32) / 255
    return _of_shape(path, pixels.reshape(*pixels.shape[:2], -1), shape)


def _of_shape(
    path: str, pixels: np.ndarray, shape: tuple[int | None, ...] | None
) -> np.ndarray:
    """Returns pixels as a batch, if the model takes images of their size."""
    if shape is not None and not fits(pixels.shape, shape):
        raise ValueError(
            f"{path} must be {_sizes(shape[1::-1], ' x ')} pixels for this "
            f"model (--resize H,W resizes it). Received: {pixels.shape[1]} x "
            f"{pixels.shape[0]}"
        )
    return pixels[None]


def examples_of(
    args: argparse.Namespace, certifier: Any
) -> Iterator[tuple[int, np.ndarray, int]]:
    """Returns (idx, image [1, H, W, C], label) as the flags select them.

    The label of an image file is not known: -1.
    """
    if is_image(args.data):
        shape = image_shape(certifier.model)
        image = read_image(args.data, shape, _photographs.resize_of(args))
        return iter([(0, image, -1)])
    data = dataset_of(args, certifier)
    return selected(data, args.skip, args.max_examples)


def dataset_of(args: argparse.Namespace, certifier: Any) -> tf.data.Dataset:
    """Loads DATA, if its images are of the shape that the model takes."""
    name = _photographs.data_name(args)
    data = datasets.load(name, split=args.split, data_dir=args.data_dir)
    _check_classes(name, args, certifier)
    shape = data.element_spec[0].shape
    wanted = image_shape(certifier.model)
    if wanted is not None and not shape.is_compatible_with(wanted):
        raise ValueError(
            "`DATA` must have images of the model's shape: the model takes "
            f"{_sizes(wanted)} images; {args.data} has {_sizes(shape)}"
        )
    return data


def _check_classes(name: str, args: argparse.Namespace, certifier: Any) -> None:
    """Refuses a folder whose classes are not those of the model's logits."""
    if not name.startswith("image_folder:"):
        return
    folders = datasets.info(name, args.data_dir).num_classes
    logits = class_count(certifier.model)
    if logits is not None and folders != logits:
        raise ValueError(
            "`DATA` must have a folder for each of the model's classes. "
            f"Received: {folders} folders in {args.data}, {logits} logits"
        )


def _sizes(shape: Iterable[int | None], sign: str = "x") -> str:
    return sign.join("?" if size is None else str(size) for size in shape)
