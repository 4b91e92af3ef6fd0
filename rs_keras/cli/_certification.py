"""What the commands that certify share: flags, the certifier, the examples."""

import argparse
from collections.abc import Iterable
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from typing import Any

from rs_keras.cli import _client
from rs_keras.cli import _devices

if TYPE_CHECKING:
    import numpy as np
    import tensorflow as tf

    from rs_keras import Certifier

# What a command's model may be.
CHECKPOINT = (
    "a .keras file, the folder of a training run, a SavedModel, or "
    "pretrained:NAME (rs_keras.models.PRETRAINED)"
)
_IMAGES = (".png", ".jpg", ".jpeg", ".bmp", ".gif")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the flags that say what is certified, with which noise."""
    parser.add_argument(
        "data",
        metavar="DATA",
        help="a data set (mnist, cifar10, fashion_mini, npz:PATH, "
        "image_folder:PATH, ...) or an image file",
    )
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument(
        "--model",
        metavar="CHECKPOINT",
        help=CHECKPOINT,
    )
    source.add_argument(
        "--servers",
        metavar="HOST:PORT[,HOST:PORT...]",
        help="servers of an export, which share the draws; see `servers`",
    )
    _client.add_arguments(parser)
    parser.add_argument("--split", default="test", help="default: %(default)s")
    parser.add_argument("--data-dir", help="where tensorflow-datasets looks")
    parser.add_argument(
        "--skip",
        type=int,
        default=1,
        metavar="K",
        help="takes every K-th example (default: %(default)s)",
    )
    parser.add_argument(
        "--max-examples",
        type=int,
        metavar="N",
        help="stops after so many examples (default: all)",
    )
    parser.add_argument(
        "--seed",
        type=_seed,
        help="of the noise: a number, or `keyed` (follows from the image and "
        "the key in RS_KERAS_SEED_KEY; default: fresh entropy)",
    )
    add_certifier_arguments(parser)


def _seed(text: str) -> int | str:
    return text if text == "keyed" else int(text)


def root_of(seed: int | str | None) -> Any:
    """The seed of a whole run: the one given, or a fresh one."""
    from rs_keras.noise.draws import fresh_seeds

    return fresh_seeds(1)[0].tolist() if seed is None else seed


def add_sigma(parser: argparse.ArgumentParser) -> None:
    """Adds the noise's flag, of whatever takes a checkpoint."""
    parser.add_argument(
        "--sigma",
        type=float,
        help="of the noise, pixels in [0, 1] (default: that of the training)",
    )


def add_certifier_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of the certifier itself."""
    add_sigma(parser)
    parser.add_argument(
        "--alpha",
        type=float,
        default=1e-3,
        help="probability of error, an image (default: %(default)s)",
    )
    parser.add_argument(
        "--batch-size", type=int, help="noisy copies a pass (default: chosen)"
    )
    parser.add_argument(
        "--noise",
        default="float",
        help="float, or grid for exact noise on 8-bit images (default: "
        "%(default)s)",
    )
    parser.add_argument(
        "--dtype",
        help="float32, bfloat16 or float16, instead of the model's own; the "
        "answer is about the model so computed, and bfloat16 may be faster",
    )


def certifier_of(args: argparse.Namespace) -> Any:
    """Loads the model and wraps it as the flags say, or finds its servers."""
    if getattr(args, "servers", None) is not None:
        _check_unset(args)
        return _client.client_of(args, args.servers)
    from rs_keras import Certifier
    from rs_keras import distribution
    from rs_keras.classifiers.checkpoints import load_classifier
    from rs_keras.classifiers.checkpoints import trained_sigma

    strategy = _devices.local_strategy(
        getattr(args, "strategy", "one"), getattr(args, "replicas", None)
    )
    sigma = args.sigma
    if sigma is None:
        sigma = trained_sigma(args.model)
    if sigma is None:
        raise ValueError(
            f"--sigma must be given: {args.model} does not say which noise it "
            "was trained with"
        )
    with distribution.scope_of(strategy):
        model = load_classifier(args.model)
    return Certifier(
        model,
        sigma=sigma,
        batch_size=args.batch_size,
        strategy=strategy,
        noise=args.noise,
        dtype=args.dtype,
    )


def _check_unset(args: argparse.Namespace) -> None:
    """Refuses what an export has fixed."""
    for name in ("sigma", "batch_size", "dtype"):
        if getattr(args, name) is not None:
            raise ValueError(
                f"--{name.replace('_', '-')} must not be given with --servers: "
                f"the export says it. Received: {getattr(args, name)}"
            )
    if args.noise != "float":
        raise ValueError(
            "--noise must not be given with --servers: the export says it. "
            f"Received: {args.noise}"
        )


def is_image(data: str) -> bool:
    """Whether DATA is the name of an image file."""
    return Path(data).suffix.lower() in _IMAGES


def read_image(
    path: str, shape: tuple[int | None, ...] | None = None
) -> "np.ndarray":
    """Reads an image file: float32 [1, H, W, C] in [0, 1].

    Args:
        path: A PNG, JPEG, BMP or GIF file.
        shape: The (H, W, C) wanted, None for what may vary; one channel is
            read as grey.

    Raises:
        ValueError: If the file is no image, or of another size: it is not
            resized, because the radius would then be about another image.
    """
    import numpy as np
    from PIL import Image
    from PIL import UnidentifiedImageError

    from rs_keras._checks import fits

    mode = "L" if shape is not None and shape[-1] == 1 else "RGB"
    try:
        with Image.open(path) as picture:
            pixels = np.asarray(picture.convert(mode), np.float32) / 255
    except UnidentifiedImageError as error:
        raise ValueError(f"not an image: {path}") from error
    pixels = pixels.reshape(*pixels.shape[:2], -1)
    if shape is not None and not fits(pixels.shape, shape):
        wanted = " x ".join(map(_size, shape[1::-1]))
        raise ValueError(
            f"{path} must be {wanted} pixels for this model. "
            f"Received: {pixels.shape[1]} x {pixels.shape[0]}"
        )
    return pixels[None]


def examples_of(
    args: argparse.Namespace, certifier: "Certifier"
) -> "Iterator[tuple[int, np.ndarray, int]]":
    """Returns (idx, image [1, H, W, C], label) as the flags select them.

    The label of an image file is not known: -1.
    """
    from rs_keras.classifiers.adapters import image_shape
    from rs_keras.logs.evaluation import selected

    if is_image(args.data):
        shape = image_shape(certifier.model)
        return iter([(0, read_image(args.data, shape), -1)])
    data = data_set_of(args, certifier)
    return selected(data, args.skip, args.max_examples)


def data_set_of(args: argparse.Namespace, certifier: Any) -> "tf.data.Dataset":
    """Loads DATA, if its images are of the shape that the model takes."""
    from rs_keras import datasets
    from rs_keras.classifiers.adapters import image_shape

    data = datasets.load(args.data, split=args.split, data_dir=args.data_dir)
    found = data.element_spec[0].shape
    wanted = image_shape(certifier.model)
    if wanted is not None and not found.is_compatible_with(wanted):
        raise ValueError(
            "`DATA` must have images of the model's shape: the model takes "
            f"{_sizes(wanted)} images; {args.data} has {_sizes(found)}"
        )
    return data


def _sizes(shape: Iterable[int | None]) -> str:
    return "x".join(map(_size, shape))


def _size(size: int | None) -> str:
    return "?" if size is None else str(size)
