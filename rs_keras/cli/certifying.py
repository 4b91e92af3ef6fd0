"""What the commands that certify share: flags, the certifier, the examples."""

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from typing import Any

import numpy as np

if TYPE_CHECKING:
    from rs_keras import Certifier

_IMAGES = (".png", ".jpg", ".jpeg", ".bmp", ".gif")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the flags that say what is certified, with which noise."""
    parser.add_argument(
        "data",
        metavar="DATA",
        help="a data set (mnist, cifar10, fashion_mini, npz:PATH, "
        "image_folder:PATH, ...) or an image file",
    )
    parser.add_argument(
        "--model",
        required=True,
        metavar="CHECKPOINT",
        help="a .keras file, the folder of a training run, or a SavedModel",
    )
    parser.add_argument("--split", default="test", help="default: %(default)s")
    parser.add_argument("--data-dir", help="where tensorflow-datasets looks")
    parser.add_argument(
        "--skip",
        type=int,
        default=1,
        metavar="K",
        help="takes every K-th example (default: %(default)s)",
    )
    parser.add_argument("--max-examples", type=int, metavar="N")
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
    from rs_keras.noise import fresh_seeds

    return fresh_seeds(1)[0].tolist() if seed is None else seed


def seed_of(root: Any, idx: int) -> Any:
    """The seed of one example of a run."""
    from rs_keras.noise import fold_in

    return root if root == "keyed" else fold_in(root, idx)[None]


def add_certifier_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of the certifier itself."""
    parser.add_argument(
        "--sigma",
        type=float,
        help="of the noise, pixels in [0, 1] (default: that of the training)",
    )
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
        help="float, grid or grid-strict (default: %(default)s)",
    )
    parser.add_argument(
        "--dtype",
        help="bfloat16 computes faster; the answer is then about that model",
    )


def certifier_of(args: argparse.Namespace) -> "Certifier":
    """Loads the model and wraps it as the flags say."""
    from rs_keras import Certifier
    from rs_keras.checkpoints import load_classifier
    from rs_keras.checkpoints import trained_sigma

    sigma = args.sigma
    if sigma is None:
        sigma = trained_sigma(args.model)
    if sigma is None:
        raise ValueError(
            f"--sigma must be given: {args.model} does not say which noise it "
            "was trained with"
        )
    return Certifier(
        load_classifier(args.model),
        sigma=sigma,
        batch_size=args.batch_size,
        noise=args.noise,
        dtype=args.dtype,
    )


def is_image(data: str) -> bool:
    """Whether DATA is the name of an image file."""
    return Path(data).suffix.lower() in _IMAGES


def read_image(path: str, shape: tuple[int, ...] | None = None) -> np.ndarray:
    """Reads an image file: float32 [1, H, W, C] in [0, 1].

    Args:
        path: A PNG, JPEG, BMP or GIF file.
        shape: The (H, W, C) wanted; one channel is read as grey.

    Raises:
        ValueError: If the file is no image, or of another size: it is not
            resized, because the radius would then be about another image.
    """
    from PIL import Image
    from PIL import UnidentifiedImageError

    mode = "L" if shape is not None and shape[-1] == 1 else "RGB"
    try:
        with Image.open(path) as picture:
            pixels = np.asarray(picture.convert(mode), np.float32) / 255
    except UnidentifiedImageError as error:
        raise ValueError(f"not an image: {path}") from error
    pixels = pixels.reshape(*pixels.shape[:2], -1)
    if shape is not None and pixels.shape != tuple(shape):
        raise ValueError(
            f"{path} must be {shape[1]} x {shape[0]} pixels for this model. "
            f"Received: {pixels.shape[1]} x {pixels.shape[0]}"
        )
    return pixels[None]


def image_shape(model: Any) -> tuple[int, ...] | None:
    """The (H, W, C) that a model takes, where it tells."""
    shape = getattr(model, "input_shape", None)
    if isinstance(shape, tuple) and len(shape) == 4 and None not in shape[1:]:
        return tuple(shape[1:])
    return None


def examples_of(
    args: argparse.Namespace, certifier: "Certifier"
) -> Iterator[tuple[int, np.ndarray, int]]:
    """Yields (idx, image [1, H, W, C], label) as the flags select them.

    The label of an image file is not known: -1.
    """
    if is_image(args.data):
        shape = image_shape(certifier.model)
        yield 0, read_image(args.data, shape), -1
        return
    from rs_keras import datasets
    from rs_keras.evaluation import selected

    data = datasets.load(args.data, split=args.split, data_dir=args.data_dir)
    yield from selected(data, args.skip, args.max_examples)
